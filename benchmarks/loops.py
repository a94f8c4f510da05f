"""The loops that are compared. None looks into its records: reading and remembering alone are measured.

A loop reads until it has all that must come, then commits and stops the watch. It asks for no more than is still to
come, because librdkafka's ``consume()`` waits for its whole timeout when it cannot fill a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from confluent_kafka import KafkaError, KafkaException, Message

from benchmarks.workload import HEADER

if TYPE_CHECKING:
    from benchmarks.measure import Reading, Stopwatch

BATCH_RECORDS = 1000
COMMIT_RECORDS = 100_000

_WAIT_S = 1.0


class Reader(Protocol):
    """The methods of a ``confluent_kafka.Consumer`` that the loops use."""

    def consume(self, num_messages: int, timeout: float) -> list[Message]:
        """Read a batch."""

    def poll(self, timeout: float) -> Message | None:
        """Read one record."""

    def commit(self, *, asynchronous: bool) -> object:
        """Commit the records that were read."""


class Loop(Protocol):
    """Goes on until ``expected`` records have come, and returns the number handled and their cost."""

    def __call__(self, reader: Reader, expected: int, watch: Stopwatch) -> Reading:
        """Run to the end; raises `TimeoutError` when nothing comes any more."""


def bare_consume(reader: Reader, expected: int, watch: Stopwatch) -> Reading:
    """Batches of 1000, an asynchronous commit every 100,000 records."""
    handled = committed = 0
    while handled < expected:
        batch = reader.consume(min(BATCH_RECORDS, expected - handled), _WAIT_S)
        if not batch:
            watch.idle(handled, expected)
            continue
        if not handled:
            watch.start()
        handled += len(batch)
        if handled - committed >= COMMIT_RECORDS:
            reader.commit(asynchronous=True)
            committed = handled
    _commit(reader)
    return watch.stop(handled)


def bare_poll(reader: Reader, expected: int, watch: Stopwatch) -> Reading:
    """One record a call, an asynchronous commit every 100,000 records."""
    handled = 0
    while handled < expected:
        for _ in range(min(COMMIT_RECORDS, expected - handled)):
            if reader.poll(_WAIT_S) is None:
                watch.idle(handled, expected)
                continue
            if not handled:
                watch.start()
            handled += 1
        reader.commit(asynchronous=True)
    _commit(reader)
    return watch.stop(handled)


def memory_set(reader: Reader, expected: int, watch: Stopwatch) -> Reading:
    """`bare_consume`, and every ID in a Python set: nothing is durable, and nothing is ever forgotten.

    It reads ``expected`` records and handles the first sightings among them.
    """
    seen: set[str | bytes | None] = set()
    add = seen.add
    read = committed = 0
    while read < expected:
        batch = reader.consume(min(BATCH_RECORDS, expected - read), _WAIT_S)
        if not batch:
            watch.idle(read, expected)
            continue
        if not read:
            watch.start()
        read += len(batch)
        for message in batch:
            dedup_id = dict(message.headers() or ())[HEADER]
            if dedup_id not in seen:
                add(dedup_id)
        if read - committed >= COMMIT_RECORDS:
            reader.commit(asynchronous=True)
            committed = read
    _commit(reader)
    return watch.stop(len(seen))


def memory_set_poll(reader: Reader, expected: int, watch: Stopwatch) -> Reading:
    """`bare_poll`, and every ID in a Python set: the least that a loop by `poll` pays for knowing its IDs."""
    seen: set[str | bytes | None] = set()
    add = seen.add
    read = 0
    while read < expected:
        for _ in range(min(COMMIT_RECORDS, expected - read)):
            message = reader.poll(_WAIT_S)
            if message is None:
                watch.idle(read, expected)
                continue
            if not read:
                watch.start()
            read += 1
            dedup_id = dict(message.headers() or ())[HEADER]
            if dedup_id not in seen:
                add(dedup_id)
        reader.commit(asynchronous=True)
    _commit(reader)
    return watch.stop(len(seen))


def dedup_consume(reader: Reader, expected: int, watch: Stopwatch) -> Reading:
    """The consumer of this package by batches of 1000: it commits by itself, and asking for more completes a batch."""
    handled = 0
    while handled < expected:
        batch = reader.consume(min(BATCH_RECORDS, expected - handled), _WAIT_S)
        if not batch:
            watch.idle(handled, expected)
            continue
        if not handled:
            watch.start()
        handled += len(batch)
    _complete(reader)
    return watch.stop(handled)


def dedup_poll(reader: Reader, expected: int, watch: Stopwatch) -> Reading:
    """The consumer of this package, one record a call."""
    handled = 0
    while handled < expected:
        if reader.poll(_WAIT_S) is None:
            watch.idle(handled, expected)
            continue
        if not handled:
            watch.start()
        handled += 1
    _complete(reader)
    return watch.stop(handled)


def _commit(reader: Reader) -> None:
    try:
        reader.commit(asynchronous=False)
    except KafkaException as error:
        # An asynchronous commit may have taken everything already.
        if error.args[0].code() != KafkaError._NO_OFFSET:  # noqa: SLF001 (librdkafka's name of the code)
            raise


def _complete(reader: Reader) -> None:
    extra = reader.poll(0)
    if extra is not None:
        raise AssertionError(
            f"more was handled than has first sightings: {extra.partition()}/{extra.offset()}"
        )
    _commit(reader)
