"""``dedup backfill`` rebuilds a key store from a topic's history with Spark; ``dedup report`` draws its page again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from dedup_sdk.cli.console import printable
from dedup_sdk.cli.options import Quiet

if TYPE_CHECKING:
    from spark_backfill.progress import Progress as Seen


class Watching(NamedTuple):
    """The functions that `spark_backfill.launch.run` takes; None: it prints its own lines on stderr."""

    say: Callable[[str], None] | None
    watch: Callable[[Seen], None] | None


@contextmanager
def shown(console: Console) -> Iterator[Watching]:
    """Draw a progress bar on the console inside the block, and lines above it; nothing if it is not a terminal."""
    if not console.is_terminal:
        yield Watching(None, None)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
    )
    # The report on stdout must not be redirected.
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    task = bar.add_task("", total=None, figures="")

    def say(line: str) -> None:
        console.print(f"backfill: {printable(line)}", markup=False, highlight=False, soft_wrap=True)

    def watch(seen: Seen) -> None:
        step, _, figures = str(seen).partition(": ")
        bar.update(task, description=step, completed=seen.done, total=seen.tasks, figures=figures)
        bar.start()

    try:
        yield Watching(say, watch)
    finally:
        bar.stop()


_INTERRUPTED = 130


def backfill(context: typer.Context) -> None:
    r"""Rebuild a key store from a topic's history, with Spark.

    **Examples**

        dedup backfill --bootstrap localhost:9092 --topic orders --group billing \
            --id header:dedup-id --window 7d --output snapshot
        dedup backfill --bootstrap localhost:9092 --topic orders --group billing \
            --id header:dedup-id --window 7d --shared redis://localhost:6379/0
        dedup backfill --help

    Runs spark-submit of the installed PySpark, and returns its exit
    status. Use the snapshot with `Recovery(snapshot=...)` or `dedup restore`; the last line of stdout
    is a report (one JSON object). Needs the extra `[spark]`. A terminal shows the progress; a log gets a
    line every 30 seconds.
    """
    from spark_backfill.launch import run

    with shown(Console(stderr=True)) as watching:
        status = run(context.args, say=watching.say, watch=watching.watch)
    if status == _INTERRUPTED:
        sys.exit(status)  # already reported
    raise typer.Exit(status)


ReportSource = Annotated[
    Path,
    typer.Argument(
        metavar="SNAPSHOT_OR_JSON",
        help="A snapshot that dedup backfill made with --report, the folder of a report, or its findings.json.",
        show_default=False,
    ),
]
ReportFolder = Annotated[
    Path,
    typer.Option(
        "--output", help="The folder for the page and its figures; made if missing.", show_default=False
    ),
]


def report(source: ReportSource, *, output: ReportFolder, quiet: Quiet = False) -> None:
    """Draw the report of a backfill again: one self-contained HTML page, and PNGs.

    **Examples**

        dedup report snapshot --output report
        dedup report findings.json --output report

    `dedup backfill --report DIR` draws it at once, and keeps its data in the snapshot. The page shows how
    late duplicates come, and which window hides them. Needs the extra `[report]`.
    """
    from spark_backfill.report_page.document import read_document
    from spark_backfill.report_page.page import check_place, write_page

    document = read_document(source)
    check_place(output)
    page = write_page(document, output)
    if not quiet:
        typer.echo(printable(f"{page}: open it in a browser"), err=True)
