"""What a transaction commits is what would be completed with it: compared with the completion itself."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk._core.flight import HELD, OFFERED, Flight
from dedup_sdk._core.lookup import LookupMemory
from dedup_sdk._core.state import PartitionState
from dedup_sdk._marks import NONE_FOUND, Found, Progress
from dedup_sdk._window import Window
from tests.support.marks import digest


def nothing(digests: bytes, count: int) -> Found:
    """A store that knows nothing."""
    assert len(digests) == 16 * count
    return NONE_FOUND


def offsets_of(flight: Flight, high: int, ranges: tuple[tuple[int, int], ...]) -> set[int]:
    """The offsets of records in flight that a commit reports as completed."""
    known = [offset for chunk in flight.chunks for offset in chunk.offsets]
    return {each for each in known if each < high or any(start <= each < end for start, end in ranges)}


@given(
    gaps=st.lists(st.integers(1, 3), min_size=1, max_size=24),
    names=st.lists(st.integers(0, 12), min_size=24, max_size=24),
    size=st.integers(1, 9),
    completed=st.sets(st.integers(0, 23)),
    named=st.sets(st.integers(0, 23)),
)
def test_a_transaction_commits_what_it_completes(
    gaps: list[int], names: list[int], size: int, completed: set[int], named: set[int]
) -> None:
    """With holes in the log, several batches, and duplicates that wait for records of the transaction.

    Waiting records are the only difference: they get their verdict with the completion, and a commit may leave them
    out.
    """
    state = PartitionState(LookupMemory(Window(hours=1), Progress(low=0, high=0)))
    offsets = np.cumsum(gaps).tolist()
    chunks = []
    for at in range(0, len(offsets), size):
        part = offsets[at : at + size]
        ids: list[bytes | None] = [digest(str(name)) for name in names[at : at + len(part)]]
        times = np.full(len(part), 1_000, np.int64)
        chunks.append(state.admit(part, times, ids, {}, nothing, now_ms=2_000))
    rows = [(chunk, row) for chunk in chunks for row in range(len(chunk.offsets))]
    for index, (chunk, row) in enumerate(rows):
        if index in completed and chunk.states[row] == OFFERED:
            state.complete(chunk, [row])
    ended = [
        (chunk, row)
        for index, (chunk, row) in enumerate(rows)
        if index in named and chunk.states[row] == OFFERED
    ]
    waited = {chunk.offsets[row] for chunk, row in rows if chunk.states[row] == HELD}
    before = offsets_of(state.flight, state.flight.high, state.flight.completed_above(state.flight.high))

    high, above = state.flight.as_if_completed([chunk.offsets[row] for chunk, row in ended])
    told = offsets_of(state.flight, high, above)
    known = [chunk.offsets[row] for chunk, row in rows]

    assert told >= before
    assert told - before == {chunk.offsets[row] for chunk, row in ended}
    assert all(start >= high for start, _ in above)
    for chunk, row in ended:
        state.complete(chunk, [row])
    flight = state.flight
    flight.advance()
    really = {each for each in known if flight.is_completed(each)}
    assert told <= really
    assert {each for each in really - told if each >= high} <= waited
    if not waited:
        assert (high, above) == (flight.high, flight.completed_above(flight.high))
