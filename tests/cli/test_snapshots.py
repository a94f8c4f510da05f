from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dedup_sdk._cli.snapshots import age
from dedup_sdk._marks import Marks, cut_marks
from dedup_sdk._store.manifest import Gap, read_manifest, write_manifest
from dedup_sdk._store.pages import newest_per_digest
from dedup_sdk.ids import digest_one
from tests.cli.conftest import NEWEST_MS
from tests.support.snapshots import write_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Dedup, WriteStore

IDS = 50


@pytest.fixture
def marks() -> Marks:
    """Fifty marks at the offsets from 0, ascending by digest."""
    offsets = np.arange(IDS, dtype=np.int64)
    digests = b"".join(digest_one(f"order-{number}".encode()) for number in range(IDS))
    return newest_per_digest(Marks(digests, offsets, offsets + NEWEST_MS))


@pytest.fixture
def place(tmp_path: Path, marks: Marks) -> Path:
    """Two snapshots: "monday" with forty of the marks, "tuesday" with all."""
    at = tmp_path / "snapshots"
    for day, (name, count) in enumerate([("monday", 40), ("tuesday", IDS)]):
        write_snapshot(at / name, {0: cut_marks(marks, 0, count)})
        write_manifest(at / name, replace(read_manifest(at / name), created_ms=NEWEST_MS + day * 86_400_000))
    return at


def test_the_list_is_one_line_each_the_newest_first(dedup: Dedup, place: Path) -> None:
    """Each line has topic, group, window, cut, counts, fingerprint and place; unreadable ones are told on stderr."""
    (place / "broken").mkdir()
    (place / "broken" / "manifest.json").write_text("{")
    done = dedup("snapshots", "list", str(place))
    assert done.status == 0
    head, tuesday, monday = done.stdout.splitlines()
    assert head.split() == [
        "topic",
        "group",
        "window",
        "cut",
        "marks",
        "size",
        "age",
        "fingerprint",
        "place",
    ]
    fingerprint = read_manifest(place / "tuesday").fingerprint
    assert tuesday.split()[:5] == ["orders", "billing", "7d", "0:50", "50"]
    assert tuesday.split()[-2:] == [fingerprint, str(place / "tuesday")]
    assert monday.split()[-1] == str(place / "monday")
    (line,) = done.stderr.splitlines()
    assert f"{place / 'broken' / 'manifest.json'} is not JSON" in line


def test_the_list_as_json_has_what_a_program_wants(dedup: Dedup, place: Path) -> None:
    """Offsets, gaps, bytes and fingerprints, and only the snapshots asked for."""
    manifest = read_manifest(place / "tuesday")
    part = replace(manifest.partitions[0], gaps=(Gap(begin=3, end=9),))
    write_manifest(place / "tuesday", replace(manifest, partitions=(part,)))
    done = dedup("snapshots", "list", str(place), "--topic", "orders", "--group", "billing", "--json")
    newest, _ = json.loads(done.stdout)["snapshots"]
    assert (newest["marks"], newest["cut"], newest["gaps"]) == (IDS, {"0": 50}, {"0": [[3, 9]]})
    assert newest["fingerprint"] == manifest.fingerprint
    nothing = dedup("snapshots", "list", str(place), "--topic", "payments", "--json")
    assert json.loads(nothing.stdout) == {"snapshots": []}


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [(-5, "0 s"), (999, "0 s"), (59_999, "59 s"), (60_000, "1 min"), (3_600_000, "1 h"), (90_000_000, "1 d")],
)
def test_an_age_is_given_in_its_largest_unit(span_ms: int, text: str) -> None:
    """A glance says how old a snapshot is."""
    assert age(span_ms) == text


def test_verifying_names_the_file_and_what_differs(dedup: Dedup, place: Path) -> None:
    """Status 0 and a line on stderr when all is well.

    Status 1, and a line on stdout for each problem, when something differs.
    """
    fine = dedup("snapshots", "verify", str(place), "--json")
    assert fine.status == 0
    assert json.loads(fine.stdout) == {"snapshots": 2, "files": 2, "marks": 90, "problems": []}
    file = place / "monday" / "0" / "part.sst"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    damaged = dedup("snapshots", "verify", str(place), "--quiet")
    assert (damaged.status, damaged.stderr) == (1, "")
    (line,) = damaged.stdout.splitlines()
    assert line.startswith(f"{file} has SHA-256 ")


def test_differences_are_lines_and_totals(dedup: Dedup, place: Path, marks: Marks) -> None:
    """Status 1 when two snapshots differ, 0 when they are the same, 2 on trouble.

    The limit bounds lines, not totals.
    """
    one, other = str(place / "monday"), str(place / "tuesday")
    done = dedup("snapshots", "diff", one, other, "--limit", "3")
    assert done.status == 1
    digest = marks.digests[16 * 40 : 16 * 41].hex()
    assert done.stdout.splitlines()[0] == f"> 0 {digest} {marks.offsets[40]} {marks.timestamps[40]}"
    assert len(done.stdout.splitlines()) == 3
    assert "40 IDs are the same, 0 only in A, 10 only in B, 0 differ, 3 shown" in done.stderr
    counted = json.loads(dedup("snapshots", "diff", other, one, "--json", "--limit", "1").stdout)
    assert (counted["only_in_a"], counted["only_in_b"], counted["same"]) == (10, 0, 40)
    assert len(counted["differences"]) == 1
    same = dedup("snapshots", "diff", one, one)
    assert (same.status, same.stdout) == (0, "")
    for wrong in (str(place / "never"), str(place)):
        trouble = dedup("snapshots", "diff", one, wrong)
        assert (trouble.status, len(trouble.stderr.splitlines())) == (2, 1)


def test_pruning_says_what_goes_before_it_goes(dedup: Dedup, place: Path) -> None:
    """A dry run removes nothing; the real one removes the same, and keeps so many."""
    dry = dedup("snapshots", "prune", str(place), "--keep", "1", "--dry-run")
    assert dry.stdout.splitlines() == [str(place / "monday")]
    assert (place / "monday" / "manifest.json").exists()
    kept = dedup("snapshots", "prune", str(place), "--keep", "1", "--older-than", "99999d", "--json")
    assert json.loads(kept.stdout) == {"removed": [], "bytes": 0, "dry_run": False}
    done = dedup("snapshots", "prune", str(place), "--keep", "1", "--older-than", "1d", "--json", "--quiet")
    assert done.stderr == ""
    assert json.loads(done.stdout)["removed"] == [str(place / "monday")]
    assert [path.name for path in place.iterdir()] == ["tuesday"]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(("--keep", "0"), 2), (("--keep", "1", "--older-than", "5n"), 2), (("--keep", "1", "--topic", "x"), 1)],
)
def test_a_wrong_prune_removes_nothing(
    dedup: Dedup, place: Path, arguments: tuple[str, ...], status: int
) -> None:
    """One line says the fault."""
    done = dedup("snapshots", "prune", str(place), *arguments)
    assert (done.status, len(done.stderr.splitlines())) == (status, 1)
    assert len(list(place.iterdir())) == 2


def test_a_copy_is_the_same_snapshot(dedup: Dedup, place: Path, tmp_path: Path) -> None:
    """It verifies, has the same manifest, and is never put over something."""
    target = str(tmp_path / "copy")
    done = dedup("snapshots", "copy", str(place / "monday"), target, "--rate-limit", "1GB/s", "--json")
    assert done.status == 0
    assert json.loads(done.stdout)["fingerprint"] == read_manifest(target).fingerprint
    assert read_manifest(target) == read_manifest(place / "monday")
    assert dedup("snapshots", "verify", target).status == 0
    again = dedup("snapshots", "copy", str(place / "tuesday"), target)
    assert again.status == 1
    assert "is not empty: a snapshot is never overwritten" in again.stderr


def test_a_snapshot_of_a_store_is_restored(dedup: Dedup, write_store: WriteStore, tmp_path: Path) -> None:
    """Flushed marks and others are in it; the store that is made of it answers the same look-ups."""
    store = write_store(*(f"order-{number}" for number in range(9)))
    snapshot = str(tmp_path / "snapshot")
    done = dedup("snapshot", "--store", str(store), "--output", snapshot, "--json")
    assert done.status == 0
    told = json.loads(done.stdout)
    assert (told["marks"], told["cut"], told["group"]) == (9, {"0": 9}, "billing")
    assert dedup("snapshots", "verify", snapshot).status == 0
    restored = str(tmp_path / "restored")
    assert dedup("restore", "--snapshot", snapshot, "--store", restored).status == 0
    for number in (0, 8):
        asked = ("lookup", "--topic", "orders", f"order-{number}", "--store")
        assert dedup(*asked, restored).stdout == dedup(*asked, str(store)).stdout != ""


def test_which_group_of_a_store_has_to_be_said(dedup: Dedup, write_store: WriteStore, tmp_path: Path) -> None:
    """A snapshot is of one group; a store's folder that holds two wants to know which."""
    write_store("a", "b")
    store = str(write_store("a", "b", group="audit"))
    output = str(tmp_path / "snapshot")
    unclear = dedup("snapshot", "--store", store, "--output", output)
    assert (unclear.status, "audit, billing" in unclear.stderr) == (2, True)
    assert dedup("snapshot", "--store", store, "--output", output, "--group", "audit").status == 0
    assert read_manifest(output).group == "audit"
    over = dedup("snapshot", "--store", store, "--output", output, "--group", "audit")
    assert (over.status, "is not empty" in over.stderr) == (1, True)
