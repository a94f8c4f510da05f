"""A child process that does not outlive the process that started it, not even when that one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# The shell reads until the last holder of the pipe's other end has ended: this process, or a starting child.
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


class Supervisor:
    """A small shell that ends a child and removes `folder` when this process dies, or calls `end_child`.

    It starts before the child, which writes its process ID to it before it becomes the program. So an
    exception or a SIGKILL between the fork and the next line leaves no orphan.

    Args:
        ending: shell commands that end the child, whose process ID is ``$child``.
        folder: removed when this process dies, or drops the supervisor, after the child was started.
    """

    _watch: subprocess.Popen[bytes] | None = None

    def __init__(self, ending: str, folder: Path) -> None:
        told, telling = os.pipe()
        self._pipe = os.fdopen(telling, "wb", buffering=0)
        try:
            self._watch = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH.format(ending), "dedup-watch", str(folder)],
                stdin=told,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            self._pipe.close()
            raise
        finally:
            os.close(told)

    @property
    def stdin(self) -> IO[bytes]:
        """The child's stdin until it becomes the program, which reads from the null device."""
        return self._pipe

    def command_line(self, command: Sequence[str], *, shell: Sequence[str] = ("/bin/sh",)) -> list[str]:
        """Return the command line to start: it reports its process ID, and becomes `command` with the same ID.

        Where the program cannot be started it ends with status 126 or 127.
        """
        return [*shell, "-c", _TELL, "dedup-child", *command]

    def end_child(self, child: subprocess.Popen[Any] | None = None) -> None:
        """Let the shell end the child, if one was started, and wait for it. `folder` stays.

        Collects `child`: until then it counts as a process that runs.
        """
        if not self._pipe.closed:
            with suppress(OSError):
                self._pipe.write(b"stays\n")
            self._pipe.close()
        if child is not None:
            child.wait()
        if self._watch is not None:
            self._watch.wait()

    def dismiss(self) -> None:
        """End the shell, and not the child. `folder` stays."""
        if self._watch is not None:
            self._watch.kill()
            self._watch.wait()
        self._pipe.close()


class SupervisedChild:
    """A running child process, and a `Supervisor` that ends it and removes `folder` if this process dies first.

    The child has its own session: Ctrl-C at a terminal reaches your program, not the child, and the program
    ends it when it is time.

    Args:
        command: program and arguments. If it cannot be started the child ends with status 126 or 127, and
            `output` has the reason.
        folder: removed when this process dies without ending the child; after `kill` it stays.
        output: receives the child's stdout and stderr.
    """

    def __init__(self, command: Sequence[str], *, folder: Path, output: IO[bytes]) -> None:
        self._supervisor = Supervisor(_KILL, folder)
        try:
            self._child = subprocess.Popen(
                self._supervisor.command_line(command),
                stdin=self._supervisor.stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except BaseException:
            self._supervisor.end_child()
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
        """Wait for the child, and return its exit status; None where it still runs after `timeout_s`."""
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout_s)
        return self.exit_status

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child; does nothing when it has ended."""
        with suppress(ProcessLookupError):
            self._child.send_signal(number)

    def freeze(self) -> None:
        """Stop the child with SIGSTOP, and return when all its threads have stopped; does nothing when it has ended."""
        self.signal(signal.SIGSTOP)
        deadline = time.monotonic() + _FREEZE_S
        # A thread on another core may run on for a moment, long enough to answer a request.
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
        # After the signal, so that an interruption here leaves no child. Before the child is collected:
        # then another process could get its ID,
        # which the shell would kill.
        self._supervisor.dismiss()
        self._child.wait()
