"""Running a program and all that it starts, and measuring both."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING

import psutil

from benchmarks.rounds import ContenderError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_EVERY_S = 0.25
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReading:
    """The cost of a program and its children; ``output`` is its last line on stdout.

    ``peak_rss_mib`` is the highest sum of their resident memory, seen every quarter of a second: shared memory
    counts in each.
    """

    output: str
    seconds: float
    cpu_seconds: float
    peak_rss_mib: float


class _Watch(Thread):
    """Adds up the use of a process and its descendants, until it is told that they are over."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self._root = psutil.Process(process)
        self._over = Event()
        self._cpu: dict[int, float] = {}
        self.peak_bytes = 0

    @property
    def cpu_seconds(self) -> float:
        """User and system time of all that were seen, as far as they were seen."""
        return sum(self._cpu.values())

    def run(self) -> None:
        while not self._over.wait(_EVERY_S):
            resident = 0
            try:
                family = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                return
            for member in family:
                try:
                    resident += member.memory_info().rss
                    times = member.cpu_times()
                except psutil.Error:
                    continue
                self._cpu[member.pid] = times.user + times.system
            self.peak_bytes = max(self.peak_bytes, resident)

    def stop(self) -> None:
        self._over.set()
        self.join()


def run_tree(
    command: Sequence[str],
    *,
    processors: str | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> TreeReading:
    """Run a command to its end, started in ``folder``.

    ``processors`` pins it and its children, as ``taskset`` writes it ("0", "0,1").
    Raises `ContenderError` where it fails; its messages are on stderr.
    """
    line = [*(("taskset", "-c", processors) if processors else ()), *command]
    began = time.perf_counter()
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as output,
        subprocess.Popen(
            line, stdout=output, stderr=subprocess.PIPE, text=True, env=environment, cwd=folder
        ) as process,
    ):
        watch = _Watch(process.pid)
        watch.start()
        said = process.stderr.read() if process.stderr else ""
        status = process.wait()
        watch.stop()
        seconds = time.perf_counter() - began
        output.seek(0)
        printed = output.read().splitlines()
    if status or not printed:
        print(said, file=sys.stderr)
        raise ContenderError(f"{' '.join(command[:3])} ended with status {status}: what it said is above")
    return TreeReading(
        output=printed[-1],
        seconds=seconds,
        cpu_seconds=watch.cpu_seconds,
        peak_rss_mib=watch.peak_bytes / _MIB,
    )
