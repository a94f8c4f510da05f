"""Disks that fail.

The system calls of a worker that reach below its store's folder are refused, with EIO or EROFS, while a file says
so. The worker has the kernel ask another process before each of these calls (seccomp's user notification), so that
nothing has to be mounted, and nothing is refused that is not the store's.
``python -m tests.chaos.bad_disk FD FOLDER`` is that other process.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import random
import select
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

_ARCHITECTURES: Final[dict[str, tuple[int, int, dict[str, int]]]] = {
    # The architecture's number, that of seccomp(), and those of the calls to refuse.
    "x86_64": (
        0xC000003E,
        317,
        {
            "write": 1, "pread64": 17, "pwrite64": 18, "writev": 20, "fsync": 74, "fdatasync": 75, "ftruncate": 77,
            "rename": 82,
            "mkdir": 83, "link": 86, "unlink": 87, "openat": 257, "fallocate": 285,
        },
    ),
    "aarch64": (
        0xC00000B7,
        277,
        {
            "mkdirat": 34, "unlinkat": 35, "linkat": 37, "renameat": 38, "ftruncate": 46, "fallocate": 47,
            "openat": 56, "write": 64,
            "writev": 66, "pread64": 67, "pwrite64": 68, "fsync": 82, "fdatasync": 83,
        },
    ),
}  # fmt: skip
_PATH_AT: Final = {
    "openat": 1, "rename": 0, "renameat": 1, "mkdir": 0, "mkdirat": 1, "link": 0, "linkat": 1, "unlink": 0,
    "unlinkat": 1,
}  # fmt: skip
"""Which argument is a path; of all others the first is a file that is open."""
_OPEN_FLAGS_AT: Final = 2
_CALLS: Final[dict[str, frozenset[str]]] = {
    "change": frozenset({"write", "pwrite64", "writev", "ftruncate", "fallocate"}),
    "sync": frozenset({"fsync", "fdatasync"}),
    "name": frozenset(_PATH_AT) - {"openat"},
    "open-to-write": frozenset({"openat"}),
    "open-to-read": frozenset({"openat"}),
    "read": frozenset({"pread64"}),
}

_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_PTRACER: Final = 0x59616D61
_SET_MODE_FILTER: Final = 1
_NEW_LISTENER: Final = 1 << 3
_WAIT_KILLABLE: Final = 1 << 5
_NOTIFY, _ALLOW = 0x7FC00000, 0x7FFF0000
_CONTINUE: Final = 1
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_QUESTION: Final = struct.Struct("=QIIiIQ6Q")
_ANSWER: Final = struct.Struct("=QqiI")
_LONGEST_PATH: Final = 4_096
_READY: Final = b"r"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFault:
    """The calls that a disk refuses.

    Attributes:
        name: for the counts.
        refused: names of groups of system calls.
        error: the name of the error that they get.
        share: how many of them are refused.
    """

    name: str
    refused: tuple[str, ...]
    error: str = "EIO"
    share: float = 1.0

    @property
    def refuses_reads(self) -> bool:
        """Whether the disk cannot be read either."""
        return "read" in self.refused


_TO_WRITE: Final = ("change", "sync", "name", "open-to-write")
DISK_FAULTS: Final = (
    DiskFault(name="dead", refused=(*_TO_WRITE, "open-to-read", "read")),
    DiskFault(name="no-writes", refused=_TO_WRITE),
    DiskFault(name="no-sync", refused=("sync",)),
    DiskFault(name="no-appends", refused=("change",)),
    DiskFault(name="flaky", refused=(*_TO_WRITE, "open-to-read", "read"), share=0.3),
    DiskFault(name="read-only", refused=("change", "name", "open-to-write"), error="EROFS"),
)


def make_bad(disk: Path, fault: DiskFault) -> None:
    """Let a disk refuse the calls of the fault, from the next call on."""
    said = _said(disk)
    new = said.with_name(said.name + "-new")
    new.write_text(json.dumps(asdict(fault)))
    new.replace(said)


def make_good(disk: Path) -> None:
    """Undo `make_bad`."""
    with suppress(FileNotFoundError):
        _said(disk).unlink()


def _said(disk: Path) -> Path:
    return disk.with_name(disk.name + ".bad")


def may_refuse() -> bool:
    """Whether this system lets a process be refused its calls."""
    program = "from tests.chaos.bad_disk import listen; listen()"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=False)
    return done.returncode == 0


def be_refused(disk: Path) -> None:
    """Have another process asked before this thread changes or reads files below ``disk``.

    So it is for threads that this one starts from now on.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            asked = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.bad_disk", str(theirs.fileno()), str(disk.absolute())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
            )
        # It reads the paths of the calls from this process's memory.
        _libc().prctl(_PR_SET_PTRACER, asked.pid, 0, 0, 0)
        listener = listen()
        socket.send_fds(ours, [_READY], [listener])
        os.close(listener)


def listen() -> int:
    """Have the kernel ask before this thread makes such a call; return the file that the questions come from."""
    libc, (_, number, _) = _libc(), _ARCHITECTURES[platform.machine()]
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    steps = _filter()
    listed = ctypes.create_string_buffer(steps, len(steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps) // 8, ctypes.addressof(listed)))
    # Signals would end calls with EINTR that never do so; older kernels know no better.
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):
        listener = libc.syscall(number, _SET_MODE_FILTER, flags, program)
        if listener >= 0:
            return int(listener)
    raise OSError(ctypes.get_errno(), "seccomp has no user notification here")


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    return libc


def _filter() -> bytes:
    """Return the program that asks for the calls of `_ARCHITECTURES` and allows all others."""
    architecture, _, numbers = _ARCHITECTURES[platform.machine()]
    count = len(numbers)
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 0, count + 1, architecture),
        (_LOAD, 0, 0, _NUMBER_AT),
        *((_EQUAL, count - index, 0, number) for index, number in enumerate(numbers.values())),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _NOTIFY),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


class Refuser:
    """Answers the kernel's questions about one process."""

    def __init__(self, listener: int, disk: Path) -> None:
        self._listener, self._disk = listener, disk
        self._real = os.path.realpath(disk)
        self._said = str(_said(disk))
        self._names = {number: name for name, number in _ARCHITECTURES[platform.machine()][2].items()}
        self._random = random.Random()

    def answer_all(self) -> None:
        """Answer until the process has ended."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while True:
            events = poll.poll()
            if not any(event & select.POLLIN for _, event in events):
                return
            question = bytearray(_QUESTION.size)
            # A thread that was killed meanwhile asks no more.
            with suppress(FileNotFoundError):
                fcntl.ioctl(self._listener, _RECEIVE, question)
                number, thread, _, call, _, _, *arguments = _QUESTION.unpack(question)
                error = self._error(thread, self._names[call], arguments)
                answer = _ANSWER.pack(number, 0, -error, 0 if error else _CONTINUE)
                fcntl.ioctl(self._listener, _SEND, answer)

    def _error(self, thread: int, call: str, arguments: list[int]) -> int:
        """Return the number of the error that a call gets, 0: none."""
        try:
            text = Path(self._said).read_bytes()
        except FileNotFoundError:
            return 0
        fault = json.loads(text)
        if not any(call in _CALLS[group] and _fits(group, arguments) for group in fault["refused"]):
            return 0
        if not self._concerns(thread, call, arguments) or self._random.random() >= fault["share"]:
            return 0
        return int(getattr(errno, fault["error"]))

    def _concerns(self, thread: int, call: str, arguments: list[int]) -> bool:
        """Whether a call is one of a file below the disk."""
        try:
            if call not in _PATH_AT:
                file = Path(f"/proc/{thread}/fd/{arguments[0]}").readlink()
                return self._is_below(str(file))
            path = _text_at(thread, arguments[_PATH_AT[call]])
            if not path.startswith("/"):
                path = str(Path(f"/proc/{thread}/cwd").readlink() / path)
        except OSError:
            return False
        return self._is_below(os.path.realpath(path))

    def _is_below(self, path: str) -> bool:
        return path == self._real or path.startswith(self._real + "/")


def _fits(group: str, arguments: list[int]) -> bool:
    """Whether an ``openat`` is of the group; any other call is."""
    if not group.startswith("open-"):
        return True
    writes = arguments[_OPEN_FLAGS_AT] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    return bool(writes) == (group == "open-to-write")


def _text_at(thread: int, address: int) -> str:
    with Path(f"/proc/{thread}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        # The bytes behind the page's end need not be there.
        text = memory.read(_LONGEST_PATH)
    return os.fsdecode(text.partition(b"\0")[0])


def main(arguments: list[str]) -> None:
    """Answer the questions about the process at the other end of a socket."""
    with socket.socket(fileno=int(arguments[0])) as told:
        _, [listener], _, _ = socket.recv_fds(told, 1, 1)
    Refuser(listener, Path(arguments[1])).answer_all()


if __name__ == "__main__":
    main(sys.argv[1:])
