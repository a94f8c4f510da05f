from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dedup_sdk._core.seen_bytes import encode_dense
from dedup_sdk._core.source_keys import SourceKeys
from dedup_sdk._marks import Marks, Progress, cut_marks
from dedup_sdk._store.protocol import Identity
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._window import Window
from dedup_sdk.ids import digest_one, header
from tests.cli.conftest import NEWEST_MS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Dedup, WriteStore


def test_dump_prints_every_mark_in_the_order_of_digests(dedup: Dedup, write_store: WriteStore) -> None:
    """Flushed and recent marks come as one sorted list, a line each: digest, offset, timestamp."""
    ids = [f"order-{number}" for number in range(100)]
    store = write_store(*ids)
    done = dedup("dump", "--store", str(store), "--topic", "orders", "--partition", "0")
    expected = sorted(
        f"{digest_one(each.encode()).hex()} {at} {NEWEST_MS + at}" for at, each in enumerate(ids)
    )
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.splitlines() == expected


def test_dump_works_beside_the_owner_of_the_store(dedup: Dedup, write_store: WriteStore) -> None:
    """A consumer that has the partition open neither stops a dump nor is stopped by it."""
    folder = write_store("a", "b")
    owner = RocksStore(folder)
    identity = Identity(cluster="c1", group="billing", topic="orders", partition=0, id_spec="header:dedup-id")
    opened = owner.open(identity, Window(days=7))
    assert (
        dedup("dump", "--store", str(folder), "--topic", "orders", "--partition", "0").stdout.count("\n") == 2
    )
    loaded = opened.load()
    owner.close()
    assert loaded is not None
    assert loaded.progress.high == 2


def test_several_groups_must_be_told_apart(dedup: Dedup, write_store: WriteStore) -> None:
    """Where two groups share a folder the option is asked for, with its choices; where only one has it, not."""
    write_store("a")
    store = str(write_store("b", group="audit"))
    where = ("--store", store, "--topic", "orders", "--partition", "0")
    asked = dedup("dump", *where)
    assert asked.status == 2
    assert "audit, billing" in asked.stderr
    assert "--group" in asked.stderr
    done = dedup("dump", *where, "--group", "audit")
    assert done.stdout.split()[0] == digest_one(b"b").hex()


def test_what_is_not_there_is_said_with_what_is(dedup: Dedup, write_store: WriteStore) -> None:
    """A wrong topic or partition is one line that names those in the folder."""
    store = str(write_store("a"))
    assert "it has orders" in dedup("dump", "--store", store, "--topic", "order", "--partition", "0").stderr
    assert "it has 0" in dedup("dump", "--store", store, "--topic", "orders", "--partition", "7").stderr


def test_lookup_says_where_and_when(dedup: Dedup, write_store: WriteStore) -> None:
    """A known ID is found in whichever partition has it, and the status is 0."""
    write_store("a", "b")
    store = str(write_store("c", "d", partition=1))
    done = dedup("lookup", "--store", store, "--topic", "orders", "d")
    assert (done.status, done.stdout) == (0, "orders[1] offset 1, 2023-11-14T22:13:20.001+00:00\n")


def test_lookup_of_an_unknown_id_is_status_1(dedup: Dedup, write_store: WriteStore) -> None:
    """An unknown ID prints nothing on stdout, one line on stderr, and the status is 1; so also with --json."""
    store = str(write_store("a"))
    done = dedup("lookup", "--store", store, "--topic", "orders", "zzz")
    assert (done.status, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    asked = dedup("lookup", "--store", store, "--topic", "orders", "zzz", "--json")
    assert asked.status == 1
    assert json.loads(asked.stdout) == {"topic": "orders", "id": ["zzz"], "seen": []}


@pytest.mark.parametrize(
    ("id_spec", "stored", "typed"),
    [
        ("header:tenant+key", [b"t1", b"o1"], ["t1", "o1"]),
        ("cloudevents", [b"id-1", b"/source"], ["id-1", "/source"]),
        ("json:/id", [b"\xff" + b"4711"], ["4711"]),
        ("json:/id", [b"4711"], ["4711"]),
        ("json:/id", [b"\xff-5"], ["--", "-5"]),
        ("py:no.such.module:function@1", [b"x"], ["x"]),
        ("key", ["é".encode()], ["é"]),
        ("key", [b"\xff\xfe"], [os.fsdecode(b"\xff\xfe")]),
    ],
)
def test_lookup_speaks_the_id_spec_of_the_store(
    dedup: Dedup, write_store: WriteStore, id_spec: str, stored: list[bytes], typed: list[str]
) -> None:
    """The texts become the bytes that the store's own spec would have hashed, and its code is never imported."""
    store = str(write_store(["other"[: len(stored)].encode()] * len(stored), stored, id_spec=id_spec))
    done = dedup("lookup", "--json", "--store", store, "--topic", "orders", *typed)
    assert json.loads(done.stdout)["seen"] == [{"partition": 0, "offset": 1, "timestamp_ms": NEWEST_MS + 1}]


def test_lookup_with_the_wrong_number_of_parts_names_them(dedup: Dedup, write_store: WriteStore) -> None:
    """An ID of two parts cannot be looked up by one text; the error says which two."""
    store = str(write_store([b"t1", b"o1"], id_spec="header:tenant+cloudevents"))
    done = dedup("lookup", "--store", store, "--topic", "orders", "t1")
    assert done.status == 2
    assert "header:tenant ce_id ce_source" in done.stderr


def test_stats_count_marks_offsets_and_bytes(dedup: Dedup, write_store: WriteStore) -> None:
    """``--json`` is one object with a total and one entry a partition."""
    write_store(*(str(number) for number in range(10)))
    store = write_store("a", "b", "a", partition=3)
    content = json.loads(dedup("stats", "--store", str(store), "--json").stdout)
    first, last = content["partitions"]
    assert (first["partition"], first["low"], first["high"], first["committed"], first["marks"]) == (
        0,
        0,
        10,
        10,
        10,
    )
    assert (last["partition"], last["high"], last["marks"], last["newest_ms"]) == (3, 3, 2, NEWEST_MS + 2)
    assert (last["id_spec"], last["since_ms"]) == ("header:dedup-id", None)
    assert content["marks"] == 12
    assert content["disk_bytes"] == first["disk_bytes"] + last["disk_bytes"] > 0


def test_stats_for_a_reader_are_a_line_a_partition(dedup: Dedup, write_store: WriteStore) -> None:
    """Without ``--json`` there is a heading and a line for each partition, and no colours outside a terminal."""
    write_store("a")
    lines = dedup("stats", "--store", str(write_store("b", partition=1))).stdout.splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("orders[0]")
    assert not any("\x1b" in line for line in lines)


@pytest.fixture
def with_payloads(tmp_path: Path) -> str:
    """A store of four IDs: with a payload in a file and in the journal, and without one."""
    store = RocksStore(tmp_path / "store")
    identity = Identity(cluster="c1", group="billing", topic="orders", partition=0, id_spec="header:dedup-id")
    opened = store.open(identity, Window(days=7))
    ids = b"".join(digest_one(name.encode()) for name in "abcd")
    offsets = np.arange(4)
    held = Marks(ids, offsets, offsets + NEWEST_MS, None, [b"p" * 2**16, b"", b"nine here", b"nine gone"])
    opened.flush(Progress(low=0, high=2), cut_marks(held, 0, 2))
    opened.append(Progress(low=0, high=4), cut_marks(held, 2, 4))
    store.close()
    return str(tmp_path / "store")


def test_dump_tells_payloads_apart(dedup: Dedup, with_payloads: str) -> None:
    """Behind the timestamp stand size and checksum of a payload, and nothing where there is none."""
    done = dedup("dump", "--store", with_payloads, "--topic", "orders", "--partition", "0")
    lines = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    a, b, c, d = (lines[digest_one(name.encode()).hex()] for name in "abcd")
    assert (done.status, b) == (0, ["1", str(NEWEST_MS + 1)])
    assert [each[2].split(":")[0] for each in (a, c, d)] == ["payload=65536", "payload=9", "payload=9"]
    assert c[2] != d[2]


def test_dump_for_a_program_is_an_object_a_mark(dedup: Dedup, with_payloads: str) -> None:
    """As a line each, in the same order, with the same of a payload as the text."""
    where = ("dump", "--store", with_payloads, "--topic", "orders", "--partition", "0")
    texts = [line.split() for line in dedup(*where).stdout.splitlines()]
    done = dedup(*where, "--json")
    assert (done.status, done.stderr) == (0, "")
    told = []
    for line in done.stdout.splitlines():
        each = json.loads(line)
        payload = (
            f"payload={each['payload_bytes']}:{each['payload_checksum']}" if "payload_bytes" in each else ""
        )
        told.append(
            [each["digest"], str(each["offset"]), str(each["timestamp_ms"]), *filter(None, [payload])]
        )
    assert told == texts
    assert len(told) == 4


def test_lookup_tells_the_last_id_of_a_source(dedup: Dedup, tmp_path: Path) -> None:
    """Where IDs are compared the text names the source: in a file or in the journal, as text and as JSON."""
    keys = SourceKeys(header("seq"), header("producer"), "integer")
    identity = Identity(cluster="c1", group="billing", topic="orders", partition=0, id_spec=str(keys))
    store = RocksStore(tmp_path / "store")
    opened = store.open(identity, Window(days=7))
    offsets = np.arange(2)
    payloads = [encode_dense(each, 1, 128, known=None, forgot=False) for each in (b"41", b"7\n")]
    held = Marks(digest_one(b"a") + digest_one(b"b"), offsets, offsets + NEWEST_MS, None, payloads)
    opened.flush(Progress(low=0, high=1), cut_marks(held, 0, 1))
    opened.append(Progress(low=0, high=2), cut_marks(held, 1, 2))
    store.close()
    where = ("lookup", "--store", str(tmp_path / "store"), "--topic", "orders")
    assert dedup(*where, "a").stdout.endswith(", last ID 41\n")
    assert dedup(*where, "b").stdout.endswith(", last ID 7\\n\n")
    assert json.loads(dedup(*where, "b", "--json").stdout)["seen"][0]["last_id"] == "7\n"
    assert dedup(*where, "c").status == 1
    told = dedup(*where)
    assert (told.status, "give header:producer" in told.stderr) == (2, True)


def test_stats_tell_the_size_of_payloads(dedup: Dedup, write_store: WriteStore, with_payloads: str) -> None:
    """A column where there are any, and a field in any case."""
    content = json.loads(dedup("stats", "--store", with_payloads, "--json").stdout)
    assert (content["partitions"][0]["payload_bytes"], content["marks"]) == (2**16 + 18, 4)
    assert "  64 KiB  " in dedup("stats", "--store", with_payloads).stdout
    assert "payload" in dedup("stats", "--store", with_payloads).stdout
    plain = dedup("stats", "--store", str(write_store("a", group="audit")), "--group", "audit").stdout
    assert "payload" not in plain


def test_a_closed_pipe_is_no_error(write_store: WriteStore) -> None:
    """``dedup dump | head -1`` prints one line and no complaint."""
    store = write_store(*(str(number) for number in range(20_000)))
    command = (
        f"{sys.executable} -m dedup_sdk._cli dump --store {store} --topic orders --partition 0 | head -1"
    )
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""
