"""Pages in memory: a page there is not read again, and they take no more than they may."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dedup_sdk._store.database import PageCache
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._window import Window
from tests.support.marks import IDENTITY, progress, random_marks

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk._marks import Marks
    from dedup_sdk._store.protocol import PartitionStore

WINDOW = Window(days=7)

PAGE = bytes(1_000)


def keys(*numbers: int) -> list[bytes]:
    """The keys of pages, 8 bytes each."""
    return [number.to_bytes(8, "big") for number in numbers]


class Table:
    """Pages by their keys, and the keys asked for."""

    def __init__(self, *numbers: int) -> None:
        self.pages = {key: PAGE + key for key in keys(*numbers)}
        self.asked: list[bytes] = []

    def read(self, wanted: list[bytes]) -> list[bytes | None]:
        """The callback for `PageCache.read`."""
        self.asked += wanted
        return [self.pages.get(key) for key in wanted]


def test_only_pages_that_are_not_there_are_read() -> None:
    """Also one that is wanted twice, and one that there is not; each stands where its key stands."""
    table, cache = Table(1, 2, 3), PageCache(100_000)
    assert cache.read(b"a", keys(2, 9, 2), table.read) == [PAGE + keys(2)[0], None, PAGE + keys(2)[0]]
    once = cache.nbytes
    assert len(PAGE) < once < 2 * len(PAGE)
    table.asked.clear()
    expected = [PAGE + key for key in keys(1, 2, 3)]
    assert cache.read(b"a", keys(1, 2, 3, 9), table.read) == [*expected, None]
    assert table.asked == keys(1, 3, 9)
    assert cache.nbytes == 3 * once


def test_owners_do_not_share_pages() -> None:
    """Two generations have pages at the same keys."""
    cache = PageCache(100_000)
    assert cache.read(b"a", keys(1), lambda _: [b"one"]) == [b"one"]
    assert cache.read(b"b", keys(1), lambda _: [b"another"]) == [b"another"]
    assert cache.read(b"a", keys(1), lambda _: []) == [b"one"]


def test_the_first_goes_where_there_is_no_room() -> None:
    """Never more than it may have stays, and a page that is larger than that is read each time."""
    table, cache = Table(*range(100)), PageCache(10_000)
    for number in range(100):
        assert cache.read(b"a", keys(number), table.read) == [PAGE + key for key in keys(number)]
        assert cache.nbytes <= 10_000
    table.asked.clear()
    cache.read(b"a", keys(99, 98, 97, 0), table.read)
    assert table.asked == keys(0)
    small = PageCache(1)
    for _ in range(2):
        assert small.read(b"a", keys(1, 2), table.read) == [PAGE + key for key in keys(1, 2)]
        assert small.nbytes == 0
    assert table.asked == keys(0, 1, 2, 1, 2)


def offsets_in(partition: PartitionStore, held: Marks) -> list[int]:
    """Where a partition knows these IDs; asked twice, so that the second time pages are in memory."""
    partition.find(held.digests, len(held.offsets))
    return partition.find(held.digests, len(held.offsets)).offsets


def test_no_page_is_taken_for_another_one(tmp_path: Path) -> None:
    """The same IDs at other offsets.

    In another partition, after a reset, and in a store that was set aside and made again.
    """
    held = random_marks(500, 1)
    later = replace(held, offsets=held.offsets + 10_000)
    store = RocksStore(tmp_path)
    first = store.open(IDENTITY, WINDOW)
    second = store.open(replace(IDENTITY, partition=IDENTITY.partition + 1), WINDOW)
    first.flush(progress(500), held)
    second.flush(progress(20_000), later)
    for _ in range(2):
        assert offsets_in(first, held) == held.offsets.tolist()
        assert offsets_in(second, held) == later.offsets.tolist()
    first.reset(progress(0))
    assert offsets_in(first, held) == []
    first.flush(progress(20_000), later)
    assert offsets_in(first, held) == later.offsets.tolist()
    first.close()
    store.set_aside(IDENTITY)
    again = store.open(IDENTITY, WINDOW)
    assert offsets_in(again, held) == []
    again.flush(progress(500), held)
    assert offsets_in(again, held) == held.offsets.tolist()
    store.close()
