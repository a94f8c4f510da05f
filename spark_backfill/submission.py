"""The processes of a submitted job: spark-submit with its JVM, and the driver in it.

They have a session of their own, so that Ctrl-C at a terminal reaches the launcher alone, and the launcher ends
them in order: the driver first, which takes its files away, then whatever is left. A shell that waits
for the end of a pipe ends the latter, so that it also does when the launcher itself is killed.

The driver is ended, not the JVM: a JVM that gets a signal goes at once, and leaves the driver with a broken
gateway in the middle of its cleaning up. So the driver leaves its process ID in a file.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from dedup_sdk.testing._supervised_child import Supervisor
from spark_backfill.console import DRIVER_NAME, OUTCOME_NAME
from spark_backfill.ending import MAYBE_WRITTEN, EndedError
from spark_backfill.errors import BackfillError

_GRACE_S: Final = 8
# The driver's shell drops no variable of the environment whose name is none for a shell, as smaller ones do.
_SHELL: Final = ("/usr/bin/env", "bash")
_ENDING: Final = """\
kill -s TERM -- "-$child" 2>/dev/null
grace={}
while [ "$grace" -gt 0 ] && kill -s 0 -- "-$child" 2>/dev/null; do sleep 1; grace=$((grace - 1)); done
kill -s KILL -- "-$child" 2>/dev/null"""


class Submission:
    """A running spark-submit; a context manager that leaves no process of it behind.

    ``stderr`` has the job's messages; ``folder`` is where it runs, and where the driver leaves its files.

    Raises:
        BackfillError: the program cannot be started, e.g. with that many arguments; from entering the block.
    """

    def __init__(
        self, line: Sequence[str], *, environment: Mapping[str, str], folder: Path, stdout: IO[str]
    ) -> None:
        self._line, self._environment, self._folder, self._stdout = line, environment, folder, stdout

    def __enter__(self) -> Self:
        # Here, not when it is made: between this and the block no signal's exception can strike.
        self._supervisor = Supervisor(_ENDING.format(_GRACE_S), self._folder)
        try:
            self._process = subprocess.Popen(  # noqa: S603 (the command is made by the launcher)
                self._supervisor.command_line(self._line, shell=_SHELL), stdin=self._supervisor.stdin,
                stdout=self._stdout, stderr=subprocess.PIPE, text=True, errors="backslashreplace",
                env=self._environment, cwd=self._folder, start_new_session=True,
            )  # fmt: skip
        except BaseException as error:
            self._supervisor.end_child()
            if isinstance(error, OSError):
                raise BackfillError(f"spark-submit cannot be started: {error.strerror}") from None
            raise
        return self

    @property
    def stderr(self) -> IO[str]:
        """The job's messages, until it is over."""
        if self._process.stderr is None:
            raise RuntimeError("spark-submit was started without a pipe")
        return self._process.stderr

    def wait(self) -> int:
        """Return the exit status when spark-submit is over."""
        return self._process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None and self._signal_driver():
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        self._supervisor.end_child(self._process)
        if isinstance(error, EndedError):
            error.tell(self._outcome())
        self.stderr.close()

    def _outcome(self) -> str:
        """What the driver said of the snapshot at its end; one that was killed, or is elsewhere, says nothing."""
        with suppress(OSError):
            return (self._folder / OUTCOME_NAME).read_text(encoding="ascii")
        return MAYBE_WRITTEN

    def _signal_driver(self) -> bool:
        """Ask the driver to end; False where there is none yet, or it is elsewhere."""
        with suppress(OSError, ValueError):
            driver = int((self._folder / DRIVER_NAME).read_text(encoding="ascii"))
            # One that was there a moment ago has a number that is somebody else's now.
            if os.getsid(driver) == self._process.pid:
                os.kill(driver, signal.SIGTERM)
                return True
        return False
