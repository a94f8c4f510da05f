"""``dedup snapshots diff``: which IDs two snapshots disagree about."""

import json
from itertools import islice
from typing import Annotated

import typer

from dedup_sdk.cli.options import Json, Quiet
from dedup_sdk.cli.snapshot_places import only_one, tell
from dedup_sdk.errors import DedupError
from dedup_sdk.store.snapshot_diff import diff_snapshots, lines

_TROUBLE = 2
One = Annotated[str, typer.Argument(metavar="A", help="A snapshot's folder or URL.", show_default=False)]
Other = Annotated[str, typer.Argument(metavar="B", help="Another one of the same topic.", show_default=False)]
Limit = Annotated[
    int, typer.Option("--limit", min=0, help="How many differences are printed; all of them are counted.")
]


def diff(
    *, one: One, other: Other, limit: Limit = 100, json_output: Json = False, quiet: Quiet = False
) -> None:
    """Print the IDs that two snapshots disagree about.

    **Examples**

        dedup snapshots diff snapshots/monday snapshots/tuesday
        dedup snapshots diff snapshot s3://bucket/snapshot --limit 0 --json

    One line a difference, by partition and in the order of digests within each stretch: `<` (only in A) or `>` (only in B), partition, digest
    in hexadecimal, offset, timestamp in ms; `!` (in both, but not the same): partition, digest, offset and timestamp in A, offset
    and timestamp in B. A mark that bears a payload has `payload=BYTES:CHECKSUM` behind its timestamp. All files are read, one of each at a time, in little memory.

    Exit status as diff(1) has it: 0 when they remember the same, 1 when they differ, 2 on trouble.
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
        typer.echo(json.dumps({"a": one, "b": other, **totals, "differences": listed}))
    if not quiet:
        shown = f", {limit - left} shown" if differences > limit - left else ""
        tell(
            f"{totals['same']:,} IDs are the same, {totals['only_in_a']:,} only in A, "
            f"{totals['only_in_b']:,} only in B, {totals['different']:,} differ{shown}"
        )
    if differences:
        raise typer.Exit(1)
