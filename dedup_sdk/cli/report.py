"""``dedup report``: the page about a history's duplicates, drawn again."""

from pathlib import Path
from typing import Annotated

import typer

from dedup_sdk.cli.options import Quiet
from dedup_sdk.cli.text import printable

From = Annotated[
    Path,
    typer.Argument(
        metavar="SNAPSHOT_OR_JSON",
        help="A snapshot that dedup backfill made with --report, the folder of a report, or its findings.json.",
        show_default=False,
    ),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output", help="The folder for the page and its figures; made if missing.", show_default=False
    ),
]


def report(source: From, *, output: Output, quiet: Quiet = False) -> None:
    """Draw the report of a backfill again: one HTML page that needs nothing else, and PNGs.

    **Examples**

        dedup report snapshot --output report
        dedup report findings.json --output report

    `dedup backfill --report DIR` draws it at once, and leaves in the snapshot what is needed to draw it again. The page shows how
    late duplicates come, and which window hides them. Needs the extra `[report]`.
    """
    from spark_backfill.report_page.document import read_document
    from spark_backfill.report_page.page import check_place, write_page

    document = read_document(source)
    check_place(output)
    page = write_page(document, output)
    if not quiet:
        typer.echo(printable(f"{page}: open it in a browser"), err=True)
