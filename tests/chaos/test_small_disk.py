from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.chaos.history import Call, History, LogRecord, Sample
from tests.chaos.journal import Journal, read_journal
from tests.chaos.oracle import judge
from tests.chaos.small_disk import allow_writing, forbid_writing, small_disks

if TYPE_CHECKING:
    from pathlib import Path

_WRITER = """
import sys
with open(sys.argv[1], "ab", buffering=0) as file:
    for line in sys.stdin:
        try:
            file.write(b"more")
        except OSError as error:
            print(error.strerror, flush=True)
        else:
            print("written", flush=True)
"""


def test_a_process_may_write_no_more_for_a_while(tmp_path: Path) -> None:
    """Where no small disk can be mounted, a running process is refused every write, and none after that."""
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(tmp_path / "file")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True
    ) as writer:  # fmt: skip
        assert writer.stdin is not None
        assert writer.stdout is not None
        answers = []
        for change in (None, forbid_writing, allow_writing):
            if change is not None:
                change(writer.pid)
            writer.stdin.write("again\n")
            writer.stdin.flush()
            answers.append(writer.stdout.readline().strip())
        writer.stdin.close()
    assert answers == ["written", "File too large", "written"]


def test_who_wants_no_mount_gets_none(tmp_path: Path) -> None:
    """The folders are left alone, and the block is told."""
    with small_disks([tmp_path / "disk"], mount=False) as mounted:
        assert not mounted
        assert not (tmp_path / "disk").exists()


def test_a_piped_journal_says_the_same(tmp_path: Path) -> None:
    """Another process writes it: each line arrives, and in order."""
    path = tmp_path / "run.jsonl"
    journal = Journal(str(path), piped=True)
    for offset in range(3):
        journal.call(1, offset, 7)
    journal.close()
    assert [(call.partition, call.offset) for call in read_journal(path, "run")[0]] == [
        (1, 0),
        (1, 1),
        (1, 2),
    ]


def test_what_was_given_up_may_be_committed_before_it_is_handled() -> None:
    """A dead letter ends its record, and copies of it; the message still has to be handled, when it is sent back."""
    log = [LogRecord(0, offset, 0, None, b"a") for offset in (0, 1)]
    samples = [Sample(10, 0, 1)]
    again = Call("run-1", 0, 1, 20, 30)

    given_up = History(log=log, calls=[again], window_ms=1, samples=samples, given_up={(0, 0)})
    assert judge(given_up).broken() == {}
    assert judge(History(log=log, calls=[again], window_ms=1, samples=samples)).broken() == {"premature": 1}
    never = History(log=log, calls=[], window_ms=1, samples=samples, given_up={(0, 0)})
    assert judge(never).lost == 1
