"""``dedup stats``: how large key stores are, and how far."""

import json
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dedup_sdk.cli.options import Cluster, Group, Json, Store
from dedup_sdk.cli.selection import stored_partitions
from dedup_sdk.cli.text import printable
from dedup_sdk.store.paths import PartitionFolder
from dedup_sdk.store.read_only import read_partition

_WIDE_CHARACTERS = 400
AnyTopic = Annotated[str | None, typer.Option("--topic", help="Only this topic.", show_default=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStats:
    """One partition's figures: ``low``, ``high`` and ``committed`` are offsets (the next one), None before the first step.

    ``marks`` counts IDs, ``payload_bytes`` is the size of what lanes keep with them; ``since_ms`` is None where they go back to the beginning of the group's history.
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
    """Show how large the key stores in a folder are, and how far.

    **Examples**

        dedup stats --store var/dedup
        dedup stats --store var/dedup --json | jq '.partitions[] | {topic, partition, marks}'

    One line a partition: the offsets that its group has completed, how many IDs it remembers, its bytes on disk, and the
    time of its newest record; where marks bear payloads, the bytes of these too. With `--json` one object, `{"store", "marks", "disk_bytes", "partitions": [...]}`. Marks are
    counted one by one, about a million a second; a running consumer is not disturbed.
    """
    found = stored_partitions(store, topic=topic, group=group, cluster=cluster)
    partitions = [_read(each) for each in found]
    if json_output:
        totals = {name: sum(getattr(each, name) for each in partitions) for name in ("marks", "disk_bytes")}
        listed = [{entry.name: getattr(each, entry.name) for entry in fields(each)} for each in partitions]
        typer.echo(json.dumps({"store": str(store), **totals, "partitions": listed}))
    else:
        # Names are not ours: what looks like markup in them is none.
        console = Console(markup=False, emoji=False)
        # A file or a pipe has no width; a line each is what grep wants.
        console.print(_table(partitions), crop=False, width=None if console.is_terminal else _WIDE_CHARACTERS)


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
        since_ms=progress.since_ms if progress else None,
        newest_ms=progress.newest_ms if progress else None,
        marks=marks,
        payload_bytes=payload_bytes,
        disk_bytes=_disk_bytes(found.path),
    )


def _disk_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except FileNotFoundError:  # a compaction has just removed it
            continue
    return total


def _table(partitions: list[PartitionStats]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("partition")
    table.add_column("group")
    payloads = any(each.payload_bytes for each in partitions)
    for name in ("low", "high", "committed", "marks", *(("payload bytes",) if payloads else ()), "bytes"):
        table.add_column(name, justify="right")
    table.add_column("newest record")
    for each in partitions:
        sizes = (each.payload_bytes, each.disk_bytes) if payloads else (each.disk_bytes,)
        counts = (each.low, each.high, each.committed, each.marks, *sizes)
        table.add_row(
            f"{printable(each.topic)}[{each.partition}]",
            printable(each.group),
            *("-" if count is None else f"{count:,}" for count in counts),
            _time(each.newest_ms),
        )
    return table


def _time(timestamp_ms: int | None) -> str:
    if timestamp_ms is None or timestamp_ms < 0:
        return "-"
    try:
        return datetime.fromtimestamp(timestamp_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"  # beyond the calendar: producers write what they like
