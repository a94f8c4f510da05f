"""Many lanes judged at once: what random histories hardly ever meet, and that it is done at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from dedup_sdk import Window, header, orders
from dedup_sdk.lane.last_lane import LastLane
from dedup_sdk.last.keys import LaneKeys
from dedup_sdk.last.rule import LastRule
from dedup_sdk.marks import NONE_FOUND
from dedup_sdk.progress import Progress
from tests.support.records import DAY_MS

if TYPE_CHECKING:
    from dedup_sdk.lane.last_chunk import LastChunk
    from dedup_sdk.marks import Marks

KEYS = LaneKeys(header("id"), header("lane"), "integer")
RULE = LastRule(orders.integer(), 128, "deliver", Window(days=1))
LANES = 40


def key(lane: int, number: int) -> bytes:
    """Return the lane key of a record."""
    return b"%016d%d" % (lane, number)


def batch(number: int) -> list[bytes]:
    """Return two records of each lane, one number after the other."""
    return [key(lane, number + again) for again in range(2) for lane in range(LANES)]


def admit(held: LastLane, keys: list[bytes], times: list[int] | None = None) -> LastChunk:
    """Let records come."""
    offsets = list(range(held.position, held.position + len(keys)))
    held.latest_ms = DAY_MS
    column = np.asarray(times or [0] * len(keys), np.int64)
    return held.admit(offsets, column, list(keys), {}, lambda _digests, _count: NONE_FOUND)


def remembered(marks: Marks) -> dict[int, tuple[int, bytes, int]]:
    """Return offset, last ID, and bits of each lane that a step writes."""
    found = {}
    for at, payload in enumerate(marks.payloads or ()):
        mark = RULE.restore(payload, int(marks.offsets[at]), int(marks.timestamps[at]))
        assert mark.seen.encode() == payload
        lane = int(marks.digests[16 * at : 16 * at + 16])
        found[lane] = (mark.offset, mark.seen.last_id, getattr(mark.seen, "bits"))  # noqa: B009 (of dense ones only)
    return found


def written(held: LastLane) -> dict[int, tuple[int, bytes, int]]:
    """Return what a lane writes now."""
    step = held.take_step()
    assert step is not None
    return remembered(step.marks)


def test_plain_lanes_are_rows_and_no_objects() -> None:
    """A batch of many lanes makes no track, and what is written is what each lane remembers."""
    held = LastLane(RULE, KEYS, Progress(low=0, high=0))
    held.complete_chunk(admit(held, batch(1)))
    held.complete_chunk(admit(held, batch(3)))
    assert not held.tracks
    assert held.recent_count == LANES
    assert written(held) == {lane: (3 * LANES + lane, b"4", 0b1111) for lane in range(LANES)}


def test_a_journal_of_plain_lanes_is_read_back_into_rows() -> None:
    """After a restart no lane is an object either."""
    made = LastLane(RULE, KEYS, Progress(low=0, high=0))
    made.complete_chunk(admit(made, batch(1)))
    step = made.take_step()
    assert step is not None
    held = LastLane(RULE, KEYS, step.progress, step.marks)
    assert not held.tracks
    chunk = admit(held, batch(2))
    assert [chunk.verdict(row).kind.value for row in (0, LANES)] == ["duplicate", "fresh"]


def test_a_repeat_at_the_head_of_a_batch_is_written_before_the_rest() -> None:
    """What repeats is completed as it comes: its lane's offset moves, and what else of it is in flight stays out of what is written."""
    held = LastLane(RULE, KEYS, Progress(low=0, high=0))
    held.complete_chunk(admit(held, batch(1)))
    written(held)
    times = [5, *[0] * (2 * LANES - 1)]
    chunk = admit(held, [key(0, 2), *batch(3)[1:]], times)
    assert held.high == 2 * LANES + 1
    step = held.take_step()
    assert step is not None
    assert remembered(step.marks) == {0: (2 * LANES, b"2", 0b11)}
    assert step.marks.timestamps.tolist() == [5]
    held.complete_chunk(chunk)
    assert written(held)[0] == (3 * LANES, b"4", 0b1101)


def test_a_time_that_none_can_be_wraps_nothing_around() -> None:
    """The farthest past is seen as it is, from now and by now."""
    held = LastLane(RULE, KEYS, Progress(low=0, high=0))
    first, later = batch(1), batch(3)
    held.complete_chunk(admit(held, first, [-(2**63)] * len(first)))
    held.complete_chunk(admit(held, later, [7] * len(later)))
    step = held.take_step()
    assert step is not None
    assert set(step.marks.timestamps.tolist()) == {7}


@pytest.mark.parametrize("end", ["release", "complete"])
def test_a_record_that_ends_by_itself_leaves_the_other_lanes_rows(end: str) -> None:
    """What others have in flight is written when it is completed."""
    held = LastLane(RULE, KEYS, Progress(low=0, high=0))
    chunk = admit(held, batch(1))
    place = held.place(LANES + 7)
    assert place is not None
    if end == "complete":
        held.complete(chunk, [place.row])
    else:
        held.release(place)
    assert not held.tracks
    held.complete_chunk(chunk)
    if end == "release":
        held.complete(chunk, [place.row])
    lanes = written(held)
    assert len(lanes) == LANES
    assert lanes[7] == (LANES + 7, b"2", 0b11)


def test_where_records_are_completed_one_by_one_lanes_stay_on_tracks() -> None:
    """Until batches are completed as a whole again."""
    held = LastLane(RULE, KEYS, Progress(low=0, high=0))
    chunk = admit(held, batch(1))
    for row in range(len(chunk.offsets)):
        held.complete(chunk, [row])
    assert len(held.tracks) >= LANES - 1
    for again in range(held.patience_chunks + 1):
        held.complete_chunk(admit(held, batch(3 + 2 * again)))
    assert not held.tracks
    assert written(held)[3][1] == b"%d" % (2 + 2 * held.patience_chunks + 2)
