"""A record is a duplicate by its ID, inside its partition, and by nothing else of it."""

from __future__ import annotations

from dedup_sdk import Deduplicator, Lookup, Record, header
from tests.support.records import DAY_MS, HOUR, engine, kinds, record


def with_header(offset: int, key: bytes, ident: bytes) -> Record:
    """A record whose ID is in a header."""
    return Record("t", 0, offset, DAY_MS, key=key, headers=[("id", ident)])


def test_a_message_key_is_no_id() -> None:
    """IDs of one key are told apart, and an ID is known under any key."""
    deduplicator = Deduplicator(Lookup(id=header("id"), window=HOUR), clock=lambda: DAY_MS / 1000)
    first = [with_header(0, b"customer", b"a"), with_header(1, b"customer", b"b")]
    assert kinds(deduplicator.admit(first)) == ["fresh", "fresh"]
    deduplicator.complete(first)
    again = [with_header(2, b"customer", b"c"), with_header(3, b"another", b"a")]
    assert kinds(deduplicator.admit(again)) == ["fresh", "duplicate"]


def test_an_id_below_the_last_one_is_new_if_it_never_came() -> None:
    """IDs that count up may come in any order: each is new once, however far the others are."""
    deduplicator = engine()
    verdicts = []
    for offset, ident in enumerate(["7", "9", "8", "1", "9", "8", "2"]):
        verdicts += kinds(deduplicator.admit([record(offset, ident)]))
        deduplicator.complete([record(offset, ident)])
    assert verdicts == ["fresh", "fresh", "fresh", "fresh", "duplicate", "duplicate", "fresh"]


def test_the_same_id_in_another_partition_is_another_message() -> None:
    """Partitions are judged apart, also one that is added later.

    A twin there is delivered, never dropped on a guess.
    """
    deduplicator = engine()
    for number in (0, 1, 2):
        assert kinds(deduplicator.admit([record(0, "a", partition=number)])) == ["fresh"]
        deduplicator.complete([record(0, "a", partition=number)])
        assert kinds(deduplicator.admit([record(1, "a", partition=number)])) == ["duplicate"]


def test_one_id_that_keeps_coming_leaves_one_mark() -> None:
    """While its first record is in flight the others wait.

    When that is completed all are duplicates, and nothing of them stays.
    """
    deduplicator = engine()
    deduplicator.admit([record(0, "a")])
    for start in range(1, 1_000, 100):
        twins = [record(offset, "a") for offset in range(start, start + 100)]
        assert set(kinds(deduplicator.admit(twins))) == {"parked"}
    assert set(kinds(deduplicator.complete([record(0, "a")]))) == {"duplicate"}
    held = deduplicator.partitions["t", 0]
    flight = held.flight
    assert (flight.kept, len(flight.waiting), held.memory.recent_count, flight.high) == (0, 0, 1, 1_001)
    assert deduplicator.counters.verdicts["duplicate"] == 1_000
