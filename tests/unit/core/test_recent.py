"""Recent marks, against a dictionary."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup_sdk._core.recent import Existing, RecentMarks
from dedup_sdk._marks import cut_digests


def uniform(number: int) -> bytes:
    """A digest as IDs have them."""
    return sha256(b"%d" % number).digest()[:16]


def alike(number: int) -> bytes:
    """A digest whose first words are all the same, so that every bucket but one is empty."""
    return number.to_bytes(16, "big")


def close(number: int) -> bytes:
    """A digest that shares its first word, and so bucket and tag, with fifteen others."""
    return uniform(number >> 4)[:8] + number.to_bytes(8, "big")


def met_in(known: dict[bytes, int], digests: list[bytes], first: int) -> list[tuple[int, int]]:
    """What a dictionary says: positions that were met, and the offsets there."""
    before = [known.setdefault(digest, first + index) for index, digest in enumerate(digests)]
    return [(index, offset) for index, offset in enumerate(before) if offset != first + index]


def enter(table: RecentMarks, digests: list[bytes], first: int) -> Existing:
    """Enter digests at the offsets from ``first`` on; the timestamp is the offset times ten."""
    offsets = np.arange(first, first + len(digests))
    return table.find_or_add(b"".join(digests), offsets, 10 * offsets)


@settings(deadline=None)
@given(
    st.sampled_from([uniform, alike, close]),
    st.lists(st.lists(st.integers(0, 600), max_size=300), max_size=12),
    st.sets(st.integers(0, 600), max_size=40),
    st.integers(0, 3),
)
def test_a_table_is_a_dictionary(
    digest_of: Callable[[int], bytes], batches: list[list[int]], dropped: set[int], after: int
) -> None:
    """What was met, the length, and every entry, for batches of any size, growth, and entries that are dropped."""
    table, known, first = RecentMarks(), dict[bytes, int](), 0
    for number, batch in enumerate(batches):
        digests = list(map(digest_of, batch))
        expected = met_in(known, digests, first)
        indexes, entries = enter(table, digests, first)
        assert list(zip(indexes.tolist(), table.marks_at(entries)[0].tolist(), strict=True)) == expected
        first += len(batch)
        if number == after:
            for digest in map(digest_of, dropped):
                if (offset := known.pop(digest, None)) is not None:
                    table.drop(digest, offset)
    assert len(table) == len(known)
    for digest in map(digest_of, range(601)):
        mark = table.get(digest)
        assert (None if mark is None else mark.offset) == known.get(digest)
    marks = table.take(lambda offsets: np.zeros(len(offsets), np.bool_)).marks
    assert dict(zip(cut_digests(marks.digests), marks.offsets.tolist(), strict=True)) == known
    assert (marks.timestamps == 10 * marks.offsets).all()
    assert len(table) == 0


def test_many_ids() -> None:
    """More than the table has room for at first, one by one and in batches."""
    table, known, first = RecentMarks(), dict[bytes, int](), 0
    seen = [os.urandom(16) for _ in range(40_000)]
    for size in (1, 7, 1_000, 13, 20_000, 1_000, 3):
        # Half of a batch came before.
        digests = seen[first // 2 : first // 2 + size]
        expected = met_in(known, digests, first)
        indexes, entries = enter(table, digests, first)
        assert list(zip(indexes.tolist(), table.marks_at(entries)[0].tolist(), strict=True)) == expected
        first += size
    assert len(table) == len(known)


def test_a_fold_keeps_the_higher_offset() -> None:
    """Of IDs that come twice, and of those that were there."""
    recent = RecentMarks()
    recent.put(uniform(1), 50, 500)
    recent.put(uniform(2), 5, 51)
    digests = b"".join(map(uniform, (1, 2, 3, 3)))
    recent.fold(digests, np.array([10, 11, 12, 13]), np.array([100, 110, 120, 130]))
    assert [recent.get(uniform(number)) for number in range(1, 5)] == [
        (50, 500, 0),
        (11, 110, 0),
        (13, 130, 0),
        None,
    ]


def test_ids_in_flight_stay() -> None:
    """A flush takes all others, and the marks behind them."""
    recent = RecentMarks()
    for number in range(100):
        recent.begin(uniform(number), number, 10 * number)
    recent.begin(uniform(7), 200, 2_000)
    marks = recent.take(lambda offsets: offsets >= 90).marks
    assert marks.count == 90
    assert sorted(marks.offsets.tolist()) == list(range(90))
    assert (marks.timestamps == 10 * marks.offsets).all()
    assert len(recent) == 11
    assert recent.get(uniform(7)) == (200, 2_000, 0)
    assert recent.get(uniform(95)) == (95, 950, 0)
    assert recent.get(uniform(5)) is None


def test_dropped_entries_take_no_room_for_ever() -> None:
    """They are gone as soon as they are many; the others stay."""
    table = RecentMarks()
    enter(table, [uniform(-number) for number in range(1, 101)], 0)
    for number in range(30_000):
        table.find_or_enter(uniform(number), 1_000 + number, 0)
        table.drop(uniform(number), 1_000 + number)

    assert len(table) == 100
    assert [table.get(uniform(-number)).offset for number in range(1, 101)] == list(range(100))  # type: ignore[union-attr]
    assert table.room < 20_000


def test_a_dropped_entry_gives_no_slot_to_a_batch() -> None:
    """Batches count the used slots of a bucket to find the next one: a free slot in between would cost another ID."""
    table = RecentMarks()
    first, second = ([uniform(number) for number in range(at, at + 150)] for at in (0, 150))
    enter(table, first, 0)
    for offset in range(0, 150, 3):
        table.drop(first[offset], offset)
    enter(table, second, 150)
    expected = [None if offset % 3 == 0 and offset < 150 else offset for offset in range(300)]
    marks = map(table.get, [*first, *second])
    assert [None if mark is None else mark.offset for mark in marks] == expected


@settings(deadline=None)
@given(
    st.sampled_from([uniform, alike, close]),
    st.lists(st.integers(0, 600), max_size=400, unique=True),
    st.lists(st.integers(0, 900), max_size=200),
    st.integers(0, 400),
)
def test_what_was_taken_can_be_looked_up(
    digest_of: Callable[[int], bytes], known: list[int], asked: list[int], open_from: int
) -> None:
    """By few and by many, as long as somebody keeps it; what is in flight is not, and later IDs change nothing."""
    table = RecentMarks()
    enter(table, list(map(digest_of, known)), 0)
    taken = table.take(lambda offsets: offsets >= open_from)
    enter(table, list(map(digest_of, range(300, 1_000))), 2_000)
    assert taken.find is not None
    at = {number: offset for offset, number in enumerate(known) if offset < open_from}
    for some in (asked + known, known[:5]):
        found = taken.find(b"".join(map(digest_of, some)), len(some))
        expected = [(index, at[number]) for index, number in enumerate(some) if number in at]
        assert list(zip(found.indexes, found.offsets, strict=True)) == expected
        assert found.timestamps == [10 * offset for offset in found.offsets]
