"""Reading a topic for the backfill in a worker's own process."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dedup_sdk._marks import cut_digests
from dedup_sdk.errors import RecoveryError
from dedup_sdk.ids import digest_one
from spark_backfill.client_reader import ClientReader, Range, plan_ranges
from spark_backfill.fold import Packing
from spark_backfill.offset_range import OffsetRange, log_bounds
from spark_backfill.runs import Block, from_batch
from spark_backfill.slots import Slot, SlotPlan

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Send

PLAN = SlotPlan((Slot(0, 0, 1), Slot(1, 0, 1)))


def read(kafka: MockKafka, *ranges: Range) -> list[Block]:
    """The pieces of the ranges, read one after the other in one task."""
    reader = ClientReader(
        settings={"bootstrap.servers": kafka.bootstrap},
        topic="pairs",
        spec="header:dedup-id",
        ranges=ranges,
        packing=Packing(PLAN, ordered=False),
    )
    numbers = pa.RecordBatch.from_arrays([pa.array(range(len(ranges)), pa.int64())], ["id"])
    return [block for batch in reader([numbers]) for block in from_batch(batch)]


@pytest.mark.slow
def test_each_range_gives_its_own_records(kafka: MockKafka, send: Send) -> None:
    """Of each ID the last record inside the range, and a count of the records read."""
    send("a", "b", "a", "c", topic="pairs")
    send("z", topic="pairs", partition=1)
    first, second, third = read(kafka, Range(0, 0, 3), Range(0, 3, 4), Range(1, 0, 1))
    assert (first.tally.records, first.tally.unkeyed, first.tally.first_offset) == (3, 0, 0)
    found = zip(cut_digests(first.marks.digests), first.marks.offsets.tolist(), strict=True)
    assert dict(found) == {digest_one(b"a"): 2, digest_one(b"b"): 1}
    assert (second.marks.digests, second.marks.offsets.tolist()) == (digest_one(b"c"), [3])
    assert (third.slot, third.marks.digests) == (1, digest_one(b"z"))


def test_a_log_that_ends_too_early_is_an_error(kafka: MockKafka, send: Send) -> None:
    """Records to read that are not there are no history that may be left out in silence."""
    send("a", "b", topic="pairs")
    with pytest.raises(RecoveryError, match=r"pairs\[0\] was cut .* offset 2, and was to be read up to 5"):
        read(kafka, Range(0, 0, 5))


def test_records_that_went_before_they_were_read_are_an_error(kafka: MockKafka, send: Send) -> None:
    """Retention may overtake a run: the records that it took are not left out in silence either."""
    send("a", "b", "c", topic="pairs")
    kafka.delete_records("pairs", 0, 2)
    with pytest.raises(RecoveryError, match=r"pairs\[0\]: the replay was refused"):
        read(kafka, Range(0, 0, 3))


def test_a_silent_broker_is_not_waited_for_for_ever(kafka: MockKafka, send: Send) -> None:
    """The task fails with a line that says where it stood, so that Spark can try another one."""
    send("a", topic="pairs")
    reader = ClientReader(
        settings={"bootstrap.servers": kafka.bootstrap, "log_level": "0"},
        topic="pairs",
        spec="header:dedup-id",
        ranges=(Range(0, 0, 1),),
        packing=Packing(PLAN, ordered=False),
        patience_s=0.3,
    )
    kafka.set_broker_down()
    with pytest.raises(RecoveryError, match=r"pairs\[0\] gave nothing from offset 0 on for 0\.3 s"):
        list(reader([pa.RecordBatch.from_arrays([pa.array([0], pa.int64())], ["id"])]))


def test_ranges_cover_every_stretch_once() -> None:
    """They are contiguous, none is larger than a failed task may cost, and an empty partition has none."""
    offset_ranges = [
        OffsetRange(partition=number, low=0, begin=begin, high=high, complete=True)
        for number, (begin, high) in enumerate([(5, 9_000_000), (7, 7), (0, 3)])
    ]
    ranges = plan_ranges(log_bounds(offset_ranges), parallelism=2)
    assert [each.partition for each in ranges] == [0, 0, 0, 0, 2]
    assert [(ranges[0].begin, ranges[3].end)] == [(5, 9_000_000)]
    assert all(one.end == other.begin for one, other in pairwise(ranges[:4]))
    assert ranges[-1] == Range(2, 0, 3)
    assert plan_ranges(log_bounds(offset_ranges[1:2]), parallelism=2) == ()
