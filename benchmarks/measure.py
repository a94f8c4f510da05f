"""A stopwatch for a consuming loop, read inside the process that runs the loop.

seconds
    from the return of the call that brought the first record to the end of the commit after the last one.
CPU seconds
    user and system time of the whole process in that stretch: librdkafka's and RocksDB's threads are part of it.
peak memory
    the highest resident set of the process since it started, interpreter and libraries included.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from pathlib import Path

STALL_SECONDS = 60.0

_KIB_PER_MIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The cost of one run of one contender, and how many records its loop saw."""

    handled: int
    seconds: float
    cpu_seconds: float
    peak_rss_mib: float


class Stopwatch:
    """Started when the first records are in hand, stopped when the last are completed."""

    def __init__(self) -> None:
        """Begin to wait for the first record."""
        self._began: float | None = None
        self._cpu_began = 0.0
        self._handled = 0
        self._idle_since = time.perf_counter()

    def start(self) -> None:
        """Begin to measure."""
        self._cpu_began = cpu_seconds()
        self._began = time.perf_counter()

    def idle(self, handled: int, expected: int) -> None:
        """Call when a read brought nothing; raises `TimeoutError` when nothing new was handled for 60 s."""
        now = time.perf_counter()
        if handled != self._handled:
            self._handled, self._idle_since = handled, now
        if now - self._idle_since > STALL_SECONDS:
            raise TimeoutError(
                f"{handled} of {expected} records came, then none for {STALL_SECONDS:.0f} s: look at the broker"
            )

    def stop(self, handled: int) -> Reading:
        """End the measurement."""
        now = time.perf_counter()
        spent = cpu_seconds() - self._cpu_began
        if self._began is None:
            raise RuntimeError(
                "the stopwatch was stopped before it was started: call start() at the first record"
            )
        return Reading(
            handled=handled, seconds=now - self._began, cpu_seconds=spent, peak_rss_mib=peak_rss_mib()
        )


def cpu_seconds() -> float:
    """User and system time of this process so far, all threads, seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_rss_mib() -> float:
    """The highest resident set of this process so far, MiB; raises `RuntimeError` where there is no /proc."""
    # Not ru_maxrss: a child inherits its parent's there.
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / _KIB_PER_MIB
    raise RuntimeError("/proc/self/status has no VmHWM: measure on Linux")
