from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk._marks import NO_MARKS, Marks, cut_marks, join_marks, select_marks
from dedup_sdk._store.fingerprint import fingerprint
from dedup_sdk._store.pages import (
    FoundMark,
    decode_items,
    decode_page,
    encode_page,
    encode_pages,
    find_in_page,
    find_in_pages,
    last_given_per_digest,
    newest_per_digest,
    page_key,
)
from dedup_sdk.errors import StoreCorruptError
from tests.support.marks import digest as digest_of
from tests.support.marks import marks, payloads, random_marks

if TYPE_CHECKING:
    from random import Random

GOLDEN = Path(__file__).parents[2] / "golden" / "store"

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
    """Sorting agrees with a plain dictionary and sorted(): the earliest mark at the highest offset of each digest."""
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
    found = last_given_per_digest(columns(rows))
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
    """A payload that is another one, at another mark, or missing makes another fingerprint.

    Paging does not, nor b"" for none.
    """
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


PAGE = (
    "02000000000902000500000000000000ffffffffffffffff0000000000000000"
    + digest_of("a").hex() + "0000" + digest_of("b").hex() + "0007"
)  # fmt: skip


def test_a_page_has_its_documented_layout() -> None:
    """Count, flags, bits, least values, rows: each number has as many bits as its largest difference wants."""
    held = marks(("a", 5, -1), ("b", 261, 2))
    assert encode_page(held).hex() == PAGE
    assert found(bytes.fromhex(PAGE), "b") == (261, 2, 0, b"")


def test_pages_of_each_kind_do_not_change() -> None:
    """Plain, numbered and with payloads, a page is written and read for ever as by this format's first version."""
    plain = marks(("a", 1, 1_700_000_000_001), ("b", 2**40, 1_700_000_000_000))
    numbered = marks(("a", 1, 10, 5), ("b", 2, 20, 2**33))
    bearing_ = replace(
        marks(("a", 1, 10), ("b", -2, 20), ("c", 3, 30)), payloads=[b"nine here", b"", bytes(range(40))]
    )
    told = [encode_page(each) for each in (plain, numbered, bearing_, NO_MARKS)]
    assert [each.hex() for each in told] == (GOLDEN / "pages.hex").read_text().split()
    for page, each in zip(told[:3], (plain, numbered, bearing_), strict=True):
        read = decode_page(page)
        assert fingerprint([read]) == fingerprint([each])
        assert (read.numbers is None) == (each.numbers is None)
        assert found(page, "b") == (
            each.offsets[1],
            each.timestamps[1],
            0 if each.numbers is None else each.numbers[1],
            b"",
        )
    assert found(told[2], "c") == (3, 30, 0, bytes(range(40)))
    assert found(told[2], "d") is None


def found(page: bytes, name: str) -> tuple[object, ...] | None:
    """A page's mark of an ID, alone and among others."""
    return found_digest(page, digest_of(name))


def found_digest(page: bytes, digest: bytes) -> tuple[object, ...] | None:
    """A page's mark of a digest; asked for alone and among others the answer is the same."""
    several: dict[int, FoundMark] = {}
    find_in_pages([None, page], [b"", digest], [0, 1], several)
    alone = find_in_page(page, digest)
    assert several.get(1) == alone
    return alone


WIDE = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(DIGESTS, WIDE, WIDE), max_size=20, unique_by=lambda row: row[0]))
def test_whatever_is_written_is_found(rows: list[tuple[bytes, int, int]]) -> None:
    """Any offsets and timestamps of 64 bits come back, by digest and all together."""
    numbered = columns([(*row, 0) for row in rows])
    for held in (numbered, replace(numbered, numbers=None)):
        page = encode_page(held)
        assert decode_page(page).offsets.tolist() == [row[1] for row in rows]
        assert decode_page(page).timestamps.tolist() == [row[2] for row in rows]
        for digest, offset, timestamp in rows:
            assert found_digest(page, digest) == (offset, timestamp, 0, b"")


SIZES = [(64, 0, 0), (0, 64, 0), (0, 0, 64), (32, 32, 0), (31, 30, 3), (9, 7, 5), (64, 64, 64), (40, 24, 1)]


@pytest.mark.parametrize("sizes", SIZES)
def test_numbers_of_any_size(sizes: tuple[int, int, int]) -> None:
    """In one word together, or each in whole bytes."""
    low = (-(2**63), -5, 0)
    high = [least + 2**size - 1 for least, size in zip(low, sizes, strict=True)]
    if sizes[1] == 64:
        low, high[1] = (low[0], -(2**63), low[2]), 2**63 - 1
    if sizes[2] == 64:
        low, high[2] = (*low[:2], -(2**63)), 2**63 - 1
    held = marks(("a", *low), ("b", *high), ("c", *low))
    page = encode_page(held)
    read = decode_page(page)
    assert read.offsets.tolist() == held.offsets.tolist()
    assert read.timestamps.tolist() == held.timestamps.tolist()
    assert read.numbers is not None
    assert held.numbers is not None
    assert read.numbers.tolist() == held.numbers.tolist()
    assert found(page, "b") == (*high, b"")
    assert found(page, "c") == (*low, b"")


def test_what_reaches_from_one_digest_into_the_next_is_none() -> None:
    """Only a whole digest is found, also where the bytes of two have another one between them."""
    one, two = bytes(range(16)), bytes(range(16, 32))
    page = encode_page(Marks(one + two, np.array([1, 2]), np.array([3, 4])))
    assert found_digest(page, (one + two)[8:24]) is None
    # A mark of 18 bytes each: the digest of the last one stands between two others, too.
    wanted = b"\2" * 2 + b"\1" * 14
    held = b"\1" * 14 + b"\2" * 2 + b"\1" * 16 + wanted
    twice = encode_page(Marks(held, np.array([0x101, 0, 2]), np.array([3, 3, 3])))
    assert twice.count(wanted) == 2
    assert found_digest(twice, wanted) == (2, 3, 0, b"")


@pytest.mark.parametrize("count", [1, 63, 64, 65, 5_000])
def test_pages_do_not_divide_what_has_one_rank(count: int) -> None:
    """Pages have 64 marks, or as many more as have the first 4 bytes of the last one; together they are the marks."""
    held = newest_per_digest(random_marks(count, 1))
    pages = encode_pages(held)
    assert [page.marks for page in pages] == [64] * (count // 64) + [count % 64] * bool(count % 64)
    assert fingerprint(map(decode_page, (page.value for page in pages))) == fingerprint([held])
    few = np.frombuffer(held.digests, np.uint8).reshape(-1, 16).copy()
    few[:, :4] = np.sort(few[:, :4] % 2, axis=0)
    crowded = newest_per_digest(replace(held, digests=few.tobytes()))
    ranks = [page.rank for page in encode_pages(crowded)]
    assert ranks == sorted(set(ranks))
    assert sum(page.marks for page in encode_pages(crowded)) == count


@given(st.lists(st.integers(0, 60), max_size=300))
def test_a_page_ends_with_the_first_rank_that_is_complete_after_64_marks(ranks: list[int]) -> None:
    """Wherever the ranks that several marks share lie."""
    ranks.sort()
    digests = b"".join(rank.to_bytes(4, "big") + row.to_bytes(12, "big") for row, rank in enumerate(ranks))
    column = np.arange(len(ranks))
    expected, page = list[list[int]](), list[int]()
    for rank in ranks:
        if len(page) >= 64 and rank != page[-1]:
            expected.append(page)
            page = []
        page.append(rank)
    if page:
        expected.append(page)
    pages = encode_pages(Marks(digests, column, column))
    assert [(page.rank, page.marks) for page in pages] == [(each[0], len(each)) for each in expected]


def test_pages_with_large_payloads_have_few_marks() -> None:
    """To read one of them is to read 8 KB of payloads, and one more, at most."""
    held = newest_per_digest(replace(random_marks(500, 1), payloads=[bytes(1_000)] * 500))
    assert {page.marks for page in encode_pages(held)[:-1]} == {9}
    large = newest_per_digest(replace(random_marks(20, 1), payloads=[bytes(10_000)] * 20))
    assert {page.marks for page in encode_pages(large)} == {1}


@pytest.mark.parametrize("cut", [0, 8, 31, 32, 40, -1])
def test_a_page_that_is_cut_or_longer_is_damage(cut: int) -> None:
    """The head says how many bytes there are."""
    page = encode_page(marks(("a", 1, 10), ("b", 2, 20)))
    with pytest.raises(StoreCorruptError):
        decode_page(page[:cut])
    with pytest.raises(StoreCorruptError):
        find_in_page(page[:cut], digest_of("b"))
    with pytest.raises(StoreCorruptError):
        decode_page(page + b"\0")


def test_a_page_elsewhere_than_at_its_first_digest_is_damage() -> None:
    """Look-ups would not find its marks."""
    (page,) = encode_pages(marks(("a", 1, 10)))
    assert decode_items([(page_key(7, page.rank), page.value)]).count == 1
    for key in (page_key(7, page.rank + 1), b"", digest_of("a")):
        with pytest.raises(StoreCorruptError, match="not under the rank of its first digest"):
            decode_items([(key, page.value)])
