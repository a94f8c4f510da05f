"""How many files the databases of this process may hold open, whatever the number of partitions.

RocksDB counts a database's sorted files only: its log, its manifest, its lock and the like, some seven files, come on top, and its folder once
for each generation that was made since it was opened. Half of what
the process may open (``ulimit -n``, when this is imported) is given out: a database gets a quarter of what is left when it opens,
between `LEAST` and `MOST`, and gives it back when it is closed.
"""

from __future__ import annotations

import resource
from threading import Lock
from typing import Final

LEAST: Final = 24
MOST: Final = 256
_SHARE_OF_LIMIT: Final = 2
_SHARE_OF_REST: Final = 4
_UNLIMITED: Final = 2**20


class OpenFiles:
    """Sorted files that may be open at once; together at most ``total`` and `LEAST` a database. Thread-safe."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._given = 0
        self._lock = Lock()

    def take(self) -> int:
        """Return how many a database that opens now may hold; give it back when it is closed."""
        with self._lock:
            share = min(MOST, max(LEAST, (self._total - self._given) // _SHARE_OF_REST))
            self._given += share
            return share

    def give_back(self, share: int) -> None:
        """Note that a database is closed which had been given ``share``."""
        with self._lock:
            self._given -= share


def process_limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


OPEN_FILES: Final = OpenFiles(process_limit() // _SHARE_OF_LIMIT)
"""Of this process."""
