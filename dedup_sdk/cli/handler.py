"""The one place where exceptions become a line on stderr and an exit status."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, cast

import typer

from dedup_sdk.cli.app import app
from dedup_sdk.cli.text import printable
from dedup_sdk.errors import ConfigurationError, DedupError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        return _explain(error)
    return _fail("interrupted", INTERRUPTED) if status == INTERRUPTED else status or 0


def _explain(error: typer.TyperException | DedupError | OSError) -> int:
    if isinstance(error, OSError):
        named = f"{error.filename}: " if error.filename else ""
        return _fail(f"{named}{error.strerror or error}", FAILED)
    if isinstance(error, DedupError):
        return _fail(str(error), WRONG_USAGE if isinstance(error, ConfigurationError) else FAILED)
    message = getattr(error, "format_message", error.__str__)()
    if not message:
        # Without a command the help has been printed already.
        return WRONG_USAGE
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "dedup"
    return _fail(f"{message.rstrip('.')}; see {command} --help", WRONG_USAGE)


def _fail(message: str, status: int) -> int:
    typer.echo(f"dedup: {printable(' '.join(message.split()))}", err=True)
    return status


def _reader_gone() -> int:
    """End quietly, as a program in a pipe does; stdout must not be flushed into the closed pipe at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED
