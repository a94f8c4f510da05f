"""Records in flight where IDs are compared with the last one."""

from __future__ import annotations

from dedup_sdk import Deduplicator, LastId, Lookup, Record, Window, header, orders
from tests.support.records import kinds, offsets
from tests.support.slashed import DenseSlashed

WINDOW_MS = 1_000


def numbered(offset: int, number: int, timestamp_ms: int) -> Record:
    """A record whose ID is a number."""
    return Record("t", 0, offset, timestamp_ms, headers=[("seq", b"%d" % number)])


def engine() -> Deduplicator:
    """An engine that remembers a source for a second."""
    window = Window(milliseconds=WINDOW_MS)
    return Deduplicator(LastId(id=header("seq"), order=orders.integer(), window=window))


def test_a_repeat_of_what_is_in_flight_for_longer_than_a_window_is_a_duplicate() -> None:
    """Once it is completed."""
    deduplicator = engine()
    first, other, again = numbered(0, 1, 0), numbered(1, 2, WINDOW_MS), numbered(2, 1, WINDOW_MS + 1)
    deduplicator.admit([first, other, again])
    assert deduplicator.complete([other]) == []
    settled = deduplicator.complete([first])
    assert (kinds(settled), offsets(settled)) == (["duplicate"], [2])


# --- records in flight are not completed yet
# ---------------------------------------------------------------------------------


class Stream:
    """Records with an ID of an origin and another ID, one after the other; ``A/1`` and the like are compared."""

    def __init__(self, *, second: bool, depth: int = 1) -> None:
        window = Window(milliseconds=WINDOW_MS)
        other = Lookup(id=header("other"), window=window) if second else None
        self.engine = Deduplicator(
            LastId(id=header("id"), order=DenseSlashed(), reorder_depth=depth, otherwise=other)
        )
        self.sent: list[Record] = []

    def send(self, text: str, other: str = "", timestamp_ms: int = 0) -> str:
        """Let a record come; return why it is in doubt, else its verdict."""
        bears = [("id", text.encode()), ("other", (other or f"only-{len(self.sent)}").encode())]
        self.sent.append(Record("t", 0, len(self.sent), timestamp_ms, headers=bears))
        [told] = self.engine.admit(self.sent[-1:])
        return told.reason or told.kind.value

    def complete(self, *texts: str, other: str = "") -> None:
        """Let records come and be handled."""
        for text in texts:
            self.send(text, other)
            self.engine.complete(self.sent[-1:])


def test_an_id_in_flight_of_another_origin_hides_nothing_that_was_completed() -> None:
    """Its source would begin anew, were it completed.

    Until then the source still knows the ID, whose other one is forgotten.
    """
    stream = Stream(second=True)
    stream.complete("A/1", other="one")
    assert stream.send("B/1", timestamp_ms=2 * WINDOW_MS) == "fresh"
    assert stream.send("A/1", "one", timestamp_ms=2 * WINDOW_MS) == "duplicate"


def test_ids_in_flight_do_not_make_a_source_known() -> None:
    """A source that began anew is known by so many IDs that are completed: else a second opinion would not be asked."""
    stream = Stream(second=True)
    stream.complete("A/1", other="one")
    stream.complete("B/5")
    assert [stream.send(text) for text in ("B/6", "B/7", "B/8")] == ["fresh"] * 3
    assert stream.send("B/9", "one") == "duplicate"


def test_an_id_below_those_in_flight_is_in_doubt_where_too_little_is_known() -> None:
    """The completed state does not know it either, having begun anew after it."""
    stream = Stream(second=False)
    stream.complete("B/5", "A/1", "B/10")
    for number in (11, 12, 13):
        stream.send(f"B/{number}")
    assert stream.send("B/5") == "uncovered"


def test_without_depth_a_source_that_began_anew_knows_nothing_below_its_first_id() -> None:
    """It was completed before another origin came."""
    stream = Stream(second=False, depth=0)
    stream.complete("B/1", "A/1", "B/2")
    assert stream.send("B/1") == "below-floor"
