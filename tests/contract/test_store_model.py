"""Both stores against a dictionary, through random histories of everything a store can do."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dedup_sdk._marks import Marks
from dedup_sdk._store import generations
from dedup_sdk._store.memory import MemoryStore
from dedup_sdk._store.protocol import KeyStore, PartitionStore
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._window import Window
from tests.support.marks import IDENTITY, digest, payloads, progress, rows, write_snapshot
from tests.support.steps import finish, installing

WINDOW = Window(milliseconds=80)
NAMES = [f"id{number}" for number in range(12)]
BATCHES = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 60), st.integers(-1, 200)), max_size=6)

Known = dict[str, tuple[int, int]]


def payload_of(row: tuple[str, int, int]) -> bytes:
    """The payload of a mark: another payload of every (ID, offset, timestamp), none with each third offset."""
    return b"" if row[1] % 3 == 0 else f"{row} is kept here".encode() * (1 + row[2] % 7)


def columns(rows_: list[tuple[str, int, int]]) -> Marks:
    """Return marks of (ID, offset, timestamp)."""
    return Marks(
        b"".join(digest(name) for name, _, _ in rows_),
        np.array([offset for _, offset, _ in rows_], np.int64),
        np.array([timestamp for _, _, timestamp in rows_], np.int64),
        None,
        [payload_of(row) for row in rows_],
    )


class StoreHistory(RuleBasedStateMachine):
    """RocksStore and MemoryStore agree; the model says which marks must be known, and which may be, after an expiry."""

    def __init__(self) -> None:
        super().__init__()
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(generations, "ADDED_AT_ONCE", 2)
        self.folder = Path(tempfile.mkdtemp(prefix="dedup-model-"))
        self.key_stores: list[KeyStore] = [
            RocksStore(self.folder / "store", generation_marks=3),
            MemoryStore(),
        ]
        self.stores: list[PartitionStore] = []
        self.flushed: Known = {}
        self.everything: set[tuple[str, int, int]] = set()
        self.horizon_ms = -2
        self.recent: list[tuple[str, int, int]] = []
        self.high: int | None = None
        self.snapshots = 0

    @initialize()
    def open(self) -> None:
        """Open both."""
        self.stores = [store.open(IDENTITY, WINDOW) for store in self.key_stores]

    @rule(batch=BATCHES)
    def append(self, batch: list[tuple[str, int, int]]) -> None:
        """One step."""
        self.high = 100 if self.high is None else self.high + 1
        for store in self.stores:
            store.append(progress(self.high), columns(batch))
        self.recent += batch

    @rule(more=BATCHES)
    def flush(self, more: list[tuple[str, int, int]]) -> None:
        """Recent marks and some more become sorted files."""
        self.high = 100 if self.high is None else self.high + 1
        batch = [*self.recent, *more]
        for store in self.stores:
            store.flush(progress(self.high), columns(batch))
        # A mark below one that is stored already is not taken in.
        for name, offset, timestamp in batch:
            if name not in self.flushed or self.flushed[name][0] <= offset:
                self.flushed[name] = (offset, timestamp)
        self.everything |= {(name, offset, timestamp) for name, offset, timestamp in batch}
        self.recent.clear()

    @rule(more=BATCHES, stop_after=st.integers(0, 4), meanwhile=BATCHES)
    def flush_in_steps(
        self, more: list[tuple[str, int, int]], stop_after: int, meanwhile: list[tuple[str, int, int]]
    ) -> None:
        """A flush is left after some steps; the next one goes to its end, while another step is appended."""
        before, self.high = 100 if self.high is None else self.high, (self.high or 100) + 2
        batch = [*self.recent, *more]
        left = self.stores[0].flush_steps(progress(before), columns(batch))
        if all(next(left, self) is not self for _ in range(stop_after)):
            left.close()  # type: ignore[attr-defined]
            loaded = self.stores[0].load()
            assert loaded is None or loaded.recent.offsets.tolist() == columns(self.recent).offsets.tolist()
        for name, offset, timestamp in batch:
            if name not in self.flushed or self.flushed[name][0] <= offset:
                self.flushed[name] = (offset, timestamp)
        for store in self.stores:
            steps = store.flush_steps(progress(self.high - 1), columns(batch))
            next(steps, None)
            found = store.find(b"".join(map(digest, NAMES)), len(NAMES))
            offsets = dict(zip(map(NAMES.__getitem__, found.indexes), found.offsets, strict=True))
            for name, offset, _ in batch:
                newest, newest_ms = self.flushed[name]
                # What an expiry dropped may be lower.
                assert offsets[name] == newest if newest_ms >= self.horizon_ms else offsets[name] >= offset
            store.append(progress(self.high), columns(meanwhile))
            finish(steps)
        self.everything |= set(batch)
        self.recent = list(meanwhile)

    @rule(before_ms=st.integers(0, 250))
    def expire(self, before_ms: int) -> None:
        """The window moves on."""
        self.horizon_ms = max(self.horizon_ms, before_ms)
        for store in self.stores:
            newest_ms = store.expires_to_ms(before_ms)
            assert newest_ms is None or newest_ms < before_ms
            assert store.expire(before_ms) == newest_ms

    @rule()
    def reset(self) -> None:
        """Begin anew."""
        self.high = 500
        for store in self.stores:
            store.reset(progress(self.high))
        self._forget()

    @rule(batch=BATCHES)
    def install(self, batch: list[tuple[str, int, int]]) -> None:
        """Take over a snapshot."""
        self.snapshots += 1
        folder = self.folder / f"snapshot{self.snapshots}"
        write_snapshot(folder, columns(batch), high=400)
        self.high = 400
        for store in self.stores:
            finish(installing(store, folder, progress(self.high)))
        self._forget()
        for name, offset, timestamp in batch:
            if name not in self.flushed or self.flushed[name][0] <= offset:
                self.flushed[name] = (offset, timestamp)
        self.everything = set(batch)

    @rule()
    def reopen(self) -> None:
        """Close and open again."""
        for store in self.stores:
            store.close()
        self.stores = [store.open(IDENTITY, WINDOW) for store in self.key_stores]

    @invariant()
    def everything_is_known(self) -> None:
        """Written marks are found, scanned and loaded, in both stores, and no others."""
        for store in self.stores:
            loaded = store.load()
            assert (None if loaded is None else loaded.progress.high) == self.high
            recent = columns(self.recent)
            assert loaded is None or loaded.recent.digests == recent.digests
            assert loaded is None or loaded.recent.offsets.tolist() == recent.offsets.tolist()
            found = store.find(b"".join(map(digest, NAMES)), len(NAMES))
            known = {
                NAMES[index]: (offset, timestamp)
                for index, offset, timestamp in zip(
                    found.indexes, found.offsets, found.timestamps, strict=True
                )
            }
            kept = [payload_of((name, *mark)) for name, mark in known.items()]
            assert (found.payloads or [b""] * len(known)) == kept
            assert payloads(store.scan()) == dict(zip(map(digest, known), kept, strict=True))
            assert loaded is None or (loaded.recent.payloads or [b""] * recent.count) == recent.payloads
            assert rows(store.scan()) == {digest(name): mark for name, mark in known.items()}
            for name, mark in self.flushed.items():
                # Only marks before the horizon may be gone, or show an older mark of the ID.
                if mark[1] >= self.horizon_ms:
                    assert known[name][0] == mark[0]
            assert all((name, *mark) in self.everything for name, mark in known.items())

    def _forget(self) -> None:
        self.flushed = {}
        self.everything = set()
        self.recent = []
        self.horizon_ms = -2

    def teardown(self) -> None:
        """Leave nothing behind."""
        self.patched.undo()
        for store in self.key_stores:
            store.close()
        shutil.rmtree(self.folder)


TestStoreHistory = StoreHistory.TestCase
TestStoreHistory.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
