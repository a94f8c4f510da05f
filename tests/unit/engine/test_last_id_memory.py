"""How much is in memory, and in the journal, where IDs are compared with the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dedup_sdk import Deduplicator, LastId, Record, header, orders
from dedup_sdk._engine.partition import Partition
from dedup_sdk._store.memory import MemoryPartition
from dedup_sdk.ids import key
from tests.support.disks import FullStore, keeping
from tests.support.records import DAY_MS

if TYPE_CHECKING:
    from dedup_sdk._marks import Marks, Progress
    from dedup_sdk._store.protocol import KeyStore


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sources were in memory before each flush."""
    before: list[int] = []
    real = Partition.flush_step

    def flush_step(self: Partition) -> None:
        before.append(self.memory.recent_count)
        real(self)

    monkeypatch.setattr(Partition, "flush_step", flush_step)
    return before


def engine(recent_marks: int, store: KeyStore | None = None, *, bears: bool = False) -> Deduplicator:
    """An engine with a source for each key, and IDs that are kept one by one."""
    strategy = LastId(id=header("id"), source=key(), order=orders.oracle_scn())
    return Deduplicator(
        strategy, keeping(recent_marks, store), clock=lambda: DAY_MS / 1000, tolerates_full_disk=bears,
        forgets_unwritten=bears
    )  # fmt: skip


def handle(deduplicator: Deduplicator, offset: int, source: int, ident: str) -> str:
    """Admit and complete a record; return its verdict."""
    record = Record("t", 0, offset, DAY_MS, key=b"%d" % source, headers=[("id", ident.encode())])
    [verdict] = deduplicator.admit([record])
    deduplicator.complete([record] if verdict.deliver else [])
    return verdict.kind.value


def test_sources_of_which_nothing_is_remembered_are_bounded_too(flushed: list[int]) -> None:
    """Records that nobody can read look their sources up, and write nothing."""
    deduplicator = engine(10)
    for offset in range(100):
        assert handle(deduplicator, offset, offset, "unreadable") == "unverified"
    assert max(flushed) == 11
    assert deduplicator.partitions["t", 0].memory.recent_count <= 10


def test_what_nobody_can_read_changes_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nothing is written for it."""
    written: list[int] = []

    class Counting(MemoryPartition):
        def append(self, progress: Progress, marks: Marks) -> None:
            written.append(marks.count)
            super().append(progress, marks)

    monkeypatch.setattr("dedup_sdk._store.memory.MemoryPartition", Counting)
    deduplicator = engine(10)
    handle(deduplicator, 0, 0, "1")
    assert sum(written) == 1
    handle(deduplicator, 1, 0, "unreadable")
    deduplicator.partitions["t", 0].persist()
    assert sum(written) == 1


def test_sources_that_remember_much_weigh_more(flushed: list[int]) -> None:
    """The bound on memory is one of bytes: a source of a hundred IDs is worth many marks."""
    deduplicator, offset = engine(200), 0
    for source in range(40):
        for number in range(100):
            handle(deduplicator, offset, source, f"{number:018}")
            offset += 1
    assert flushed
    assert max(flushed) <= 20
    assert handle(deduplicator, offset, 0, f"{50:018}") == "duplicate"


def test_a_journal_of_sources_that_remember_much_is_flushed_sooner(flushed: list[int]) -> None:
    """Every step writes all that its sources remember, and is read back when the store opens."""
    deduplicator = engine(100)
    for number in range(100):
        handle(deduplicator, number, 0, f"{number:018}")
    assert flushed


def test_what_a_full_disk_refused_of_such_sources_is_bounded_by_bytes() -> None:
    """The same bound as in memory."""
    store = FullStore()
    deduplicator = engine(100, store, bears=True)
    handle(deduplicator, 0, 0, f"{0:018}")
    store.full = True
    held = deduplicator.partitions["t", 0]
    most = 0
    for number in range(1, 200):
        handle(deduplicator, number, 0, f"{number:018}")
        most = max(
            most,
            sum(len(payload) for marks in held.writer.unwritten_steps for payload in marks.payloads or []),
        )
    assert most < 50_000
