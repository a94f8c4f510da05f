"""``dedup snapshots copy``: a snapshot goes elsewhere."""

import json
from typing import Annotated

import typer

from dedup_sdk.cli.options import Json, Quiet
from dedup_sdk.cli.snapshot_places import only_one, tell
from dedup_sdk.store.snapshot_copy import copy_snapshot

From = Annotated[str, typer.Argument(metavar="A", help="A snapshot's folder or URL.", show_default=False)]
To = Annotated[
    str,
    typer.Argument(metavar="B", help="A folder or URL where there is no snapshot yet.", show_default=False),
]


def copy(*, one: From, other: To, json_output: Json = False, quiet: Quiet = False) -> None:
    """Copy a snapshot to another folder or URL.

    **Examples**

        dedup snapshots copy snapshot s3://bucket/snapshots/2024-05-01
        dedup snapshots copy s3://bucket/snapshots/2024-05-01 snapshot

    Four files at once, each checked by size and SHA-256; the manifest comes last, so that there is no snapshot before all of it is
    there. Nothing is overwritten. At a URL a copy that was killed leaves files that no manifest names.
    """
    source = only_one(one)
    copy_snapshot(source, other)
    if not quiet:
        tell(f"{source.place} is copied: {source.manifest.marks:,} IDs, {source.manifest.bytes:,} bytes")
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
