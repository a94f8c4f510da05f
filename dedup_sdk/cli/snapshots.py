"""``dedup snapshots``: snapshots that are kept, compared, moved and removed."""

from __future__ import annotations

import typer

from dedup_sdk.cli.snapshot_copy import copy
from dedup_sdk.cli.snapshot_diff import diff
from dedup_sdk.cli.snapshot_list import list_snapshots
from dedup_sdk.cli.snapshot_prune import prune
from dedup_sdk.cli.snapshot_verify import verify

snapshots_app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")


@snapshots_app.callback()
def about() -> None:
    r"""List, check, compare, copy and remove snapshots, in folders and behind URLs.

    **Examples**

        dedup snapshots list snapshots
        dedup snapshots verify snapshots/2024-05-01
        dedup snapshots diff snapshots/2024-05-01 snapshots/2024-05-02

    URLs need the extra `[remote]` and the driver of the storage; `[s3]` has both for `s3://`.
    """


snapshots_app.command("list")(list_snapshots)
snapshots_app.command()(verify)
snapshots_app.command()(diff)
snapshots_app.command()(copy)
snapshots_app.command()(prune)
