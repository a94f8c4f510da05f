"""Bytes that others put into a store's folder or a snapshot end in one line, never in a traceback."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from rocksdict import Options, Rdict

from dedup_sdk._marks import Marks
from dedup_sdk._store.identity import FORMAT
from dedup_sdk._store.paths import list_partitions
from dedup_sdk.ids import digest_one
from tests.support.snapshots import write_snapshot

if TYPE_CHECKING:
    from tests.cli.conftest import Dedup, WriteStore

NOT_UTF8 = os.fsdecode(b"st\xffre")


def put(store: Path, key: bytes, value: bytes) -> None:
    """Change a store's own facts behind its back."""
    (entry,) = list_partitions(store)
    names = Rdict.list_cf(str(entry.path))
    options = {name: Options(raw_mode=True) for name in names}
    database = Rdict(str(entry.path), Options(raw_mode=True), column_families=options)
    database.put(key, value)
    database.close()


def identity(**changes: object) -> bytes:
    """The stored identity of the stores of these tests, changed."""
    content = {
        "format": FORMAT, "cluster": "c1", "group": "billing", "topic": "orders", "partition": 0, "topic_id": "",
        "id_spec": "header:dedup-id", "digest": "sha256-16", "isolation": "read_committed", "window": "7d",
        "numbered": False,
    }  # fmt: skip
    return json.dumps(content | changes).encode()


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        (b"identity", b"[" * 100_000, "not JSON"),
        (b"identity", b"[" * 900 + b"]" * 900, "not an object"),
        (b"identity", identity(id_spec=5), "identity.id_spec=5: must be a string"),
        (b"identity", identity(id_spec=["key"]), "identity.id_spec=['key']: must be a string"),
        (b"identity", identity(partition="0"), "identity.partition='0': must be a 64-bit integer"),
        (b"identity", identity(numbered=[]), "identity.numbered=[]: must be true or false"),
        (b"state", b"[" * 100_000, "cannot be read"),
        (b"state", b'{"format": ' + b"9" * 5_000 + b"}", "cannot be read"),
        (
            b"state",
            b'{"format": 2, "next": 2, "top_offset": 5, "generations": [{"number": 1, "marks": "a"}]}',
            "generations[0].marks='a'",
        ),
        (b"state", b'{"format": 2, "next": null, "top_offset": 5, "generations": []}', "next=None"),
    ],
)
@pytest.mark.parametrize("command", ["lookup", "stats", "dump"])
def test_a_store_that_says_nonsense_of_itself_is_one_line(
    dedup: Dedup, write_store: WriteStore, command: str, key: bytes, value: bytes, told: str
) -> None:
    """Identity and state of any JSON, however deep, are status 1 and one line with the fault and the remedy."""
    store = write_store("a", "b")
    put(store, key, value)
    rest = {
        "lookup": ("--topic", "orders", "a"),
        "stats": (),
        "dump": ("--topic", "orders", "--partition", "0"),
    }
    done = dedup(command, "--store", str(store), *rest[command])
    assert (done.status, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert told in line
    assert "rebuild it" in line


def test_a_partition_is_listed_once(dedup: Dedup, write_store: WriteStore) -> None:
    """Copies under names that only look like a partition, a group or a topic of ours are not taken for one."""
    store = write_store("a")
    (entry,) = list_partitions(store)
    expected = dedup("stats", "--store", str(store), "--json").stdout
    for copied in ("00", "+0", "\u0660", "9" * 200):
        shutil.copytree(entry.path, entry.path.parent / copied)
    topic = entry.path.parent
    for copied in ("%6Frders", "%6frders", NOT_UTF8):
        shutil.copytree(topic, topic.parent / copied)
    assert dedup("stats", "--store", str(store), "--json").stdout == expected
    assert dedup("dump", "--store", str(store), "--topic", "orders", "--partition", "0").status == 0


def test_names_neither_command_the_terminal_nor_break_it(dedup: Dedup, write_store: WriteStore) -> None:
    """Groups and topics that hold markup, escape sequences or halves of characters are shown as text."""
    store = write_store("a", group="[/red]\x1b[2J")
    put(store, b"identity", identity(group="[/red]\x1b[2J", topic="\udcff"))
    done = dedup("stats", "--store", str(store))
    assert done.status == 0
    assert "[/red]\\x1b[2J" in done.stdout
    assert "\\udcff[0]" in done.stdout


@pytest.mark.parametrize("command", ["stats", "lookup", "dump", "restore"])
def test_a_path_that_is_no_text_is_wrong_usage(
    dedup: Dedup, tmp_path: Path, snapshot: Path, command: str
) -> None:
    """RocksDB takes UTF-8 only; a path that is not is refused with status 2, in one line."""
    rest = {
        "stats": (),
        "lookup": ("--topic", "t", "a"),
        "dump": ("--topic", "t", "--partition", "0"),
        "restore": ("--snapshot", str(snapshot)),
    }
    done = dedup(command, "--store", str(tmp_path / NOT_UTF8), *rest[command])
    assert (done.status, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "is not UTF-8" in line
    assert dedup(command, "--store", "a\0b", *rest[command]).status == 2
    assert not (tmp_path / NOT_UTF8).exists()


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A snapshot of one mark."""
    mark = Marks(digest_one(b"a"), np.array([0], np.int64), np.array([5], np.int64))
    return write_snapshot(tmp_path / "snapshot", {0: mark})


@pytest.mark.parametrize("name", ["cluster", "topic", "topic_id", "id_spec", "group", "window"])
def test_half_a_character_in_a_manifest_is_one_line(
    dedup: Dedup, snapshot: Path, tmp_path: Path, name: str
) -> None:
    """A lone surrogate, which JSON can write and UTF-8 cannot, is refused with the field's name."""
    change_manifest(snapshot, **{name: "\ud800"})
    done = dedup("restore", "--snapshot", str(snapshot), "--store", str(tmp_path / "out"))
    assert (done.status, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert f"{name}='\\ud800'" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("window", ["zero", "0d", "-7d", ""])
def test_a_window_of_a_manifest_is_no_usage_of_yours(
    dedup: Dedup, snapshot: Path, tmp_path: Path, window: str
) -> None:
    """A manifest's window that is none is a failure, status 1: whoever typed the command did nothing wrong."""
    change_manifest(snapshot, window=window)
    done = dedup("restore", "--snapshot", str(snapshot), "--store", str(tmp_path / "out"))
    assert (done.status, done.stdout) == (1, "")
    assert f"window={window!r}: it is not a valid window; make the snapshot again" in done.stderr


@pytest.mark.parametrize("store", [".", "..", "/", ""])
def test_a_store_without_a_name_is_wrong_usage(dedup: Dedup, snapshot: Path, store: str) -> None:
    """The folder one is in cannot be replaced by a new one, and the line says so."""
    done = dedup("restore", "--snapshot", str(snapshot), "--store", store)
    assert (done.status, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "names no new folder; give e.g. 'var/dedup'" in line


@pytest.mark.parametrize("target", ["folder", "nowhere"])
def test_a_link_is_not_replaced_by_a_store(dedup: Dedup, snapshot: Path, tmp_path: Path, target: str) -> None:
    """A symbolic link as store is refused and left, whether it leads anywhere or not."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / target)
    done = dedup("restore", "--snapshot", str(snapshot), "--store", str(tmp_path / "link"))
    assert (done.status, done.stdout) == (1, "")
    assert "is a symbolic link" in done.stderr
    assert (tmp_path / "link").readlink() == tmp_path / target
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "snapshot"]


@pytest.mark.parametrize("topic", ["", NOT_UTF8])
def test_a_topic_that_the_client_cannot_name_is_wrong_usage(dedup: Dedup, topic: str) -> None:
    """The client raises `ValueError` for it; the command says which option is wrong."""
    done = dedup("window-check", "--bootstrap", "127.0.0.1:9", "--topic", topic, "--window", "7d")
    assert (done.status, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "is not a topic's name; give --topic" in line


def test_a_report_that_is_none_is_one_line(dedup: Dedup, tmp_path: Path) -> None:
    """JSON nested too deep for a parser, a folder that cannot have that name, and URLs, without their secrets."""
    deep = tmp_path / "findings.json"
    deep.write_text("[" * 100_000)
    for source, output, status, said in (
        (str(deep), str(tmp_path / "page"), 1, "is no whole report"),
        ("s3://key:hunter2@b/findings.json", str(tmp_path / "page"), 2, "***@b/findings.json' is a URL, and must be"),
        (str(deep), "s3://key:hunter2@b/page", 2, "'s3://***@b/page' is a URL, and must be"),
    ):  # fmt: skip
        done = dedup("report", source, "--output", output)
        assert (done.status, done.stdout) == (status, "")
        (line,) = done.stderr.splitlines()
        assert said in line
        assert "hunter2" not in line
    assert list(tmp_path.iterdir()) == [deep]


def test_lines_of_a_bridge_come_at_least_once_a_day(dedup: Dedup) -> None:
    """A time beyond all numbers is refused before the bridge begins to talk."""
    done = dedup("bridge", "--from", "127.0.0.1:9", "--to", "127.0.0.1:9", "--report-every", "1e300")
    assert (done.status, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "--report-every" in line


def change_manifest(folder: Path, **changes: object) -> None:
    """Change fields of a manifest and give it a checksum that fits."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text()) | changes
    content.pop("checksum")
    body = json.dumps(content, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({**content, "checksum": hashlib.sha256(body.encode()).hexdigest()}))
