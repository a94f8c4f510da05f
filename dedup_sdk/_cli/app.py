"""The commands of ``dedup``; it turns exceptions into one line on stderr and an exit status."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, cast

import typer

from dedup_sdk._cli.adopt import adopt
from dedup_sdk._cli.backfill import BackfillCommand, backfill, report
from dedup_sdk._cli.bridge import bridge
from dedup_sdk._cli.console import printable
from dedup_sdk._cli.demo import demo
from dedup_sdk._cli.plain_help import Command, Group
from dedup_sdk._cli.redrive import redrive
from dedup_sdk._cli.rewind import rewind
from dedup_sdk._cli.snapshot_load import load
from dedup_sdk._cli.snapshots import snapshots_app
from dedup_sdk._cli.stores import dump, lookup, restore, snapshot, stats
from dedup_sdk._cli.top import top
from dedup_sdk._cli.version import version_line
from dedup_sdk._cli.window_check import window_check
from dedup_sdk._masking import masked_settings, masked_url, masked_urls
from dedup_sdk.errors import ConfigurationError, DedupError

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(
    name="dedup",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    epilog="Exit status: 0 done; 1 failed, or nothing was found; 2 wrong usage; 130 ended by Ctrl-C.",
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 (typer gives it the option's value)
    if wanted:
        typer.echo(version_line())
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version",
        callback=_print_version,
        is_eager=True,
        help="Print the versions of this package and its libraries.",
    ),
]


@app.callback()
def about(*, version: Version = False) -> None:
    r"""Show, rebuild and inspect the key stores in which consumers remember IDs.

    **Examples**

        dedup demo --records 20000
        dedup backfill --bootstrap localhost:9092 --topic orders --group billing \
            --id header:dedup-id --window 7d --output snapshot
        dedup restore --snapshot snapshot --store var/dedup
        dedup snapshots list snapshots
        dedup lookup --store var/dedup --topic orders order-4711

    For the details of a command: `dedup COMMAND --help`. `dedup --install-completion` makes your shell
    complete commands and options.

    Results go to stdout, messages and errors to stderr. Each row of a table, each message and each error is
    one line, however long it is.
    """


app.command(cls=Command)(demo)
app.command(cls=BackfillCommand, context_settings={"help_option_names": ["-h", "--help"]})(backfill)
app.command(cls=Command)(report)
app.command(cls=Command)(restore)
app.command(cls=Command)(snapshot)
snapshots_app.command(cls=Command)(load)
app.add_typer(snapshots_app, name="snapshots")
app.command(cls=Command)(redrive)
app.command(cls=Command)(rewind)
app.command(cls=Command)(adopt)
app.command(cls=Command)(window_check)
app.command(cls=Command)(bridge)
app.command(cls=Command)(top)
app.command(cls=Command)(dump)
app.command(cls=Command)(lookup)
app.command(cls=Command)(stats)


FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130


def run(arguments: Sequence[str]) -> int:
    """Run ``dedup`` with ``arguments`` and return its exit status; nothing but `SystemExit` leaves it."""
    try:
        # Not standalone: typer would print its own, longer, errors.
        status = cast("int | None", app(args=list(arguments), prog_name="dedup", standalone_mode=False))
        sys.stdout.flush()
    except (typer.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except BrokenPipeError:
        return _reader_gone()
    except (typer.TyperException, DedupError, OSError) as error:
        return _explain(error, arguments)
    return _fail("interrupted", INTERRUPTED) if status == INTERRUPTED else status or 0


def _explain(error: typer.TyperException | DedupError | OSError, arguments: Sequence[str]) -> int:
    if isinstance(error, OSError):
        named = f"{error.filename}: " if error.filename else ""
        return _fail(f"{named}{error.strerror or error}", FAILED, arguments)
    if isinstance(error, DedupError):
        return _fail(str(error), WRONG_USAGE if isinstance(error, ConfigurationError) else FAILED, arguments)
    message = getattr(error, "format_message", error.__str__)()
    if not message:
        # Without a command the help has been printed already.
        return WRONG_USAGE
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "dedup"
    if "unexpected extra argument" in message:
        # It may be a setting of a client.
        message = masked_settings(message)
    return _fail(f"{message.rstrip('.')}; see {command} --help", WRONG_USAGE, arguments)


def _fail(message: str, status: int, arguments: Sequence[str] = ()) -> int:
    # A URL of yours may be in the text of a library; that of an argument is known as a whole, also one with blanks.
    for argument in sorted(arguments, key=len, reverse=True):
        value = argument.partition("=")[2] if argument.startswith("-") and "=" in argument else argument
        if masked_url(value) != value:
            message = message.replace(value, masked_url(value))
    typer.echo(f"dedup: {printable(masked_urls(' '.join(message.split())))}", err=True)
    return status


def _reader_gone() -> int:
    """End quietly, as a program in a pipe does; stdout must not be flushed into the closed pipe at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED
