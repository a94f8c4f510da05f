"""Snapshots of a group's history, made from the log as the backfill makes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from dedup_sdk import header
from dedup_sdk._marks import Known, Marks
from dedup_sdk._store.manifest import Manifest, PartitionManifest, write_manifest
from dedup_sdk._store.pages import newest_per_digest
from dedup_sdk._store.snapshot import SortedFileWriter
from dedup_sdk.ids import digest_one
from tests.chaos.history import LogRecord
from tests.chaos.options import ID_HEADER

_FILE: Final = "000001.sst"


def write_snapshot(
    folder: Path,
    log: Iterable[LogRecord],
    cuts: Mapping[int, int],
    *,
    cluster: str,
    group: str,
    window: str,
    number: int,
) -> None:
    """Write the IDs that a group has processed of each partition up to its cut; the topic bears the group's name.

    The group must have processed the log from its beginning. ``number`` tells which of several is the newest.
    """
    records = list(log)
    partitions = tuple(
        _partition(folder, [record for record in records if record.partition == partition], partition, cut)
        for partition, cut in cuts.items()
    )
    manifest = Manifest(
        cluster=cluster,
        topic=group,
        topic_id="",
        id_spec=str(header(ID_HEADER)),
        digest="sha256-16",
        isolation="read_committed",
        window=window,
        group=group,
        vouched=False,
        created_ms=number,
        partitions=partitions,
    )
    write_manifest(folder, manifest)


def _partition(folder: Path, log: list[LogRecord], number: int, cut: int) -> PartitionManifest:
    (folder / str(number)).mkdir(parents=True)
    processed = [record for record in log if record.offset < cut]
    files = []
    idents = [(record.ident, record) for record in processed if record.ident is not None]
    if idents:
        with SortedFileWriter(folder / str(number) / _FILE) as writer:
            marks = Marks(
                b"".join(digest_one(ident) for ident, _ in idents),
                np.asarray([record.offset for _, record in idents], np.int64),
                np.asarray([record.timestamp_ms for _, record in idents], np.int64),
            )
            writer.add(newest_per_digest(marks))
            files.append(writer.finish())
    return PartitionManifest(
        partition=number,
        low=0,
        high=cut,
        known=Known(newest_ms=max((record.timestamp_ms for record in processed), default=-1)),
        marks=sum(file.marks for file in files),
        files=tuple(files),
    )
