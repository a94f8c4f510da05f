"""``dedup snapshots verify``: whether snapshots are what their manifests say."""

import json

import typer

from dedup_sdk.cli.options import Json, Quiet
from dedup_sdk.cli.snapshot_places import Place, found_in, tell
from dedup_sdk.cli.text import printable
from dedup_sdk.store.snapshot_check import check_snapshot
from dedup_sdk.store.snapshot_family import newest_first


def verify(*, place: Place, json_output: Json = False, quiet: Quiet = False) -> None:
    """Read every file of a snapshot (or of several), and check all that the manifest says of it.

    **Examples**

        dedup snapshots verify snapshot
        dedup snapshots verify s3://bucket/snapshots/2024-05-01 --json

    Checked are size and SHA-256, the order of the digests, how many they are, the smallest and the largest, timestamps, offsets,
    the fingerprint, and the words of the filters. Each file is copied to the temporary folder meanwhile (`TMPDIR`); a million IDs
    take a second or two. Installing a snapshot checks its files by SHA-256, too; this finds what was wrong when they were written.

    Exit status 0 when all is well, 1 when something differs: a line on stdout says which file, and what.
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
        verdict = f"{len(problems)} problems" if problems else "all as their manifests say"
        tell(f"{len(found)} snapshots, {files} files, {marks:,} IDs: {verdict}")
    if problems:
        raise typer.Exit(1)
