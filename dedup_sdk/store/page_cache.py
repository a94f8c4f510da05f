"""Pages of sorted files in memory, in place of RocksDB's block cache.

That one takes some 2 µs to find a page, and copies it three times: more than it takes to look into it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import RLock
from typing import Final

_ENTRY_BYTES: Final = 224
"""What a page takes beside its own bytes: the objects of its name and its value, and its place in the dictionary."""


class PageCache:
    """Up to ``most_bytes`` of the pages that were read from the disk last: what was read first goes first, whether it was asked for since or not. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._pages: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0
        # A signal's handler may look up as well.
        self._lock = RLock()

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._bytes

    def read(
        self, owner: bytes, keys: list[bytes], read: Callable[[list[bytes]], list[bytes | None]]
    ) -> list[bytes | None]:
        """Return the page at each key, None where there is none; ``read`` returns those of the keys that are not here.

        ``owner`` names the generation that has the keys: as long as the process lives, with as many bytes as any other, and no other one.
        A page of it never changes. What ``read`` raises passes through.
        """
        names = [owner + key for key in keys]
        pages = list(map(self._pages.get, names))
        missing = [at for at, page in enumerate(pages) if page is None]
        if missing:
            new = read([keys[at] for at in missing])
            with self._lock:
                for at, page in zip(missing, new, strict=True):
                    pages[at] = page
                    # One that is wanted twice was read twice.
                    if page is not None and names[at] not in self._pages:
                        self._pages[names[at]] = page
                        self._bytes += len(page) + _ENTRY_BYTES
                while self._pages and self._bytes > self._most_bytes:
                    _, page = self._pages.popitem(last=False)
                    self._bytes -= len(page) + _ENTRY_BYTES
                if not self._pages:
                    # A signal's handler that reads in the middle of a sum leaves it wrong.
                    self._bytes = 0
        return pages
