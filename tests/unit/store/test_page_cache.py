"""Pages in memory: what is there is not read again, and they take no more than they may."""

from __future__ import annotations

from dedup_sdk.store.page_cache import PageCache

PAGE = bytes(1_000)


def keys(*numbers: int) -> list[bytes]:
    """The keys of pages, 8 bytes each."""
    return [number.to_bytes(8, "big") for number in numbers]


class Table:
    """Pages by their keys, and what was asked for."""

    def __init__(self, *numbers: int) -> None:
        self.pages = {key: PAGE + key for key in keys(*numbers)}
        self.asked: list[bytes] = []

    def read(self, wanted: list[bytes]) -> list[bytes | None]:
        """What `PageCache.read` wants."""
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
