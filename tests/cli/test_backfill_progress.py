"""The bar of a running backfill: on a terminal, above it, and never on stdout."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

from dedup_sdk._cli.backfill import shown
from spark_backfill.progress import Progress

if TYPE_CHECKING:
    import pytest

READING = Progress(
    step="reading", tasks=8, done=2, offsets=4_000_000, read=1_000_000, seconds=10, per_second=100_000, seconds_left=30
)  # fmt: skip


def test_a_terminal_shows_a_bar_and_keeps_the_lines(capfd: pytest.CaptureFixture[str]) -> None:
    """The step, its figures and a bar are drawn on the console.

    A line of the job stays above; stdout is the report's.
    """
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, color_system=None, legacy_windows=False)
    with shown(console) as watching:
        assert watching.watch is not None
        watching.say("4 partitions of orders [red], 4,000,000 offsets to read")
        watching.watch(READING)
        print("the report")  # noqa: T201 (as the job does)
        watching.say("\x1b]0;a title\x07")
    drawn = screen.getvalue()
    assert "backfill: 4 partitions of orders [red], 4,000,000 offsets to read\n" in drawn
    assert "reading" in drawn
    assert "2 of 8 tasks, about 1,000,000 of 4,000,000 offsets, 100,000/s, 30 s left to read" in drawn
    assert "━" in drawn
    assert "\x1b]0" not in drawn
    assert capfd.readouterr().out == "the report\n"


def test_without_a_terminal_nothing_is_drawn() -> None:
    """A log gets the job's lines, each as one, and the job is left to tell how far it is by them.

    If quiet, it gets none.
    """
    screen = io.StringIO()
    with shown(Console(file=screen, width=20)) as watching:
        assert watching.watch is None
        watching.say("4 partitions of orders [red], 4,000,000 offsets to read")
    assert screen.getvalue() == "backfill: 4 partitions of orders [red], 4,000,000 offsets to read\n"
    with shown(Console(file=screen, force_terminal=True), quiet=True) as watching:
        assert watching.watch is not None
        watching.watch(READING)
        watching.say("a line")
    assert len(screen.getvalue().splitlines()) == 1
