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

# Reads until the last holder of the pipe's other end is gone, however it went: this process, or a child on its way.
# The kernel's own means (PR_SET_PDEATHSIG) exists on Linux only, needs code between fork and exec, and fires already
# when the *thread* that started the child ends.
_WATCH = """\
child= stays=
while read -r word; do case $word in stays) stays=yes ;; *) child=$word ;; esac; done
[ -n "$child" ] || exit 0
{}
[ -n "$stays" ] || rm -rf -- "$1"
"""
_TELL = 'echo $$ >&0; exec "$@" </dev/null'
_KILL = 'kill -KILL "$child" 2>/dev/null'

_FREEZE_S = 5.0
_LOOK_S = 0.001


class Tether:
    """A tiny shell that ends a child and removes `folder` when this process lets go, or dies.

    It is there before the child, which tells it its number before it becomes the program. So a signal's exception, or a SIGKILL, between
    the fork and the line behind it leaves no child that nobody knows.

    Args:
        ending: shell commands that end the child, whose process ID is ``$child``; ``$stays`` is "" unless `let_go` was called.
        folder: what is removed when this process dies, or drops the tether, after the child was started.
    """

    _watch: subprocess.Popen[bytes] | None = None

    def __init__(self, ending: str, folder: Path) -> None:
        told, telling = os.pipe()
        self._end = os.fdopen(telling, "wb", buffering=0)
        try:
            self._watch = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH.format(ending), "dedup-watch", str(folder)],
                stdin=told,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            self._end.close()
            raise
        finally:
            os.close(told)

    @property
    def end(self) -> IO[bytes]:
        """What the child gets as stdin; the program itself reads from nothing."""
        return self._end

    def tied(self, command: Sequence[str], *, shell: Sequence[str] = ("/bin/sh",)) -> list[str]:
        """Return the command line that becomes `command` when the watch knows its process ID, which stays the same.

        A program that cannot be started ends it with status 126 or 127.
        """
        return [*shell, "-c", _TELL, "dedup-child", *command]

    def let_go(self) -> None:
        """Have the child ended, if one was started, and return when the watch has done so. `folder` stays."""
        if not self._end.closed:
            with suppress(OSError):
                self._end.write(b"stays\n")
            self._end.close()
        if self._watch is not None:
            self._watch.wait()

    def cut(self) -> None:
        """End the watch alone. `folder` stays."""
        if self._watch is not None:
            self._watch.kill()
            self._watch.wait()
        self._end.close()


class Tethered:
    """A running child process, and a `Tether` that ends it and removes `folder` if this process dies first.

    The child has a session of its own: Ctrl-C at a terminal reaches the user's program, not the child, and the
    program ends it in its own order.

    Args:
        command: program and arguments. One that cannot be started ends with status 126 or 127, and `output` says why.
        folder: what is removed when this process dies without ending the child; after `kill` it stays.
        output: where the child's stdout and stderr go.
    """

    def __init__(self, command: Sequence[str], *, folder: Path, output: IO[bytes]) -> None:
        self._tether = Tether(_KILL, folder)
        try:
            self._child = subprocess.Popen(
                self._tether.tied(command),
                stdin=self._tether.end,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except BaseException:
            self._tether.let_go()
            raise

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
        if self._child.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._child.pid, signal.SIGKILL)
        # Behind the signal, for what interrupts this is then over as well; before the child is collected, for the watch must not find its
        # number when another process may bear it.
        self._tether.cut()
        self._child.wait()
