"""Rows that come from Spark as Arrow columns, partition by partition."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from dedup_sdk._marks import DIGEST_BYTES, Int64s
from spark_backfill.arrow_columns import bytes_list, joined_values
from spark_backfill.findings.producer_codes import producer_codes
from spark_backfill.reshard import Reshard
from spark_backfill.rows import KEY_COLUMN, PRODUCER, REDRIVEN
from spark_backfill.runs import Rows, by_partition


def rows_of_batch(batch: pa.RecordBatch, reshard: Reshard | None = None) -> Iterator[tuple[int, Rows]]:
    """Read rows (`spark_backfill.rows`), partition by partition; to ``reshard`` them they need their keys."""
    if not batch.num_rows:
        return
    partitions = batch.column("partition").to_numpy()
    offsets: Int64s = batch.column("offset").to_numpy()
    timestamps: Int64s = batch.column("timestamp_ms").to_numpy()
    column = batch.column("digest")
    keyed = None
    if column.null_count:
        keyed = np.asarray(column.is_valid())
        column = column.drop_null()
    digests, _ = joined_values(column)
    if len(digests) != DIGEST_BYTES * len(column):
        raise ValueError(f"{len(digests)} bytes of {len(column)} digests: a digest has {DIGEST_BYTES}")
    producers = producer_codes(batch.column(PRODUCER)) if PRODUCER in batch.schema.names else None
    targets = None if reshard is None else reshard.targets(batch.column(KEY_COLUMN))
    marked = REDRIVEN in batch.schema.names and batch.column(REDRIVEN).null_count < batch.num_rows
    redriven = bytes_list(batch.column(REDRIVEN)) if marked else None
    rows = Rows(offsets, timestamps, digests, keyed, producers, targets, redriven)
    yield from by_partition(partitions, rows)
