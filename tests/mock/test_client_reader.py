"""Reading a topic for the backfill in a worker's own process."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from dedup_sdk._marks import cut_digests
from dedup_sdk.errors import RecoveryError
from dedup_sdk.ids import digest_one, header
from dedup_sdk.ids._redrive import REDRIVE_HEADER, redrive_value, redriven_digest
from spark_backfill.client_reader import ClientRows, Range, plan_ranges
from spark_backfill.fold import PackedRows, Packing
from spark_backfill.offset_range import OffsetRange, log_bounds
from spark_backfill.rows import KEY_COLUMN, PRODUCER, REDRIVEN, Wanted
from spark_backfill.runs import Block, from_batch
from spark_backfill.slots import Slot, SlotPlan

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Send

PLAN = SlotPlan((Slot(0, 0, 1), Slot(1, 0, 1)))


def read(kafka: MockKafka, *ranges: Range) -> list[Block]:
    """The pieces of the ranges, each of which is a task."""
    packing = Packing(PLAN)
    reader = ClientRows(
        settings={"bootstrap.servers": kafka.bootstrap},
        topic="pairs",
        wanted=packing.wanted(header("dedup-id")),
        ranges=ranges,
    )
    task = PackedRows(packing, reader)
    tasks = [pa.RecordBatch.from_pydict({"id": [number]}) for number in range(len(ranges))]
    return [block for each in tasks for batch in task([each]) for block in from_batch(batch)]


@pytest.mark.slow
def test_each_range_gives_its_own_records(kafka: MockKafka, send: Send) -> None:
    """Of each ID the last record inside the range, and a count of the records read."""
    send("a", "b", "a", "c", topic="pairs")
    send("z", topic="pairs", partition=1)
    counts, first, _, second, _, third = read(kafka, Range(0, 0, 3), Range(0, 3, 4), Range(1, 0, 1))
    assert (counts.tally.records, counts.tally.unkeyed, counts.tally.first_offset) == (3, 0, 0)
    found = zip(cut_digests(first.marks.digests), first.marks.offsets.tolist(), strict=True)
    assert dict(found) == {digest_one(b"a"): 2, digest_one(b"b"): 1}
    assert (second.marks.digests, second.marks.offsets.tolist()) == (digest_one(b"c"), [3])
    assert (third.slot, third.marks.digests) == (1, digest_one(b"z"))


def test_columns_beside_the_ids_are_those_of_the_same_records(kafka: MockKafka) -> None:
    """Keys, the last header that names a producer, and IDs together with redrive headers."""
    back = redrive_value("g", "pairs", 0, 0, 1)
    headers: list[list[tuple[str, str | bytes | None]]] = [
        [("sent-by", b"one"), ("dedup-id", b"a"), ("sent-by", b"two")],
        [("dedup-id", b"b"), (REDRIVE_HEADER, back)],
        [],
    ]
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number, each in enumerate(headers):
        producer.produce("pairs", b"v", key=b"%d" % number, partition=0, headers=each)
    assert producer.flush(10) == 0
    wanted = Wanted(spec="header:dedup-id", producer_header="sent-by", with_keys=True, with_redriven=True)
    reader = ClientRows(
        settings={"bootstrap.servers": kafka.bootstrap},
        topic="pairs",
        wanted=wanted,
        ranges=(Range(0, 0, 3),),
    )
    rows = pa.Table.from_batches(reader([pa.RecordBatch.from_arrays([pa.array([0], pa.int64())], ["id"])]))
    assert rows.to_pydict() | {"timestamp_ms": 0} == {
        "partition": [0, 0, 0],
        "offset": [0, 1, 2],
        "timestamp_ms": 0,
        "digest": [digest_one(b"a"), digest_one(b"b"), None],
        PRODUCER: [b"two", None, None],
        KEY_COLUMN: [b"0", b"1", b"2"],
        REDRIVEN: [None, redriven_digest(digest_one(b"b"), back), None],
    }


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
    reader = ClientRows(
        settings={"bootstrap.servers": kafka.bootstrap, "log_level": "0"},
        topic="pairs",
        wanted=Wanted(spec="header:dedup-id"),
        ranges=(Range(0, 0, 1),),
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
