"""File names of Kafka Connect's sinks: they say which records a file has.

    topics/orders/partition=3/orders+3+0000012000.json              S3, GCS, Azure: the offset of the first record
    topics/orders/partition=3/orders+3+0000012000+0000012999.avro   HDFS: those of the first and the last

The rows of a file are in offset order. Where a file has exactly as many rows as offsets up to the next file (or to its
own last one) every row's offset is known: that of the first plus its place. A file with fewer rows has holes somewhere
(transaction markers, compaction, tombstones that the sink left out), and does not say where. Behind such a hole a
row would be taken for one of a lower offset, which a group may have handled when it has not handled this one. So
the last file of a partition, which no other one follows, is left out where its name does not say where it ends.

A sink that partitions by time or by a field (folders ``hour=13``, ``country=NZ``) may write several files of a
partition at once, so that a row of one has an offset above those of the next. Where as many are missing in a file
as it has of such, its rows would seem to be all there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final, NamedTuple
from urllib.parse import unquote

from spark_backfill.errors import BackfillError

NAME_PATTERN: Final = r"^([^+]+)\+(\d{1,10})\+(\d{1,20})(?:\+(\d{1,20}))?(?:\.[\w.\-]+)?$"
"""Groups: topic, partition, first offset, last offset (none but in HDFS)."""
_NAME: Final = re.compile(NAME_PATTERN)


class ConnectFile(NamedTuple):
    """The parts of a file's name; ``last`` is the offset of its last record, None where the name does not have it."""

    topic: str
    partition: int
    first: int
    last: int | None


def parse_file_name(name: str) -> ConnectFile | None:
    """Return the parts of a file's name (without its folder), None when it is none of Kafka Connect's."""
    found = _NAME.match(name)
    if found is None:
        return None
    topic, partition, first, last = found.groups()
    return ConnectFile(topic, int(partition), int(first), None if last is None else int(last))


def check_rows(rows: Mapping[str, int]) -> None:
    """Make sure that the place of each row says its offset; ``rows`` are the rows of each file, by its name.

    Raises:
        BackfillError: a name that is none of Kafka Connect's, or a file that has not one row for each of its offsets.
    """
    by_partition: dict[tuple[str, int], list[tuple[ConnectFile, str]]] = {}
    for name in rows:
        file = parse_file_name(name)
        if file is None:
            raise BackfillError(
                f"file {name!r} does not say which offsets it has: name the offset's column with --columns "
                "offset=COLUMN"
            )
        by_partition.setdefault((file.topic, file.partition), []).append((file, name))
    for files in by_partition.values():
        _check_partition(sorted(files), rows)


def check_folders(files: Iterable[str]) -> None:
    """Make sure that files which say their first offset only were written one after the other.

    Given are their paths or URLs.

    Raises:
        BackfillError: those of a partition lie in several folders of values, as a sink by time or by a field makes
            them.
    """
    folders: dict[tuple[str, int], str] = {}
    for path in map(PurePosixPath, files):
        file = parse_file_name(path.name)
        values = [unquote(part) for part in path.parts[:-1] if "=" in unquote(part)]
        if file is None or file.last is not None or values in ([], [f"partition={file.partition}"]):
            continue
        folder = "/".join(values)
        known = folders.setdefault((file.topic, file.partition), folder)
        if known != folder:
            raise BackfillError(
                f"files of partition {file.partition} lie in the folders {min(known, folder)!r} and "
                f"{max(known, folder)!r}: a sink that partitions by time or by a field may write several at "
                "once, and then the place of a row does not say its offset: let the sink write it into the "
                "record, and name it with --columns offset=COLUMN"
            )


def open_files(names: Iterable[str], topic: str) -> dict[int, tuple[int, str]]:
    """Return of each partition its last file, with its first offset, where nothing says at which offset it ends."""
    last: dict[int, tuple[ConnectFile, str]] = {}
    for name in names:
        file = parse_file_name(name)
        if file is not None and file.topic == topic:
            known = last.get(file.partition)
            if known is None or known[0].first < file.first:
                last[file.partition] = file, name
    return {
        partition: (file.first, name) for partition, (file, name) in sorted(last.items()) if file.last is None
    }


def _check_partition(files: list[tuple[ConnectFile, str]], rows: Mapping[str, int]) -> None:
    followers: Iterable[int | None] = [*(file.first for file, _ in files[1:]), None]
    for (file, name), next_first in zip(files, followers, strict=True):
        end = file.last + 1 if file.last is not None else next_first
        if next_first is not None and (next_first == file.first or (end or 0) > next_first):
            raise BackfillError(
                f"file {name!r} and another one both have offset {next_first} of partition {file.partition}: "
                "give the folder of one sink only"
            )
        if end is not None and rows[name] != end - file.first:
            raise BackfillError(
                f"file {name!r} has {rows[name]} rows for offsets {file.first} to {end - 1}, so that the "
                "offset of a row is not known: let the sink write it into the record, and name it with "
                "--columns offset=COLUMN"
            )
