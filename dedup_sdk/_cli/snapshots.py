"""``dedup snapshots``: list, check, compare, copy and remove snapshots; loading one: `snapshot_load`."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import islice, starmap
from typing import Annotated, Any

import typer
from rich.table import Table

from dedup_sdk._cli.console import print_table, printable, tell
from dedup_sdk._cli.options import Json, Quiet, RateLimitText, rate_limit
from dedup_sdk._cli.plain_help import Command, Group
from dedup_sdk._masking import counted, shown, shown_location
from dedup_sdk._store.snapshot_check import check_snapshot, diff_snapshots, lines
from dedup_sdk._store.snapshot_copy import copy_snapshot
from dedup_sdk._store.snapshot_source import (
    SnapshotSource,
    find_snapshots,
    newest_first,
    removable_snapshots,
    remove_snapshot,
    snapshot_locations,
    snapshots_of_one_group,
)
from dedup_sdk._time_text import time_text, utc_time
from dedup_sdk._window import Window, length_text
from dedup_sdk.errors import ConfigurationError, DedupError, SnapshotError
from spark_backfill.report_page.wording import size_text

SnapshotPlace = Annotated[
    str,
    typer.Argument(
        metavar="PLACE",
        help="A snapshot's folder, a folder that holds several, or a URL of either.",
        show_default=False,
    ),
]
OfTopic = Annotated[
    str | None, typer.Option("--topic", help="Only snapshots of this topic.", show_default=False)
]
OfGroup = Annotated[
    str | None,
    typer.Option(
        "--group",
        help='Only snapshots of this consumer group; "" are those made without one.',
        show_default=False,
    ),
]


def found_in(place: str) -> tuple[list[SnapshotSource], list[str]]:
    """Return the snapshots at a place, at least one, and a line for each that cannot be read.

    Raises `ConfigurationError` for a text that is neither a path nor a URL, `SnapshotError` when there is
    no snapshot.
    """
    return find_snapshots(snapshot_locations(place))


def only_one(place: str) -> SnapshotSource:
    """Return the one snapshot at a place; raises `SnapshotError` when there are several, or none."""
    found, _ = found_in(place)
    if len(found) > 1:
        names = ", ".join(each.place for each in found[:3])
        raise SnapshotError(
            f"{shown_location(place)} holds {len(found)} snapshots ({names}, ...): name one of them"
        )
    return found[0]


def list_snapshots(
    *, place: SnapshotPlace, topic: OfTopic = None, group: OfGroup = None, json_output: Json = False
) -> None:
    """List the snapshots in a folder, or below a URL, the newest first.

    **Examples**

        dedup snapshots list snapshots
        dedup snapshots list s3://bucket/snapshots --topic orders --json

    One line each: topic, group (`-`: made without one), window, the offset up to which it reaches in each
    partition (the cut), IDs, size, age, fingerprint and place. Two snapshots with the same fingerprint
    hold the same marks. Only manifests are read; an unreadable one is reported on stderr. With `--json` one
    object, `{"snapshots": [...]}`.
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
    print_table(_table(rows))


def _described(source: SnapshotSource) -> dict[str, Any]:
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


def _table(found: list[SnapshotSource]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("topic", "group", "window", "cut", "marks", "size", "age", "fingerprint", "place"):
        table.add_column(
            name,
            justify="right" if name in {"marks", "size", "age"} else "left",
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
            size_text(manifest.bytes),
            age(now_ms - manifest.created_ms),
            manifest.fingerprint,
            printable(each.place),
        )
    return table


def age(span_ms: int) -> str:
    """Return a time span in its largest unit, e.g. ``3 h``; one in the future as ``0 s``."""
    return length_text(max(span_ms, 0) // 1_000 * 1_000, most_units=1)


def made_at(created_ms: int) -> str:
    """Return when something was made, as ISO 8601, to the second."""
    made = utc_time(created_ms)
    return time_text(created_ms) if made is None else made.isoformat(timespec="seconds")


def verify(*, place: SnapshotPlace, json_output: Json = False, quiet: Quiet = False) -> None:
    """Read every file of a snapshot (or of several), and check it against the manifest.

    **Examples**

        dedup snapshots verify snapshot
        dedup snapshots verify s3://bucket/snapshots/2024-05-01 --json

    It checks size and SHA-256, the order and number of the digests, the smallest and the largest,
    timestamps, offsets, the fingerprint, and the filters. Each file is copied to the temporary folder
    meanwhile (`TMPDIR`); a million IDs take a second or two. Installing a snapshot checks SHA-256, too;
    this command also finds errors made when the files were written.

    Exit status 0 when everything agrees, 1 when something differs: a line on stdout names the file and the difference.
    """
    found, problems = found_in(place)
    files = marks = 0
    for source in newest_first(found):
        for checked in check_snapshot(source):
            files, marks = files + 1, marks + checked.marks
            problems += checked.problems
    if json_output:
        typer.echo(
            json.dumps({"snapshots": len(found), "files": files, "marks": marks, "problems": problems})
        )
    else:
        for line in problems:
            typer.echo(printable(line))
    if not quiet:
        verdict = counted(len(problems), "problem") if problems else "all agree with their manifests"
        held = ", ".join(starmap(counted, ((len(found), "snapshot"), (files, "file"), (marks, "ID"))))
        tell(f"{held}: {verdict}")
    if problems:
        raise typer.Exit(1)


_TROUBLE = 2
SnapshotA = Annotated[
    str, typer.Argument(metavar="A", help="A snapshot's folder or URL.", show_default=False)
]
SnapshotB = Annotated[
    str, typer.Argument(metavar="B", help="Another one of the same topic.", show_default=False)
]
Limit = Annotated[int, typer.Option("--limit", min=0, help="How many differences to print; all are counted.")]


def diff(
    *, one: SnapshotA, other: SnapshotB, limit: Limit = 100, json_output: Json = False, quiet: Quiet = False
) -> None:
    """Print the IDs that differ between two snapshots.

    **Examples**

        dedup snapshots diff snapshots/monday snapshots/tuesday
        dedup snapshots diff snapshot s3://bucket/snapshot --limit 0 --json

    One line a difference, by partition and in the order of digests within each range: `<` (only in A) or
    `>` (only in B), partition, digest in hexadecimal, offset, timestamp in ms; `!` (in both, but
    different): partition, digest, offset and timestamp in A, offset and timestamp in B. A mark with a
    payload has `payload=BYTES:CHECKSUM` behind its timestamp. All files are read, one of each at a time, in
    little memory.

    Exit status as of diff(1): 0 when they hold the same marks, 1 when they differ, 2 after an error.
    """
    totals = {"same": 0, "only_in_a": 0, "only_in_b": 0, "different": 0}
    listed: list[str] = []
    left = limit
    try:
        for found in diff_snapshots(only_one(one), only_one(other)):
            totals["same"] += found.same
            totals["only_in_a"] += found.only_left.count
            totals["only_in_b"] += found.only_right.count
            totals["different"] += found.left.count
            for line in islice(lines(found), left):
                left -= 1
                if json_output:
                    listed.append(line)
                else:
                    typer.echo(line)
    except DedupError as error:
        tell(" ".join(str(error).split()))
        raise typer.Exit(_TROUBLE) from None
    differences = sum(totals.values()) - totals["same"]
    if json_output:
        typer.echo(
            json.dumps(
                {"a": shown_location(one), "b": shown_location(other), **totals, "differences": listed}
            )
        )
    if not quiet:
        told = f", {limit - left} shown" if differences > limit - left else ""
        tell(
            f"{totals['same']:,} IDs are the same, {totals['only_in_a']:,} only in A, "
            f"{totals['only_in_b']:,} only in B, {totals['different']:,} differ{told}"
        )
    if differences:
        raise typer.Exit(1)


CopyFrom = Annotated[str, typer.Argument(metavar="A", help="A snapshot's folder or URL.", show_default=False)]
CopyTo = Annotated[
    str,
    typer.Argument(metavar="B", help="A folder or URL where there is no snapshot yet.", show_default=False),
]


def copy(
    *,
    one: CopyFrom,
    other: CopyTo,
    rate: RateLimitText = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Copy a snapshot to another folder or URL.

    **Examples**

        dedup snapshots copy snapshot s3://bucket/snapshots/2024-05-01
        dedup snapshots copy s3://bucket/snapshots/2024-05-01 snapshot --rate-limit 50MB/s

    Four files are copied at a time, each checked by size and SHA-256; the manifest comes last, so that an
    incomplete copy is not a snapshot. No file is overwritten. At a URL a killed copy leaves files that no
    manifest names.
    """
    limit = rate_limit(rate)
    source = replace(only_one(one), limit=limit)
    copy_snapshot(source, other)
    if not quiet:
        tell(f"{source.place} is copied: {source.manifest.marks:,} IDs, {size_text(source.manifest.bytes)}")
    if json_output:
        manifest = source.manifest
        typer.echo(
            json.dumps(
                {
                    "marks": manifest.marks,
                    "bytes": manifest.bytes,
                    "fingerprint": manifest.fingerprint,
                }
            )
        )


Keep = Annotated[
    int, typer.Option("--keep", min=1, help="How many of the newest to keep in any case.", show_default=False)
]
OlderThan = Annotated[
    str | None,
    typer.Option("--older-than", help="Remove only older ones, e.g. 30d or 12h.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")]


def prune(
    *,
    place: SnapshotPlace,
    keep: Keep,
    older_than: OlderThan = None,
    topic: OfTopic = None,
    group: OfGroup = None,
    dry_run: DryRun = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Remove old snapshots of one topic and group.

    **Examples**

        dedup snapshots prune snapshots --keep 3 --dry-run
        dedup snapshots prune s3://bucket/snapshots --topic orders --group billing --keep 7 --older-than 30d

    It looks at the snapshots directly below PLACE. Where they belong to several topics or groups, choose
    with `--topic` and `--group`. Only files that a manifest names are removed, the manifest first; other
    files in a snapshot's folder stay, and are reported. Folders without a manifest, and unreadable ones,
    are left alone. The places of removed snapshots are printed on stdout.
    """
    before_ms = None
    if older_than is not None:
        span_ms = Window.parse(older_than).time_ms
        if span_ms is None:
            raise ConfigurationError(
                f"--older-than {shown(older_than)} is not a length of time; give e.g. 30d or 12h"
            )
        before_ms = time.time_ns() // 1_000_000 - span_ms
    found, errors = found_in(place)
    for line in errors:
        tell(f"left alone: {line}")
    going = removable_snapshots(snapshots_of_one_group(found, topic, group), keep, before_ms)
    for source in going:
        stays = [] if dry_run else remove_snapshot(source)
        if not json_output:
            typer.echo(printable(source.place))
        if not quiet:
            verb = "would be removed" if dry_run else "was removed"
            made, size = made_at(source.manifest.created_ms), size_text(source.manifest.bytes)
            tell(f"{source.place}, made {made}, {size}, {verb}")
        if stays:
            tell(f"{source.place} holds other files, which stay: {', '.join(stays[:5])}")
    if json_output:
        removed = [source.place for source in going]
        freed = sum(source.manifest.bytes for source in going)
        typer.echo(json.dumps({"removed": removed, "bytes": freed, "dry_run": dry_run}))
    if not going and not quiet:
        tell("nothing to remove")


snapshots_app = typer.Typer(cls=Group, no_args_is_help=True, rich_markup_mode="markdown")


@snapshots_app.callback()
def about() -> None:
    r"""List, check, compare, copy, load and remove snapshots, in folders and behind URLs.

    **Examples**

        dedup snapshots list snapshots
        dedup snapshots verify snapshots/2024-05-01
        dedup snapshots diff snapshots/2024-05-01 snapshots/2024-05-02

    URLs need the extra `[remote]` and the storage's driver; `[s3]` has both for `s3://`.
    """


snapshots_app.command("list", cls=Command)(list_snapshots)
snapshots_app.command(cls=Command)(verify)
snapshots_app.command(cls=Command)(diff)
snapshots_app.command(cls=Command)(copy)
snapshots_app.command(cls=Command)(prune)
