"""Rows that come by offset: of each offset one, and never another record in its place."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (Spark's own documentation writes it so)

from dedup_sdk._marks import Marks, cut_marks, join_marks
from spark_backfill.duplicate_offsets import check_one_record
from spark_backfill.runs import Rows

_NO_TIME = 2**63 - 1


def order_columns() -> list[Column | str]:
    """Return the columns by which rows ``partition, offset, timestamp_ms, digest`` are sorted for `OffsetOrder`.

    Of an offset that comes twice the first one stays: the one with an ID, of two of them that of the earlier time,
    any before none.
    """
    known_ms = F.when(F.col("timestamp_ms") < 0, _NO_TIME).otherwise(F.col("timestamp_ms"))
    return ["partition", "offset", F.col("digest").isNull(), known_ms]


class OffsetOrder:
    """Takes batches of one task, and leaves the first row of each offset.

    Each partition's rows are in the order of `order_columns`.
    """

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}
        self._marks: dict[int, Marks] = {}

    def once(self, partition: int, rows: Rows) -> Rows:
        """Return the rows (at least one) of offsets that were not there before.

        Raises:
            BackfillError: an offset comes with two IDs, also where a batch ends between them.
        """
        marks = rows.marks()
        check_one_record(partition, marks)
        before = self._marks.get(partition)
        if before is not None:
            check_one_record(partition, join_marks([before, cut_marks(marks, 0, 1)]))
        if marks.count:
            self._marks[partition] = cut_marks(marks, marks.count - 1, marks.count)
        taken = rows.once(after=self._offsets.get(partition, -1))
        self._offsets[partition] = int(rows.offsets[-1])
        return taken
