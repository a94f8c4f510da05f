"""The doubles of units that the oracle allows: handled records of one that was not over, once, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.history import Call, Crash, History, LogRecord, Notice, Sample
from tests.chaos.oracle import judge

_MS = 1_000_000
_SPAN = 3
LOG = [LogRecord(0, offset, offset, None, b"%d" % offset) for offset in range(9)]
ENDS = [Crash(run="a", at_ns=10_000 * _MS), Notice("a", "revoked", frozenset({0}), 10_000 * _MS)]


def unexplained(end: Crash | Notice, again: list[int], span: int = _SPAN) -> int:
    """Run "a" handles records up to 6, one a second, and ends, or loses the partition.

    "b" handles these again, and the rest.
    """
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


@pytest.mark.parametrize(("again", "found"), [([2, 3, 5], 0), ([1, 2, 3, 5], 1)])
def test_a_unit_whose_end_may_not_have_been_written_may_come_again(again: list[int], found: int) -> None:
    """Its records are completed together when the last of them is: as far below a record in doubt as a unit reaches."""
    calls = [Call("a", 0, offset, offset * 1_000 * _MS, (offset * 1_000 + 1) * _MS) for offset in range(4)]
    # The last write may have been before these.
    calls += [Call("a", 0, offset, (9_000 + offset) * _MS, (9_001 + offset) * _MS) for offset in range(4, 9)]
    calls += [Call("b", 0, offset, (20_000 + offset) * _MS, (20_001 + offset) * _MS) for offset in again]
    crash = Crash(run="a", at_ns=10_000 * _MS)
    history = History(log=LOG, calls=calls, window_ms=1_000, unit_span=_SPAN, ordered=False, excuses=[crash])
    assert judge(history).unexplained == found


@pytest.mark.parametrize("rejected", [True, False])
def test_what_is_rejected_may_be_committed_before_its_id_is_handled(*, rejected: bool) -> None:
    """The record behind it, with the same ID, is handled later.

    The log says so of it, whether the sender heard of it or not.
    """
    log = [LogRecord(0, 0, 0, None, b"n", rejected=rejected), LogRecord(0, 1, 0, None, b"n")]
    calls = [Call("a", 0, 1, 2 * _MS, 3 * _MS)]
    samples = [Sample(1 * _MS, 0, 1), Sample(4 * _MS, 0, 2)]
    judged = judge(History(log=log, calls=calls, window_ms=1_000, samples=samples))
    assert judged.broken() == ({} if rejected else {"premature": 1})
