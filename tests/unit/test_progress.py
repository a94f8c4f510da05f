from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk._marks import Progress, latest


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Progress], set[int], int]:
    """Steps as a partition writes them, some of them whole; the offsets completed after the last, and its watermark."""
    completed: set[int] = set()
    high = 0
    steps = [Progress(low=0, high=0)]
    for new in draw(st.lists(st.sets(st.integers(0, 40), max_size=5), max_size=12)):
        fresh = {offset for offset in new if offset >= high} - completed
        completed |= fresh
        while high in completed:
            high += 1
        whole = draw(st.booleans())
        ranges = tuple(
            (offset, offset + 1) for offset in sorted(completed if whole else fresh) if offset >= high
        )
        steps.append(Progress(low=0, high=high, done=ranges, delta=not whole))
    return steps, completed, high


@given(histories())
def test_deltas_add_up_to_what_is_completed(history: tuple[list[Progress], set[int], int]) -> None:
    """However steps that are whole and steps that are not follow each other, the last state is the whole one."""
    steps, completed, high = history
    whole = latest(steps)
    assert whole is not None
    assert (whole.high, whole.delta) == (high, False)
    assert {offset for start, end in whole.done for offset in range(start, end)} == {
        offset for offset in completed if offset >= high
    }


def test_without_a_step_nothing_is_known() -> None:
    """No step is no progress, not an empty one."""
    assert latest([]) is None
