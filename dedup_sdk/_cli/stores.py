"""``dedup dump``, ``lookup``, ``stats``, ``snapshot`` and ``restore``: commands about the key stores in a folder."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from dedup_sdk._cli.console import print_table, printable
from dedup_sdk._cli.options import (
    Cluster,
    Group,
    Json,
    Quiet,
    RateLimitText,
    Store,
    Topic,
    of_one_group,
    rate_limit,
    stored_partitions,
)
from dedup_sdk._core.seen_bytes import decode_seen
from dedup_sdk._core.source_keys import PARTITION_SOURCE, source_spec_of
from dedup_sdk._masking import counted, shown
from dedup_sdk._store.backup import restore_snapshot, snapshot_store
from dedup_sdk._store.paths import PartitionFolder
from dedup_sdk._store.read_only import read_partition
from dedup_sdk._store.snapshot_check import mark_objects, mark_texts
from dedup_sdk._time_text import time_text, utc_time
from dedup_sdk._units.keys import spec_in_units
from dedup_sdk.errors import IdSpecError
from dedup_sdk.ids import cloudevents, digest_parts
from spark_backfill.report_page.wording import size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

Partition = Annotated[
    int, typer.Option("--partition", min=0, help="The partition's number.", show_default=False)
]


JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object a mark, each as a line.")]


def dump(
    *,
    store: Store,
    topic: Topic,
    partition: Partition,
    group: Group = None,
    cluster: Cluster = None,
    json_output: JsonLines = False,
) -> None:
    """Print every mark of a partition: digest (hex), offset, timestamp (ms).

    **Examples**

        dedup dump --store var/dedup --topic orders --partition 0
        diff <(dedup dump --store a --topic orders --partition 0) <(dedup dump --store b --topic orders --partition 0)

    One line an ID, sorted by digest, on stdout. A mark with a payload (the state of a `LastId` source) has
    `payload=BYTES:CHECKSUM` behind its timestamp. The command may run beside a consumer, without taking its
    lock, and prints the marks that were durable when it started. IDs themselves are never stored. With
    `--json` one object a line, `{"digest", "offset", "timestamp_ms"}`, and of a payload `payload_bytes` and
    `payload_checksum`.
    """
    (found,) = of_one_group(
        stored_partitions(store, topic=topic, partition=partition, group=group, cluster=cluster)
    )
    with read_partition(found.path) as opened:
        for page in opened.scan_all():
            if json_output:
                sys.stdout.write("".join(f"{json.dumps(each)}\n" for each in mark_objects(page)))
            else:
                sys.stdout.write("".join(f"{digest} {text}\n" for digest, text in mark_texts(page)))


_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")


def part_names(spec: str) -> list[str]:
    """Return the names of the parts of an ID of this spec (canonical text), e.g. ``["header:tenant", "key"]``.

    The spec is only parsed as text: a spec found in a store must not import code (``py:``).
    """
    names = []
    for part in spec.split("+"):
        names += [leaf.argument for leaf in cloudevents().describe()] if part == "cloudevents" else [part]
    return names


def candidate_digests(spec: str, texts: Sequence[str]) -> list[bytes]:
    """Return the digests (16 bytes each) of the marks that an ID with these parts may have.

    In a store of `LastId` the texts name the source: none where each partition is one source. There are
    several digests where a text is an integer and its part is ``json:``, ``py:`` or ``function:``: the string
    ``"5"`` and the number 5 are different IDs, and both are looked up.

    Raises:
        IdSpecError: the spec has another number of parts; the message names them.
    """
    source = source_spec_of(spec)
    if source == "":
        if texts:
            raise IdSpecError(
                "here each partition is one source; leave the ID out to see the last ID of each"
            )
        return [PARTITION_SOURCE]
    spec = source or spec_in_units(spec) or spec
    names = part_names(spec)
    if len(names) != len(texts):
        raise IdSpecError(
            f"an ID of {shown(spec)} has {counted(len(names), 'part')}, not {len(texts)}: give {' '.join(names)}"
        )
    choices = [_candidate_bytes(name, text) for name, text in zip(names, texts, strict=True)]
    return [digest_parts(parts) for parts in product(*choices)]


def _candidate_bytes(name: str, text: str) -> list[bytes]:
    # Arguments that are not UTF-8 arrive as surrogates; this restores the bytes that were typed.
    typed = text.encode(errors="surrogateescape")
    if name.startswith(("json:", "py:", "function:")) and _INTEGER.fullmatch(text):
        return [typed, b"\xff" + typed]
    return [typed]


Id = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID...",
        help="The ID; each part of an ID that has several, in order.",
        show_default=False,
    ),
]


def lookup(
    *,
    id_parts: Id = None,
    store: Store,
    topic: Topic,
    group: Group = None,
    cluster: Cluster = None,
    json_output: Json = False,
) -> None:
    """Print where and when an ID was last completed.

    **Examples**

        dedup lookup --store var/dedup --topic orders order-4711
        dedup lookup --store var/dedup --topic orders tenant-1 order-4711

    Each text is taken as the bytes of one part of the ID; the store knows the parts (in the second example:
    `header:tenant+key`). For `json:`, `py:` and `function:` a whole number is looked up both as a
    number and as a string. All partitions of the topic are searched; the consumer may be running.

    In a store of `LastId` the text names the source, and the command prints its last ID; leave it out where
    each partition is one source.

    Exit status 0 when the ID is known, 1 when it is not (then stdout, or the `seen` list, is empty). A mark
    outside the window may still be found until it is removed: only the consumer applies the window.
    """
    texts = id_parts or []
    seen: list[dict[str, Any]] = []
    for found in of_one_group(stored_partitions(store, topic=topic, group=group, cluster=cluster)):
        with read_partition(found.path) as opened:
            for digest in candidate_digests(opened.identity.id_spec, texts):
                seen += [
                    {
                        "partition": found.partition,
                        "offset": max(mark.offset, -1),
                        "timestamp_ms": mark.timestamp_ms,
                        **({"last_id": _last_id_text(mark.payload)} if mark.payload else {}),
                    }
                    for mark in opened.find_all(digest)[:1]
                ]
    if json_output:
        typer.echo(json.dumps({"topic": topic, "id": texts, "seen": seen}))
    else:
        for each in seen:
            where = "in another partition before" if each["offset"] < 0 else f"offset {each['offset']}"
            last = f", last ID {printable(each['last_id'])}" if "last_id" in each else ""
            typer.echo(
                f"{printable(topic)}[{each['partition']}] {where}, {_sighting_time(each['timestamp_ms'])}{last}"
            )
    if not seen:
        unseen = printable(f"{topic} has seen no {shown(' '.join(texts))} that is still remembered")
        typer.echo(f"dedup: {unseen}", err=True)
        raise typer.Exit(1)


def _last_id_text(payload: bytes) -> str:
    return decode_seen(payload).last_id.decode(errors="backslashreplace")


def _sighting_time(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return "without a timestamp"
    return time_text(timestamp_ms)


AnyTopic = Annotated[str | None, typer.Option("--topic", help="Only this topic.", show_default=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStats:
    """The figures of one partition.

    ``low``, ``high`` and ``committed`` are offsets (the next one), None before the first step. ``marks``
    counts IDs, ``payload_bytes`` is the size of the states of `LastId` sources; ``since_ms`` is None where
    the marks go back to the beginning of the group's history.
    """

    cluster: str
    group: str
    topic: str
    partition: int
    topic_id: str
    id_spec: str
    isolation: str
    low: int | None
    high: int | None
    committed: int | None
    since_ms: int | None
    newest_ms: int | None
    marks: int
    payload_bytes: int
    disk_bytes: int


def stats(
    *,
    store: Store,
    topic: AnyTopic = None,
    group: Group = None,
    cluster: Cluster = None,
    json_output: Json = False,
) -> None:
    """Show the size and the offsets of the key stores in a folder.

    **Examples**

        dedup stats --store var/dedup
        dedup stats --store var/dedup --json | jq '.partitions[] | {topic, partition, marks}'

    One line a partition: the offsets that its group has completed, the number of IDs, the size on disk,
    and the time of its newest record; where marks have payloads, their size, too. With `--json` one
    object, `{"store", "marks", "disk_bytes", "partitions": [...]}`. Marks are counted one by one, about a
    million a second; a running consumer is not disturbed.
    """
    found = stored_partitions(store, topic=topic, group=group, cluster=cluster)
    partitions = [_read(each) for each in found]
    if json_output:
        totals = {name: sum(getattr(each, name) for each in partitions) for name in ("marks", "disk_bytes")}
        listed = [{entry.name: getattr(each, entry.name) for entry in fields(each)} for each in partitions]
        typer.echo(json.dumps({"store": str(store), **totals, "partitions": listed}))
    else:
        print_table(_stats_table(partitions))


def _read(found: PartitionFolder) -> PartitionStats:
    with read_partition(found.path) as opened:
        identity, progress = opened.identity, opened.progress
        marks = payload_bytes = 0
        for page in opened.scan_all():
            marks += page.count
            payload_bytes += sum(map(len, page.payloads or ()))
    return PartitionStats(
        cluster=identity.cluster,
        group=identity.group,
        topic=identity.topic,
        partition=identity.partition,
        topic_id=identity.topic_id,
        id_spec=identity.id_spec,
        isolation=identity.isolation,
        low=progress.low if progress else None,
        high=progress.high if progress else None,
        committed=progress.committed if progress else None,
        since_ms=progress.known.since_ms if progress else None,
        newest_ms=progress.known.newest_ms if progress else None,
        marks=marks,
        payload_bytes=payload_bytes,
        disk_bytes=disk_bytes(found.path),
    )


def disk_bytes(folder: Path) -> int:
    """Return the size of all files in a folder, which a consumer may change meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except FileNotFoundError:  # a compaction has just removed it
            continue
    return total


def _stats_table(partitions: list[PartitionStats]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("partition")
    table.add_column("group")
    payloads = any(each.payload_bytes for each in partitions)
    for name in ("low", "high", "committed", "marks", *(("payloads",) if payloads else ()), "size"):
        table.add_column(name, justify="right")
    table.add_column("newest record")
    for each in partitions:
        sizes = (each.payload_bytes, each.disk_bytes) if payloads else (each.disk_bytes,)
        counts = (each.low, each.high, each.committed, each.marks)
        table.add_row(
            f"{printable(each.topic)}[{each.partition}]",
            printable(each.group),
            *("-" if count is None else f"{count:,}" for count in counts),
            *map(size_text, sizes),
            record_time(each.newest_ms),
        )
    return table


def record_time(timestamp_ms: int | None) -> str:
    """Return the time of a record for a table."""
    if timestamp_ms is None or timestamp_ms < 0:
        return "-"
    time = utc_time(timestamp_ms)
    return time_text(timestamp_ms) if time is None else f"{time:%Y-%m-%d %H:%M:%SZ}"


NewFolder = Annotated[
    Path,
    typer.Option("--output", help="The folder to make; it must be empty or missing.", show_default=False),
]
OfTopic = Annotated[
    str | None,
    typer.Option("--topic", help="The topic; needed where the folder holds several.", show_default=False),
]


def snapshot(
    *,
    store: Store,
    output: NewFolder,
    topic: OfTopic = None,
    group: Group = None,
    cluster: Cluster = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a snapshot of a store, while its consumer runs.

    **Examples**

        dedup snapshot --store var/dedup --output snapshot
        dedup snapshot --store var/dedup --topic orders --group billing --output snapshots/2024-05-01

    The consumer is not involved: a checkpoint of each partition is made (by hard links, so that only the
    log takes disk space), and its IDs are written to the snapshot, half a million a second or more.
    Progress and IDs of a partition are of the same moment. The snapshot is written atomically. `dedup
    restore` and `Recovery(snapshot=...)` take it like one of `dedup backfill`.
    """
    found = of_one_group(stored_partitions(store, topic=topic, group=group, cluster=cluster))
    topics = sorted({each.topic for each in found})
    if len(topics) > 1:
        raise typer.BadParameter(f"the folder holds several: {', '.join(topics)}", param_hint="--topic")
    manifest = snapshot_store(found, store, output)
    if not quiet:
        done = (
            f"{output}: {counted(len(manifest.partitions), 'partition')} of {manifest.topic}, "
            f"{counted(manifest.marks, 'ID')}, "
            f"of group {manifest.group}"
        )
        typer.echo(printable(done), err=True)
    if json_output:
        report = {
            "output": str(output),
            "topic": manifest.topic,
            "group": manifest.group,
            "cut": {str(entry.partition): entry.high for entry in manifest.partitions},
            "marks": manifest.marks,
            "bytes": manifest.bytes,
            "fingerprint": manifest.fingerprint,
        }
        typer.echo(json.dumps(report))


Snapshot = Annotated[
    str,
    typer.Option(
        "--snapshot",
        help="The folder that dedup backfill wrote, a folder of several (the newest is taken), or a URL.",
        show_default=False,
    ),
]
OwnerGroup = Annotated[
    str | None,
    typer.Option("--group", help="The consumer group [default: the snapshot's own].", show_default=False),
]
AssumeProcessed = Annotated[
    bool,
    typer.Option(
        "--assume-processed",
        help="You vouch that the group has processed every record that the snapshot covers.",
    ),
]


def restore(
    *,
    snapshot: Snapshot,
    store: Store,
    group: OwnerGroup = None,
    assume_processed: AssumeProcessed = False,
    rate: RateLimitText = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Install a snapshot as a new store folder.

    **Examples**

        dedup restore --snapshot snapshot --store var/dedup
        dedup restore --snapshot snapshot --store var/dedup --group billing --assume-processed
        dedup restore --snapshot s3://bucket/snapshots --store var/dedup --rate-limit 50MB/s

    All files are verified. The folder must be empty or missing; it is written atomically. A consumer with
    `Recovery(snapshot=...)` does the same by itself, partition by partition.

    A snapshot made without a group covers the whole topic. Every record that it covers counts as processed
    by the group. For a group that has not read so far, messages would be hidden; so you must confirm it
    with `--assume-processed`.
    """
    manifest, owner = restore_snapshot(
        snapshot, store, group=group, assume_processed=assume_processed, limit=rate_limit(rate)
    )
    count, marks = len(manifest.partitions), sum(entry.marks for entry in manifest.partitions)
    if not quiet:
        held = f"{counted(count, 'partition')} of {manifest.topic}, {counted(marks, 'ID')}"
        done = f"{store}: {held}, for group {owner}"
        typer.echo(printable(done), err=True)
    if json_output:
        report = {"store": str(store), "topic": manifest.topic, "group": owner, "partitions": count}
        typer.echo(json.dumps({**report, "marks": marks}))
