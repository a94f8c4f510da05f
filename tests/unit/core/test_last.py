"""Sources where IDs are compared with the last one: cases that random histories hardly ever meet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dedup_sdk import LastId, Lookup, Window, header, orders
from dedup_sdk._core.last import LastMemory, open_last
from dedup_sdk._core.last_rule import LastRule
from dedup_sdk._core.source_keys import PARTITION_SOURCE, SourceKeys
from dedup_sdk._core.state import PartitionState
from dedup_sdk._marks import NONE_FOUND, Found, Progress, join_marks
from tests.support.records import DAY_MS

if TYPE_CHECKING:
    from dedup_sdk._core.flight import Chunk
    from dedup_sdk.orders import Order

SERVERS = {name: f"3e11fa47-71ca-11e1-9e33-c80aa9429{number}" for name, number in (("A", 562), ("B", 563))}


def source(order: Order, high: int = 0, depth: int = 128) -> PartitionState:
    """The source of a partition, whose history is known from its beginning."""
    rule = LastRule(order, depth, "deliver", Window(days=1))
    return open_last(rule, SourceKeys(header("id"), None, order.name), Progress(low=0, high=high))


def admit(
    held: PartitionState, *texts: str, found: Found = NONE_FOUND, step_ms: int = 0, first_ms: int = 0
) -> Chunk:
    """Let records with these IDs come."""
    offsets = list(range(held.flight.position, held.flight.position + len(texts)))
    times = first_ms + np.arange(len(texts), dtype=np.int64) * step_ms
    return held.admit(
        offsets,
        times,
        [PARTITION_SOURCE + text.encode() for text in texts],
        {},
        lambda _digests, _count: found,
        now_ms=2**53,
    )


def said(chunk: Chunk) -> list[str]:
    """The verdict of each record."""
    return [(told := chunk.verdict(row)).reason or told.kind.value for row in range(len(chunk.offsets))]


def gtids(*texts: str) -> list[str]:
    """``A5`` is transaction 5 of server A."""
    return [f"{SERVERS[text[0]]}:{text[1:]}" for text in texts]


def test_ids_in_flight_are_known_to_a_stretch_of_rising_ids() -> None:
    """A source that goes back to an origin it left rises once more past its records in flight.

    With no depth it doubts nothing, so that such a stretch is judged at once.
    """
    held = source(orders.mysql_gtid(), depth=0)
    assert said(admit(held, *gtids("A5", "B1", "A1"))) == ["fresh", "uncomparable", "uncomparable"]
    assert said(admit(held, *gtids("A2", "A3", "A4", "A5", "A6")))[3] == "in-flight"


def test_a_mark_of_what_is_still_to_come_says_nothing() -> None:
    """The store's marks of later records are no reason to drop an earlier one."""
    made = source(orders.integer())
    made.complete_chunk(admit(made, "1", "2", "3"))
    step = made.take_step()
    assert step is not None
    assert step.marks.digests == PARTITION_SOURCE
    found = Found([0], [2], [0], None, step.marks.payloads)
    assert said(admit(source(orders.integer(), high=3), "2", found=found)) == ["duplicate"]
    assert said(admit(source(orders.integer(), high=2), "2", found=found)) == ["fresh"]


@pytest.mark.parametrize("is_flushed", [False, True])
def test_a_source_that_a_flush_puts_back_is_doubted_as_any_other(*, is_flushed: bool) -> None:
    """Records that nobody folded were passed while the flush had the source, and the window has filled since."""
    held = source(orders.integer())
    held.complete_chunk(admit(held, "1", "2", "3"))
    held.take_step()
    marks = held.memory.take_recent(0, lambda _digests, _count: NONE_FOUND).marks
    if not is_flushed:
        held.memory.put_back(marks)
    held.memory.pass_uncounted(5)
    held.memory.forget_all()
    if is_flushed:
        held.memory.put_back(marks)
    held.flight.pass_to(8)
    told = [said(admit(held, text, first_ms=time_ms)) for text, time_ms in (("9", 0), ("10", DAY_MS))]
    assert told == [["uncovered"], ["uncovered"]]


def test_a_stretch_of_rising_ids_with_a_silence_in_it_begins_its_source_anew() -> None:
    """The ID before the silence is forgotten, as where records come one by one."""
    held = source(orders.integer())
    held.complete_chunk(admit(held, "1"))
    held.complete_chunk(admit(held, "10", "11", "12", "13", "14", step_ms=2 * DAY_MS))
    assert said(admit(held, "14", "13")) == ["duplicate", "fresh"]


def test_of_a_journal_the_last_step_counts() -> None:
    """Each step has all that its sources remember."""
    made, steps = source(orders.integer()), []
    for text in ("1", "2"):
        made.complete_chunk(admit(made, text))
        step = made.take_step()
        assert step is not None
        steps.append(step.marks)
    memory = made.memory
    assert isinstance(memory, LastMemory)
    again = open_last(memory.rule, memory.keys, Progress(low=0, high=2), join_marks(steps))
    assert said(admit(again, "2")) == ["duplicate"]


class TestAFlush:
    """Marks of sources on their way from the journal into files."""

    @staticmethod
    def journaled() -> PartitionState:
        """A source with one completed record, which is in the journal."""
        held = source(orders.integer())
        held.complete_chunk(admit(held, "1"))
        assert held.take_step() is not None
        return held

    def test_what_could_not_be_stored_is_there_for_the_next_one(self) -> None:
        """And may be looked at meanwhile."""
        held = self.journaled()
        held.memory.put_back(held.memory.take_recent(-1, lambda _digests, _count: NONE_FOUND).marks)
        marks = held.memory.take_recent(-1, lambda _digests, _count: NONE_FOUND).marks
        assert marks.count == 1
        held.memory.put_back(marks)
        assert said(admit(held, "1")) == ["duplicate"]

    def test_a_look_up_that_fails_loses_nothing(self) -> None:
        """The sources that it was to tell of are there for the next flush."""
        held = self.journaled()

        def fail(_digests: bytes, _count: int) -> Found:
            raise OSError("gone")

        with pytest.raises(OSError, match="gone"):
            held.memory.take_recent(10 * DAY_MS, fail)
        assert held.memory.take_recent(-1, lambda _digests, _count: NONE_FOUND).marks.count == 1

    def test_what_is_old_is_kept_where_it_hides_something_older(self) -> None:
        """Else the source would be again as before."""
        older = Found([0], [0], [0])
        assert (
            self.journaled().memory.take_recent(10 * DAY_MS, lambda _digests, _count: older).marks.count == 1
        )
        held = self.journaled()
        assert held.memory.take_recent(10 * DAY_MS, lambda _digests, _count: NONE_FOUND).marks.count == 0
        assert not held.memory.reach.covers(0)


def test_a_source_that_began_anew_by_its_window_still_knows_the_ids_in_flight() -> None:
    """A record in flight from before lies above its last ID, and rising IDs go past it: its twin waits."""
    held = source(orders.integer(), depth=0)
    assert said(admit(held, "100", "50", step_ms=DAY_MS + 1)) == ["fresh", "fresh"]
    again = held.admit(
        list(range(2, 7)),
        np.full(5, DAY_MS, np.int64),
        [PARTITION_SOURCE + text for text in (b"60", b"70", b"80", b"90", b"100")],
        {},
        lambda _digests, _count: NONE_FOUND,
        now_ms=2**53,
    )
    assert said(again) == ["fresh", "fresh", "fresh", "fresh", "in-flight"]


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
