"""Committed offsets: only over a completed prefix, never back, always with metadata.

One asynchronous commit of a partition is under way at a time. While the coordinator is away the client keeps those that it is
given, and may send them after a later one, in the name of whatever generation the group has by then: the group would go back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk.kafka.assigned import OURS, Assigned, Beginning, State
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.metadata import done_part

logger = logging.getLogger("dedup_sdk")

Coordinates = tuple[str, int]
_TOO_LONG: Final = KafkaError.OFFSET_METADATA_TOO_LARGE


class Commits:
    """Commits of the partitions in ``assigned``."""

    def __init__(
        self, assigned: Mapping[Coordinates, Assigned], client: Client, *, only_hidden: bool = False
    ) -> None:
        self._assigned = assigned
        self._client = client
        self._only_hidden = only_hidden
        self.by_transactions = False
        """Whether a transaction may commit, of which nobody tells: a commit of hidden records could set the group back."""
        self._unanswered: set[Coordinates] = set()
        self._owed: dict[Coordinates, tuple[Assigned, TopicPartition]] = {}

    def completed(
        self, partitions: Iterable[Assigned], *, asynchronous: bool, until: float | None = None
    ) -> None:
        """Commit what is completed and was not asked for yet; raises `KafkaException` or `StoreError`.

        Where only the user commits these are the hidden records directly behind the committed offset: nobody else can commit them,
        and the lag would count them for ever.

        ``until``: when (monotonic seconds) nobody waits for the answer any more.
        """
        if self._only_hidden and self.by_transactions:
            return
        prefix = _hidden_prefix if self._only_hidden else _completed_prefix
        ready = [offset for offset in map(prefix, partitions) if offset is not None]
        due = [
            tp
            for tp in ready
            if self._says_more(tp, asynchronous=asynchronous)
            and not (asynchronous and (tp.topic, tp.partition) in self._unanswered)
        ]
        if due:
            self.exactly(due, asynchronous=asynchronous, until=until)

    def pay(self, *, asynchronous: bool = True, until: float | None = None) -> None:
        """Commit what had to wait for the answer to an earlier commit; raises `KafkaException`.

        Asynchronously what has that answer by now, else all of it.
        """
        ready = [c for c in self._owed if not (asynchronous and c in self._unanswered)]
        owed = [self._owed.pop(coordinates) for coordinates in ready]
        due = [
            tp
            for assigned, tp in owed
            if self._assigned.get((tp.topic, tp.partition)) is assigned
            and assigned.state in OURS
            and tp.offset > self._known(assigned, asynchronous)
        ]
        if due:
            self.exactly(due, asynchronous=asynchronous, until=until)

    def hand_on(self, before: Assigned, after: Assigned) -> None:
        """Have a partition that was moved owe what it owed before: as with the plain client, a seek takes no commit back."""
        coordinates = before.topic, before.partition
        held, owed = self._owed.get(coordinates, (None, None))
        if held is before and owed is not None:
            self._owed[coordinates] = after, owed

    def await_nothing(self) -> None:
        """Expect no answers any more: an interruption may have swallowed them."""
        self._unanswered.clear()

    def _says_more(self, tp: TopicPartition, *, asynchronous: bool) -> bool:
        """Whether the group does not know all of a commit yet: its offset, or what is completed above it."""
        assigned = self._assigned[tp.topic, tp.partition]
        known = self._known(assigned, asynchronous)
        return bool(
            tp.offset > known or (tp.offset == known and done_part(tp.metadata) != assigned.done_asked)
        )

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
        free = [each for each in partitions if (each.topic, each.partition) not in self._unanswered]
        asked = [(each, offset) for each in free if (offset := _completed_prefix(each)) is not None]
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
            if ends is not None:
                known = max(assigned.requested, assigned.held.lane.committed or 0)
                offset = assigned.commit_of(assigned.held, min(offset.offset, max(ends[coordinates], known)))
            ready.append(offset)
        return ready

    def note(self, offsets: Iterable[TopicPartition]) -> None:
        """Remember a commit that cannot be sent now, because the client is calling back; `pay` sends it."""
        for tp in offsets:
            coordinates = tp.topic, tp.partition
            assigned = self._assigned[coordinates]
            held, owed = self._owed.get(coordinates, (None, tp))
            self._owed[coordinates] = assigned, owed if held is assigned and owed.offset > tp.offset else tp

    def exactly(
        self, offsets: list[TopicPartition], *, asynchronous: bool, until: float | None = None
    ) -> list[TopicPartition] | None:
        """Commit these offsets, which carry metadata; None when the answer comes later.

        What is asked for asynchronously while an earlier commit of its partition is not answered is sent after that (`pay`).
        """
        if asynchronous:
            offsets = self._put_off(offsets)
            if not offsets:
                return None
            self._unanswered.update((tp.topic, tp.partition) for tp in offsets)
        for tp in offsets:
            assigned = self._assigned[tp.topic, tp.partition]
            assigned.requested = max(assigned.requested, tp.offset)
            assigned.done_asked = done_part(tp.metadata)
        try:
            if until is None:
                answer = self._client.commit(offsets, asynchronous=asynchronous)
            else:
                answer = self._client.commit_until(offsets, until)
        except KafkaException as error:
            self._note_refusal(offsets, asynchronous=asynchronous)
            if error.args[0].code() != _TOO_LONG or not (shorter := self._shortened(offsets)):
                raise
            return self.exactly(shorter, asynchronous=asynchronous, until=until)
        if answer is not None:
            self._note(None, answer)
            refused = [tp for tp in answer if tp.error is not None and tp.error.code() == _TOO_LONG]
            if shorter := self._shortened(refused):
                again = self.exactly(shorter, asynchronous=asynchronous, until=until) or []
                answer = [tp for tp in answer if tp not in refused] + again
        return answer

    def _put_off(self, offsets: list[TopicPartition]) -> list[TopicPartition]:
        """Note those whose partition waits for an answer, to be sent after it (`pay`); return the others."""
        ready = []
        for tp in offsets:
            coordinates = tp.topic, tp.partition
            if coordinates in self._unanswered:
                self._owed[coordinates] = self._assigned[coordinates], tp
            else:
                ready.append(tp)
        return ready

    def _note_refusal(self, offsets: list[TopicPartition], *, asynchronous: bool) -> None:
        for tp in offsets:
            self._assigned[tp.topic, tp.partition].requested = -1
            if asynchronous:
                self._unanswered.discard((tp.topic, tp.partition))

    def _shortened(self, refused: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return commits again that the broker refused for their size, without what is completed above them; none that had nothing of it."""
        again = []
        for tp in refused:
            assigned = self._assigned[tp.topic, tp.partition]
            if assigned.has_room_for_done and assigned.held is not None and done_part(tp.metadata):
                logger.warning(
                    "%s[%d]: the broker refused a text of %d characters beside its offset (offset.metadata.max.bytes): what is completed above "
                    "the offset is left out, and is handled again after a rebalance", tp.topic, tp.partition, len(tp.metadata or ""),
                )  # fmt: skip
                assigned.has_room_for_done = False
                again.append(assigned.commit_of(assigned.held, tp.offset))
        return again

    def answered(self, error: KafkaError | None, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Take note of the broker's answer to an asynchronous commit; return what is no beginning, which only we asked for."""
        answered = {(tp.topic, tp.partition) for tp in partitions}
        # An answer that names nobody could be anybody's: to wait for another one might be to wait for ever.
        self._unanswered = self._unanswered - answered if partitions else set()
        return self._note(error, partitions)

    def _note(self, error: KafkaError | None, partitions: list[TopicPartition]) -> list[TopicPartition]:
        others = [tp for tp in partitions if not self._is_beginning(tp)]
        for tp in partitions:
            assigned = self._assigned.get((tp.topic, tp.partition))
            if assigned is None:
                continue
            if error is not None or tp.error is not None:
                if _TOO_LONG in {each.code() for each in (error, tp.error) if each is not None}:
                    self._shortened([tp])
                assigned.requested = -1
                assigned.beginning = Beginning.TO_ASK
                logger.warning(
                    "%s[%d]: commit of %d failed: %s", tp.topic, tp.partition, tp.offset, error or tp.error
                )
                continue
            if not (assigned.is_placed and self._is_beginning(tp)):
                assigned.confirmed = tp.offset
            if assigned.held is not None and assigned.held.started and tp.offset <= assigned.held.lane.high:
                # Above that it is the late answer to a commit from before a seek.
                lane = assigned.held.lane
                if lane.committed is not None and tp.offset < lane.committed <= lane.high:
                    self._went_back(assigned, tp.offset, lane.committed)
                lane.note_committed(tp.offset)
                assigned.beginning = Beginning.KNOWN
        return others

    def _went_back(self, assigned: Assigned, offset: int, committed: int) -> None:
        """Have committed again what a commit from before it may have undone; the next one of what came since does it as well.

        As a rule only its answer was served late; which of the two the broker took last it does not say.
        """
        where = assigned.topic, assigned.partition
        logger.debug(
            "%s[%d]: answered that %d is committed after %d was: that is repeated", *where, offset, committed
        )
        if assigned.held is not None and assigned.requested <= committed:
            assigned.requested = -1
            again = assigned.commit_of(assigned.held, committed)
            self._owed.setdefault(where, (assigned, again))

    def _is_beginning(self, tp: TopicPartition) -> bool:
        assigned = self._assigned.get((tp.topic, tp.partition))
        return assigned is not None and assigned.state is State.RECOVERING


def _completed_prefix(assigned: Assigned) -> TopicPartition | None:
    """Return the contiguous completed prefix of a partition, with metadata, once the store has it."""
    if assigned.held is None or assigned.state not in OURS:
        return None
    # First the store, then the broker: what is committed has to be known after a crash.
    assigned.held.persist()
    return assigned.commit_of(assigned.held, assigned.held.lane.high)


def _hidden_prefix(assigned: Assigned) -> TopicPartition | None:
    """Return the end of the hidden records directly behind the committed offset, with metadata; None where there are none."""
    start, held, confirmed = assigned.start, assigned.held, assigned.confirmed
    # Before a start that is not committed lies what the user jumped over. In observe mode the application sees every record.
    if start is None or held is None or start.offset > confirmed or held.lane.reveals:
        return None
    handled = held.handled_since(confirmed)
    if held.lane.high <= confirmed or handled == confirmed:
        return None
    prefix = _completed_prefix(assigned)
    if prefix is None or handled is None or prefix.offset <= handled:
        return prefix
    return assigned.commit_of(held, handled)
