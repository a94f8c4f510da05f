"""An outbox in a folder: its owner, other files there, and faults of disks."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from dedup_sdk.producer import OutboxDamagedError, OutboxError, OutboxFullError, OutboxLockedError
from dedup_sdk.producer._outbox import Step
from dedup_sdk.producer._outgoing import Outgoing, pack_headers
from dedup_sdk.producer._sqlite_outbox import FILE, SqliteOutbox
from tests.support.damage import Damage, damage_file
from tests.support.disks import small_disk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def message(number: int, **changes: object) -> Outgoing:
    """A message with some of everything."""
    made = Outgoing(
        b"id-%d" % number,
        "orders",
        -1,
        None,
        b"x" * 50,
        1_700_000_000_000,
        pack_headers([("a", b"1"), ("b", None)]),
    )
    return made._replace(**changes)  # type: ignore[arg-type]  # as in a hostile file


def numbers(first: int, end: int) -> list[Outgoing]:
    """Some messages."""
    return [message(number) for number in range(first, end)]


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[SqliteOutbox]:
    """An outbox that is open."""
    made = SqliteOutbox(tmp_path / "outbox")
    made.open()
    yield made
    made.close()


def change(path: Path, *statements: str) -> None:
    """Do something to a file that nobody has open."""
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


def test_messages_come_back_as_they_were_in_their_order(outbox: SqliteOutbox) -> None:
    """Added in several sizes, some removed, some refused; another open finds the rest and goes on counting."""
    assert list(outbox.apply(Step(numbers(0, 1_234)))) == [*range(1, 1_235)]
    outbox.apply(Step([message(2_000)], [*range(2, 1_234)], [(1, "too large")]))
    assert outbox.count() == 3
    outbox.close()
    outbox.open()
    assert [(each.id, each.message) for each in outbox.after(0, 10)] == [
        (1, message(0)), (1_234, message(1_233)), (1_235, message(2_000))
    ]  # fmt: skip
    assert [each.id for each in outbox.after(1, 1)] == [1_234]
    assert [each.id for each in outbox.read([1_235, 7, 1])] == [1, 1_235]
    assert list(outbox.apply(Step(numbers(0, 1)))) == [1_236]


def test_a_step_is_done_whole_or_not_at_all(outbox: SqliteOutbox) -> None:
    """A step that fails in the middle leaves nothing, and takes no number."""
    outbox.apply(Step(numbers(0, 2)))
    with pytest.raises(OutboxError):
        outbox.apply(Step([message(2), message(3, topic=None)], removed=[1]))
    assert [each.id for each in outbox.after(0, 10)] == [1, 2]
    assert list(outbox.apply(Step(numbers(2, 3)))) == [3]


def test_it_is_its_owners_only(outbox: SqliteOutbox) -> None:
    """Folder 0700, files 0600, whatever the umask says, also where the folder was there before."""
    outbox.apply(Step(numbers(0, 1)))
    outbox.path.parent.chmod(0o755)
    outbox.close()
    outbox.open()
    outbox.apply(Step(numbers(0, 1)))
    files = {path.name: oct(path.stat().st_mode & 0o777) for path in outbox.path.parent.iterdir()}
    assert files == {FILE: "0o600", f"{FILE}-wal": "0o600"}
    assert oct(outbox.path.parent.stat().st_mode & 0o777) == "0o700"


def test_a_second_one_is_refused(outbox: SqliteOutbox) -> None:
    """In this process and in another, in one line; the first goes on, and the next may have it when it is closed."""
    second = SqliteOutbox(outbox.path.parent)
    with pytest.raises(OutboxLockedError, match="is open elsewhere"):
        second.open()
    program = (
        "import sys; from pathlib import Path; from dedup_sdk.producer import OutboxLockedError\n"
        "from dedup_sdk.producer._sqlite_outbox import SqliteOutbox\n"
        "try: SqliteOutbox(Path(sys.argv[1])).open()\n"
        "except OutboxLockedError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(outbox.path.parent)], capture_output=True, text=True, check=True
    )
    assert done.stdout.count("\n") == 1
    assert "is open elsewhere" in done.stdout
    outbox.apply(Step(numbers(0, 1)))
    outbox.close()
    second.open()
    assert second.count() == 1
    second.close()


def test_a_process_that_dies_gives_the_lock_back(tmp_path: Path) -> None:
    """And leaves its written messages."""
    program = (
        "import os, sys; from pathlib import Path; from dedup_sdk.producer._outbox import Step\n"
        "from dedup_sdk.producer._outgoing import Outgoing; from dedup_sdk.producer._sqlite_outbox import "
        "SqliteOutbox\n"
        "outbox = SqliteOutbox(Path(sys.argv[1])); outbox.open()\n"
        "outbox.apply(Step([Outgoing(b'a', 't', 0, None, None, 5, None)])); os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert ended.returncode == -9
    outbox = SqliteOutbox(tmp_path)
    outbox.open()
    assert [each.message for each in outbox.after(0, 2)] == [Outgoing(b"a", "t", 0, None, None, 5, None)]
    outbox.close()


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("PRAGMA user_version = 7", "has format 7, this version reads 1"),
        ("PRAGMA application_id = 5", "is another database, not an outbox"),
        ("ALTER TABLE messages ADD COLUMN other", "has a table of other columns"),
        ("DROP TABLE messages", "has a table of other columns"),
        (
            (
                "INSERT INTO messages (id, dedup_id, topic, partition, timestamp_ms) VALUES "
                "(9223372036854775807, 'a', 'a', 0, 0)"
            ),
            "which this package never gives",
        ),
    ],
)
def test_what_is_no_outbox_of_this_version_is_refused(
    outbox: SqliteOutbox, statement: str, line: str
) -> None:
    """In one line; the file stays as it is."""
    outbox.close()
    change(outbox.path, statement)
    before = outbox.path.read_bytes()
    with pytest.raises(OutboxError, match=line) as raised:
        outbox.open()
    assert "\n" not in str(raised.value)
    assert outbox.path.read_bytes() == before


@pytest.mark.parametrize("kind", ["empty", "cut", "zero", "text"])
def test_a_damaged_file_is_told_and_never_emptied(
    tmp_path: Path, kind: Damage | str, caplog: pytest.LogCaptureFixture
) -> None:
    """By default it stays where it is; set aside it is renamed, and the name is known."""
    outbox = SqliteOutbox(tmp_path)
    outbox.open()
    outbox.apply(Step(numbers(0, 2_000)))
    outbox.close()
    if kind == "text":
        outbox.path.write_bytes(b"no database at all " * 500)
    elif kind == "zero":
        data = bytearray(outbox.path.read_bytes())
        data[4096 * 3 : 4096 * 5] = bytes(8192)
        outbox.path.write_bytes(data)
    else:
        damage_file(outbox.path, kind, random.Random(5))  # type: ignore[arg-type]  # one of its kinds
    damaged = outbox.path.read_bytes()
    for _ in range(2):
        with pytest.raises(OutboxDamagedError, match="its messages are not sent") as raised:
            outbox.open()
        assert "\n" not in str(raised.value)
        assert outbox.path.read_bytes() == damaged
    setting_aside = SqliteOutbox(tmp_path, set_damage_aside=True)
    setting_aside.open()
    assert setting_aside.count() == 0
    assert setting_aside.set_aside is not None
    assert f"is now {setting_aside.set_aside.name}; its messages are not sent" in caplog.text
    assert setting_aside.set_aside.read_bytes() == damaged
    setting_aside.close()


def killed(tmp_path: Path) -> Path:
    """The folder of an outbox as a killed process leaves it, with five transactions in the log."""
    outbox = SqliteOutbox(tmp_path / "living")
    outbox.open()
    for number in range(5):
        outbox.apply(Step(numbers(10 * number, 10 * number + 10)))
    shutil.copytree(tmp_path / "living", tmp_path / "killed")
    outbox.close()
    return tmp_path / "killed"


def test_what_lies_behind_a_damaged_place_of_the_log_is_not_dropped_silently(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite reads up to it and removes the log.

    Here that is told at each start, and the log is kept, until somebody takes it away.
    """
    folder = killed(tmp_path)
    log_file = folder / f"{FILE}-wal"
    data = bytearray(log_file.read_bytes())
    data[len(data) // 3] ^= 1
    log_file.write_bytes(data)
    for _ in range(2):
        with pytest.raises(OutboxDamagedError, match="the messages behind the damage are missing") as raised:
            SqliteOutbox(folder).open()
        assert "\n" not in str(raised.value)
    [kept] = folder.glob("*.damaged-*")
    assert kept.read_bytes() == data
    setting_aside = SqliteOutbox(folder, set_damage_aside=True)
    setting_aside.open()
    assert 0 < setting_aside.count() < 50
    assert setting_aside.set_aside == kept
    assert kept.name in caplog.text
    setting_aside.close()
    kept.unlink()
    outbox = SqliteOutbox(folder)
    outbox.open()
    assert outbox.count() < 50
    outbox.close()


def test_a_log_that_is_whole_or_ends_in_the_middle_is_no_damage(tmp_path: Path) -> None:
    """As a kill leaves it all is there.

    Without its last pages, as a power cut may leave it, the messages complete before.
    """
    folder = killed(tmp_path)
    shutil.copytree(folder, tmp_path / "cut")
    log_file = tmp_path / "cut" / f"{FILE}-wal"
    log_file.write_bytes(log_file.read_bytes()[:-5_000])
    for each, count in ((folder, 50), (tmp_path / "cut", 40)):
        outbox = SqliteOutbox(each)
        outbox.open()
        assert outbox.count() == count
        outbox.close()
        assert {path.name for path in each.iterdir()} == {FILE}


def test_rows_that_are_no_messages_are_named(outbox: SqliteOutbox) -> None:
    """Each with its fault; those around them are whole."""
    outbox.apply(Step(numbers(0, 1)))
    outbox.close()
    wrong = {
        "dedup_id": "'text'", "topic": "x'00'", "partition": "'x'", "timestamp_ms": "-1", "key": "5", "value": "'text'",
        "headers": "x'000500'",
    }  # fmt: skip
    columns = "dedup_id, topic, partition, timestamp_ms, key, value, headers"
    whole = {
        "dedup_id": "x'61'",
        "topic": "'orders'",
        "partition": "0",
        "timestamp_ms": "5",
        "key": "NULL",
        "value": "NULL",
        "headers": "NULL",
    }
    for name, content in wrong.items():
        row = whole | {name: content}
        change(
            outbox.path,
            f"INSERT INTO messages ({columns}) VALUES "  # noqa: S608 (a test's own)
            f"({', '.join(row[each] for each in columns.split(', '))})",
        )
    outbox.open()
    outbox.apply(Step(numbers(1, 2)))
    found = outbox.after(0, 100)
    assert [each.unreadable.split()[0] for each in found[1:-1]] == list(wrong)
    assert [found[0].message, found[-1].message] == [message(0), message(1)]


@pytest.mark.parametrize(
    "damage",
    [b"\x00", b"\x00\x05\x00\x00\x00\x01abc", b"\x00\x01\xff\xff\xff\xff", b"\x00\x01\x00\x00\x00\x00\xff"],
)
def test_headers_that_end_in_the_middle_are_no_message(outbox: SqliteOutbox, damage: bytes) -> None:
    """They are told, not sent cut short."""
    outbox.apply(Step([message(0, headers=damage)]))
    assert outbox.after(0, 1)[0].unreadable == "headers cannot be read"


def test_a_full_disk_is_told_and_nothing_is_half_written(tmp_path: Path) -> None:
    """Until there is room; then the same step goes through."""
    with small_disk(tmp_path / "small", 4) as disk:
        outbox = SqliteOutbox(disk.path / "outbox")
        outbox.open()
        outbox.apply(Step(numbers(0, 10)))
        disk.fill()
        large = Step([message(number, value=b"x" * 20_000) for number in range(50)])
        with pytest.raises(OutboxFullError, match="free some disk space"):
            outbox.apply(large)
        assert outbox.count() == 10
        disk.make_room()
        assert list(outbox.apply(large)) == [*range(11, 61)]
        outbox.close()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """A file in its place, or in the way."""
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutboxError, match=r"cannot be made or written .*check outbox="):
            SqliteOutbox(folder).open()


def test_a_folder_that_is_read_only_is_told(tmp_path: Path) -> None:
    """For root, too: the file system itself is read-only."""
    with small_disk(tmp_path / "small", 4) as disk:
        outbox = SqliteOutbox(disk.path / "outbox")
        outbox.open()
        outbox.close()
        subprocess.run(["mount", "-o", "remount,ro", str(disk.path)], check=True)  # noqa: S607 (in the test's own bed)
        for folder in ("outbox", "another"):
            with pytest.raises(OutboxError, match=r"cannot be|is read-only") as raised:
                SqliteOutbox(disk.path / folder).open()
            assert "\n" not in str(raised.value)
