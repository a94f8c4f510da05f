"""``dedup snapshot``: a snapshot of a store, beside its running consumer."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dedup_sdk.cli.options import Cluster, Group, Json, Quiet, Store
from dedup_sdk.cli.selection import of_one_group, stored_partitions
from dedup_sdk.cli.text import printable
from dedup_sdk.store.live_snapshot import snapshot_store

Output = Annotated[
    Path, typer.Option("--output", help="The folder to make; it must not hold anything.", show_default=False)
]
OfTopic = Annotated[
    str | None,
    typer.Option("--topic", help="The topic; needed where the folder holds several.", show_default=False),
]


def snapshot(
    *,
    store: Store,
    output: Output,
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

    The consumer is not disturbed, and takes no part: each partition is copied as it is at one moment (by links to its files, so that it
    takes no room but the log's), and its IDs are written to the snapshot, half a million a second or more. Progress and IDs
    of a partition are of the same moment. The snapshot is there whole or not at all, and is one that `dedup restore` and
    `DedupConsumer(snapshot=)` take, like one of `dedup backfill`.
    """
    found = of_one_group(stored_partitions(store, topic=topic, group=group, cluster=cluster))
    topics = sorted({each.topic for each in found})
    if len(topics) > 1:
        raise typer.BadParameter(f"the folder holds several: {', '.join(topics)}", param_hint="--topic")
    manifest = snapshot_store(found, store, output)
    if not quiet:
        done = f"{output}: {len(manifest.partitions)} partitions of {manifest.topic}, {manifest.marks:,} IDs, of group {manifest.group}"
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
