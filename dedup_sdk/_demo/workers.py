"""The demo's worker processes: started, observed through the files that they write, killed, and ended in order."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from dedup_sdk._demo import DemoError
from dedup_sdk.testing._supervised_child import SupervisedChild

if TYPE_CHECKING:
    from pathlib import Path

_PAUSE_S = 0.01
_END_TIMEOUT_S = 30.0


class Run:
    """One life of one worker process.

    Args:
        name: e.g. ``worker-1``; names its files.
        folder: holds its files; removed when this process is killed.
        options: the options of `dedup_sdk._demo.worker`, without ``--handled``.
    """

    def __init__(self, name: str, folder: Path, options: dict[str, str]) -> None:
        self.name = name
        self.handled_file = folder / f"{name}.handled"
        self._log = folder / f"{name}.log"
        self._seen_bytes = self._seen_lines = 0
        self.handled_file.touch()
        arguments = [
            f"--{option}={value}" for option, value in {**options, "handled": str(self.handled_file)}.items()
        ]
        with self._log.open("ab") as output:
            self._process = SupervisedChild(
                [sys.executable, "-m", "dedup_sdk._demo.worker", *arguments], folder=folder, output=output
            )

    def handled_count(self) -> int:
        """How many calls of its handler this run has finished."""
        with self.handled_file.open("rb") as file:
            file.seek(self._seen_bytes)
            added = file.read()
        self._seen_bytes += len(added)
        self._seen_lines += added.count(b"\n")
        return self._seen_lines

    def check(self) -> None:
        """Raise `DemoError` with the process's last output line if it has ended by itself."""
        if (status := self._process.exit_status) is not None:
            words = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
            raise DemoError(
                f"{self.name} ended by itself with status {status}: {words[-1] if words else 'no word'}"
            )

    def kill(self) -> None:
        """End it as a crash does (SIGKILL); does nothing when it has ended."""
        self._process.kill()

    def terminate(self) -> None:
        """Ask it to finish the current message, commit and end (SIGTERM)."""
        self._process.signal(signal.SIGTERM)

    def wait(self, deadline_s: float) -> None:
        """Wait until it has ended in order; raise `DemoError` at the deadline (of `time.monotonic`)."""
        while (status := self._process.exit_status) is None:
            if time.monotonic() > deadline_s:
                raise DemoError(
                    f"{self.name} did not end within {_END_TIMEOUT_S:g} s of SIGTERM: run the demo again"
                )
            time.sleep(_PAUSE_S)
        if status != 0:
            self.check()
        self._process.kill()


class Workers:
    """The workers of one consumer group on one store folder; leaving the ``with`` block kills running ones.

    Args:
        folder: holds the workers' files.
        options: the options of `dedup_sdk._demo.worker`, the same for all.
    """

    def __init__(self, folder: Path, options: dict[str, str]) -> None:
        self._folder = folder
        self._options = options
        self.runs: list[Run] = []
        self._alive: list[Run] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for run in self._alive:
            with suppress(OSError):
                run.kill()

    def start(self, name: str) -> Run:
        """Start a worker; its name must be new."""
        run = Run(name, self._folder, self._options)
        self.runs.append(run)
        self._alive.append(run)
        return run

    def kill_busiest(self) -> Run:
        """Kill (SIGKILL) the worker that has handled the most, and return its run."""
        run = max(self._alive, key=Run.handled_count)
        self._alive.remove(run)
        run.kill()
        return run

    def handled_count(self) -> int:
        """How many calls of handlers all runs have finished."""
        return sum(run.handled_count() for run in self.runs)

    def check(self) -> None:
        """Raise `DemoError` if a worker has ended by itself."""
        for run in self._alive:
            run.check()

    def end(self) -> None:
        """Let every worker end in order, together."""
        deadline_s = time.monotonic() + _END_TIMEOUT_S
        for run in self._alive:
            run.terminate()
        while self._alive:
            self._alive[-1].wait(deadline_s)
            self._alive.pop()
