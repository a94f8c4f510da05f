"""``dedup backfill`` rebuilds a key store from a topic's history with Spark; ``dedup report`` draws its page again."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import cache
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from typer.core import TyperCommand
from typer.main import get_command

from dedup_sdk._checks import local_path
from dedup_sdk._cli.console import printable, tell
from dedup_sdk._cli.options import Json, Quiet
from dedup_sdk._cli.plain_help import printed_plainly
from dedup_sdk.errors import ConfigurationError
from spark_backfill.progress import Progress as Seen
from spark_backfill.report import summary


class Watching(NamedTuple):
    """The functions that `spark_backfill.launch.backfill` takes; without ``watch`` lines tell how far it is."""

    say: Callable[[str], None]
    watch: Callable[[Seen], None] | None
    log: Callable[[str], None]


@contextmanager
def shown(console: Console, *, quiet: bool = False) -> Iterator[Watching]:
    """Print lines on the console inside the block, on a terminal above a progress bar; nothing if ``quiet``."""
    if quiet:
        yield Watching(lambda _line: None, lambda _seen: None, lambda _line: None)
        return

    def log(line: str) -> None:
        # Nobody may read it any more, for which rich ends the process; the snapshot is wanted nevertheless.
        with suppress(OSError, SystemExit):
            console.print(printable(line), markup=False, highlight=False, emoji=False, soft_wrap=True)

    def say(line: str) -> None:
        log(f"backfill: {line}")

    if not console.is_terminal:
        yield Watching(say, None, log)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
    )
    # The report on stdout must not be redirected.
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    task = bar.add_task("", total=None, figures="")

    def watch(seen: Seen) -> None:
        step, _, figures = str(seen).partition(": ")
        bar.update(task, description=step, completed=seen.done, total=seen.tasks, figures=figures)
        bar.start()

    try:
        yield Watching(say, watch, log)
    finally:
        bar.stop()


def own_options() -> argparse.ArgumentParser:
    """The options that only the command has: spark-submit runs the job without them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    _add_own_options(parser.add_argument)
    return parser


def _add_own_options(add: Callable[..., Any]) -> None:
    add("--json", action="store_true", help="Print one JSON object, as the last line of stdout.")
    add("-q", "--quiet", action="store_true", help="Print only errors on stderr.")


class BackfillCommand(TyperCommand):
    """The command, whose arguments the job's own parser reads, as under spark-submit.

    Its parameters are for its help, for docs/cli.md, and for a shell that completes them.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the job's options, the command's own, and ``--help``."""
        return [*_parameters(), *super().get_params(ctx)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help as the other commands do."""
        if not printed_plainly(self, ctx):
            super().format_help(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Leave the arguments as they are; with ``--help`` among them, print the help and exit."""
        if ctx.resilient_parsing:
            # A shell asks what it may complete.
            rest: list[str] = super().parse_args(ctx, args)
            return rest
        if {"-h", "--help"} & set(args):
            typer.echo(ctx.get_help())
            ctx.exit()
        ctx.args = list(args)
        return args


@cache
def _parameters() -> list[Any]:
    """Return the options of the job's parser, and the command's own, as typer has them."""
    from spark_backfill.option_list import GROUPS, OPTIONS

    found = [
        _parameter([f"--{option.name}"], None if title == OPTIONS else title, option.settings)
        for title, options in GROUPS.items()
        for option in options
    ]

    def no_command() -> None:
        """Stand for a function with these parameters."""

    _add_own_options(lambda *names, **settings: found.append(_parameter(names, None, settings)))
    no_command.__dict__["__signature__"] = Signature(found)
    app = typer.Typer(add_completion=False)
    app.command()(no_command)
    parameters: list[Any] = get_command(app).params
    return parameters


def _parameter(names: Sequence[str], panel: str | None, settings: Mapping[str, Any]) -> Parameter:
    """Return the parameter for an option that is given as to `argparse.ArgumentParser.add_argument`."""
    literal: Any = Literal
    kind: Any = literal[tuple(settings["choices"])] if "choices" in settings else settings.get("type", str)
    action, default = settings.get("action"), None
    if action == "store_true":
        kind, default = bool, False
    elif action == "append":
        kind = list[kind] | None
    else:
        kind |= None
    option = typer.Option(
        *names,
        metavar=settings.get("metavar") or (None if "choices" in settings else names[-1].lstrip("-").upper()),
        help=settings["help"],
        rich_help_panel=panel,
        show_default=False,
    )
    name = names[-1].lstrip("-").replace("-", "_")
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def backfill(context: typer.Context) -> None:
    r"""Rebuild a key store from a topic's history, with Spark unless it is small.

    **Examples**

        dedup backfill --bootstrap localhost:9092 --topic orders --group billing \
            --id header:dedup-id --window 7d --output snapshot

    Needed are `--output`, `--topic`, `--id` and `--window` (or `--base`, whose snapshot says these three), and
    `--group` or `--whole-topic`.

    Runs spark-submit of the installed PySpark for archives and more than 5,000,000 offsets (with a base's; a third of
    that with `--report`, `--order`, `--unit` or a window by count, half with `--partitions`). Use the snapshot with
    `Recovery(snapshot=...)` or `dedup restore`. A summary goes to stderr: records, IDs, duplicates, bytes, time, and
    where the snapshot is. With `--json` the report is also one object on stdout (fields:
    `spark_backfill.report.Report`). Needs the extra `[spark]`. A terminal shows the progress; a log gets a line every
    30 seconds.

    Exit status: 0 done; 1 failed; 2 wrong usage; 130, 143 and 129 after Ctrl-C, SIGTERM and SIGHUP. Unless it is 0, one
    line says why, and whether the snapshot may be there.
    """
    from spark_backfill import launch
    from spark_backfill.ending import EndedError, ending_in_order

    try:
        own, arguments = own_options().parse_known_args(context.args)
    except argparse.ArgumentError as error:
        raise ConfigurationError(f"{error}; see dedup backfill --help") from None
    try:
        # A function of the user's that prints must not spoil the report on stdout.
        with (
            ending_in_order(),
            shown(Console(stderr=True), quiet=own.quiet) as watching,
            redirect_stdout(sys.stderr),
        ):
            report = launch.backfill(arguments, **watching._asdict())
    except EndedError as ended:
        tell(str(ended))
        sys.exit(ended.status)
    if not own.quiet:
        for line in summary(report):
            typer.echo(printable(line), err=True)
    if own.json:
        typer.echo(json.dumps(report))


ReportSource = Annotated[
    str,
    typer.Argument(
        metavar="SNAPSHOT_OR_JSON",
        help="A snapshot that dedup backfill made with --report, the folder of a report, or its findings.json.",
        show_default=False,
    ),
]
ReportFolder = Annotated[
    str,
    typer.Option(
        "--output", help="The folder for the page and its figures; made if missing.", show_default=False
    ),
]


def report(
    source: ReportSource, *, output: ReportFolder, json_output: Json = False, quiet: Quiet = False
) -> None:
    """Draw the report of a backfill again: one self-contained HTML page, and PNGs.

    **Examples**

        dedup report snapshot --output report
        dedup report findings.json --output report

    `dedup backfill --report DIR` draws it at once, and keeps its data in the snapshot. The page shows how
    late duplicates come, and which window hides them. Needs the extra `[report]`. With `--json` one object,
    `{"page"}`.
    """
    from spark_backfill.report_page.document import read_document
    from spark_backfill.report_page.page import write_page

    for place in (source, output):
        local_path("", place, advice="give a folder, and copy what is at a URL to one before")
    page = write_page(read_document(Path(source)), Path(output))
    if not quiet:
        typer.echo(printable(f"{page}: open it in a browser"), err=True)
    if json_output:
        typer.echo(json.dumps({"page": str(page)}))
