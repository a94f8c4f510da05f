from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk.marks import NO_MARKS, Marks, cut_marks, join_marks, select_marks
from dedup_sdk.store.fingerprint import fingerprint
from dedup_sdk.store.mark_sort import newest_given, newest_per_digest
from tests.support.marks import digest as digest_of
from tests.support.marks import marks, payloads, random_marks

if TYPE_CHECKING:
    from random import Random

# Few bytes, so that digests agree in their first 8 bytes, in the last 8, or altogether.
DIGESTS = st.tuples(
    st.sampled_from([b"\0", b"\x7f", b"\x80", b"\xff"]), st.sampled_from([b"\0", b"\x80", b"\x81"])
).map(lambda ends: ends[0] * 8 + ends[1] * 8)
ROWS = st.lists(st.tuples(DIGESTS, st.integers(0, 9), st.integers(-1, 99), st.integers(0, 9)), max_size=40)


def columns(rows: list[tuple[bytes, int, int, int]]) -> Marks:
    """Return rows of (digest, offset, timestamp, number) as marks."""
    return Marks(
        b"".join(row[0] for row in rows),
        np.array([row[1] for row in rows], np.int64),
        np.array([row[2] for row in rows], np.int64),
        np.array([row[3] for row in rows], np.int64),
    )


def time_of(row: tuple[bytes, int, int, int]) -> int:
    """A row's timestamp; none is later than any."""
    return row[2] if row[2] >= 0 else 2**63


@given(ROWS)
def test_the_highest_offset_of_each_digest_in_byte_order(rows: list[tuple[bytes, int, int, int]]) -> None:
    """Sorting is what a plain dictionary and sorted() say: the earliest mark at the highest offset of each digest."""
    newest: dict[bytes, tuple[bytes, int, int, int]] = {}
    for row in rows:
        known = newest.get(row[0])
        if known is None or (known[1], -time_of(known)) <= (row[1], -time_of(row)):
            newest[row[0]] = row
    expected = [newest[key] for key in sorted(newest)]
    found = newest_per_digest(columns(rows))
    assert found.numbers is not None
    assert found.digests == b"".join(row[0] for row in expected)
    assert found.offsets.tolist() == [row[1] for row in expected]
    assert found.timestamps.tolist() == [row[2] for row in expected]
    assert found.numbers.tolist() == [row[3] for row in expected]


@given(ROWS, st.randoms(use_true_random=False), st.integers(0, 40))
def test_the_order_and_the_parts_do_not_matter(
    rows: list[tuple[bytes, int, int, int]], order: Random, cut: int
) -> None:
    """Two marks of one offset with different times give the same, in whatever order and parts they are folded."""
    mixed = order.sample(rows, len(rows))
    parts = [newest_per_digest(columns(part)) for part in (mixed[:cut], mixed[cut:])]
    once, again = newest_per_digest(columns(rows)), newest_per_digest(join_marks(parts))
    assert fingerprint([once]) == fingerprint([again])


@given(ROWS)
def test_the_last_given_of_one_offset(rows: list[tuple[bytes, int, int, int]]) -> None:
    """Where the order says which counts, it stays whatever the timestamps are."""
    newest: dict[bytes, tuple[int, int]] = {}
    for digest, offset, timestamp, _ in rows:
        if digest not in newest or newest[digest][0] <= offset:
            newest[digest] = offset, timestamp
    found = newest_given(columns(rows))
    assert list(zip(found.offsets.tolist(), found.timestamps.tolist(), strict=True)) == [
        newest[key] for key in sorted(newest)
    ]


def bearing(held: Marks) -> Marks:
    """Marks of which two of three have a payload, each another one."""
    return replace(
        held,
        payloads=[
            b"" if at % 3 == 2 else f"payload of {at}, at {offset}".encode() * (1 + at % 5)
            for at, offset in enumerate(held.offsets.tolist())
        ],
    )


def test_payloads_go_where_their_marks_go() -> None:
    """Sorted, joined, cut and selected by index or mask, each mark keeps its own payload."""
    first, plain, last = bearing(random_marks(50, 1)), random_marks(20, 2), bearing(random_marks(70, 3))
    joined = join_marks([first, plain, last])
    assert first.payloads is not None
    assert last.payloads is not None
    assert joined.payloads == [*first.payloads, *[b""] * 20, *last.payloads]
    expected = payloads([first, plain, last])
    ordered = newest_per_digest(joined)
    assert list(payloads([ordered])) == sorted(expected)
    assert payloads([ordered]) == expected
    assert payloads([cut_marks(ordered, 30, 60)]).items() <= expected.items()
    assert payloads([select_marks(ordered, np.array([5, 3]))]).items() <= expected.items()
    even = ordered.offsets % 2 == 0
    assert payloads([select_marks(ordered, even)]) == payloads([select_marks(ordered, np.flatnonzero(even))])
    assert payloads([select_marks(ordered, np.flatnonzero(even))]).items() <= expected.items()
    assert join_marks([plain, plain]).payloads is None


def test_of_two_marks_of_an_id_the_payload_of_the_highest_offset_stays() -> None:
    """Also where that one has none."""
    held = marks(("a", 1, 10), ("b", 2, 20), ("a", 3, 30), ("b", 1, 10))
    kept = newest_per_digest(replace(held, payloads=[b"a, before", b"b, newest", b"", b"b, before"]))
    assert payloads([kept]) == {digest_of("a"): b"", digest_of("b"): b"b, newest"}


def test_nothing_sorts_to_nothing() -> None:
    """No marks stay no marks, and no numbers stay none."""
    assert newest_per_digest(NO_MARKS).count == 0
    assert newest_per_digest(marks(("a", 1, 2))).numbers is None


def test_a_fingerprint_depends_on_the_set_alone() -> None:
    """Order and paging do not matter; any changed offset, timestamp or digest does."""
    held = random_marks(1_000, 1)
    order = np.random.default_rng(2).permutation(1_000)
    table = np.frombuffer(held.digests, "V16")
    shuffled = Marks(table[order].tobytes(), held.offsets[order], held.timestamps[order])
    halves = [
        Marks(shuffled.digests[: 16 * 300], shuffled.offsets[:300], shuffled.timestamps[:300]),
        NO_MARKS,
        Marks(shuffled.digests[16 * 300 :], shuffled.offsets[300:], shuffled.timestamps[300:]),
    ]
    whole = fingerprint([held])
    assert fingerprint(halves) == whole
    assert len(whole) == 32
    assert fingerprint([]) == "0" * 32
    bump = np.zeros(1_000, np.int64)
    bump[500] = 1
    changed = [
        Marks(held.digests, held.offsets + bump, held.timestamps),
        Marks(held.digests, held.offsets, held.timestamps + bump),
        Marks(held.digests[:-1] + bytes([held.digests[-1] ^ 1]), held.offsets, held.timestamps),
        Marks(held.digests[:-16], held.offsets[:-1], held.timestamps[:-1]),
    ]
    assert len({whole, *(fingerprint([other]) for other in changed)}) == 5


def test_the_fingerprint_of_known_marks_does_not_change() -> None:
    """A fingerprint made elsewhere, or long ago, can be compared."""
    assert (
        fingerprint([marks(("a", 1, 1_700_000_000_000), ("b", 2, -1))]) == "991582bf5959091f75f30f33392756a2"
    )


def test_a_fingerprint_tells_payloads_apart() -> None:
    """A payload that is another one, at another mark, or missing makes another fingerprint; paging does not, nor b"" for none."""
    held = marks(("a", 1, 1_700_000_000_000), ("b", 2, -1))
    borne = [
        None, [b"123456789", b""], [b"", b"123456789"], [b"123456780", b""], [b"123456789"] * 2, [b"1234567890", b""],
    ]  # fmt: skip
    assert len({fingerprint([replace(held, payloads=each)]) for each in borne}) == len(borne)
    assert fingerprint([replace(held, payloads=[b"", b""])]) == fingerprint([held])
    whole = bearing(random_marks(20_000, 1))
    assert fingerprint([cut_marks(whole, 0, 700), cut_marks(whole, 700, 20_000)]) == fingerprint([whole])
    assert fingerprint([replace(held, payloads=borne[1])]) == "87c3b8a8fc0a0cbdf99ceed9e961da7b"


def test_pages_with_and_without_numbers_join() -> None:
    """A page without numbers gets zeros beside one that has them."""
    joined = join_marks([marks(("a", 1, 2)), marks(("b", 3, 4, 5))])
    assert joined.numbers is not None
    assert joined.numbers.tolist() == [0, 5]
    assert join_marks([]).count == 0
