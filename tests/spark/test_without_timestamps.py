"""Records without a timestamp (-1), on both sides: their time is unknown, so that no window is reckoned from it."""

from __future__ import annotations

import pytest

from dedup_sdk import Deduplicator, Lookup, MemoryStore, Record, Window
from dedup_sdk._marks import NOTHING_KNOWN
from dedup_sdk.ids import key
from spark_backfill.offset_range import OffsetRange
from spark_backfill.range_plan import horizon_ms
from spark_backfill.runs import Tally
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.snapshot import partition_manifest

WINDOW = Window(seconds=60)


def lived(timestamps: list[int]) -> int | None:
    """From when the engine knows sightings, which began at offset 5 without knowing earlier ones."""
    with Deduplicator(Lookup(id=key(), window=WINDOW), MemoryStore()) as engine:
        engine.open("orders", 0, low=5, committed=5)
        records = [
            Record("orders", 0, 5 + number, stamp, key=b"%d" % number)
            for number, stamp in enumerate(timestamps)
        ]
        engine.admit(records)
        engine.complete(records)
        return engine.partitions["orders", 0].memory.reach.since_ms


def rebuilt(timestamps: list[int]) -> int | None:
    """From when a snapshot of the same records knows them."""
    tally = Tally(first_offset=5, first_ms=timestamps[0], newest_ms=max(timestamps), records=len(timestamps))
    outcome = SlotOutcome(
        slot=0, tally=tally, accepted=0, forgotten_ms=None, forgotten_number=None, file=None
    )
    offset_range = OffsetRange(partition=0, low=5, begin=5, high=5 + len(timestamps), complete=False)
    return partition_manifest(offset_range, [outcome], counted=False).known.since_ms


@pytest.mark.parametrize("timestamps", [[-1], [-1, -1, -1]])
def test_without_any_timestamp_nothing_is_known_of_time(timestamps: list[int]) -> None:
    """Neither side takes -1, or 0, for the moment from which sightings are known."""
    assert lived(timestamps) == rebuilt(timestamps) == NOTHING_KNOWN


@pytest.mark.parametrize("timestamps", [[-1, 400, 500], [-1, 500, 400], [400, -1, 500], [400, 500, -1]])
def test_the_marks_begin_with_a_real_timestamp(timestamps: list[int]) -> None:
    """Both sides begin with the timestamp of a record that has one; the snapshot never claims to know more."""
    known, told = lived(timestamps), rebuilt(timestamps)
    assert known is not None
    assert told is not None
    assert known in timestamps
    assert known >= 0
    assert known <= told <= max(timestamps)


def test_no_horizon_is_reckoned_from_it() -> None:
    """A last record without a timestamp leaves everything in, instead of records a window older than -1."""
    assert horizon_ms(WINDOW, -1, 10**12) is None
