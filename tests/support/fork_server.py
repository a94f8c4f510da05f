"""Processes that are forked from one that has imported what they need.

To import it takes half a second of a processor, which is more than most workers of a scenario use in their life.
"""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROOT: Final = Path(__file__).parents[2]
_MAIN: Final = """\
import sys
sys.path.insert(0, sys.argv[1])
from tests.support.fork_server import main
main(sys.argv[2:])
"""
_LOOK_S: Final = 0.01


class _Job(NamedTuple):
    """The part of a forked child: ``main`` of a module, with one argument."""

    module: str
    argument: str
    output: str


class ForkServer:
    """A process that forks children, and kills those that live when it ends: at `end`, or when this process dies.

    A child calls ``main(argument)`` of a module and ends with the number that this returns.

    Args:
        modules: what the server imports before it forks.
        folder: removed when this process dies without `end`.
    """

    def __init__(self, modules: Sequence[str], folder: Path) -> None:
        self._pipe, theirs = Pipe()
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(_ROOT), str(theirs.fileno()), str(folder), *modules],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        # An exception that a signal raises in the caller's thread never leaves half a question in the pipe.
        self._asking = ThreadPoolExecutor(1, thread_name_prefix="fork-server")

    def start(self, module: str, argument: str, output: Path) -> ForkedChild:
        """Fork a child in a session of its own, whose stdout and stderr are added to a file."""
        pid = self.ask("start", module, argument, str(output))
        return ForkedChild(self, pid)

    def ask(self, what: str, *arguments: Any) -> Any:
        """Have the server call one of its methods; raises `RuntimeError` where it has ended."""
        return self._asking.submit(self._ask, what, arguments).result()

    def _ask(self, what: str, arguments: tuple[Any, ...]) -> Any:
        try:
            self._pipe.send((what, arguments))
            return self._pipe.recv()
        except (OSError, EOFError) as error:
            raise RuntimeError("the server that forks workers has ended") from error

    def end(self) -> None:
        """Kill the children that live, and end the server. The folder stays."""
        with suppress(RuntimeError):
            self.ask("end")
        self._asking.shutdown()
        self._pipe.close()
        self._server.wait()


class ForkedChild:
    """A child of a `ForkServer`, which collects it: so its process ID is never another process's."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server, self._pid = server, pid
        self._status: int | None = None

    @property
    def pid(self) -> int:
        """The child's process ID."""
        return self._pid

    @property
    def exit_status(self) -> int | None:
        """As `subprocess.Popen.poll`: None while the child runs."""
        if self._status is None:
            self._status = self._server.ask("status", self._pid)
        return self._status

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the child, and return its exit status; None where it still runs after ``timeout_s``."""
        until = time.monotonic() + timeout_s
        while self.exit_status is None and time.monotonic() < until:
            time.sleep(_LOOK_S)
        return self._status

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child; does nothing when it has ended."""
        if self._status is None:
            self._server.ask("signal", self._pid, int(number))

    def kill(self) -> None:
        """End the child with SIGKILL, also a stopped one, and wait for it."""
        if self._status is None:
            self._status = self._server.ask("kill", self._pid)


class _Server:
    """The other side of `ForkServer`."""

    def __init__(self, pipe: Connection, folder: str) -> None:
        self._pipe, self._folder = pipe, folder
        self._running: set[int] = set()
        self._ended: dict[int, int] = {}
        self._job: _Job | None = None
        self._orderly = False

    def serve(self) -> _Job | None:
        """Answer until the end, and return None; in a forked child return its job."""
        with self._pipe:
            while not self._orderly:
                try:
                    what, arguments = self._pipe.recv()
                except (EOFError, OSError):
                    break
                answer = getattr(self, f"_{what}")(*arguments)
                if self._job is not None:
                    return self._job
                with suppress(OSError):
                    self._pipe.send(answer)
        return None

    def _start(self, *job: str) -> int:
        pid = os.fork()
        if pid == 0:
            self._job = _Job(*job)
        else:
            self._running.add(pid)
        return pid

    def _status(self, pid: int, how: int = os.WNOHANG) -> int | None:
        if pid in self._running:
            ended, status = os.waitpid(pid, how)
            if ended == pid:
                self._running.remove(pid)
                self._ended[pid] = os.waitstatus_to_exitcode(status)
        return self._ended.get(pid)

    def _signal(self, pid: int, number: int) -> None:
        if self._status(pid) is None:
            os.kill(pid, number)

    def _kill(self, pid: int) -> int | None:
        self._signal(pid, signal.SIGKILL)
        return self._status(pid, 0)

    def _end(self) -> None:
        self._orderly = True
        self.kill_all()

    def kill_all(self) -> None:
        """End the children that live; remove the folder where nobody said that this is the end."""
        for pid in list(self._running):
            self._kill(pid)
        if not self._orderly:
            shutil.rmtree(self._folder, ignore_errors=True)


def main(arguments: Sequence[str]) -> None:
    """Serve; in a child, end with its exit status."""
    file, folder, *modules = arguments
    for module in modules:
        importlib.import_module(module)
    # The garbage collector of a child leaves alone, and does not copy, what the child shares with the server.
    gc.freeze()
    server = _Server(Connection(int(file)), folder)
    job = server.serve()
    if job is None:
        server.kill_all()
        return
    os.setsid()
    output = os.open(job.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    sys.exit(importlib.import_module(job.module).main(job.argument))
