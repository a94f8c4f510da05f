"""The promises of every key store for the payloads of marks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from benchmarks.store_size import compact
from dedup_sdk._marks import NO_MARKS, Marks, join_marks
from dedup_sdk._store.memory import MemoryPartition
from dedup_sdk._store.pages import newest_per_digest
from dedup_sdk._store.protocol import KeyStore, PartitionStore
from dedup_sdk._store.rocks import RocksPartition, RocksStore
from dedup_sdk._store.snapshot import read_snapshot
from dedup_sdk._window import Window
from tests.contract.test_store_crashes import DIED, FLUSH_STEPS, INSTALL_STEPS, reopen, run
from tests.support.finding import find
from tests.support.marks import (
    IDENTITY,
    digest,
    marks,
    payloads,
    progress,
    random_marks,
    write_snapshot,
)
from tests.support.steps import finish, installing
from tests.support.stored import only_folder

WINDOW = Window(days=7)
DAY_MS: Final = 86_400_000
LARGE: Final = bytes(range(256)) * 256


def bearing(*rows_: tuple[str, int, int, bytes]) -> Marks:
    """Marks of (ID, offset, timestamp, payload)."""
    return replace(marks(*(row[:3] for row in rows_)), payloads=[row[3] for row in rows_])


def kept(store: PartitionStore, *names: str) -> dict[str, bytes]:
    """ID -> payload of those that are found; b"" where there is none."""
    found = store.find(b"".join(map(digest, names)), len(names))
    return dict(
        zip([names[at] for at in found.indexes], found.payloads or [b""] * len(found.indexes), strict=True)
    )


MIXED = bearing(
    ("small", 1, 10, b"nine here"),
    ("plain", 2, 20, b""),
    ("large", 3, 30, LARGE),
    ("other", 4, 40, b"another, of another size"),
)
EXPECTED = {
    "small": b"nine here",
    "plain": b"",
    "large": LARGE,
    "other": b"another, of another size",
}


def test_a_journal_keeps_payloads(key_store: KeyStore, store: PartitionStore) -> None:
    """Steps with and without payloads come back in order, each mark with its own."""
    store.append(progress(1), marks(("before", 0, 5)))
    store.append(progress(5), MIXED)
    store.append(progress(6), NO_MARKS)
    store.append(progress(7), bearing(("small", 6, 60, b"a later one")))
    store.close()
    loaded = key_store.open(IDENTITY, WINDOW).load()
    assert loaded is not None
    assert loaded.recent.offsets.tolist() == [0, 1, 2, 3, 4, 6]
    assert loaded.recent.payloads == [b"", *EXPECTED.values(), b"a later one"]


def test_a_flush_keeps_payloads(key_store: KeyStore, store: PartitionStore) -> None:
    """Of any size, beside marks without, in any order: found and scanned, here and after reopening.

    Strangers are not.
    """
    store.append(progress(5), MIXED)
    store.flush(progress(5), MIXED)
    for held in (store, None):
        if held is None:
            store.close()
            held = key_store.open(IDENTITY, WINDOW)  # noqa: PLW2901 (the second round looks at the reopened one)
        assert kept(held, "other", "x", "plain", "large", "small") == EXPECTED
        assert find(held, "large", "plain") == {"large": (3, 30), "plain": (2, 20)}
        assert payloads(held.scan()) == {digest(name): payload for name, payload in EXPECTED.items()}
        loaded = held.load()
        assert loaded is not None
        assert loaded.recent.count == 0


def test_where_nothing_has_a_payload_there_is_no_column(key_store: KeyStore, store: PartitionStore) -> None:
    """Neither for marks found, nor scanned, nor loaded, also beside marks that have one."""
    store.flush(progress(5), MIXED)
    assert store.find(digest("plain"), 1).payloads is None
    store.reset(progress(5))
    store.append(progress(6), replace(marks(("a", 5, 50)), payloads=[b""]))
    store.flush(progress(6), replace(marks(("a", 5, 50)), payloads=[b""]))
    assert store.find(digest("a"), 1).payloads is None
    assert [page.payloads for page in store.scan()] == [None]
    store.append(progress(7), replace(marks(("b", 6, 60)), payloads=[b""]))
    store.close()
    loaded = key_store.open(IDENTITY, WINDOW).load()
    assert loaded is not None
    assert not loaded.recent.bear_payloads


@pytest.mark.parametrize(
    ("offset", "payload", "expected"),
    [
        (7, b"the newest", b"the newest"),
        (7, b"", b""),
        (7, LARGE, LARGE),
        (3, b"an older one", b"nine here"),
        (3, b"", b"nine here"),
        (5, b"of one offset", b"nine here"),
    ],
)
def test_the_payload_of_the_highest_offset_stays(
    key_store: KeyStore, store: PartitionStore, offset: int, payload: bytes, expected: bytes
) -> None:
    """A later flush takes mark and payload together, or neither."""
    store.flush(progress(6), bearing(("a", 5, 50, b"nine here"), ("b", 1, 10, b"stays here")))
    store.flush(progress(9), bearing(("a", offset, 10 * offset, payload), ("c", 2, 20, b"")))
    store.close()
    again = key_store.open(IDENTITY, WINDOW)
    assert kept(again, "a", "b", "c") == {"a": expected, "b": b"stays here", "c": b""}
    assert payloads(again.scan())[digest("a")] == expected


def test_a_mark_without_a_payload_gets_one(store: PartitionStore) -> None:
    """A later mark may be the first to have one."""
    store.flush(progress(6), marks(("a", 5, 50)))
    store.flush(progress(9), bearing(("a", 8, 80, LARGE)))
    assert kept(store, "a") == {"a": LARGE}


def test_within_one_flush_the_highest_offset_has_its_payload(store: PartitionStore) -> None:
    """In whatever order they come."""
    store.flush(
        progress(9),
        bearing(("a", 5, 50, b"the first one"), ("a", 8, 80, b"the newest"), ("a", 6, 60, LARGE)),
    )
    assert kept(store, "a") == {"a": b"the newest"}


def test_what_is_forgotten_takes_its_payload_along(key_store: KeyStore, store: PartitionStore) -> None:
    """Expired, shed or reset: an ID that comes again without a payload has none."""
    again = marks(("a", 900, 9 * DAY_MS))

    def came_again() -> None:
        assert find(store, "a") == {}
        if isinstance(store, MemoryPartition):
            assert store.stats().filter_bytes == 0
        store.flush(progress(901), again)
        assert kept(store, "a") == {"a": b""}
        store.reset(progress(0))

    store.flush(progress(1), bearing(("a", 0, 0, LARGE), ("b", 1, 0, LARGE)))
    assert store.expire(DAY_MS) == 0
    came_again()
    store.flush(progress(1), bearing(("a", 0, 0, LARGE)))
    assert store.evict() == 0
    came_again()
    store.flush(progress(1), bearing(("a", 0, 0, LARGE)))
    store.reset(progress(5))
    came_again()
    store.close()
    assert payloads(key_store.open(IDENTITY, WINDOW).scan()) == {}


def test_expiry_leaves_payloads_of_what_is_newer(store: PartitionStore) -> None:
    """A mark that came again since outlives its first flush, with the payload of its last mark."""
    store.flush(progress(1), bearing(("a", 0, 0, b"the first one"), ("old", 1, 0, LARGE)))
    store.flush(progress(9), bearing(("a", 8, 6 * DAY_MS, b"the newest")))
    assert store.expire(DAY_MS) == 0
    assert kept(store, "a", "old") == {"a": b"the newest"}


@pytest.mark.parametrize("size", [1, 8])
def test_a_payload_may_be_short(key_store: KeyStore, store: PartitionStore, size: int) -> None:
    """It comes back from the journal and from a flush, and is not taken for an acceptance number."""
    held = bearing(("a", 1, 10, b"x" * size), ("b", 2, 20, LARGE))
    store.append(progress(3), held)
    loaded = store.load()
    assert loaded is not None
    assert payloads([loaded.recent]) == payloads([held])
    store.flush(progress(3), held)
    store.close()
    again = key_store.open(IDENTITY, WINDOW)
    assert kept(again, "a", "b") == {"a": b"x" * size, "b": LARGE}
    assert again.find(digest("a"), 1).numbers is None


def test_a_revived_store_has_its_payloads(key_store: KeyStore, store: PartitionStore) -> None:
    """Opening anew in place loses none, flushed or recent."""
    store.flush(progress(5), MIXED)
    store.append(progress(6), bearing(("a", 5, 50, LARGE)))
    assert store.reopen()
    assert kept(store, *EXPECTED) == EXPECTED
    store.close()
    loaded = key_store.open(IDENTITY, WINDOW).load()
    assert loaded is not None
    assert loaded.recent.payloads == [LARGE]


def test_an_installed_snapshot_brings_its_payloads(
    key_store: KeyStore, store: PartitionStore, tmp_path: Path
) -> None:
    """In place of those that were there; later flushes go on top."""
    store.flush(progress(5), bearing(("old", 4, 40, LARGE), ("plain", 3, 30, b"no more so")))
    held = replace(random_marks(500, 7, offset=100), payloads=[b"payload %d." % at * 3 for at in range(500)])
    snapshot = join_marks([held, MIXED])
    write_snapshot(tmp_path / "snapshot", snapshot, cuts=(200,))
    finish(installing(store, tmp_path / "snapshot", progress(1000)))
    store.flush(
        progress(1002), bearing(("small", 1001, 10**6, b"a later one"), ("large", 2, 20, b"an older one"))
    )
    store.close()
    again = key_store.open(IDENTITY, WINDOW)
    expected = {**EXPECTED, "small": b"a later one"}
    assert kept(again, "old", *EXPECTED) == expected
    assert again.find(held.digests, 500).payloads == held.payloads
    assert payloads(again.scan()) == {
        **payloads([held]),
        **{digest(name): payload for name, payload in expected.items()},
    }


def test_a_page_of_large_payloads_fits_in_memory(store: PartitionStore, tmp_path: Path) -> None:
    """RocksDB's marks are scanned, and a snapshot read, in pages of bounded bytes, whatever the payloads' sizes."""
    count = 1_200
    held = replace(random_marks(count, 3), payloads=[bytes([at % 251]) * 2**16 for at in range(count)])
    store.flush(progress(count), held)
    whole, seen = payloads([held]), 0
    for page in store.scan():
        seen += page.count
        assert payloads([page]).items() <= whole.items()
        assert page.count * 2**16 < 2**25 or not isinstance(store, RocksPartition)
    assert seen == count
    (entry,) = write_snapshot(tmp_path / "snapshot", held).partitions
    pages = [page.count for page in read_snapshot(tmp_path / "snapshot", entry)]
    assert sum(pages) == count
    assert max(pages) * 2**16 < 2**25


def test_merging_keeps_payloads(tmp_path: Path) -> None:
    """Many flushes with and without payloads, in one generation, merged by RocksDB.

    Every ID has the payload of its last mark.
    """
    key_store = RocksStore(tmp_path / "store", generation_marks=10**6)
    store = key_store.open(IDENTITY, WINDOW)
    expected: dict[bytes, bytes] = {}
    for flush in range(20):
        held = random_marks(300, flush % 4, offset=1_000 * flush)
        if flush % 3:
            held = replace(held, payloads=[b"%d of %d." % (at, flush) * (at % 3 * 5) for at in range(300)])
        store.flush(progress(1_000 * flush + 300), held)
        expected |= payloads([held])
    assert store.stats().details["generations"] == 1
    assert payloads(store.scan()) == expected
    key_store.close()
    compact(only_folder(tmp_path / "store"))
    again = RocksStore(tmp_path / "store", generation_marks=10**6).open(IDENTITY, WINDOW)
    assert payloads(again.scan()) == expected
    digests = list(expected)
    assert again.find(b"".join(digests), len(digests)).payloads == list(expected.values())


PAYLOADS = """
from dataclasses import replace
def bearing(marks, *payloads):
    return replace(marks, payloads=list(payloads))
large = bytes(range(256)) * 256
"""


def known_payloads(store: PartitionStore) -> dict[bytes, bytes]:
    """The store's payloads: flushed and recent, the last one of each ID."""
    loaded = store.load()
    assert loaded is not None
    return payloads([newest_per_digest(join_marks([*store.scan(), loaded.recent]))])


@pytest.mark.parametrize("step", FLUSH_STEPS)
def test_a_crash_inside_a_flush_loses_no_payload(tmp_path: Path, step: str) -> None:
    """Whatever the last step of a flush was, every mark has its payload afterwards, and the next flush goes on."""
    body = f"""{PAYLOADS}
store.flush(progress(1), bearing(marks(("a", 0, 0), ("first", 0, 0)), b"the first one", b"stays here"))
recent = bearing(marks(("a", 1, 10), ("b", 2, 20), ("plain", 2, 20)), large, b"nine here", b"")
store.append(progress(3), recent)
{FLUSH_STEPS[step]}
store.flush(progress(3), recent)
os._exit(0)"""
    assert run(tmp_path, body) == DIED
    expected = {
        digest("first"): b"stays here",
        digest("a"): LARGE,
        digest("b"): b"nine here",
        digest("plain"): b"",
    }
    store = reopen(tmp_path)
    assert known_payloads(store) == expected
    loaded = store.load()
    assert loaded is not None
    store.flush(progress(5), join_marks([loaded.recent, bearing(("b", 4, 40, b"a later one"))]))
    store.close()
    assert payloads(reopen(tmp_path).scan()) == {**expected, digest("b"): b"a later one"}


@pytest.mark.parametrize("step", ["files taken in", "valid"])
def test_a_crash_inside_an_install_leaves_the_old_payloads_or_the_new(tmp_path: Path, step: str) -> None:
    """Wholly those of before or wholly the snapshot's."""
    write_snapshot(tmp_path / "snapshot", MIXED)
    body = f"""{PAYLOADS}
store.flush(progress(1), bearing(marks(("large", 0, 0), ("old", 0, 0)), b"the first one", large))
{INSTALL_STEPS[step]}
finish(installing(store, folder / "snapshot", progress(1000)))
os._exit(0)"""
    assert run(tmp_path, body) == DIED
    after = {digest(name): payload for name, payload in EXPECTED.items()}
    before = {digest("large"): b"the first one", digest("old"): LARGE}
    store = reopen(tmp_path)
    assert payloads(store.scan()) == (after if step == "valid" else before)
    finish(installing(store, tmp_path / "snapshot", progress(1000)))
    assert payloads(store.scan()) == after


def test_a_step_with_payloads_outlives_the_process(tmp_path: Path) -> None:
    """Appended marks are there after the process died at once."""
    body = f"""{PAYLOADS}
for number in range(50):
    store.append(progress(number + 1), bearing(marks(("source", number, number)), b"payload %d" % number))
store.append(progress(51), bearing(marks(("large", 50, 50)), large))
os._exit(9)"""
    assert run(tmp_path, body) == DIED
    loaded = reopen(tmp_path).load()
    assert loaded is not None
    assert loaded.progress.high == 51
    assert loaded.recent.payloads == [*(b"payload %d" % number for number in range(50)), LARGE]
