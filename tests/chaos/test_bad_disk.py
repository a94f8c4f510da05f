from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.chaos.bad_disk import DISK_FAULTS, ROOT, DiskFault, make_bad, make_good, may_refuse

if TYPE_CHECKING:
    from pathlib import Path

_WORKER = """
import os, sys, tempfile
from pathlib import Path
from tests.chaos.bad_disk import be_refused
disk = Path(sys.argv[1])
disk.mkdir()
be_refused(disk)
file = os.open(disk / "file", os.O_RDWR | os.O_CREAT)
calls = {
    "write": lambda: os.write(file, b"more"),
    "sync": lambda: os.fsync(file),
    "open-to-write": lambda: (disk / "other").write_bytes(b""),
    "open-to-read": lambda: os.close(os.open(disk / "file", os.O_RDONLY)),
    "read": lambda: os.pread(file, 1, 0),
    "make": lambda: tempfile.mkdtemp(dir=disk),
    "rename": lambda: (disk / "other").replace(disk / "another"),
    "relative": lambda: os.chdir(disk) or Path("other").write_bytes(b""),
    "elsewhere": lambda: (disk.parent / "beside").write_bytes(b"more"),
}
for line in sys.stdin:
    refused = []
    for name, call in calls.items():
        try:
            call()
        except OSError as error:
            refused.append(f"{name}: {error.strerror}")
    print(", ".join(refused), flush=True)
"""
_EIO, _EROFS = "Input/output error", "Read-only file system"
_REFUSED = {
    "dead": dict.fromkeys(
        ("write", "sync", "open-to-write", "open-to-read", "read", "make", "rename", "relative"), _EIO
    ),
    "no-writes": dict.fromkeys(("write", "sync", "open-to-write", "make", "rename", "relative"), _EIO),
    "no-sync": {"sync": _EIO},
    "no-appends": {"write": _EIO},
    "read-only": dict.fromkeys(("write", "open-to-write", "make", "rename", "relative"), _EROFS),
}
_CERTAIN = [fault for fault in DISK_FAULTS if fault.share == 1.0]


@pytest.mark.parametrize("fault", _CERTAIN, ids=lambda fault: fault.name)
def test_a_disk_fails_for_a_while(tmp_path: Path, fault: DiskFault) -> None:
    """A running process is refused the calls of the fault, of that disk alone, and nothing before and after it."""
    if not may_refuse():
        pytest.skip("the kernel, or the container, has no user notification of seccomp")
    disk = tmp_path / "disk"
    with subprocess.Popen(
        [sys.executable, "-c", _WORKER, str(disk)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:  # fmt: skip
        assert worker.stdin is not None
        assert worker.stdout is not None
        answers = []
        for state in ("good", "bad", "good"):
            if state == "bad":
                make_bad(disk, fault)
            else:
                make_good(disk)
            worker.stdin.write("again\n")
            worker.stdin.flush()
            answers.append(worker.stdout.readline().strip())
        worker.stdin.close()
    expected = ", ".join(f"{name}: {error}" for name, error in _REFUSED[fault.name].items())
    assert answers == ["", expected, ""]
