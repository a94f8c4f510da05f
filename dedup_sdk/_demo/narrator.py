"""The output of a demo: a line for each step, a progress bar on a terminal, and the result."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from dedup_sdk._demo.oracle import Judgement, StoreComparison

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The demo's figures, in the order of the JSON object.

    Attributes:
        broker: ``kafka``: a real one.
        records: records in the topic before the intended resend.
        distinct_ids: dedup IDs among them.
        duplicates_in_topic: records beyond the first of their ID.
        handled: calls of the workers' handlers for these records.
        lost: IDs that no handler saw.
        doubled: calls beyond the first of their ID.
        doubled_bound: the most doubled calls that the SIGKILL excuses (see `dedup_sdk._demo.oracle`).
        resent: flights resent after all stores were deleted and rebuilt.
        resent_handled: calls of handlers for them.
        rebuild_records_per_second: records of the topic by the seconds of the whole Spark job, its start included.
        marks: IDs in the rebuilt key store.
        stores_equal: whether the rebuilt marks equal those of the workers' stores.
        seconds: the time of all five steps.
    """

    broker: str
    records: int
    distinct_ids: int
    duplicates_in_topic: int
    handled: int
    lost: int
    doubled: int
    doubled_bound: int
    resent: int
    resent_handled: int
    rebuild_records_per_second: int
    marks: int
    stores_equal: bool
    seconds: float
    failures: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every promise held."""
        return not self.failures

    def as_json(self) -> dict[str, object]:
        """The figures; ``failures`` is among them only when there are any."""
        figures = asdict(self)
        if self.passed:
            del figures["failures"]
        return figures


def failures(judgement: Judgement, comparison: StoreComparison, resent_handled: int) -> tuple[str, ...]:
    """Return each broken promise, with its figures."""
    broken = {
        f"{judgement.lost} flights were lost": judgement.lost > 0,
        f"{judgement.doubled} flights were handled twice, and the SIGKILL excuses {judgement.doubled_bound}": (
            judgement.doubled > judgement.doubled_bound
        ),
        f"{judgement.unexplained} flights were handled twice far from the SIGKILL": judgement.unexplained > 0,
        f"the rebuilt marks of partitions {list(comparison.differing)} differ from the lived ones": (
            not comparison.equal
        ),
        f"{resent_handled} resent flights were handled again": resent_handled > 0,
    }
    return tuple(failure for failure, happened in broken.items() if happened)


STEPS = 5
_TITLE_WIDTH = 11


class _Count(MofNCompleteColumn):
    """``12/1,000``; empty where the total is unknown."""

    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)


class _Seconds(ProgressColumn):
    """The time of the whole step so far."""

    def __init__(self, began_s: float) -> None:
        super().__init__()
        self._began_s = began_s

    def render(self, _: Task) -> Text:
        return Text(f"{time.monotonic() - self._began_s:.0f} s", style="dim")


class Chapter:
    """A running step: report its progress and its outcome to it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)
        self._total: int | None = None
        self.outcome = ""
        """Printed when the step is over."""

    def ends_with(self, outcome: str) -> None:
        """Set the text that is printed when the step is over."""
        self.outcome = outcome

    def doing(self, action: str, total: int | None = None) -> None:
        """Name the current action, and its total (None: unknown)."""
        self._progress.remove_task(self._task)
        self._task = self._progress.add_task(action, total=total)
        self._total = total

    def at(self, completed: int) -> None:
        """Move the bar; not beyond its end."""
        shown = completed if self._total is None else min(completed, self._total)
        self._progress.update(self._task, completed=shown)


class Narrator:
    """Prints the steps of a demo.

    Args:
        console: the target; bars appear only if it is a terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def step(self, number: int, title: str) -> Iterator[Chapter]:
        """Run one step; its outcome is printed at the end, but not when it fails."""
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
            step = Chapter(progress)
            yield step
        line = Text.assemble(
            f"{number}/{STEPS} ",
            (f"{title:<{_TITLE_WIDTH}}", "bold"),
            (f"{time.monotonic() - began_s:5.1f} s", "dim"),
        )
        self._console.print(line.append(f"  {step.outcome}"), soft_wrap=True, highlight=False)


def result_table(result: DemoResult) -> Table:
    """Return the table of the counts, and of the values that they must have."""
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
