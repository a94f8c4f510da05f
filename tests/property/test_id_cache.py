"""The caches of Artemis and HornetQ against a list of the last n IDs.

They go through restarts with other settings, on both stores.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from dedup_adapters import artemis
from dedup_sdk import Deduplicator, MemoryStore, Record, RocksStore
from dedup_sdk._store.protocol import KeyStore
from tests.support.disks import keeping

ADDRESSES = ["orders", "orders.eu", "audit"]


@dataclass(slots=True)
class NaiveIdCache:
    """The duplicate ID cache as the documents of both brokers have it: a list of the last ``size`` accepted IDs.

    It is their rule, and not ours: the naive log of a count window says the same in other words.
    """

    size: int = 0
    persist: bool = True
    ids: list[bytes] = field(default_factory=list)

    def start(self, size: int, *, persist: bool) -> None:
        """The broker starts: the newest of stored IDs come back, if any were stored, and should be."""
        kept = self.ids if self.persist and persist else []
        self.size, self.persist = size, persist
        self.ids = kept[-size:] if size else []

    def accepts(self, dedup_id: bytes | None) -> bool:
        """Whether a message is new; then its ID takes the slot of the oldest."""
        if dedup_id is None or not self.size:
            return True
        if dedup_id in self.ids:
            return False
        self.ids = [*self.ids, dedup_id][-self.size :]
        return True


@dataclass(frozen=True, slots=True)
class Run:
    """One life of a consumer: its settings, and batches of (address, ID)."""

    size: int
    addresses: dict[str, int]
    persist: bool
    recent_marks: int
    batches: list[list[tuple[str, bytes | None]]]

    def size_of(self, address: str) -> int:
        """By the words: an address before a wildcard, a wildcard before the global size."""
        if address in self.addresses:
            return self.addresses[address]
        if address.startswith("orders") and "orders.#" in self.addresses:
            return self.addresses["orders.#"]
        return self.size


sizes = st.sampled_from([0, 1, 2, 3, 5, 50])
messages = st.tuples(
    st.sampled_from(ADDRESSES), st.none() | st.sampled_from([b"", b"a", b"b", b"c", b"d", b"e", b"f"])
)
runs = st.lists(
    st.builds(
        Run,
        size=sizes,
        addresses=st.dictionaries(st.sampled_from([*ADDRESSES, "orders.#"]), sizes, max_size=2),
        persist=st.sampled_from([True, True, True, False]),
        recent_marks=st.sampled_from([1, 3, 1000]),
        batches=st.lists(st.lists(messages, min_size=1, max_size=5), max_size=6),
    ),
    min_size=1,
    max_size=4,
)


def records(batch: list[tuple[str, bytes | None]], ends: dict[str, int]) -> list[Record]:
    """The batch as it lies in the topics, each message behind the last one of its topic."""
    made = []
    for address, dedup_id in batch:
        headers = [] if dedup_id is None else [(artemis.DUPLICATE_ID, dedup_id)]
        made.append(Record(address, 0, ends[address], 1_700_000_000_000, headers=headers))
        ends[address] += 1
    return made


def delivered(engine: Deduplicator, batch: list[Record]) -> set[tuple[str, int]]:
    """The messages the application gets of a batch, which it handles in order, the ones that waited as they come."""
    ready = [record for record, verdict in zip(batch, engine.admit(batch), strict=True) if verdict.deliver]
    got = set()
    while ready:
        record = ready.pop(0)
        got.add((record.topic, record.offset))
        ready += [each.record for each in engine.complete([record]) if each.verdict.deliver]
    return got


def lived(store: KeyStore, runs: list[Run]) -> None:
    """Compare a consumer's lives with the list: IDs it calls new are delivered, and no others.

    Where a cache became larger some of them are unverified, because the smaller one may have forgotten them.
    """
    caches = {address: NaiveIdCache() for address in ADDRESSES}
    ends = dict.fromkeys(ADDRESSES, 0)
    previous: Run | None = None
    for run in runs:
        dedup = artemis.duplicate_detection(
            id_cache_size=run.size, addresses=run.addresses, persist_id_cache=run.persist
        )
        for address, cache in caches.items():
            cache.start(run.size_of(address), persist=run.persist)
        with Deduplicator(dedup, keeping(run.recent_marks, store)) as engine:
            for address in ADDRESSES:
                engine.open(address, 0)
            for batch in run.batches:
                rows = records(batch, ends)
                new = {
                    (record.topic, record.offset)
                    for record, (address, dedup_id) in zip(rows, batch, strict=True)
                    if caches[address].accepts(dedup_id)
                }
                assert delivered(engine, rows) == new
            if not run.persist or previous is None:
                assert engine.counters.verdicts["unverified"] == 0
        previous = run


@settings(deadline=None)
@given(runs=runs)
def test_the_same_messages_are_new(runs: list[Run]) -> None:
    """Whatever the settings were before."""
    lived(MemoryStore(), runs)


@settings(deadline=None, max_examples=20)
@given(runs=runs)
def test_the_same_messages_are_new_on_disk(runs: list[Run]) -> None:
    """The same with RocksDB, less often: it opens its database in milliseconds."""
    with tempfile.TemporaryDirectory(prefix="dedup-id-cache-") as folder:
        lived(RocksStore(folder), runs)


@settings(deadline=None)
@given(
    size=st.integers(1, 4),
    ids=st.lists(st.sampled_from([b"a", b"b", b"c", b"d", b"e"]), max_size=30),
    cut=st.integers(0, 30),
)
def test_a_restart_with_the_same_size_is_not_seen(size: int, ids: list[bytes], cut: int) -> None:
    """The verdicts are those without it, and none is in doubt."""
    dedup = artemis.duplicate_detection(id_cache_size=size)
    said: list[list[str]] = []
    for cuts in ([0, len(ids)], [0, min(cut, len(ids)), len(ids)]):
        store, ends, kinds = MemoryStore(), {"orders": 0}, []
        for begin, end in pairwise(cuts):
            with Deduplicator(dedup, keeping(2, store)) as engine:
                for dedup_id in ids[begin:end]:
                    [record] = records([("orders", dedup_id)], ends)
                    [verdict] = engine.admit([record])
                    kinds.append(verdict.kind.value)
                    engine.complete([record] if verdict.deliver else [])
        said.append(kinds)
    assert said[0] == said[1]
    assert set(said[0]) <= {"fresh", "duplicate"}
