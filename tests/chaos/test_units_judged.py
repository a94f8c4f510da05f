"""What the oracle lets be doubled of units: what was handled of one that was not over, once, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.history import Call, Crash, History, LogRecord, Notice
from tests.chaos.oracle import judge

_MS = 1_000_000
_SPAN = 3
LOG = [LogRecord(0, offset, offset, None, b"%d" % offset) for offset in range(9)]
ENDS = [Crash(run="a", at_ns=10_000 * _MS), Notice("a", "revoked", frozenset({0}), 10_000 * _MS)]


def unexplained(end: Crash | Notice, again: list[int], span: int = _SPAN) -> int:
    """Run "a" handles records up to 6, one a second, and ends, or loses the partition; "b" handles these again, and the rest."""
    calls = [Call("a", 0, offset, (offset * 1_000) * _MS, (offset * 1_000 + 1) * _MS) for offset in range(7)]
    calls += [
        Call("b", 0, offset, (20_000 + offset) * _MS, (20_001 + offset) * _MS) for offset in [*again, 7, 8]
    ]
    seen: dict[str, Any] = {"excuses": [end]} if isinstance(end, Crash) else {"notices": [end]}
    return judge(
        History(log=LOG, calls=calls, window_ms=1_000, unit_span=span, ordered=False, **seen)
    ).unexplained


@pytest.mark.parametrize("end", ENDS, ids=["crash", "revoke"])
def test_what_was_handled_of_a_unit_that_is_cut_may_come_again(end: Crash | Notice) -> None:
    """Within so many offsets as a unit reaches over, below the last that was handled."""
    assert unexplained(end, [4, 5, 6]) == 0
    assert unexplained(end, [3, 4, 5, 6]) == 1
    assert unexplained(end, [4, 5, 6], span=0) > 0
