"""Plain Parquet files, read by Arrow: the same rows, IDs and ends as a walk through the records gives."""

from __future__ import annotations

import pickle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup_sdk._record import Record
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.ids import RecordFields, digest_one, id_spec
from dedup_sdk.ids._columns import ReadOnce
from spark_backfill.archive import RowsTask
from spark_backfill.archive_options import ArchiveOptions
from spark_backfill.column_map import id_columns, parse_columns
from spark_backfill.errors import BackfillError
from spark_backfill.fold import PackedRows, Packing
from spark_backfill.offset_range import OffsetRange
from spark_backfill.parquet_files import Group, deal_out, plain_layout
from spark_backfill.parquet_reader import ParquetReader
from spark_backfill.range_plan import Archived
from spark_backfill.rows import ArrowFields, RowKeys
from spark_backfill.runs import from_batch
from spark_backfill.slots import plan_slots
from spark_backfill.survey import PartSurvey, SurveyTask, total
from tests.support.archives import kafka_table, write_parquet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_backfill.runs import Block

BASE_MS = 1_700_000_000_000
SPECS = ("header:id", "key", "unframed-key", "value", "cloudevents", "key+header:id", "json:/id")

some_bytes = st.one_of(st.none(), st.sampled_from([b"", b"a", b'{"id":7}']), st.binary(max_size=9))
names = st.sampled_from(["id", "ce_id", "ce_source", "", "größe"])
rows = st.tuples(
    st.sampled_from(["orders", "orders", "orders", "flights"]),
    st.integers(0, 2),
    st.integers(-1, 30),
    some_bytes,
    some_bytes,
    st.lists(st.tuples(names, some_bytes), max_size=3),
)


writings = st.fixed_dictionaries({"group_rows": st.integers(1, 5), "statistics": st.booleans()})


def records_of(found: Sequence[tuple[Any, ...]]) -> list[Record]:
    """Records with rising offsets in each partition; a timestamp of -1 is none."""
    return [
        Record(topic, partition, offset, BASE_MS + late if late >= 0 else -1, key, value, tuple(headers))
        for offset, (topic, partition, late, key, value, headers) in enumerate(found)
    ]


def reader_of(folder: Path, spec: str) -> ParquetReader:
    """A reader of everything, in one task a row group."""
    options = ArchiveOptions(places=(str(folder),), format="parquet", isolation="read_committed")
    layout = plain_layout(options, id_columns(id_spec(spec)))
    assert layout is not None
    tasks = tuple(deal_out(layout.groups, parallelism=2))
    return ParquetReader(topic="orders", layout=layout, tasks=tasks, names=id_columns(id_spec(spec)))


def numbers(reader: ParquetReader) -> list[pa.RecordBatch]:
    """All tasks of a reader, as Spark hands them to it."""
    return [pa.RecordBatch.from_pydict({"id": list(range(len(reader.tasks)))})]


def last_sightings(blocks: Sequence[Block]) -> dict[tuple[int, bytes], tuple[int, int]]:
    """Offset and timestamp of the last sighting of each ID, by slot, in whatever order the pieces come."""
    found: dict[tuple[int, bytes], tuple[int, int]] = {}
    for block in blocks:
        marks = block.marks
        for row, offset in enumerate(marks.offsets.tolist()):
            key = block.slot, marks.digests[16 * row : 16 * row + 16]
            found[key] = max(found.get(key, (-1, -1)), (offset, int(marks.timestamps[row])))
    return found


@settings(deadline=None)
@given(
    found=st.lists(rows, min_size=1, max_size=40),
    begin=st.integers(0, 10),
    end=st.integers(5, 40),
    written=writings,
)
@pytest.mark.parametrize("spec", SPECS)
def test_pieces_are_those_of_the_records(
    spec: str, found: list[tuple[Any, ...]], begin: int, end: int, written: dict[str, Any]
) -> None:
    """Of the topic's records inside the bounds each ID has the mark of its last one, in every spec's own bytes.

    Records are counted.
    """
    records = records_of(found)
    wanted = [each for each in records if each.topic == "orders" and begin <= each.offset < end]
    digests = id_spec(spec).digests(RecordFields(wanted)).digests
    expected = {
        (each.partition, digest): (each.offset, each.timestamp_ms)
        for each, digest in zip(wanted, digests, strict=True)
        if digest is not None
    }
    offset_ranges = [
        OffsetRange(partition=number, low=0, begin=0, high=50, complete=True) for number in range(3)
    ]
    packing = Packing(plan_slots(offset_ranges, parallelism=2))
    with TemporaryDirectory() as folder:
        reader = reader_of(write_parquet(Path(folder), records, **written), spec)
        bounds = dict.fromkeys(range(3), (begin, end))
        task = PackedRows(packing, RowsTask(reader, packing.wanted(id_spec(spec)), bounds))
        blocks = [block for batch in task(numbers(reader)) for block in from_batch(batch)]
    assert last_sightings(blocks) == expected
    assert sum(block.tally.records for block in blocks) == len(wanted)
    assert sum(block.tally.unkeyed for block in blocks) == list(digests).count(None)


@settings(deadline=None)
@given(
    found=st.lists(rows, min_size=1, max_size=40),
    cuts=st.dictionaries(st.integers(0, 2), st.integers(0, 40)),
    horizons=st.dictionaries(st.integers(0, 2), st.integers(0, 30).map(lambda late: BASE_MS + late)),
    written=writings,
)
def test_a_survey_says_what_is_there(
    found: list[tuple[Any, ...]], cuts: dict[int, int], horizons: dict[int, int], written: dict[str, Any]
) -> None:
    """Ends, counts, cuts and horizons are those of a walk through the topic's records.

    These may be dealt out to files in any way.
    """
    records = records_of(found)
    nowhere = 2**63 - 1
    with TemporaryDirectory() as folder:
        reader = reader_of(write_parquet(Path(folder), records, files=3, **written), "key")
        seen = total(
            pickle.loads(batch.column(0)[0].as_py())  # noqa: S301 (by our own task)
            for batch in SurveyTask(reader, cuts, horizons)(numbers(reader))
        )
    others = {each.topic for each in records} - {"orders"}
    assert (seen.lacking, seen.others) == ({}, frozenset(others))
    assert set(seen.parts) == {each.partition for each in records if each.topic == "orders"}
    for number, part in seen.parts.items():
        mine = [each for each in records if (each.topic, each.partition) == ("orders", number)]
        below = [each for each in mine if each.offset < cuts.get(number, nowhere)]
        horizon_ms = horizons.get(number, nowhere)
        # One without a timestamp may be as new.
        kept = [each.offset for each in below if each.timestamp_ms < 0 or each.timestamp_ms >= horizon_ms]
        assert part.newest_ms == max(each.timestamp_ms for each in mine)
        assert part.checked(number, units_are_said=False) == Archived(
            partition=number,
            rows=len(mine),
            begin=mine[0].offset,
            first_ms=mine[0].timestamp_ms,
            end=mine[-1].offset + 1,
            end_ms=mine[-1].timestamp_ms,
            oldest_ms=min(each.timestamp_ms for each in mine),
            last_ms=below[-1].timestamp_ms if below else None,
            first_kept=min(kept, default=None),
        )


@settings(deadline=None)
@given(counts=st.lists(st.integers(0, 3_000_000), max_size=30), parallelism=st.integers(1, 64))
def test_every_row_group_is_dealt_out_once(counts: list[int], parallelism: int) -> None:
    """No group is read twice or left out, and none is added to a task that has enough."""
    groups = [Group(f"{number // 3}.parquet", number % 3, rows) for number, rows in enumerate(counts)]
    tasks = deal_out(groups, parallelism)
    assert [group for task in tasks for group in task] == groups
    for task in tasks:
        assert len(task) == 1 or sum(group.rows for group in task) <= 4_000_000


def options(folder: Path, *columns: str, form: str = "parquet", **more: str) -> ArchiveOptions:
    """The options of an archive in a folder."""
    return ArchiveOptions(
        places=(str(folder),),
        format=form,
        columns=parse_columns(columns),
        read_options=more,
        isolation="read_committed",
    )


def test_plain_files_may_name_their_columns_otherwise(tmp_path: Path) -> None:
    """Renamed columns, and timestamps that are numbers of a known unit, are plain; a topic is not needed."""
    table = pa.table({"p": [0, 0], "o": [3, 4], "us": [BASE_MS * 1000 + 999, None], "k": ["größe", None]})
    pq.write_table(table, tmp_path / "a.parquet")
    layout = plain_layout(options(tmp_path, "partition=p,offset=o,timestamp=us:us,key=k"), ("key",))
    assert layout is not None
    reader = ParquetReader(topic="t", layout=layout, tasks=tuple(deal_out(layout.groups, 1)), names=("key",))
    (batch,) = reader.read(0)
    assert (batch.offsets.tolist(), batch.timestamps.tolist()) == ([3, 4], [BASE_MS, -1])
    assert batch.rest.column("key").to_pylist() == ["größe", None]


def test_rows_without_coordinates_are_counted(tmp_path: Path) -> None:
    """They are no records of Kafka: the survey says how many there are, whatever else their rows have."""
    pq.write_table(
        pa.table({
            "partition": pa.array([0, None, 0], pa.int32()),
            "offset": pa.array([1, 2, None], pa.int64()),
            "timestamp": pa.array([0, 0, 0], pa.timestamp("ms")),
        }),
        tmp_path / "a.parquet",
    )  # fmt: skip
    layout = plain_layout(options(tmp_path), ())
    assert layout is not None
    reader = ParquetReader(topic="t", layout=layout, tasks=tuple(deal_out(layout.groups, 1)))
    (batch,) = SurveyTask(reader, {}, {})(numbers(reader))
    seen = pickle.loads(batch.column(0)[0].as_py())  # noqa: S301 (by our own task)
    assert (seen.lacking, seen.parts[0].rows) == ({"partition": 1, "offset": 1}, 1)
    with pytest.raises(BackfillError, match="the archive has 1 row without partition"):
        seen.check_coordinates()


def test_what_is_not_plain_is_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other formats, options and encodings, globs, and paths that may be elsewhere.

    Also folders that are columns, and strange or encrypted files.
    """
    folder = tmp_path / "plain"
    write_parquet(folder, [Record("orders", 0, 0, BASE_MS, b"k", b"v", ())])
    assert plain_layout(options(folder), ("key",)) is not None
    for other in (
        options(folder, form="delta"),
        options(folder, mergeSchema="true"),
        options(folder, "key=key:base64"),
        options(folder, "timestamp=-"),
        options(tmp_path / "none"),
        options(folder / "*.parquet"),
        options(Path("s3://bucket/orders")),
    ):
        assert plain_layout(other, ("key",)) is None
    with pytest.raises(ConfigurationError, match="none"):
        plain_layout(options(folder, "offset=none"), ("key",))
    (tmp_path / "columns" / "partition=0").mkdir(parents=True)
    assert plain_layout(options(tmp_path / "columns"), ("key",)) is None
    with monkeypatch.context() as patched:
        patched.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
        assert plain_layout(options(folder), ("key",)) is None
    named = tmp_path / "named"
    named.mkdir()
    pq.write_table(kafka_table([]), named / "orders+0+0000000000.parquet")
    assert plain_layout(options(named), ("key",)) is None
    (folder / "part-9.parquet").write_bytes(b"PARE encrypted PARE")
    assert plain_layout(options(folder), ("key",)) is None


@pytest.mark.parametrize("column", ["Topic", "TOPIC", "Key", "Offset"])
def test_columns_in_another_case_are_left_to_spark(tmp_path: Path, column: str) -> None:
    """Spark takes ``Topic`` for ``topic``: without it the rows of all topics would be of the one that is asked for."""
    has = kafka_table([Record("flights", 0, 0, BASE_MS, b"k")])
    table = has.rename_columns([column if name == column.lower() else name for name in has.column_names])
    pq.write_table(table, tmp_path / "a.parquet")
    assert plain_layout(options(tmp_path), ("key",)) is None
    both = has.append_column("TOPIC", has.column("topic"))
    pq.write_table(both, tmp_path / "a.parquet")
    assert plain_layout(options(tmp_path), ("key",)) is None


@pytest.mark.parametrize("group", [None, "billing"])
def test_a_header_is_read_without_the_others(monkeypatch: pytest.MonkeyPatch, group: str | None) -> None:
    """To make every record's list of headers costs more than to make its ID."""
    table = kafka_table([Record("orders", 0, 0, BASE_MS, b"k", b"v", (("a", b"1"), ("id", b"7")))])
    fields = ArrowFields(table.to_batches()[0])
    monkeypatch.setattr(ArrowFields, "headers", lambda _self: pytest.fail("all headers were read"))
    (digest,) = RowKeys("header:id", group).digests(ReadOnce(fields, fields)).digests
    assert digest == digest_one(b"7")


def test_a_row_without_a_timestamp_may_be_as_new_as_the_horizon() -> None:
    """It is read, and so is what lies behind it: else coverage would be claimed that is not there."""
    offsets, times = np.array([3, 4, 5, 6]), np.array([1, -1, 2, 9])
    part = PartSurvey.of_rows(offsets, times, cut=7, horizon_ms=8)
    assert part.first_kept == 4
