"""Several partitions in one call, and a store that fails at one of them."""

from __future__ import annotations

import numpy as np
import pytest

from dedup_sdk import Deduplicator, Lookup, Record, Window
from dedup_sdk._engine.prefetch import looked_up
from dedup_sdk._marks import Found
from dedup_sdk._store.memory import MemoryPartition, MemoryStore
from dedup_sdk._store.protocol import Identity
from dedup_sdk.errors import ConfigurationError, StoreError, StoreLockedError
from dedup_sdk.ids import key
from tests.support.disks import keeping


def engine(store: MemoryStore) -> Deduplicator:
    """An engine with a window of a day."""
    return Deduplicator(Lookup(id=key(), window=Window(days=1)), keeping(10, store))


def records(*offsets: int) -> list[Record]:
    """A record at each of these offsets in both partitions, each with an ID of its own."""
    return [
        Record("t", partition, offset, 1_700_000_000_000, key=b"%d" % offset)
        for offset in offsets
        for partition in (0, 1)
    ]


def fail_at(partition: int, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Have a partition's store fail whenever it is called so."""
    original = getattr(MemoryPartition, call)

    def failing(self: MemoryPartition, *arguments: object) -> object:
        assert self._contents is not None
        if self._contents.identity.partition == partition:
            raise StoreError("the disk is gone")
        return original(self, *arguments)

    monkeypatch.setattr(MemoryPartition, call, failing)


def kinds(deduplicator: Deduplicator, batch: list[Record]) -> list[str]:
    """The verdicts on a batch."""
    return [verdict.kind.value for verdict in deduplicator.admit(batch)]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_look_up_that_fails_admits_nothing(monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """Whichever partition's store cannot be read, no record of either is in flight. The next try gets all verdicts."""
    deduplicator = engine(MemoryStore())
    kinds(deduplicator, records(0, 1))
    deduplicator.complete(records(0, 1))
    with monkeypatch.context() as broken:
        fail_at(failing, broken, "find")
        with pytest.raises(StoreError, match="the disk is gone"):
            deduplicator.admit(records(2, 3))
    assert [held.flight.in_flight for held in deduplicator.partitions.values()] == [0, 0]
    assert kinds(deduplicator, records(2, 3)) == ["fresh"] * 4


@pytest.mark.parametrize("partition", [0, 1])
@pytest.mark.parametrize(
    ("offset", "timestamp_ms"),
    [(2, None), (2, 2**63), (2, 1.5), (2, "0"), (2**63 - 1, 0), (2**63, 0), (-1, 0), (None, 0), (2.0, 0), ([2], 0)],
)  # fmt: skip
def test_a_record_that_is_none_admits_nothing(partition: int, offset: object, timestamp_ms: object) -> None:
    """An offset or a timestamp that no record has is refused by name, and the good records beside it come again."""
    deduplicator = engine(MemoryStore())
    kinds(deduplicator, records(0))
    deduplicator.complete(records(0))
    bad = Record("t", partition, offset, timestamp_ms, key=b"x")  # type: ignore[arg-type]
    for batch in ([*records(1), bad], [bad, *records(1)]):
        with pytest.raises(ConfigurationError, match=rf"t\[{partition}\]@.*(offset|timestamp_ms)="):
            deduplicator.admit(batch)
    assert [held.flight.in_flight for held in deduplicator.partitions.values()] == [0, 0]
    assert kinds(deduplicator, records(1)) == ["fresh"] * 2


def test_the_largest_numbers_are_numbers() -> None:
    """Also those that numpy makes, and none at all."""
    deduplicator = engine(MemoryStore())
    largest = Record("t", 0, 2**63 - 2, 2**63 - 1, key=b"a")
    numbers = Record("t", 1, np.uint64(3), np.int32(7), key=b"a")  # type: ignore[arg-type]
    assert kinds(deduplicator, [numbers, largest]) == ["fresh", "fresh"]
    assert kinds(deduplicator, []) == []
    deduplicator.complete([numbers, largest])
    assert kinds(deduplicator, [largest]) == ["redelivered"]


def test_a_partition_that_cannot_be_opened_admits_nothing() -> None:
    """A store that another consumer has open keeps the records of the other partition out too."""
    store = MemoryStore()
    other = store.open(Identity(cluster="", group="", topic="t", partition=1, id_spec="key"), Window(days=1))
    deduplicator = engine(store)
    with pytest.raises(StoreLockedError):
        deduplicator.admit(records(5, 6))
    other.close()
    assert kinds(deduplicator, records(5, 6)) == ["fresh"] * 4


def test_a_write_that_fails_after_judging_is_told_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts that are known are given.

    That duplicates could not be written is raised before anything else is admitted.
    """
    deduplicator = engine(MemoryStore())
    kinds(deduplicator, records(0, 1))
    deduplicator.complete(records(0, 1))
    again = [Record("t", 1, 2, 1_700_000_000_000, key=b"0")]
    with monkeypatch.context() as broken:
        fail_at(1, broken, "append")
        assert kinds(deduplicator, again) == ["duplicate"]
        for _ in range(2):
            with pytest.raises(StoreError, match="the disk is gone"):
                deduplicator.admit(records(3))
    assert kinds(deduplicator, records(3)) == ["fresh", "fresh"]
    held = deduplicator.partitions["t", 1].store.load()
    assert held is not None
    assert held.progress.high == 3


def test_what_was_looked_up_before_is_what_the_store_says() -> None:
    """Verdicts of a batch over several partitions, with repeats, are those of the records one by one."""
    verdicts = []
    for one_by_one in (False, True):
        deduplicator = engine(MemoryStore())
        batch = records(*range(40))
        kinds(deduplicator, batch)
        deduplicator.complete(batch)
        more = [
            Record("t", partition, 40 + offset, 1_700_000_000_000, key=b"%d" % (offset * 7 % 60))
            for offset in range(50)
            for partition in (0, 1)
        ]
        steps = [[each] for each in more] if one_by_one else [more]
        verdicts.append([kind for step in steps for kind in kinds(deduplicator, step)])
    assert verdicts[0] == verdicts[1]
    assert {"duplicate", "fresh"} <= set(verdicts[0])


def test_what_was_looked_up_before_has_its_payloads() -> None:
    """In whatever order they are asked for, and only of those that are there."""
    keys = [bytes([number]) * 16 for number in range(4)]
    asked: list[int] = []

    def find(joined: bytes, count: int) -> Found:
        asked.append(count)
        assert joined == b"".join(keys)
        return Found([0, 2, 3], [1, 2, 3], [10, 20, 30], None, [b"", b"nine here", b"another one"])

    answer = looked_up(find, [*keys, None, *keys])
    assert answer(keys[3] + keys[1] + keys[2], 3) == Found(
        [0, 2], [3, 2], [30, 20], None, [b"another one", b"nine here"]
    )
    assert asked == [4]


def test_the_first_record_of_a_new_group_is_remembered_before_its_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a new group's beginning cannot be written, nothing is admitted either."""
    deduplicator = engine(MemoryStore())
    with monkeypatch.context() as broken:
        fail_at(1, broken, "append")
        with pytest.raises(StoreError):
            deduplicator.admit(records(9))
    assert kinds(deduplicator, records(9)) == ["fresh", "fresh"]
    held = deduplicator.partitions["t", 1].store.load()
    assert held is not None
    assert (held.progress.low, held.progress.high) == (9, 9)
