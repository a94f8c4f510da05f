"""Committed offsets: only over a completed prefix, never back, always with metadata."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk.kafka.assigned import OURS, Assigned, Beginning, State
from dedup_sdk.kafka.client import Client

logger = logging.getLogger("dedup_sdk")

Coordinates = tuple[str, int]


class Commits:
    """Commits of the partitions in ``assigned``."""

    def __init__(self, assigned: Mapping[Coordinates, Assigned], client: Client) -> None:
        self._assigned = assigned
        self._client = client

    def completed(
        self, partitions: Iterable[Assigned], *, asynchronous: bool, until: float | None = None
    ) -> None:
        """Commit what is completed and was not asked for yet; raises `KafkaException` or `StoreError`.

        ``until``: when (monotonic seconds) nobody waits for the answer any more.
        """
        ready = [offset for offset in map(_completed_prefix, partitions) if offset is not None]
        due = [
            tp
            for tp in ready
            if tp.offset > self._known(self._assigned[tp.topic, tp.partition], asynchronous)
        ]
        if due:
            self.exactly(due, asynchronous=asynchronous, until=until)

    @staticmethod
    def _known(assigned: Assigned, asynchronous: bool) -> int:  # noqa: FBT001 (the plain client's word)
        """Return what need not be committed again: asked for, or, where the answer is waited for, acknowledged."""
        if asynchronous or assigned.held is None or assigned.held.lane.committed is None:
            return assigned.requested
        return min(assigned.requested, assigned.held.lane.committed)

    def beginnings(self, partitions: Iterable[Assigned]) -> None:
        """Ask for the commits that say where histories begin, also where nothing is completed yet.

        Until the broker has taken them a crash would make the group look new, and its store foreign to it.
        """
        asked = [(each, offset) for each in partitions if (offset := _completed_prefix(each)) is not None]
        if asked:
            for each, _ in asked:
                each.beginning = Beginning.ASKED
            try:
                self.exactly([offset for _, offset in asked], asynchronous=True)
            except KafkaException:
                for each, _ in asked:
                    each.beginning = Beginning.TO_ASK
                raise

    def below(self, ends: Mapping[Coordinates, int] | None, *, asynchronous: bool) -> list[TopicPartition]:
        """Return what a commit by the user sends: each partition's completed prefix, at most up to ``ends``.

        Without ``ends`` only what was not committed yet. Never less than what was asked for already: a group that went back
        would look rewound.
        """
        ready = []
        for coordinates, assigned in self._assigned.items():
            offset = _completed_prefix(assigned) if ends is None or coordinates in ends else None
            if offset is None or assigned.held is None:
                continue
            if ends is None and offset.offset <= self._known(assigned, asynchronous):
                continue
            if ends is not None and ends[coordinates] >= 0:
                known = max(assigned.requested, assigned.held.lane.committed or 0)
                offset.offset = min(offset.offset, max(ends[coordinates], known))
            ready.append(offset)
        return ready

    def exactly(
        self, offsets: list[TopicPartition], *, asynchronous: bool, until: float | None = None
    ) -> list[TopicPartition] | None:
        """Commit these offsets, which carry metadata; None when the answer comes later."""
        for tp in offsets:
            assigned = self._assigned[tp.topic, tp.partition]
            assigned.requested = max(assigned.requested, tp.offset)
        try:
            if until is None:
                answer = self._client.commit(offsets, asynchronous=asynchronous)
            else:
                answer = self._client.commit_until(offsets, until)
        except KafkaException:
            for tp in offsets:
                self._assigned[tp.topic, tp.partition].requested = -1
            raise
        if answer is not None:
            self.answered(None, answer)
        return answer

    def answered(self, error: KafkaError | None, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Take note of the broker's answer to a commit; return what is no beginning, which only we asked for."""
        others = [tp for tp in partitions if not self._is_beginning(tp)]
        for tp in partitions:
            assigned = self._assigned.get((tp.topic, tp.partition))
            if assigned is None:
                continue
            if error is not None or tp.error is not None:
                assigned.requested = -1
                assigned.beginning = Beginning.TO_ASK
                logger.warning(
                    "%s[%d]: commit of %d failed: %s", tp.topic, tp.partition, tp.offset, error or tp.error
                )
            elif assigned.held is not None and assigned.held.started and tp.offset <= assigned.held.lane.high:
                # Above that it is the late answer to a commit from before a seek.
                assigned.held.lane.note_committed(tp.offset)
                assigned.beginning = Beginning.KNOWN
        return others

    def _is_beginning(self, tp: TopicPartition) -> bool:
        assigned = self._assigned.get((tp.topic, tp.partition))
        return assigned is not None and assigned.state is State.RECOVERING


def _completed_prefix(assigned: Assigned) -> TopicPartition | None:
    """Return the contiguous completed prefix of a partition, with metadata, once the store has it."""
    if assigned.held is None or assigned.state not in OURS:
        return None
    # First the store, then the broker: what is committed has to be known after a crash.
    assigned.held.persist()
    lane = assigned.held.lane
    return TopicPartition(assigned.topic, assigned.partition, lane.high, str(assigned.metadata(lane)))
