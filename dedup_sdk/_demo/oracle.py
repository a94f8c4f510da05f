"""The oracle: counts lost and doubled flights, and compares key stores.

It counts from the topic's records and the workers' files alone, and uses no key store and no verdict. A
plain consumer reads the topic; the workers write a file, one line for each call of their handler.

run
    one life of one worker process, from its start to its end (orderly or by SIGKILL); each has a file of
    its own.
doubled bound
    the most flights that the SIGKILL may double: those that the killed run had handled and the group had
    not yet committed, at most `IMPLICIT_BATCH_RECORDS`. Its successor finds the store on the same disk, so
    that only the last batch of implicitly completed records may be handled again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import Consumer

from dedup_sdk._demo import DemoError
from dedup_sdk._demo.flights import ID_HEADER
from dedup_sdk._marks import Marks, select_marks
from dedup_sdk._store.fingerprint import fingerprint
from dedup_sdk._store.manifest import read_manifest
from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.read_only import read_partition
from dedup_sdk._store.snapshot import read_snapshot
from dedup_sdk._window import Window

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from confluent_kafka import Message


_TIMEOUT_S = 10.0
_BATCH_RECORDS = 1_000


class Topic:
    """One topic of the demo's broker; ``with`` it, because it holds two clients.

    Args:
        bootstrap: ``host:port``.
        name: the topic's name.
        group: the group of the workers.
        partitions: the topic's number of partitions.
    """

    def __init__(self, bootstrap: str, name: str, *, group: str, partitions: int) -> None:
        self.name = name
        self.group = group
        self.partitions = range(partitions)
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{group}-oracle",
                "enable.auto.commit": False,
                "enable.partition.eof": False,
                "fetch.queue.backoff.ms": 1,
                "log_level": 0,
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def ends(self) -> dict[int, int]:
        """By partition: the offset that the next record will get."""
        return {partition: self._end(partition) for partition in self.partitions}

    def _end(self, partition: int) -> int:
        return self._consumer.get_watermark_offsets(TopicPartition(self.name, partition), _TIMEOUT_S)[1]

    def committed(self) -> dict[int, int]:
        """By partition: the offset that the group has committed (the next one to read); 0 where it has not yet."""
        partitions = [TopicPartition(self.name, partition) for partition in self.partitions]
        asked = ConsumerGroupTopicPartitions(self.group, partitions)
        try:
            answer = self._admin.list_consumer_group_offsets([asked])[self.group].result(_TIMEOUT_S)
        except KafkaException as error:
            raise DemoError(f"the committed offsets of group {self.group} cannot be read: {error}") from None
        return {each.partition: max(each.offset, 0) for each in answer.topic_partitions or ()}

    def count_ids(self, ends: dict[int, int]) -> Counter[str]:
        """Read the topic from its beginning to ``ends`` (as `ends` gives them) and count the records of each dedup ID.

        Raises:
            DemoError: records are missing, or bear no ID.
        """
        counts: Counter[str] = Counter()
        wanted = sum(ends.values())
        self._consumer.assign([TopicPartition(self.name, partition, 0) for partition in ends])
        while (missing := wanted - counts.total()) > 0:
            messages = self._consumer.consume(min(missing, _BATCH_RECORDS), _TIMEOUT_S)
            if not messages:
                raise DemoError(
                    f"topic {self.name} should hold {wanted} records; {missing} could not be read"
                )
            counts.update(self._ids(messages))
        self._consumer.unassign()
        return counts

    def _ids(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            if message.error() is not None:
                raise DemoError(f"topic {self.name} cannot be read: {message.error()}")
            yield dedup_id_of(message)


def dedup_id_of(message: Message) -> str:
    """Return the dedup ID in a record's header.

    Raises:
        DemoError: it has none; the demo sends every record with one.
    """
    value = dict(message.headers() or ()).get(ID_HEADER)
    if isinstance(value, bytes):
        return value.decode()
    raise DemoError(
        f"the record at {message.topic()}[{message.partition()}]@{message.offset()} has no {ID_HEADER}"
    )


IMPLICIT_BATCH_RECORDS = 1_000
"""The most records that a consumer completes implicitly in one durable step (or 100 ms, whichever comes first)."""


class Handled(NamedTuple):
    """One call of a worker's handler: the record's coordinates and its dedup ID."""

    partition: int
    offset: int
    dedup_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The oracle's counts.

    ``doubled`` are the calls of a handler beyond the first for their ID. ``unexplained`` are doubled calls
    that the SIGKILL does not
    excuse: the killed run had not handled their ID, or the group had committed it.
    """

    records: int
    distinct_ids: int
    handled: int
    lost: int
    doubled: int
    doubled_bound: int
    unexplained: int

    @property
    def duplicates_in_topic(self) -> int:
        """Records beyond the first of their ID."""
        return self.records - self.distinct_ids


def judge(
    topic: Mapping[str, int],
    runs: Iterable[Iterable[Handled]],
    *,
    killed: Iterable[Handled] = (),
    committed: Mapping[int, int] | None = None,
) -> Judgement:
    """Compare the handled messages with the records in the topic.

    Args:
        topic: the number of records of each dedup ID.
        runs: the handled messages of each run, the killed one included.
        killed: the handled messages of the killed run.
        committed: by partition, the offset that the group had committed when that run was killed (the next
            one to read).
    """
    calls = Counter(each.dedup_id for run in runs for each in run)
    at_risk = {each.dedup_id for each in killed if each.offset >= (committed or {}).get(each.partition, 0)}
    doubled = {dedup_id: count - 1 for dedup_id, count in calls.items() if count > 1}
    return Judgement(
        records=sum(topic.values()),
        distinct_ids=len(topic),
        handled=calls.total(),
        lost=sum(1 for dedup_id in topic if dedup_id not in calls),
        doubled=sum(doubled.values()),
        doubled_bound=min(len(at_risk), IMPLICIT_BATCH_RECORDS),
        unexplained=sum(extra - (dedup_id in at_risk) for dedup_id, extra in doubled.items()),
    )


def read_handled(path: Path) -> list[Handled]:
    """Read a run's file: one line ``partition offset id`` a call; an incomplete last line does not count."""
    handled = []
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            if not line.endswith("\n"):
                break
            partition, offset, dedup_id = line[:-1].split(" ", 2)
            handled.append(Handled(int(partition), int(offset), dedup_id))
    return handled


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreComparison:
    """The number of marks in the rebuilt store, and the partitions whose marks differ from the workers' marks."""

    marks: int
    differing: tuple[int, ...]

    @property
    def equal(self) -> bool:
        """Whether both stores remember the same IDs, with the same offsets and timestamps."""
        return not self.differing


class LiveMarks(NamedTuple):
    """The number of a partition's marks inside the window, and the fingerprint of their digests, offsets and times."""

    marks: int
    fingerprint: str


def compare_stores(lived: Path, snapshot: Path, window: Window) -> StoreComparison:
    """Compare the live marks of the snapshot at its cut with those of the workers' stores.

    Args:
        lived: the store's folder that the workers of one group wrote for one topic.
        snapshot: the folder of the backfill.
        window: the window of both.

    Raises:
        SnapshotError: the snapshot cannot be read.
        StoreError: the store cannot be read.
    """
    old, new = _worker_marks(lived, window), _rebuilt_marks(snapshot, window)
    return StoreComparison(
        marks=sum(each.marks for each in new.values()),
        differing=tuple(
            sorted(number for number in old.keys() | new.keys() if old.get(number) != new.get(number))
        ),
    )


def _worker_marks(store: Path, window: Window) -> dict[int, LiveMarks]:
    found = {}
    for entry in list_partitions(store):
        with read_partition(entry.path) as opened:
            if opened.progress is not None:
                found[entry.partition] = _live_marks(
                    opened.scan_all(), opened.progress.known.newest_ms, window
                )
    return found


def _rebuilt_marks(snapshot: Path, window: Window) -> dict[int, LiveMarks]:
    entries = read_manifest(snapshot).partitions
    return {
        entry.partition: _live_marks(read_snapshot(snapshot, entry), entry.known.newest_ms, window)
        for entry in entries
    }


def _live_marks(pages: Iterable[Marks], newest_ms: int, window: Window) -> LiveMarks:
    """Select the marks inside the window, measured back from the partition's newest record."""
    inside = [_inside(page, newest_ms, window) for page in pages]
    return LiveMarks(sum(page.count for page in inside), fingerprint(inside))


def _inside(page: Marks, newest_ms: int, window: Window) -> Marks:
    if window.time_ms is None:
        return page
    inside = newest_ms - page.timestamps <= window.time_ms
    return select_marks(page, np.flatnonzero(inside))
