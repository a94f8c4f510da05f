"""From a batch of messages to the messages that the application is to see, in one pass."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from typing import Any, NamedTuple

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.engine.partition import Partition
from dedup_sdk.ids import Ids
from dedup_sdk.kafka.assigned import State
from dedup_sdk.kafka.fields import MessageFields, coordinates_of, offsets_of, timestamps_ms
from dedup_sdk.kafka.session import Session
from dedup_sdk.lane.chunk import OFFERED, Chunk


class Held(NamedTuple):
    """A chunk and the partition that it belongs to."""

    partition: Partition
    chunk: Chunk


class Judged(NamedTuple):
    """What became of a batch: the messages to deliver, in the batch's order, and the chunks they are in."""

    messages: list[Any]
    chunks: list[Held]


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the cyclic garbage collector out of a batch: it would walk a thousand live messages, several times.

    The user's own setting is restored.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Judge:
    """Judges batches of messages; ``observing`` hides nothing."""

    def __init__(self, engine: Deduplicator, session: Session, *, observing: bool) -> None:
        self._engine = engine
        self._session = session
        self._observing = observing
        self._spec = engine.strategy.id
        self._discard = engine.strategy.on_missing_id == "discard"

    def judge(self, batch: list[Any]) -> Judged:
        """Judge messages without errors. Those of partitions that do not deliver are dropped: they come again.

        Raises `MissingIdError`, with nothing admitted, where the strategy says so.
        """
        with collector_paused():
            ids = self._spec.digests(MessageFields(batch))
            stamps = timestamps_ms(batch)
            offsets = offsets_of(batch)
            runs = _runs(batch)
            if ids.missing:
                for (topic, partition), rows in runs.items():
                    self._refuse(ids, topic, partition, offsets, rows)
            if len(runs) == 1:
                ((topic, partition),) = runs
                held = self._held(topic, partition)
                if held is None:
                    return Judged([], [])
                chunks = held.admit(offsets, stamps, ids, batch, discard_unkeyed=self._discard)
                return Judged(self._deliver(batch, chunks), [Held(held, chunk) for chunk in chunks])
            return self._judge_runs(batch, runs, offsets, stamps, ids)

    def _judge_runs(
        self, batch: list[Any], runs: dict[tuple[str, int], list[int]], offsets: list[int], stamps: Any, ids: Ids
    ) -> Judged:
        mask = bytearray(len(batch))
        judged: list[Held] = []
        for (topic, partition), rows in runs.items():
            held = self._held(topic, partition)
            if held is None:
                continue
            missing = {at: ids.missing[row] for at, row in enumerate(rows) if row in ids.missing} if ids.missing else {}
            chunks = held.admit(
                [offsets[row] for row in rows], stamps[rows], Ids([ids.digests[row] for row in rows], missing),
                [batch[row] for row in rows], discard_unkeyed=self._discard,
            )  # fmt: skip
            at = 0
            for chunk in chunks:
                judged.append(Held(held, chunk))
                for row, state in zip(rows[at : at + len(chunk.states)], chunk.states, strict=True):
                    mask[row] = self._observing or state == OFFERED
                at += len(chunk.states)
        return Judged(batch if all(mask) else list(compress(batch, mask)), judged)

    def _deliver(self, batch: list[Any], chunks: Sequence[Chunk]) -> list[Any]:
        if self._observing or all(chunk.states.count(OFFERED) == len(chunk.states) for chunk in chunks):
            return batch
        states = b"".join(chunk.states for chunk in chunks)
        return [message for message, state in zip(batch, states, strict=True) if state == OFFERED]

    def _held(self, topic: str, partition: int) -> Partition | None:
        assigned = self._session.assigned.get((topic, partition))
        return assigned.held if assigned is not None and assigned.state is State.ACTIVE else None

    def _refuse(self, ids: Ids, topic: str, partition: int, offsets: list[int], rows: list[int]) -> None:
        missing = {at: ids.missing[row] for at, row in enumerate(rows) if row in ids.missing}
        self._engine.refuse_missing(Ids([], missing), topic, partition, [offsets[row] for row in rows])


def _runs(batch: list[Any]) -> dict[tuple[str, int], list[int]]:
    """Return the rows of each partition, in order."""
    topics, partitions = coordinates_of(batch)
    if partitions.count(partitions[0]) == len(batch) and topics.count(topics[0]) == len(batch):
        return {(topics[0], partitions[0]): list(range(len(batch)))}
    runs: dict[tuple[str, int], list[int]] = {}
    for row, coordinates in enumerate(zip(topics, partitions, strict=True)):
        runs.setdefault(coordinates, []).append(row)
    return runs


