"""``dedup snapshots prune``: old snapshots go."""

import json
import time
from typing import Annotated

import typer

from dedup_sdk.cli.options import Json, Quiet
from dedup_sdk.cli.snapshot_list import made
from dedup_sdk.cli.snapshot_places import OfGroup, OfTopic, Place, found_in, tell
from dedup_sdk.cli.text import printable
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.store.snapshot_family import one_family, remove_snapshot, superfluous
from dedup_sdk.window import Window

Keep = Annotated[
    int, typer.Option("--keep", min=1, help="How many of the newest stay in any case.", show_default=False)
]
OlderThan = Annotated[
    str | None,
    typer.Option("--older-than", help="Remove only what is older, e.g. 30d or 12h.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")]


def prune(
    *,
    place: Place,
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

    Looks at the snapshots just below PLACE. Where they are of several topics or groups, `--topic` and `--group` say which.
    Only what a manifest names is removed, the manifest first; what else lies in a snapshot's folder stays, and is told. What has
    no manifest (yet) is left alone, and so is what cannot be read. The names of what goes are printed on stdout.
    """
    before_ms = None
    if older_than is not None:
        span_ms = Window.parse(older_than).time_ms
        if span_ms is None:
            raise ConfigurationError(f"--older-than {older_than!r} is no time; give e.g. 30d or 12h")
        before_ms = time.time_ns() // 1_000_000 - span_ms
    found, errors = found_in(place)
    for line in errors:
        tell(f"left alone: {line}")
    going = superfluous(one_family(found, topic, group), keep, before_ms)
    for source in going:
        stays = [] if dry_run else remove_snapshot(source)
        if not json_output:
            typer.echo(printable(source.place))
        if not quiet:
            verb = "would go" if dry_run else "is gone"
            tell(
                f"{source.place}, made {made(source.manifest.created_ms)}, {source.manifest.bytes:,} bytes, {verb}"
            )
        if stays:
            tell(f"{source.place} holds other files, which stay: {', '.join(stays[:5])}")
    if json_output:
        removed = [source.place for source in going]
        freed = sum(source.manifest.bytes for source in going)
        typer.echo(json.dumps({"removed": removed, "bytes": freed, "dry_run": dry_run}))
    if not going and not quiet:
        tell("nothing to remove")
