"""How fast files of a snapshot are read, in bytes a second over all threads that read at once.

fsspec and its drivers have no such limit: s3fs does not use the transfer manager that has one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from threading import Event, Lock
from typing import Final

from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError

LEAST: Final = 1_000
MOST: Final = 10**12
_SAVED_S: Final = 0.25
"""So much unused time may be made up for."""
_RATE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([A-Za-z]{1,3})(?:/s)?")
_UNITS: Final = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}


def parse_rate(name: str, text: str) -> int:
    """Return bytes a second of e.g. ``50MB/s``; ``name``: who gave it. Raises `ConfigurationError` for other texts."""
    found = _RATE.fullmatch(text.strip())
    unit = _UNITS.get(found[2]) if found else None
    rate = 0.0 if found is None or unit is None else float(found[1]) * unit
    if not LEAST <= rate <= MOST:
        raise ConfigurationError(
            f"{name} {shown(text[:100])}: give bytes a second with their unit, from 1kB/s to 1000GB/s, e.g. 50MB/s "
            f"or 8MiB/s"
        )
    return int(rate)


class RateLimit:
    """At most so many bytes a second, over all threads that `take` from it.

    ``clock`` gives seconds; ``wait`` waits for an event, at most so many seconds.
    """

    def __init__(
        self,
        bytes_per_second: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[Event, float], object] = Event.wait,
    ) -> None:
        self.bytes_per_second = bytes_per_second
        self._clock, self._wait = clock, wait
        self._lock = Lock()
        self._paid_at = clock()

    def take(self, size: int, stop: Event) -> None:
        """Count bytes that were read, and wait until the limit has allowed all that were counted; ``stop`` ends it."""
        with self._lock:
            now = self._clock()
            self._paid_at = max(self._paid_at, now - _SAVED_S) + size / self.bytes_per_second
            seconds = self._paid_at - now
        # Without the lock: other threads must be able to count their bytes meanwhile.
        if seconds > 0:
            self._wait(stop, seconds)
