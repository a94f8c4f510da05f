"""What the demo says while it runs: a line a step, and a moving bar where somebody watches."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from dedup_sdk.demo.result import DemoResult

STEPS = 5
_TITLE_WIDTH = 11


class _Count(MofNCompleteColumn):
    """``12/1,000``; nothing where nobody knows how much there is."""

    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)


class _Seconds(ProgressColumn):
    """How long the whole step has taken."""

    def __init__(self, began_s: float) -> None:
        super().__init__()
        self._began_s = began_s

    def render(self, _: Task) -> Text:
        return Text(f"{time.monotonic() - self._began_s:.0f} s", style="dim")


class Step:
    """One step under way: tell it how far it is, and at last what it found."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)
        self._total: int | None = None
        self.outcome = ""
        """What is printed when the step is over."""

    def doing(self, what: str, total: int | None = None) -> None:
        """Name what happens now, and how much of it there is (None: nobody knows)."""
        self._progress.remove_task(self._task)
        self._task = self._progress.add_task(what, total=total)
        self._total = total

    def at(self, completed: int) -> None:
        """Move the bar; not beyond its end."""
        shown = completed if self._total is None else min(completed, self._total)
        self._progress.update(self._task, completed=shown)


class Narrator:
    """Tells the steps of a demo.

    Args:
        console: where to; bars appear only if it is a terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def step(self, number: int, title: str) -> Iterator[Step]:
        """Run one step; what it found is printed at its end, not when it fails."""
        began_s = time.monotonic()
        progress = Progress(
            TextColumn(f"{number}/{STEPS} [bold]{title:<{_TITLE_WIDTH}}[/bold]"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            _Count(),
            _Seconds(began_s),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        with progress:
            step = Step(progress)
            yield step
        line = Text.assemble(
            f"{number}/{STEPS} ",
            (f"{title:<{_TITLE_WIDTH}}", "bold"),
            (f"{time.monotonic() - began_s:5.1f} s", "dim"),
        )
        self._console.print(line.append(f"  {step.outcome}"), soft_wrap=True, highlight=False)


def result_table(result: DemoResult) -> Table:
    """Return the small table: what was counted, and what it had to be."""
    table = Table(show_edge=False, pad_edge=False, box=None, header_style="dim", padding=(0, 2))
    table.add_column("")
    table.add_column("counted", justify="right")
    table.add_column("must be", justify="right")
    table.add_column("", justify="center")
    records = f"{result.records:,}"
    _row(table, "records in the topic", records)
    _row(table, "of them duplicates", f"{result.duplicates_in_topic:,}")
    _row(table, "distinct dedup IDs", f"{result.distinct_ids:,}")
    _row(table, "handled", f"{result.handled:,}")
    _row(table, "lost", f"{result.lost:,}", "0", good=result.lost == 0)
    _row(
        table,
        "handled twice, for the SIGKILL",
        f"{result.doubled:,}",
        f"<= {result.doubled_bound:,}",
        good=result.doubled <= result.doubled_bound,
    )
    _row(table, "IDs in the rebuilt store", f"{result.marks:,}", "as lived", good=result.stores_equal)
    _row(table, "sent again after the rebuild", f"{result.resent:,}")
    _row(table, "of them handled again", f"{result.resent_handled:,}", "0", good=result.resent_handled == 0)
    return table


def last_line(result: DemoResult) -> Text:
    """Return the demo's last line: passed or failed, and why."""
    if not result.passed:
        return Text.assemble(("FAILED", "bold red"), f": {'; '.join(result.failures)}")
    return Text.assemble(
        ("PASSED", "bold green"),
        f": {result.distinct_ids:,} flights reached the handler, {result.duplicates_in_topic:,} duplicates did not, "
        f"none lost; {result.seconds:.0f} s",
    )


def _row(table: Table, name: str, counted: str, wanted: str = "", *, good: bool | None = None) -> None:
    sign = {None: Text(""), True: Text("ok", style="green"), False: Text("NO", style="bold red")}[good]
    table.add_row(name, counted, Text(wanted, style="dim"), sign)
