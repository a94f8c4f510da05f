"""``dedup restore``: a snapshot becomes a store's folder."""

import json
from typing import Annotated

import typer

from dedup_sdk.cli.options import Json, Quiet, Store
from dedup_sdk.cli.text import printable
from dedup_sdk.store.restore import restore_snapshot

Snapshot = Annotated[
    str,
    typer.Option(
        "--snapshot",
        help="The folder that dedup backfill wrote, one that holds several (the newest is taken), or a URL.",
        show_default=False,
    ),
]
OfGroup = Annotated[
    str | None,
    typer.Option("--group", help="The consumer group [default: the snapshot's own].", show_default=False),
]
AssumeProcessed = Annotated[
    bool,
    typer.Option(
        "--assume-processed",
        help="You vouch that the group processed all that the snapshot covers.",
    ),
]


def restore(
    *,
    snapshot: Snapshot,
    store: Store,
    group: OfGroup = None,
    assume_processed: AssumeProcessed = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Install a snapshot as a new store folder.

    **Examples**

        dedup restore --snapshot snapshot --store var/dedup
        dedup restore --snapshot snapshot --store var/dedup --group billing --assume-processed

    All files are verified. The folder must be empty or missing, and is there whole or not at all. A consumer that is given
    `snapshot=` does the same by itself, partition by partition.

    A snapshot made without a group covers the whole topic. Whatever it covers counts as processed by the group: for one
    that has not got so far, messages would be hidden. Hence `--assume-processed`.
    """
    manifest, owner = restore_snapshot(snapshot, store, group=group, assume_processed=assume_processed)
    count, marks = len(manifest.partitions), sum(entry.marks for entry in manifest.partitions)
    if not quiet:
        done = f"{store}: {count} partitions of {manifest.topic}, {marks:,} IDs, for group {owner}"
        typer.echo(printable(done), err=True)
    if json_output:
        report = {"store": str(store), "topic": manifest.topic, "group": owner, "partitions": count}
        typer.echo(json.dumps({**report, "marks": marks}))
