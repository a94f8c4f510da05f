"""The processes of a submitted job: spark-submit with its JVM, and the driver in it.

They have a session of their own, so that Ctrl-C at a terminal reaches the launcher alone, and the launcher ends them in order:
the driver first, which takes its files away, then whatever is left. When the launcher itself is killed, a shell that waits for
the end of a pipe does the same.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from spark_backfill.errors import BackfillError

_GRACE_S: Final = 8
_LOOK_S: Final = 0.05
_WATCH: Final = (
    'read -r _; kill -s TERM -- "-$1" 2>/dev/null; grace=$3; '
    'while [ "$grace" -gt 0 ] && kill -s 0 -- "-$1" 2>/dev/null; do sleep 1; grace=$((grace - 1)); done; '
    'kill -s KILL -- "-$1" 2>/dev/null; rm -rf -- "$2"'
)


class Submission:
    """A running spark-submit; a context manager that leaves no process of it behind.

    ``driver`` is the driver's process ID, once it has told it; ``stderr`` what the job says.

    Raises:
        BackfillError: the program cannot be started.
    """

    def __init__(
        self, line: Sequence[str], *, environment: Mapping[str, str], folder: Path, stdout: IO[str]
    ) -> None:
        self.driver: int | None = None
        try:
            self._process = subprocess.Popen(  # noqa: S603 (the command is made by the launcher)
                line, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True,
                errors="backslashreplace", env=environment, cwd=folder, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise BackfillError(f"{line[0]} cannot be started: {error.strerror}; reinstall pyspark") from None
        self._watch = subprocess.Popen(  # noqa: S603 (a fixed script)
            ["/bin/sh", "-c", _WATCH, "dedup-watch", str(self._process.pid), str(folder), str(_GRACE_S)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    @property
    def stderr(self) -> IO[str]:
        """What the job says, until it is over."""
        if self._process.stderr is None:
            raise RuntimeError("spark-submit was started without a pipe")
        return self._process.stderr

    def __enter__(self) -> Self:
        return self

    def wait(self) -> int:
        """Return the exit status when spark-submit is over."""
        return self._process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None and self.driver is not None:
            self._signal_driver()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        self._end_group()
        self._watch.kill()
        self._watch.wait()
        if self._watch.stdin is not None:
            self._watch.stdin.close()
        self.stderr.close()

    def _signal_driver(self) -> None:
        with suppress(OSError):
            # A driver on another machine has a number that here is somebody else's.
            if self.driver is not None and os.getsid(self.driver) == self._process.pid:
                os.kill(self.driver, signal.SIGTERM)

    def _end_group(self) -> None:
        """End what is left of the session: nothing, after a run that came to its end."""
        deadline = time.monotonic() + _GRACE_S
        there = self._signal_group(signal.SIGTERM)
        while there and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            self._process.poll()
            there = self._signal_group(0)
        if there:
            self._signal_group(signal.SIGKILL)
        self._process.wait()

    def _signal_group(self, number: int) -> bool:
        """Send a signal (0: none) to all that is left of the session; False when nothing is."""
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True
