"""A state by itself: columns in, columns out, and the steps written."""

from __future__ import annotations

import numpy as np
import pytest

from dedup_sdk._core.flight import KINDS
from dedup_sdk._core.lookup import LookupMemory
from dedup_sdk._core.state import PartitionState
from dedup_sdk._marks import NONE_FOUND, NOTHING_KNOWN, Found, Known, Marks, Progress, latest
from dedup_sdk._window import Window
from tests.support.marks import digest

HOUR = Window(hours=1)
NOW_MS = 2**53


def nothing(digests: bytes, count: int) -> Found:
    """A store that knows nothing."""
    assert len(digests) == 16 * count
    return NONE_FOUND


def failing(digests: bytes, count: int) -> Found:
    """A store that cannot be read."""
    raise OSError(f"{len(digests)} bytes, {count} digests")


def column(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A column of 64-bit integers."""
    return np.asarray(values, np.int64)


def admit(state: PartitionState, *rows: tuple[int, str], at_ms: int = 1000) -> list[str]:
    """Admit records, complete the offered ones, and return their verdicts."""
    offsets = [offset for offset, _ in rows]
    digests: list[bytes | None] = [digest(name) for _, name in rows]
    chunk = state.admit(offsets, column(*[at_ms] * len(rows)), digests, {}, nothing, now_ms=NOW_MS)
    state.complete_chunk(chunk)
    return [KINDS[kind].value for kind in chunk.verdicts]


def test_done_ranges_come_back_as_redelivered() -> None:
    """Completions above the watermark are written, and recognised by the state that begins with it."""
    state = PartitionState(LookupMemory(HOUR, Progress(low=0, high=0)))
    chunk = state.admit(
        list(range(6)), column(*range(6)), [digest(str(n)) for n in range(6)], {}, nothing, now_ms=NOW_MS
    )
    state.complete(chunk, [1, 2, 4])
    step = state.take_step()
    assert step is not None
    assert (step.progress.high, step.progress.done) == (0, ((1, 3), (4, 5)))
    again = PartitionState(LookupMemory(HOUR, step.progress, step.marks))
    assert admit(again, *((n, str(n)) for n in range(6))) == [
        "fresh", "redelivered", "redelivered", "fresh", "redelivered", "fresh",
    ]  # fmt: skip
    assert again.flight.high == 6


def test_done_ranges_survive_a_life_that_reads_half_of_one() -> None:
    """Written again they neither overlap nor forget anything."""
    state = PartitionState(LookupMemory(HOUR, Progress(low=0, high=0, done=((2, 6),))))
    chunk = state.admit(
        [0, 1, 2, 3], column(0, 0, 0, 0), [digest(str(n)) for n in range(4)], {}, nothing, now_ms=NOW_MS
    )
    state.complete(chunk, [1])
    step = state.take_step()
    assert step is not None
    assert step.progress.done == ((1, 4),)
    whole = latest([Progress(low=0, high=0, done=((2, 6),)), step.progress])
    assert whole is not None
    assert whole.done == state.progress.done == ((1, 6),)


def test_done_ranges_of_a_window_by_count_are_known_until_the_watermark_passes() -> None:
    """Also when they have come again: a hidden record completed before has to be hidden after a crash too."""
    state = PartitionState(LookupMemory(Window(count=9), Progress(low=0, high=1, done=((2, 4), (5, 6)))))
    chunk = state.admit(
        [1, 2, 3, 4, 5], column(*[0] * 5), [digest(str(n)) for n in range(5)], {}, nothing, now_ms=NOW_MS
    )
    seen = [(state.progress.high, state.progress.done)]
    for row in (0, 3):
        state.complete(chunk, [row])
        seen.append((state.progress.high, state.progress.done))
    assert seen == [(1, ((2, 4), (5, 6))), (4, ((5, 6),)), (6, ())]


def test_a_mark_above_the_watermark_survives_what_passes_below_it() -> None:
    """Its time is still known when the log has passed by, whatever the batches."""
    marks = Marks(digest("a") + digest("b"), column(1, 10), column(1001, 1010))
    state = PartitionState(LookupMemory(HOUR, Progress(low=0, high=3, done=((10, 11),)), marks))
    assert admit(state, (3, "c"), (4, "d")) == ["fresh", "fresh"]
    assert admit(state, (5, "b"), (6, "a")) == ["fresh", "duplicate"]
    assert admit(state, (10, "b"), (11, "b")) == ["redelivered", "duplicate"]


def test_a_look_up_that_fails_changes_nothing() -> None:
    """The same records can be admitted again as if nothing had happened."""
    state = PartitionState(
        LookupMemory(HOUR, Progress(low=0, high=0, done=((1, 2),), known=Known(since_ms=NOTHING_KNOWN)))
    )
    before = state.coverage
    with pytest.raises(OSError, match="32 bytes, 2 digests"):
        state.admit(
            [0, 1, 2], column(5, 5, 5), [digest("a"), digest("b"), digest("c")], {}, failing, now_ms=NOW_MS
        )
    assert (state.flight.position, state.flight.high, state.flight.in_flight) == (0, 0, 0)
    assert (state.coverage, state.memory.reach.stream_time_ms) == (before, -1)
    assert admit(state, (0, "a"), (1, "b"), (2, "c")) == ["unverified", "redelivered", "unverified"]


@pytest.mark.parametrize("window", [HOUR, Window(count=10), Window(hours=1, count=10)], ids=str)
def test_a_flush_that_fails_takes_nothing_with_it(window: Window) -> None:
    """Marks that nobody could store are put back, and judge as before."""
    state = PartitionState(LookupMemory(window, Progress(low=0, high=0)))
    admit(state, (0, "a"), (1, "b"))
    state.take_step()
    state.memory.put_back(state.memory.take_recent(1000, nothing).marks)
    assert admit(state, (2, "a"), (3, "b"), (4, "c")) == ["duplicate", "duplicate", "fresh"]
    state.take_step()
    taken = state.memory.take_recent(1000, nothing).marks
    assert sorted(taken.offsets.tolist()) == [2, 3, 4]


def test_a_look_up_that_fails_in_a_flush_takes_nothing_with_it() -> None:
    """Aged marks are looked up before they are left out; without an answer all of them stay."""
    state = PartitionState(LookupMemory(Window(milliseconds=100), Progress(low=0, high=0)))
    admit(state, (0, "a"), at_ms=0)
    admit(state, (1, "b"), at_ms=1000)
    with pytest.raises(OSError, match="16 bytes"):
        state.memory.take_recent(1000, failing)
    assert state.memory.take_recent(1000, nothing).marks.offsets.tolist() == [1]
    assert state.memory.reach.since_ms == 1000 - 100 - 100 // 16


def test_a_mark_that_hides_an_older_one_is_not_left_out() -> None:
    """Where timestamps ran backwards the store's mark would show again, and it may be younger."""
    state = PartitionState(LookupMemory(Window(milliseconds=100), Progress(low=0, high=0)))
    admit(state, (5, "a"), at_ms=0)
    admit(state, (6, "b"), at_ms=1000)

    def younger(digests: bytes, count: int) -> Found:
        assert (digests, count) == (digest("a"), 1)
        return Found([0], [1], [990])

    taken = state.memory.take_recent(1000, younger).marks
    assert sorted(taken.offsets.tolist()) == [5, 6]


def test_nothing_is_known_until_a_real_timestamp_comes() -> None:
    """Coverage begins at the newest of the first timestamps there are."""
    state = PartitionState(
        LookupMemory(Window(milliseconds=100), Progress(low=0, high=0, known=Known(since_ms=NOTHING_KNOWN)))
    )
    state.memory.reach.know_from(column(-1))
    assert state.memory.reach.since_ms == NOTHING_KNOWN
    state.memory.reach.know_from(column(-1, 500, 400))
    assert state.memory.reach.since_ms == 500
    state.memory.reach.know_from(column(10))
    assert state.memory.reach.since_ms == 500
    assert (state.memory.reach.covers(600), state.memory.reach.covers(599)) == (True, False)
