"""Reading a topic for the backfill in a worker's own process."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dedup_sdk.errors import RecoveryError
from dedup_sdk.ids import IdSpec, digest_one
from spark_backfill.client_reader import ClientReader, Range, plan_ranges
from spark_backfill.fold import Packing
from spark_backfill.runs import Piece, from_batch
from spark_backfill.shared_runs import Taker
from spark_backfill.slots import Slot, SlotPlan
from spark_backfill.stretch import Stretch

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Send

PLAN = SlotPlan((Slot(0, 0, 1), Slot(1, 0, 1)))


def read(
    kafka: MockKafka,
    *ranges: Range,
    given_up: dict[int, list[int]] | None = None,
    packing: Packing | None = None,
) -> list[Piece]:
    """The pieces of the ranges, read one after the other in one task."""
    reader = ClientReader(
        settings={"bootstrap.servers": kafka.bootstrap},
        topic="pairs",
        spec="header:dedup-id",
        ranges=ranges,
        packing=packing or Packing(PLAN, ordered=False, given_up=given_up or {}),
    )
    numbers = pa.RecordBatch.from_arrays([pa.array(range(len(ranges)), pa.int64())], ["id"])
    return [piece for batch in reader([numbers]) for piece in from_batch(batch)]


def test_each_range_gives_its_own_records(kafka: MockKafka, send: Send) -> None:
    """Of each ID the last record inside the range, and a count of what was read; what was given up has no ID."""
    send("a", "b", "a", "c", topic="pairs")
    send("z", topic="pairs", partition=1)
    first, second, third = read(kafka, Range(0, 0, 3), Range(0, 3, 4), Range(1, 0, 1), given_up={0: [1]})
    assert (first.tally.records, first.tally.unkeyed, first.tally.first_offset) == (3, 1, 0)
    assert (first.marks.digests, first.marks.offsets.tolist()) == (digest_one(b"a"), [2])
    assert (second.marks.digests, second.marks.offsets.tolist()) == (digest_one(b"c"), [3])
    assert (third.slot, third.marks.digests) == (1, digest_one(b"z"))


def test_what_groups_share_is_read_and_digested_once(
    kafka: MockKafka, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group has the records between its own offsets, and of none the digest is computed twice."""
    send("a", "b", "a", "c", topic="pairs")
    digested: list[int] = []
    digests_of = IdSpec.digests

    def counting(spec: IdSpec, fields: Any) -> Any:
        found = digests_of(spec, fields)
        digested.append(len(found.digests))
        return found

    monkeypatch.setattr(IdSpec, "digests", counting)
    plan = SlotPlan((Slot(0, 0, 1, 0), Slot(0, 0, 1, 1)))
    takers = (Taker({}, {0: (0, 3)}), Taker({0: [1]}, {0: (1, 4)}))
    pieces = read(kafka, Range(0, 0, 4), packing=Packing(plan, ordered=False, takers=takers))
    found = {
        number: sorted(
            offset for each in pieces if each.slot == number for offset in each.marks.offsets.tolist()
        )
        for number in range(2)
    }
    assert found == {0: [0, 1, 2], 1: [2, 3]}
    assert sum(digested) == 4


def test_a_log_that_ends_too_early_is_an_error(kafka: MockKafka, send: Send) -> None:
    """What was to be read and is not there is no history that may be left out in silence."""
    send("a", "b", topic="pairs")
    with pytest.raises(RecoveryError, match=r"pairs\[0\] was cut .* offset 2, and was to be read up to 5"):
        read(kafka, Range(0, 0, 5))


def test_records_that_went_before_they_were_read_are_an_error(kafka: MockKafka, send: Send) -> None:
    """Retention may overtake a run: what it took is not left out in silence either."""
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
    """They are contiguous, none is larger than what a failed task may cost, and an empty partition has none."""
    stretches = [
        Stretch(partition=number, low=0, begin=begin, high=high, complete=True)
        for number, (begin, high) in enumerate([(5, 9_000_000), (7, 7), (0, 3)])
    ]
    ranges = plan_ranges(stretches, parallelism=2)
    assert [each.partition for each in ranges] == [0, 0, 0, 0, 2]
    assert [(ranges[0].begin, ranges[3].end)] == [(5, 9_000_000)]
    assert all(one.end == other.begin for one, other in pairwise(ranges[:4]))
    assert ranges[-1] == Range(2, 0, 3)
    assert plan_ranges([stretches[1]], parallelism=2) == ()
