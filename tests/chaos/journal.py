"""A worker's notes about itself: one JSON object a line, each on the disk before the worker goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, cast

from tests.chaos.history import Call, Notice

_COPY = "import os\nwhile line := os.read(0, 65536): os.write(1, line)"


class Journal:
    """Appends lines and syncs them. May be used from several threads: each line is one write."""

    def __init__(self, path: str, *, piped: bool = False) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._sync = not piped
        self._reader: subprocess.Popen[bytes] | None = None
        if piped:
            # Bytes in the pipe outlive this process, and its reader may write where this process may not.
            reader = subprocess.Popen(
                [sys.executable, "-c", _COPY],
                stdin=subprocess.PIPE,
                stdout=self._file,
                start_new_session=True,
            )
            os.close(self._file)
            if reader.stdin is not None:
                self._file = os.dup(reader.stdin.fileno())
                reader.stdin.close()
            self._reader = reader

    def call(self, partition: int, offset: int, began_ns: int, verdict: str = "") -> None:
        """Write that a handler is done with a record: this line is its effect."""
        ns = [began_ns, time.monotonic_ns()]
        self._write({"handled": [partition, offset], "ns": ns, "as": verdict})

    def notice(self, kind: str, partitions: Iterable[int]) -> None:
        """Write the partitions given to a rebalance callback."""
        self._write({"notice": kind, "partitions": sorted(partitions), "ns": time.monotonic_ns()})

    def reach(self, *, reached: bool) -> None:
        """Write whether the client reaches the broker."""
        self._write({"reached": reached, "ns": time.monotonic_ns()})

    def counters(self, counts: dict[str, int]) -> None:
        """Write the consumer's totals."""
        self._write({"counters": counts})

    def close(self) -> None:
        """Write no more; all lines are in the file when this returns."""
        os.close(self._file)
        if self._reader is not None:
            self._reader.wait()

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")
        if self._sync:
            os.fsync(self._file)


def read_journal(path: Path, run: str) -> tuple[list[Call], list[Notice]]:
    """Read a run's journal; a last line without its end was never finished."""
    calls: list[Call] = []
    notices: list[Notice] = []
    if not path.exists():
        return calls, notices
    for line in path.read_bytes().split(b"\n")[:-1]:
        entry = json.loads(line)
        if "handled" in entry:
            (partition, offset), (began_ns, ended_ns) = entry["handled"], entry["ns"]
            calls.append(Call(run, partition, offset, began_ns, ended_ns, entry["as"]))
        elif "notice" in entry:
            kind = cast("Literal['assigned', 'revoked', 'lost', 'refused']", entry["notice"])
            notices.append(Notice(run, kind, frozenset(entry["partitions"]), entry["ns"]))
    return calls, notices


def read_reach(path: Path, since_ns: int) -> bool | None:
    """Return the last note of a run on whether its client reaches the broker.

    None when it has said nothing since then.
    """
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    entries = [json.loads(line) for line in lines if b'"reached"' in line]
    return entries[-1]["reached"] if entries and entries[-1]["ns"] >= since_ns else None


def read_counters(path: Path) -> dict[str, int]:
    """Return the totals that a run wrote at its end; empty where it did not come to that."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    entries = [json.loads(line) for line in lines if b'"counters"' in line]
    return dict(entries[-1]["counters"]) if entries else {}
