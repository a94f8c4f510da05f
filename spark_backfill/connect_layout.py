"""File names of Kafka Connect's sinks: they say which records a file has.

    topics/orders/partition=3/orders+3+0000012000.json              S3, GCS, Azure: the offset of the first record
    topics/orders/partition=3/orders+3+0000012000.headers.json      beside the first: the headers of its records
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final, NamedTuple
from urllib.parse import unquote

from dedup_sdk._masking import shown
from spark_backfill.errors import BackfillError

NAME_PATTERN: Final = r"^([^+]+)\+(\d{1,10})\+(\d{1,20})(?:\+(\d{1,20}))?(?:\.[\w.\-]+)?$"
"""Groups: topic, partition, first offset, last offset (none but in HDFS)."""
STEM_PATTERN: Final = r"^(.*\+\d{1,10}\+\d{1,20}(?:\+\d{1,20})?)(?:\.[^/]*)?$"
"""The group: the path of a file without its endings."""
_BESIDE: Final = re.compile(r"\+\d{1,10}\+\d{1,20}\.(key|header)s\.[\w.\-]+$")
_NAME: Final = re.compile(NAME_PATTERN)
_NO_END: Final = 2**63 - 1
"""In place of the offset behind the last one of a file that does not say it."""


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


def split_beside(files: Iterable[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the files of values, and of those beside them the ones with Kafka's ``key`` and ``headers``."""
    values: list[str] = []
    beside: dict[str, list[str]] = {}
    for file in files:
        found = _BESIDE.search(file)
        if found is None:
            values.append(file)
        else:
            beside.setdefault("key" if found[1] == "key" else "headers", []).append(file)
    return values, beside


def beside_of(
    values: Iterable[str], beside: Mapping[str, Sequence[str]], names: Iterable[str]
) -> dict[str, list[str]]:
    """Return the files beside those of ``values`` that have these columns, where there are any."""
    stems = {_stem(unquote(path)) for path in values}
    found = {name: [path for path in beside.get(name, ()) if _stem(path) in stems] for name in names}
    return {name: paths for name, paths in found.items() if paths}


def _stem(path: str) -> str:
    return re.sub(STEM_PATTERN, r"\1", path)


def _by_partition(files: Iterable[str]) -> Iterator[tuple[str, int, list[tuple[ConnectFile, str]]]]:
    """Yield the topic, the partition and the files of each, by first offset; ``files`` are names, paths or URLs."""
    found: dict[tuple[str, int], list[tuple[ConnectFile, str]]] = {}
    for name in files:
        file = parse_file_name(PurePosixPath(name).name)
        if file is None:
            raise BackfillError(
                f"file {shown(name)} does not say which offsets it has: name the offset's column with --columns "
                "offset=COLUMN"
            )
        found.setdefault((file.topic, file.partition), []).append((file, name))
    for (topic, partition), each in sorted(found.items()):
        yield topic, partition, sorted(each, key=lambda found: (found[0].first, found[1]))


def check_rows(rows: Mapping[str, int]) -> None:
    """Make sure that the place of each row says its offset; ``rows`` are the rows of each file, by its name.

    Raises:
        BackfillError: a name that is none of Kafka Connect's, or a file that has not one row for each of its offsets.
    """
    for _, partition, files in _by_partition(rows):
        followers = [*(file.first for file, _ in files[1:]), _NO_END]
        for (file, name), next_first in zip(files, followers, strict=True):
            end = next_first if file.last is None else file.last + 1
            if next_first == file.first or end > next_first:
                raise BackfillError(
                    f"file {shown(name)} and another one both have offset {next_first} of partition {partition}: "
                    "give the folder of one sink only"
                )
            if end != _NO_END and rows[name] != end - file.first:
                raise BackfillError(
                    f"file {shown(name)} has {rows[name]} rows for offsets {file.first} to {end - 1}, so that the "
                    "offset of a row is not known: let the sink write it into the record, and name it with "
                    "--columns offset=COLUMN"
                )


def check_folders(files: Iterable[str]) -> None:
    """Make sure that files which say their first offset only were written one after the other.

    Given are their paths or URLs.

    Raises:
        BackfillError: those of a partition lie in several folders of values, as a sink by time or by a field makes
            them.
    """
    for _, partition, found in _by_partition(files):
        folders = {_values(path) for file, path in found if file.last is None}
        if len(several := sorted(folders - {"", f"partition={partition}"})) > 1:
            raise BackfillError(
                f"files of partition {partition} lie in the folders {shown(several[0])} and {shown(several[1])}: a "
                f"sink that "
                "partitions by time or by a field may write several at once, and then the place of a row does not "
                "say its offset: let the sink write it into the record, and name it with --columns offset=COLUMN"
            )


def _values(path: str) -> str:
    """The folders of values that a file lies in."""
    return "/".join(part for part in map(unquote, PurePosixPath(path).parts[:-1]) if "=" in part)


def open_files(files: Iterable[str], topic: str) -> dict[int, tuple[int, str]]:
    """Return of each partition its last file, with its first offset, where nothing says at which offset it ends."""
    last = {partition: found[-1] for name, partition, found in _by_partition(files) if name == topic}
    return {partition: (file.first, name) for partition, (file, name) in last.items() if file.last is None}
