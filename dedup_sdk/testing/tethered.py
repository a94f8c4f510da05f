"""A child process that does not outlive the process that started it, not even when that one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Waits for the end of its input, which comes when the last holder of the pipe's other end is gone, however it went.
# The kernel's own means (PR_SET_PDEATHSIG) exists on Linux only, needs code between fork and exec, and fires already
# when the *thread* that started the child ends.
_WATCH = 'read -r _; kill -KILL "$1" 2>/dev/null; rm -rf -- "$2"'

_FREEZE_S = 5.0
_LOOK_S = 0.001


class Tethered:
    """A running child process, and a tiny shell that ends it and removes `folder` if this process dies first.

    The child has a session of its own: Ctrl-C at a terminal reaches the user's program, not the child, and the
    program ends it in its own order.

    Args:
        command: program and arguments.
        folder: what is removed when this process dies without ending the child; after `kill` it stays.
        output: where the child's stdout and stderr go.
    """

    def __init__(self, command: Sequence[str], *, folder: Path, output: IO[bytes]) -> None:
        self._child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        self._watch = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "dedup-watch", str(self._child.pid), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The child's process ID."""
        return self._child.pid

    @property
    def exit_status(self) -> int | None:
        """As `subprocess.Popen.poll`: None while the child runs."""
        return self._child.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit status when the child has ended by itself; None when it has not within `timeout_s`."""
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout_s)
        return self.exit_status

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child; nothing happens when it has ended."""
        with suppress(ProcessLookupError):
            self._child.send_signal(number)

    def freeze(self) -> None:
        """Stop the child with SIGSTOP, and return when all of its threads stand still; nothing happens when it has ended."""
        self.signal(signal.SIGSTOP)
        deadline = time.monotonic() + _FREEZE_S
        # A thread that runs on another core may go on for a moment, long enough to answer a request.
        while self.exit_status is None and time.monotonic() < deadline:
            with suppress(ChildProcessError):
                if os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG) is not None:
                    return
            time.sleep(_LOOK_S)

    def kill(self) -> None:
        """End the child with SIGKILL, also a stopped one, and wait for it. `folder` stays."""
        # The watch first: it must not find the child's number when another process may bear it.
        self._watch.kill()
        self._watch.wait()
        if self._watch.stdin is not None:
            self._watch.stdin.close()
        self._child.kill()
        self._child.wait()
