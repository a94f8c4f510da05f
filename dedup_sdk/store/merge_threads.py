"""The threads in which RocksDB merges files: one for all databases of this process, more only while one of them closes.

A database that is told to stop gives up the merge it is in at once, but one that still waits for a thread has to be taken up
before it can be given up. With one thread that is after the merges of other databases ahead of it, which go on for seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

from rocksdict import Env


class MergeThreads:
    """How many threads merge; ``usual`` of them while nothing closes. Thread-safe."""

    def __init__(self, usual: int = 1) -> None:
        self._usual = usual
        self._open = 0
        self._closing = 0
        self._lock = Lock()

    def opened(self) -> None:
        """Note that a database has opened."""
        with self._lock:
            self._open += 1

    def closed(self) -> None:
        """Note that a database is closed."""
        with self._lock:
            self._open -= 1

    @contextmanager
    def one_each(self) -> Iterator[None]:
        """Have a thread for each open database meanwhile, since each has one merge at most that waits or goes on."""
        with self._lock:
            self._closing += 1
            self._limit(max(self._usual, self._open))
        try:
            yield
        finally:
            with self._lock:
                self._closing -= 1
                if not self._closing:
                    self._limit(self._usual)

    def _limit(self, threads: int) -> None:
        # Every environment object stands for the one of the process. Threads beyond the limit end when their merge does.
        Env().set_low_priority_background_threads(threads)


MERGE_THREADS: Final = MergeThreads()
"""Of this process."""
