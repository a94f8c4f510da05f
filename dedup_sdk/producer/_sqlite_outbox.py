"""An outbox in a folder: one SQLite file with a write-ahead log, used by one process at a time.

    outbox/                mode 0700
      outbox.db            mode 0600
      outbox.db-wal        the transactions written last

SQLite's exclusive lock is held while the outbox is open, so that SQLite refuses a second process. The lock
belongs to the process (a fork does not inherit it), and ends with it.

SQLite reads its write-ahead log up to the first damaged frame, and does not report the frames behind it; so
they are counted here:

    header    magic, version, page size, number, salt 1, salt 2, checksums           32 bytes, big-endian
    frame     page number, size after a commit (0: none), salt 1, salt 2, checksums  24 bytes, and a page

Rows are inserted by the hundred, in one statement. Each call of SQLite releases the interpreter's lock, and
a busy thread may keep it for five milliseconds: ``executemany``, which makes one call per row, took one to
three seconds for 5,000 rows beside such a thread, one statement for many rows a twentieth of a second. For
the same reason rows are removed by one statement with a list.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sqlite3
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from dedup_sdk.errors import OutboxDamagedError, OutboxError, OutboxFullError, OutboxLockedError
from dedup_sdk.producer._outbox import Step, Stored
from dedup_sdk.producer._outgoing import Outgoing, why_unusable

_LOG_HEADER: Final = struct.Struct(">4I8s8s")
_LOG_FRAME: Final = struct.Struct(">2I8s8s")


def ends_of_transactions(log: Path) -> list[int]:
    """Return the numbers, from 1, of the frames that end a transaction of this log.

    Frames of an earlier round have other salts, and do not count.
    """
    ends: list[int] = []
    with log.open("rb") as file:
        header = file.read(_LOG_HEADER.size)
        if len(header) < _LOG_HEADER.size:
            return ends
        _, _, page_bytes, _, salts, _ = _LOG_HEADER.unpack(header)
        number = 0
        while len(frame := file.read(_LOG_FRAME.size)) == _LOG_FRAME.size:
            number += 1
            _, size_after, of, _ = _LOG_FRAME.unpack(frame)
            if of == salts and size_after:
                ends.append(number)
            file.seek(page_bytes, 1)
    return ends


log = logging.getLogger("dedup_sdk")

FILE: Final = "outbox.db"
FORMAT: Final = 1
_APPLICATION: Final = 0x64647570
"""In the file's header, so that another database is not used as an outbox."""
_COLUMNS: Final = ", ".join(Outgoing._fields)
_TABLE: Final = f"""
CREATE TABLE messages (
    id INTEGER PRIMARY KEY,
    dedup_id BLOB NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    key BLOB,
    value BLOB,
    timestamp_ms INTEGER NOT NULL,
    headers BLOB,
    refused TEXT
);
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {FORMAT};
"""
_PRIVATE: Final = 0o700
_PRIVATE_FILE: Final = 0o600
_FIELDS: Final = 1 + len(Outgoing._fields)
_KEPT_LOG: Final = f"{FILE}-wal.kept"
_MOST_ROWS: Final = 500
_MOST_ID: Final = 2**62
_LATER: Final = {
    "SQLITE_FULL",
    "SQLITE_IOERR",
    "SQLITE_READONLY",
    "SQLITE_BUSY",
    "SQLITE_NOMEM",
    "SQLITE_CANTOPEN",
}
_DAMAGE: Final = {"SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT"}


class SqliteOutbox:
    """An outbox in a folder of this machine.

    Args:
        folder: made if it does not exist, private to the user.
        lock_wait_s: how long to wait for another process that has it open, seconds.
        fsync: whether persisted messages survive a power cut; false: only the death of the process.
        set_damage_aside: whether a damaged file is renamed and an empty one is made; else damage is an error.
    """

    shared = False

    def __init__(
        self, folder: Path, *, lock_wait_s: float = 0.0, fsync: bool = True, set_damage_aside: bool = False
    ) -> None:
        self.path = folder / FILE
        self.set_aside: Path | None = None
        """The new path of a file that was found damaged when this was opened."""
        self._lock_wait_s, self._fsync, self._sets_aside = lock_wait_s, fsync, set_damage_aside
        self._database: sqlite3.Connection | None = None
        self._next_id = 1

    def open(self) -> None:
        """See `Outbox`."""
        self._make()
        try:
            self._open()
        except OutboxDamagedError:
            self.close()
            if not self._sets_aside:
                raise
            self._rename()
            self._make()
            self._open()
        except BaseException:
            self.close()
            raise

    def apply(self, step: Step) -> Sequence[int]:
        """See `Outbox`."""
        first = self._next_id
        with self._errors("written"):
            self._run("BEGIN IMMEDIATE")
            try:
                self._add(step.added)
                for reason_of in step.refused:
                    self._run("UPDATE messages SET refused = ? WHERE id = ?", reason_of[::-1])
                if step.removed:
                    # One call of the library for all of them: each call releases the interpreter's lock.
                    ids = json.dumps(step.removed)
                    self._run("DELETE FROM messages WHERE id IN (SELECT value FROM json_each(?))", (ids,))
                self._run("COMMIT")
            except BaseException:
                self._next_id = first
                with suppress(sqlite3.Error):
                    # SQLite has rolled back by itself after some errors.
                    self._run("ROLLBACK")
                raise
        return range(first, self._next_id)

    def after(self, last: int, most: int) -> list[Stored]:
        """See `Outbox`."""
        return self._read("WHERE id > ? ORDER BY id LIMIT ?", (last, most))

    def read(self, ids: Sequence[int]) -> list[Stored]:
        """See `Outbox`."""
        return self._read(
            "WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id", (json.dumps(list(ids)),)
        )

    def count(self) -> int:
        """See `Outbox`."""
        with self._errors("read"):
            return self._number("SELECT count(*) FROM messages")

    def fresh(self, known: Sequence[int], most: int) -> list[Stored]:
        """See `Outbox`: no other process adds messages."""
        del known, most
        return []

    def close(self) -> None:
        """See `Outbox`."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _make(self) -> None:
        """Make an empty outbox where there is none, atomically: an empty file is taken for a truncated one."""
        folder = self.path.parent
        try:
            folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            folder.chmod(_PRIVATE)
            if self.path.exists():
                return
            made = self.path.with_name(f"{FILE}.new-{secrets.token_hex(8)}")
            made.touch(_PRIVATE_FILE)
            with self._errors("made"):
                database = sqlite3.connect(made, isolation_level=None)
                try:
                    database.executescript(_TABLE)
                finally:
                    database.close()
            # Another process may have made one meanwhile, which must not be replaced.
            with suppress(FileExistsError):
                os.link(made, self.path)
            made.unlink()
        except OSError as error:
            raise OutboxError(
                f"outbox folder {folder} cannot be made or written ({error.strerror}); check outbox= and "
                "its permissions"
            ) from error

    def _open(self) -> None:
        with self._errors("opened"):
            if not self.path.stat().st_size:
                raise OutboxDamagedError(self._damaged("is empty"))
            ends = self._keep_log()
            self._database = sqlite3.connect(
                self.path, timeout=self._lock_wait_s, isolation_level=None, check_same_thread=False
            )
            self._run("PRAGMA locking_mode = EXCLUSIVE")
            self._run("PRAGMA journal_mode = WAL")
            self._run(f"PRAGMA synchronous = {'FULL' if self._fsync else 'NORMAL'}")
            # The lock is taken with the first transaction.
            self._run("BEGIN EXCLUSIVE")
            self._run("COMMIT")
            self._check()
            self._compare_log(ends)
            self._run("PRAGMA busy_timeout = 0")
        for name in (FILE, f"{FILE}-wal"):
            with suppress(FileNotFoundError):
                self.path.with_name(name).chmod(_PRIVATE_FILE)

    def _keep_log(self) -> list[int]:
        """Keep the log of a crashed process, and return the ends of its transactions: SQLite removes it."""
        log_file, kept = self.path.with_name(f"{FILE}-wal"), self.path.with_name(_KEPT_LOG)
        kept.unlink(missing_ok=True)
        if not self._fsync or not log_file.exists():
            return []
        os.link(log_file, kept)
        return ends_of_transactions(kept)

    def _compare_log(self, ends: list[int]) -> None:
        """Raise `OutboxDamagedError` if transactions lie behind a damaged frame of the log, now or at an earlier start.

        A single one is accepted: a power cut may have interrupted it before its messages were reported as
        persisted.
        """
        read = self._run("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
        kept = self.path.with_name(_KEPT_LOG)
        if sum(end > read for end in ends) > 1:
            kept.rename(self.path.with_name(f"{FILE}-wal.damaged-{time.time_ns()}"))
        kept.unlink(missing_ok=True)
        damaged = sorted(self.path.parent.glob(f"{FILE}-wal.damaged-*"))
        if not damaged:
            return
        said = (
            f"outbox {self.path}: its log is damaged, and the messages behind the damage are missing; it is kept "
            f"as {damaged[-1].name}"
        )
        if not self._sets_aside:
            raise OutboxDamagedError(
                f"{said}: move that away, or start with on_damage='set-aside', to continue with the rest"
            )
        self.set_aside = damaged[-1]
        log.error("%s", said, extra={"event": "outbox-file-failed"})

    def _check(self) -> None:
        application, version = self._number("PRAGMA application_id"), self._number("PRAGMA user_version")
        if application != _APPLICATION:
            raise OutboxError(f"{self.path} is another database, not an outbox; give a folder of its own")
        if version != FORMAT:
            raise OutboxError(
                f"{self.path} has format {version}, this version reads {FORMAT}; open it with the version "
                "that wrote it, and let that send every message"
            )
        # All rows are read now anyway, to be resent.
        found = " ".join(self._run("PRAGMA quick_check(1)").fetchone()[0].split())
        if found != "ok":
            raise OutboxDamagedError(self._damaged(f"is damaged ({found})"))
        columns = [name for _, name, *_ in self._run("PRAGMA table_info(messages)")]
        if columns != ["id", *Outgoing._fields, "refused"]:
            raise OutboxError(
                f"{self.path} has a table of other columns ({', '.join(columns)}); give another folder"
            )
        self._next_id = 1 + max(0, self._number("SELECT coalesce(max(id), 0) FROM messages"))
        if self._next_id > _MOST_ID:
            raise OutboxError(
                f"{self.path} has a message with the number {self._next_id - 1}, which this package never "
                "gives; give another folder"
            )

    def _rename(self) -> None:
        self.set_aside = self.path.with_name(f"{FILE}.damaged-{time.time_ns()}")
        for end in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                self.path.with_name(FILE + end).rename(f"{self.set_aside}{end}")
        log.error(
            "outbox: %s was damaged and is now %s; its messages are not sent",
            self.path,
            self.set_aside.name,
            extra={"event": "outbox-damaged"},
        )

    def _add(self, messages: Sequence[Outgoing]) -> None:
        """Insert rows, many per statement: each call releases the interpreter's lock, and may wait to get it back."""
        at = 0
        for rows in _chunks(len(messages)):
            values: list[object] = []
            for number, message in enumerate(messages[at : at + rows], self._next_id):
                values.append(number)
                values.extend(message)
            self._run(_INSERTS[rows], values)
            self._next_id += rows
            at += rows

    def _read(self, which: str, values: Sequence[object]) -> list[Stored]:
        with self._errors("read"):
            rows = self._run(f"SELECT id, {_COLUMNS} FROM messages {which}", values).fetchall()  # noqa: S608
        return [Stored(row[0], Outgoing(*row[1:]), why_unusable(row[1:]) or "") for row in rows]

    def _number(self, statement: str) -> int:
        return int(self._run(statement).fetchone()[0])

    def _run(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        if self._database is None:
            raise OutboxError(f"outbox {self.path} is closed")
        return self._database.execute(statement, values)

    def _damaged(self, finding: str) -> str:
        return (
            f"outbox {self.path} {finding}; its messages are not sent: recover it (sqlite3 {FILE} .recover), "
            "or start with "
            "on_damage='set-aside', which renames it"
        )

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        """Translate SQLite's errors."""
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "") or ""
            kind = "_".join(name.split("_")[:2])
            if kind in _DAMAGE:
                raise OutboxDamagedError(self._damaged(f"is damaged ({error})")) from error
            if kind == "SQLITE_BUSY" and done == "opened":
                raise OutboxLockedError(
                    f"outbox {self.path} is open elsewhere; end that process, or give each producer a folder of its own"
                ) from error
            if kind in _LATER and done == "written":
                raise OutboxFullError(
                    f"outbox {self.path} cannot be written ({error}); it is tried again, and no message is "
                    "sent before it is written: free some disk space"
                ) from error
            raise OutboxError(
                f"outbox {self.path} cannot be {done} ({error}, {name}); check its permissions and disk"
            ) from error


def _chunks(rows: int) -> Iterator[int]:
    """Split a number of rows into few sizes, so that few statements are prepared."""
    for size in _INSERTS:
        while rows >= size:
            yield size
            rows -= size


def _insert(rows: int) -> str:
    places = ", ".join(["(" + ", ".join("?" * _FIELDS) + ")"] * rows)
    return f"INSERT INTO messages (id, {_COLUMNS}) VALUES {places}"  # noqa: S608 (no text of others)


_INSERTS: Final = {rows: _insert(rows) for rows in (_MOST_ROWS, 50, 5, 1)}
