"""The count window's ring: exact numbers, and bounds while some are open."""

from __future__ import annotations

from dedup_sdk._core.count_window import CountWindow


def test_a_number_is_a_rank_among_accepted_records() -> None:
    """Given when the watermark passes, in that order; a duplicate takes none."""
    ring = CountWindow(3)
    for offset in (5, 7, 9):
        ring.offer(b"%d" % offset, offset)
    ring.forget(7)
    for offset in (5, 7, 9):
        ring.number(b"%d" % offset, offset)
    assert ring.numbers == {b"5": 1, b"9": 2}
    assert ring.accepted == 2


def test_records_after_it_do_not_count() -> None:
    """Only IDs accepted between the mark and the record pushes the mark out."""
    ring = CountWindow(2)
    ring.offer(b"a", 0)
    ring.number(b"a", 0)
    for offset in (1, 3, 4):
        ring.consider(offset)
    assert ring.accepted_after(b"a", 1, 2) == 1
    assert ring.accepted_after(b"a", 1, 1) == 0


def test_the_answer_waits_where_it_could_be_either() -> None:
    """Two may have been accepted in between or not: with a ring of two that decides."""
    ring = CountWindow(2)
    ring.offer(b"a", 0)
    ring.number(b"a", 0)
    ring.offer(b"b", 1)
    ring.offer(b"c", 2)
    assert ring.accepted_after(b"a", 1, 3) is None
    ring.forget(2)
    assert ring.accepted_after(b"a", 1, 3) == 1
    ring.offer(b"c", 2)
    ring.number(b"b", 1)
    assert ring.accepted_after(b"a", 1, 3) is None
    ring.number(b"c", 2)
    assert ring.accepted_after(b"a", 1, 3) == 2


def test_enough_accepted_ones_decide_whatever_is_open() -> None:
    """A mark that has left the ring does not come back."""
    ring = CountWindow(1)
    for offset, name in enumerate([b"a", b"b"]):
        ring.offer(name, offset)
        ring.number(name, offset)
    ring.offer(b"c", 2)
    assert ring.accepted_after(b"a", 1, 3) == 1


def test_a_mark_without_a_number_yet_is_counted_from_its_offset() -> None:
    """It was accepted and completed above the watermark."""
    ring = CountWindow(3)
    ring.consider(0)
    ring.offer(b"a", 1)
    ring.consider(2)
    assert ring.accepted_after(b"a", 0, 3) == 1
    ring.consider(3)
    ring.consider(4)
    assert ring.accepted_after(b"a", 0, 5) is None


def test_a_record_is_considered_once() -> None:
    """Also when it comes out of order, or again."""
    ring = CountWindow(10)
    for offset in (5, 3, 4, 3, 5):
        ring.consider(offset)
    assert ring.accepted_after(b"a", 0, 9) == 3


def test_thousands_that_get_their_numbers_in_order() -> None:
    """Rows gone in front are moved out now and then; those behind them stay in their place."""
    ring = CountWindow(10_000)
    for offset in range(5_000):
        ring.offer(b"%d" % offset, offset)
    ring.forget(3_000)
    for offset in range(4_000):
        ring.number(b"%d" % offset, offset)
        assert ring.accepted_after(b"0", 1, 4_500) == 4_498
    assert (ring.accepted, ring.numbers[b"2999"], ring.numbers[b"3001"]) == (3_999, 3_000, 3_001)
    ring.consider(4_200)
    assert ring.accepted_after(b"0", 1, 5_000) == 4_998
