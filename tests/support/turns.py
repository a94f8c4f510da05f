"""Cases that take turns: where ``DEDUP_TEST_TURN`` is a number, a run plays a third of them, chosen by the number.

Three numbers in a row play all. It is for broken variants, which prove that an oracle can fail, and take long. Without
the variable all are played; `make ci` sets it to the number of the day, and no workflow does.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

TURN: Final = "DEDUP_TEST_TURN"
"""The environment variable with the number of the turn; empty: all cases are played."""
_THIRDS: Final = 3
_MARK: Final = "in_turns"


def in_turns(names: Sequence[str], cases: Sequence[Any]) -> pytest.MarkDecorator:
    """Return the parametrization of a test with the cases whose turn it is."""
    turn = os.environ.get(TURN)
    played = cases[int(turn) % _THIRDS :: _THIRDS] if turn else cases
    return pytest.mark.parametrize(names, [_of_this_test(case) for case in played])


def _of_this_test(case: Any) -> Any:
    """Return a case, or one that has marks already, with the mark of those that take turns."""
    values, marks = getattr(case, "values", case), getattr(case, "marks", ())
    return pytest.param(*values, marks=[*marks, getattr(pytest.mark, _MARK)])


class Turns:
    """The pytest plugin that tells which of these cases a run plays."""

    def __init__(self) -> None:
        self._played: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the cases that are left when all others were deselected."""
        self._played = [item.name for item in session.items if item.get_closest_marker(_MARK)]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say it at the end, with the variable that decides it."""
        if self._played:
            turn = os.environ.get(TURN)
            which = f"a third, {TURN}={turn}" if turn else "all"
            terminalreporter.write_line(f"cases that take turns ({which}): {', '.join(self._played)}")
