"""How far a backfill is, drawn on a terminal; elsewhere a line now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from dedup_sdk.cli.text import printable

if TYPE_CHECKING:
    from spark_backfill.progress import Progress as Seen


class Watching(NamedTuple):
    """What `spark_backfill.launch.run` is given; None: its own lines on stderr."""

    say: Callable[[str], None] | None
    watch: Callable[[Seen], None] | None


@contextmanager
def shown(console: Console) -> Iterator[Watching]:
    """Draw a bar on the console while the block is open, and lines above it; nothing where it is no terminal."""
    if not console.is_terminal:
        yield Watching(None, None)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
    )
    # What goes to stdout is the report, and has to stay there.
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
