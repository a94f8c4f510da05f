"""Snapshots put to an output as the job's tasks and driver do, without Spark."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from dedup_sdk._marks import Known, Marks, cut_marks
from dedup_sdk._store.fingerprint import fingerprint
from dedup_sdk._store.manifest import MANIFEST_NAME, Manifest, PartitionManifest, SortedFile
from dedup_sdk._store.output_folder import OutputFolder
from dedup_sdk._store.pages import newest_per_digest
from dedup_sdk._store.snapshot import FILTER_SUFFIX, SORTED_SUFFIX
from dedup_sdk._store.snapshot_check import check_snapshot
from dedup_sdk._store.snapshot_source import find_snapshots, read_source
from spark_backfill.slot_writer import write_marks
from tests.support.marks import random_marks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from spark_backfill.publish import Target

_MARKS = 100
_FILES = 2


def put_marks(target: Target, seed: int) -> list[SortedFile]:
    """Put random marks of partition 0 there, as two files."""
    held = newest_per_digest(random_marks(_MARKS, seed))
    edges = range(0, _MARKS + 1, _MARKS // _FILES)
    files = [
        target.put(0, number, partial(_write, marks=cut_marks(held, begin, end)))
        for number, (begin, end) in enumerate(pairwise(edges))
    ]
    return [file for file in files if file is not None]


def _write(path: Path, marks: Marks) -> SortedFile | None:
    return write_marks(path, marks)


def fingerprint_of(seed: int) -> str:
    """The fingerprint of the marks that `put_marks` puts."""
    return fingerprint((newest_per_digest(random_marks(_MARKS, seed)),))


def manifest_of(files: Sequence[SortedFile]) -> Manifest:
    """The manifest of a snapshot of these files."""
    entry = PartitionManifest(
        partition=0,
        low=0,
        high=_MARKS,
        known=Known(newest_ms=max(file.newest_ms for file in files)),
        marks=sum(file.marks for file in files),
        files=tuple(files),
    )
    return Manifest(
        cluster="c1", topic="orders", topic_id="t1", id_spec="key", digest="sha256-16", isolation="read_committed",
        window="1d", group="billing", vouched=False, created_ms=1, partitions=(entry,),
    )  # fmt: skip


def written(place: str) -> list[str]:
    """All files that are there, by their paths in the folder or URL."""
    return sorted(OutputFolder(place).names())


def checked(place: str | Path) -> dict[int, tuple[int, str]]:
    """By partition the cut and the fingerprint of the marks of all layers together.

    Of the snapshot that is there, all files of which are as its manifest says.
    """
    ((found,), problems) = find_snapshots([str(place)])
    assert not problems
    told = [problem for each in check_snapshot(found) for problem in each.problems]
    assert not told, told
    return {
        entry.partition: (entry.high, fingerprint(read_source(found, entry)))
        for entry in found.manifest.partitions
    }


def unlisted(place: str | Path) -> set[str]:
    """The files there that the manifest does not list, but for the report."""
    ((found,), _) = find_snapshots([str(place)])
    listed = {
        f"{entry.partition}/{file.name}{suffix}"
        for entry in found.manifest.partitions
        for file in entry.files
        for suffix in (SORTED_SUFFIX, FILTER_SUFFIX)
    }
    return {*written(str(place))} - listed - {MANIFEST_NAME, "report.json"}
