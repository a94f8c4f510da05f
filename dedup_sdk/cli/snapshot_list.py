"""``dedup snapshots list``: which snapshots there are."""

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from dedup_sdk.cli.options import Json
from dedup_sdk.cli.snapshot_places import OfGroup, OfTopic, Place, found_in, tell
from dedup_sdk.cli.text import printable
from dedup_sdk.store.snapshot_family import newest_first

if TYPE_CHECKING:
    from dedup_sdk.store.snapshot_source import Source

_WIDE_CHARACTERS = 4_000
_UNITS_S = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def list_snapshots(
    *, place: Place, topic: OfTopic = None, group: OfGroup = None, json_output: Json = False
) -> None:
    """List the snapshots in a folder, or below a URL, the newest first.

    **Examples**

        dedup snapshots list snapshots
        dedup snapshots list s3://bucket/snapshots --topic orders --json

    One line each: topic, group (`-`: made without one), window, the offsets up to which it reaches (the cut, of each partition), IDs,
    bytes, age, fingerprint and place. Two snapshots with the same fingerprint remember the same. Only manifests are read; one that
    cannot be is told on stderr. With `--json` one object, `{"snapshots": [...]}`.
    """
    found, errors = found_in(place)
    for line in errors:
        tell(line)
    rows = [
        each
        for each in newest_first(found)
        if (topic is None or each.manifest.topic == topic)
        and (group is None or (each.manifest.group or "") == group)
    ]
    if json_output:
        typer.echo(json.dumps({"snapshots": [_described(each) for each in rows]}))
        return
    # A line each, as grep wants them; a narrow terminal breaks them itself. Names are not ours: what looks like markup is none.
    console = Console(markup=False, emoji=False, highlight=False, width=_WIDE_CHARACTERS)
    console.print(_table(rows), soft_wrap=False)


def _described(source: "Source") -> dict[str, Any]:
    manifest = source.manifest
    return {
        "place": source.place,
        "topic": manifest.topic,
        "group": manifest.group,
        "window": manifest.window,
        "id_spec": manifest.id_spec,
        "created_ms": manifest.created_ms,
        "cut": {str(entry.partition): entry.high for entry in manifest.partitions},
        "gaps": {
            str(entry.partition): [[gap.begin, gap.end] for gap in entry.gaps]
            for entry in manifest.partitions
            if entry.gaps
        },
        "marks": manifest.marks,
        "bytes": manifest.bytes,
        "fingerprint": manifest.fingerprint,
    }


def _table(found: "list[Source]") -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("topic", "group", "window", "cut", "marks", "bytes", "age", "fingerprint", "place"):
        table.add_column(
            name,
            justify="right" if name in {"marks", "bytes", "age"} else "left",
            no_wrap=True,
        )
    now_ms = time.time_ns() // 1_000_000
    for each in found:
        manifest = each.manifest
        cut = " ".join(f"{entry.partition}:{entry.high}" for entry in manifest.partitions)
        table.add_row(
            printable(manifest.topic),
            printable(manifest.group or "-"),
            manifest.window,
            cut,
            f"{manifest.marks:,}",
            f"{manifest.bytes:,}",
            age(now_ms - manifest.created_ms),
            manifest.fingerprint,
            printable(each.place),
        )
    return table


def age(span_ms: int) -> str:
    """Return a time span in its largest unit, e.g. ``3 h``; one in the future as ``0 s``."""
    seconds = max(span_ms, 0) // 1_000
    unit, each = next((unit for unit in _UNITS_S if seconds >= unit[1]), _UNITS_S[-1])
    return f"{seconds // each} {unit}"


def made(created_ms: int) -> str:
    """Return when something was made, as ISO 8601, to the second."""
    try:
        return datetime.fromtimestamp(created_ms / 1_000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{created_ms} ms"
