"""Completed records folded in pieces: the sources remember the same as after a fold one by one."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from dedup_sdk import LastId, Lookup, Window, header, orders
from dedup_sdk.core.last import open_last
from dedup_sdk.core.source_keys import PARTITION_SOURCE
from dedup_sdk.marks import NONE_FOUND, Marks, Progress

IDS = st.one_of(st.integers(0, 40).map(str), st.sampled_from(["x", ""]))
RECORDS = st.lists(
    st.tuples(st.sampled_from("ab"), IDS | st.none(), st.integers(0, 3)), min_size=1, max_size=60
)


def folded(strategy: LastId, records: list[tuple[bytes | None, int]], pieces: list[int]) -> dict[bytes, Any]:
    """Return the mark of every source after the log came in pieces of these lengths."""
    state = open_last(strategy.rule, strategy.keys, Progress(low=0, high=0))
    marks: dict[bytes, Any] = {}
    start = 0
    while start < len(records):
        end = min(len(records), start + pieces[start % len(pieces)])
        keys = [key for key, _ in records[start:end]]
        times = np.asarray([at for _, at in records[start:end]], np.int64)
        step = state.fold(list(range(start, end)), times, keys, lambda *_: NONE_FOUND, end, now_ms=2**53)
        marks |= by_source(step.marks)
        start = end
    return marks


def by_source(marks: Marks) -> dict[bytes, Any]:
    """Return offset, timestamp and payload of each mark, by its digest."""
    digests = [marks.digests[at : at + 16] for at in range(0, len(marks.digests), 16)]
    columns = zip(marks.offsets.tolist(), marks.timestamps.tolist(), marks.payloads or [], strict=True)
    return dict(zip(digests, columns, strict=True))


@settings(deadline=None, max_examples=300)
@given(
    records=RECORDS,
    rising=st.lists(st.integers(1, 3), max_size=40),
    pieces=st.lists(st.integers(1, 50), min_size=1, max_size=3),
    depth=st.integers(0, 6),
    sources=st.booleans(),
    dense=st.booleans(),
)
def test_pieces_make_no_difference(
    records: list[tuple[str, str | None, int]],
    rising: list[int],
    pieces: list[int],
    depth: int,
    sources: Any,
    dense: Any,
) -> None:
    """In stretches of rising IDs, which are taken over at once, and in all others."""
    order = orders.integer() if dense else orders.unix_time(unit="s")
    strategy = LastId(
        id=header("seq"), order=order, source=header("source") if sources else None, reorder_depth=depth,
        window=Window(milliseconds=20),
    )  # fmt: skip
    log: list[tuple[bytes | None, int]] = []
    now_ms, number = 0, 40
    for name, ident, later in records:
        now_ms += 12 * (later == 3)
        front = name.encode() * 16 if sources else b""
        log.append((None if ident is None else front + ident.encode(), now_ms))
    for step in rising:
        number += step
        log.append(((b"a" * 16 if sources else PARTITION_SOURCE) + str(number).encode(), now_ms))
    assert folded(strategy, log, pieces) == folded(strategy, log, [1])


def test_a_second_opinion_is_folded_too() -> None:
    """Each record leaves its other ID, without anything being looked up for it."""
    strategy = LastId(
        id=header("seq"), order=orders.integer(), otherwise=Lookup(id=header("ident"), window=Window(days=1))
    )
    state = open_last(strategy.rule, strategy.keys, Progress(low=0, high=0), fallback=Window(days=1))
    keys: list[bytes | None] = [PARTITION_SOURCE + bytes([at] * 16) + str(at).encode() for at in (1, 2, 1)]
    asked: list[int] = []

    def find(_digests: bytes, count: int) -> Any:
        asked.append(count)
        return NONE_FOUND

    step = state.fold([0, 1, 2], np.asarray([5, 6, 7], np.int64), keys, find, 3, now_ms=2**53)
    assert asked == [1]
    assert step.marks.payloads is not None
    assert sorted(zip(step.marks.offsets.tolist(), map(bool, step.marks.payloads), strict=True)) == [
        (1, False), (2, False), (2, True),
    ]  # fmt: skip
