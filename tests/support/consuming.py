"""The common parts of the consumer's tests: how one is made, and its messages."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from dedup_sdk import DedupConsumer, Lookup, RocksStore, Window, header
from dedup_sdk._commit_text import CommitMetadata, parse_metadata, sealed
from dedup_sdk._rule_fingerprint import rule_digits
from dedup_sdk._store.protocol import DIGEST_NAME
from tests.support.disks import keeping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from dedup_sdk import PartitionStatus
    from dedup_sdk._store.protocol import KeyStore
    from dedup_sdk._strategy import Strategy

PATIENCE_S = 60.0
"""Seconds after which something that has to come is taken for lost."""
QUIET_S = 0.4
"""Seconds in which something that must not come would have come."""
DONE_S = 0.2
"""The same where all that lies in the log is completed: only a fetch that nobody needs could still bring something."""
SILENT_S = 4.0
"""The same where nobody can tell that the client has had all there is.

A log that ends in holes, a place that is not known yet.
"""
_LOOK_S = 0.1
_ANSWER_S = 1.0


def lookup(**settings: Any) -> Lookup:
    """A strategy by the header ``dedup-id`` and a window of a week."""
    return Lookup(**{"id": header("dedup-id"), "window": Window(days=7), **settings})


def make_consumer(
    bootstrap: str,
    group: str,
    store: str | Path | KeyStore,
    config: dict[str, Any] | None = None,
    *,
    recent_marks: int | None = None,
    **options: Any,
) -> DedupConsumer:
    """A consumer that begins at the beginning, says nothing to stderr, and commits by itself only when it is closed.

    ``recent_marks``: those of its store.

    A commit on a timer would race with a test that commits: with nothing left to commit, `commit` raises
    ``_NO_OFFSET``.
    """
    common = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 60_000,
        "log_level": 0,
    }
    if recent_marks is not None:
        store = keeping(recent_marks, RocksStore(store) if isinstance(store, str | Path) else store)
    return DedupConsumer({**common, **(config or {})}, **{"dedup": lookup(), "store": store, **options})


def numbers(first: int, end: int) -> list[str]:
    """Return the whole numbers from the first to before the end, as text."""
    return [str(number) for number in range(first, end)]


def values(messages: Iterable[Any]) -> list[str]:
    """The values of messages, as text; an error event stands as its name."""
    return [m.value().decode() if m.error() is None else m.error().name() for m in messages]


def poll_some(consumer: Any, count: int, *, patience_s: float = PATIENCE_S) -> list[Any]:
    """Poll until `count` messages came; fail when they do not."""
    got: list[Any] = []
    until = time.monotonic() + patience_s
    while len(got) < count:
        message = consumer.poll(0.2)
        if message is not None:
            got.append(message)
        assert time.monotonic() < until, f"{len(got)} of {count} came: {values(got)[:20]}"
    return got


def poll_quiet(consumer: Any, seconds: float = QUIET_S) -> list[Any]:
    """Poll until a partition is ours, read to its end, and nothing has come for some time; return the messages."""
    got: list[Any] = []
    silent_s, until = 0.0, time.monotonic() + PATIENCE_S
    while True:
        began = time.monotonic()
        message = consumer.poll(_LOOK_S)
        # Of a machine that stood still only the time that the client could use counts.
        silent_s += min(time.monotonic() - began, _LOOK_S)
        if message is not None:
            got.append(message)
        if message is not None or not _delivers(consumer):
            silent_s = 0.0
        elif (
            silent_s >= max(seconds, SILENT_S)
            or (silent_s >= seconds and _read_to_the_end(consumer))
            or (seconds == QUIET_S and silent_s >= DONE_S and _is_completed(consumer, _ANSWER_S))
        ):
            return got
        if message is not None:
            until = time.monotonic() + PATIENCE_S
        assert time.monotonic() < until, f"it does not come to rest: {values(got)[:20]}"


def poll_through(consumer: Any, topic: str) -> list[Any]:
    """Poll until every record that a topic has now is judged, and its messages have come.

    Its log has no holes.
    """
    ends = _ends(consumer, topic)
    got = wait_for(consumer, lambda: _judged(consumer) == ends, f"a look at all of {topic}, up to {ends}")
    return got + poll_quiet(consumer)


def run_through(consumer: Any, topic: str, handler: Callable[[Any], Any], **options: Any) -> None:
    """Have a consumer with an ``idle_timeout`` handle all that a topic has now; its log has no holes."""
    ends, judged, until = _ends(consumer, topic), False, time.monotonic() + PATIENCE_S
    # Once more than was needed: records judged at the very end of a silence have not been handed out.
    while not judged:
        judged = _judged(consumer) == ends
        consumer.run(handler, **options)
        assert time.monotonic() < until, f"of {topic}, up to {ends}, it read up to {_judged(consumer)}"


def _ends(consumer: Any, topic: str) -> dict[int, int]:
    """By partition of a topic, where its log ends now."""
    return {
        number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=PATIENCE_S)[1]
        for number in consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    }


def progress(consumer: DedupConsumer, topic: str = "orders", partition: int = 0) -> tuple[int | None, int]:
    """The offset up to which the records of a partition are judged, and how many of them are not completed."""
    status = _status(consumer, topic, partition)
    return (None, 0) if status is None else (status.position, status.in_flight)


def replayed(consumer: DedupConsumer, topic: str = "orders", partition: int = 0) -> int:
    """How many records the recovery of a partition has read again, by its status."""
    status = _status(consumer, topic, partition)
    assert status is not None, f"{topic}[{partition}] is not assigned"
    found = re.search(r"replayed (\d+) records?", status.detail)
    return 0 if found is None else int(found[1])


def _status(consumer: DedupConsumer, topic: str, partition: int) -> PartitionStatus | None:
    return next(
        (each for each in consumer.partition_statuses if (each.topic, each.partition) == (topic, partition)),
        None,
    )


def active(consumer: DedupConsumer) -> list[int]:
    """The partitions that deliver, by number."""
    return sorted(status.partition for status in consumer.partition_statuses if status.state == "active")


def _judged(consumer: Any) -> dict[int, int | None]:
    """By partition in hand, up to where its records are judged."""
    return {status.partition: status.position for status in consumer.partition_statuses}


def _delivers(consumer: Any) -> bool:
    """Whether the consumer has partitions, and none of them is still to begin."""
    statuses = consumer.partition_statuses
    return bool(statuses) and not any(map(_recovers, statuses))


def _recovers(status: PartitionStatus) -> bool:
    return status.state == "recovering" and "failed" not in status.hindrances


def _read_to_the_end(consumer: Any) -> bool:
    """Whether the client has had every record of each partition that it may read.

    Never so where a log ends in holes.
    """
    return all(
        {"paused", "backlog"} & {*status.hindrances} or _is_read(consumer, status)
        for status in consumer.partition_statuses
    )


def _is_read(consumer: Any, status: PartitionStatus) -> bool:
    at = TopicPartition(status.topic, status.partition)
    _, end = Consumer.get_watermark_offsets(consumer, at, cached=True)
    if end < 0 or max(Consumer.position(consumer, [at])[0].offset, status.position or 0) < end:
        return False
    try:
        # The client does not know records sent after the last answer yet.
        _, end = Consumer.get_watermark_offsets(consumer, at, timeout=_ANSWER_S)
    except KafkaException:
        return True
    return max(Consumer.position(consumer, [at])[0].offset, status.position or 0) >= end


def run_all(consumer: DedupConsumer, handler: Callable[[Any], object], **settings: Any) -> None:
    """Run until everything that lies in the consumer's partitions is completed, or until the run ends by itself."""
    with ending_with_the_log(consumer):
        consumer.run(handler, **settings)


def iterate_all(consumer: DedupConsumer) -> list[Any]:
    """Iterate until everything that lies in the consumer's partitions is completed; return the messages."""
    with ending_with_the_log(consumer):
        return list(consumer)


@contextmanager
def ending_with_the_log(consumer: Any) -> Iterator[None]:
    """Have a loop of the consumer's end, as by `stop`, when everything that lies in its partitions is completed."""
    poll = consumer.poll

    def poll_and_look(timeout: float) -> Any:
        message = poll(timeout)
        if message is None and _is_completed(consumer, PATIENCE_S):
            consumer.stop()
        return message

    consumer.poll = poll_and_look
    try:
        yield
    finally:
        del consumer.poll


def _is_completed(consumer: Any, answer_s: float) -> bool:
    if not _delivers(consumer):
        return False
    # First by the end that the client has heard of last: that asks no broker.
    for known in (True, False):
        for status in consumer.partition_statuses:
            at = TopicPartition(status.topic, status.partition)
            try:
                _, end = Consumer.get_watermark_offsets(consumer, at, timeout=answer_s, cached=known)
            except KafkaException:
                return False
            if (status.position or 0) < end or status.in_flight:
                return False
    return True


def wait_for(consumer: Any, condition: Callable[[], bool], what: str) -> list[Any]:
    """Poll until a condition holds; return the messages that came."""
    got: list[Any] = []
    until = time.monotonic() + PATIENCE_S
    while not condition():
        message = consumer.poll(0.05)
        if message is not None:
            got.append(message)
        assert time.monotonic() < until, f"waited in vain for: {what}; came: {values(got)[:20]}"
    return got


def committed(bootstrap: str, group: str, topic: str, partition: int = 0) -> TopicPartition:
    """The commit that a plain client of the group sees."""
    plain = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        return plain.committed([TopicPartition(topic, partition)], timeout=PATIENCE_S)[0]
    finally:
        plain.close()


def committed_metadata(bootstrap: str, group: str, topic: str, partition: int = 0) -> CommitMetadata | None:
    """The metadata beside a committed offset, as ours, without the fingerprint; None when it is not ours."""
    now = committed(bootstrap, group, topic, partition)
    metadata = parse_metadata(now.metadata, committed=now.offset)
    return None if metadata is None else replace(metadata, log="", rule=CommitMetadata(low=0).rule)


def rule_of(dedup: Strategy | None = None, topic: str = "orders", isolation: str = "read_committed") -> str:
    """The rule part of the fingerprint of a consumer's commits; without a strategy that of `lookup`."""
    strategy = lookup() if dedup is None else dedup
    return rule_digits(strategy.keys, strategy.window_of(topic), digest=DIGEST_NAME, isolation=isolation)


def commit_text(
    offset: int, *, dedup: Strategy | None = None, low: int = 0, complete: bool = True, **more: Any
) -> str:
    """The text of a commit of this offset by a consumer with this strategy (`lookup` without one), of any log."""
    return CommitMetadata(low=low, complete=complete, rule=rule_of(dedup), **more).text(offset)


def commit_plainly(
    bootstrap: str,
    group: str,
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    metadata: str = "",
    joining: Mapping[str, Any] | None = None,
) -> None:
    """Commit as a client that knows nothing of us: a reset tool, or a member with the settings ``joining``."""
    common = {"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0, "enable.auto.commit": False}
    plain = Consumer({**common, **(joining or {})})
    try:
        if joining is not None:
            plain.subscribe([topic])
            wait_for(plain, lambda: bool(plain.assignment()), "an assignment")
        text = sealed(metadata, group, topic, partition)
        plain.commit(offsets=[TopicPartition(topic, partition, offset, text)], asynchronous=False)
    finally:
        plain.close()
