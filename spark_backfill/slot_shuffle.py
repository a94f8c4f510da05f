"""The shuffle of a run that folds rows in offset order: which slot a row goes to, and in which order its task reads it.

A row has a *fold key*. In a partition the rows of one key go to one slot, and its task folds them together, in
offset order; only `TALLIES` go to each slot. The key is

- the digest of the source, where IDs are compared with the last one of their source;
- the digest of the looked-up ID, for a *sighting*: where `LastId` has a second opinion, each record has a second
  row of this kind, which has no ID. Only the last sighting of an ID counts, so a batch has one row for each
  digest;
- `IN_UNITS`, where records belong to units: then all rows of a partition have this one key;
- `TALLIES`, for the counts of each task in the partition. These rows sort before all others, so that a slot's task
  knows where the history begins before it folds anything;
- `WATCHED`, in the first slot of a partition: offsets that are checked for a second record
  (`spark_backfill.duplicate_offsets`), each with a digest of its record.

Rows are shuffled one by one, without a partial fold in the task that reads them: the state of a source is a fold
in offset order, and two parts of such a fold cannot be merged. Spark sorts the rows of a slot, on disk where
memory is short. The task folds them as they stream by, and keeps one source in memory at a time. Sightings have
the digest of their ID as the key, so in the files their marks lie between those of the sources, as in a store, and
the history is read once. Both kinds are kept for the longer of the two windows, because a store has one horizon.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dedup_sdk._core.source_keys import SourceKeys
from dedup_sdk._marks import DIGEST_BYTES, Int64s, Marks, cut_digests
from dedup_sdk._store.pages import newest_per_digest
from dedup_sdk._units.keys import UnitKeys
from spark_backfill.arrow_columns import bytes_list
from spark_backfill.duplicate_offsets import is_watched, watch_bits
from spark_backfill.last_id_spec import OrderedSpec
from spark_backfill.offset_range import Bounds
from spark_backfill.runs import Tally
from spark_backfill.slots import SlotPlan
from spark_backfill.unit_spec import UnitSpec

SHUFFLED_SCHEMA: Final = "slot int, fold_key binary, offset long, timestamp_ms long, id binary"
TALLIES: Final = b""
WATCHED: Final = b"\0"
IN_UNITS: Final = b"\1\0"
"""The fold key of all rows of a partition whose records belong to units."""

_NAMES: Final = [column.split()[0] for column in SHUFFLED_SCHEMA.split(", ")]
_TYPES: Final = [pa.int32(), pa.binary(), pa.int64(), pa.int64(), pa.binary()]
_COUNTS: Final = struct.Struct("<qqq")
_PREFIX_BYTES: Final = 2


class _Rows(NamedTuple):
    """The columns of a batch.

    ``prefixes`` are the first two bytes of the fold keys, as numbers; ``others`` the digests that a second opinion
    looks up (empty: there is none).
    """

    partitions: NDArray[np.int32]
    offsets: Int64s
    timestamps: Int64s
    has_id: NDArray[np.bool_]
    keys: list[bytes | None]
    prefixes: Int64s
    others: list[bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotShuffle:
    """A function from batches of `ROWS_SCHEMA` to batches of `SHUFFLED_SCHEMA`; a reader calls it in its own task.

    ``group``: whose redrive headers are part of an ID; None: nobody's. ``watch``: by partition the bits of
    `is_watched`, where some offset may come with two records.
    """

    spec: OrderedSpec
    plan: SlotPlan
    group: str | None = None
    watch: Mapping[int, int] = field(default_factory=dict)

    def of_archive(self, bounds: Bounds, *, has_duplicates: bool) -> SlotShuffle:
        """Return it for an archive of which these offsets are read.

        ``has_duplicates``: some of them certainly come twice.
        """
        if isinstance(self.spec, UnitSpec):
            # Rows of one offset meet in any case.
            return self
        watch = {
            partition: 0 if has_duplicates else watch_bits(end - begin)
            for partition, (begin, end) in bounds.items()
        }
        return replace(self, watch=watch)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield all rows with their slots; the tallies come last."""
        keys = self.spec.keys
        tallies: dict[int, Tally] = {}
        for batch in batches:
            if batch.num_rows:
                yield from self._partitioned(batch, keys, tallies)
        for partition, tally in tallies.items():
            yield self._told(partition, tally)

    def _partitioned(
        self, batch: pa.RecordBatch, keys: SourceKeys | UnitKeys, tallies: dict[int, Tally]
    ) -> Iterator[pa.RecordBatch]:
        read_keys = bytes_list(batch.column("digest"))
        fold_keys, ids = _fold_keys_and_ids(keys, read_keys)
        columns = pa.array(fold_keys, pa.binary()), pa.array(ids, pa.binary())
        rows = _Rows(
            batch.column("partition").to_numpy(),
            batch.column("offset").to_numpy(),
            batch.column("timestamp_ms").to_numpy(),
            np.asarray(batch.column("digest").is_valid()),
            read_keys,
            _prefixes(fold_keys),
            keys.others_of(read_keys) if isinstance(keys, SourceKeys) and keys.other is not None else [],
        )
        for partition in np.unique(rows.partitions).tolist():
            inside = rows.partitions == partition
            bearing = inside & rows.has_id
            tallies.setdefault(partition, Tally()).add(_tally(rows, inside, bearing))
            taken = np.flatnonzero(bearing)
            slots = self.plan.numbers(partition, rows.prefixes[taken])
            yield _batch(
                pa.array(slots, pa.int32()),
                columns[0].take(pa.array(taken)),
                pa.array(rows.offsets[taken]),
                pa.array(rows.timestamps[taken]),
                columns[1].take(pa.array(taken)),
            )
            if rows.others:
                yield self._sighted(rows, taken, partition)
            if partition in self.watch:
                yield self._watched(keys, rows, bearing, partition)

    def _sighted(self, rows: _Rows, taken: Int64s, partition: int) -> pa.RecordBatch:
        """Return the last sighting of each digest in these rows."""
        sighted = [(row, digest) for row in taken.tolist() if (digest := rows.others[row]) is not None]
        places = np.asarray([row for row, _ in sighted], np.int64)
        digests = b"".join(digest for _, digest in sighted)
        marks = newest_per_digest(Marks(digests, rows.offsets[places], rows.timestamps[places]))
        prefixes = np.frombuffer(marks.digests, ">u2")[:: DIGEST_BYTES // _PREFIX_BYTES].astype(np.int64)
        return _batch(
            pa.array(self.plan.numbers(partition, prefixes), pa.int32()),
            pa.array(cut_digests(marks.digests), pa.binary()),
            pa.array(marks.offsets),
            pa.array(marks.timestamps),
            pa.nulls(marks.count, pa.binary()),
        )

    def _watched(
        self, keys: SourceKeys | UnitKeys, rows: _Rows, bearing: NDArray[np.bool_], partition: int
    ) -> pa.RecordBatch:
        seen = np.flatnonzero(bearing & is_watched(rows.offsets, self.watch[partition]))
        first = self.plan.ranges(partition)[0]
        return _batch(
            pa.array([first] * len(seen), pa.int32()),
            pa.array([WATCHED] * len(seen), pa.binary()),
            pa.array(rows.offsets[seen]),
            pa.array(np.zeros(len(seen), np.int64)),
            pa.array([keys.name_of(rows.keys[row]) for row in seen.tolist()], pa.binary()),
        )

    def _told(self, partition: int, tally: Tally) -> pa.RecordBatch:
        """Return a tally as a row for each slot of the partition; the counts are in the first one's alone."""
        slots = self.plan.ranges(partition)
        counts = [
            _COUNTS.pack(tally.newest_ms, *((0, 0) if number else (tally.records, tally.unkeyed)))
            for number in range(len(slots))
        ]
        return _batch(
            pa.array(list(slots), pa.int32()),
            pa.array([TALLIES] * len(slots), pa.binary()),
            pa.array([tally.first_offset] * len(slots), pa.int64()),
            pa.array([tally.first_ms] * len(slots), pa.int64()),
            pa.array(counts, pa.binary()),
        )


@dataclass(frozen=True, slots=True)
class ShuffledRows:
    """A function for ``mapInArrow``: the batches, read by ``read``, as rows of `ROWS_SCHEMA`, with their slots."""

    read: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]
    shuffle: SlotShuffle

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the rows and say their slots."""
        return self.shuffle(self.read(batches))


def read_tally(first_offset: int, first_ms: int, counts: bytes) -> Tally:
    """Return the tally in a row whose fold key is `TALLIES`."""
    newest_ms, records, unkeyed = _COUNTS.unpack(counts)
    return Tally(first_offset, first_ms, newest_ms, records, unkeyed)


def _tally(rows: _Rows, inside: NDArray[np.bool_], bearing: NDArray[np.bool_]) -> Tally:
    taken = np.flatnonzero(inside)
    first = taken[int(rows.offsets[taken].argmin())]
    return Tally(
        int(rows.offsets[first]),
        int(rows.timestamps[first]),
        int(rows.timestamps[taken].max()),
        len(taken),
        len(taken) - int(bearing.sum()),
    )


def _fold_keys_and_ids(
    keys: SourceKeys | UnitKeys, read: Sequence[bytes | None]
) -> tuple[Sequence[bytes | None], Sequence[bytes | None]]:
    """Return the fold key of each row, None where it has no ID, and the ID that the fold reads."""
    if isinstance(keys, UnitKeys):
        return [None if key is None else IN_UNITS for key in read], read
    return keys.sources_of(read), keys.ids_of(read)


def _prefixes(fold_keys: Sequence[bytes | None]) -> Int64s:
    prefixes = b"".join([b"\0\0" if key is None else key[:_PREFIX_BYTES] for key in fold_keys])
    return np.frombuffer(prefixes, ">u2").astype(np.int64)


def _batch(*columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [column.cast(kind) for column, kind in zip(columns, _TYPES, strict=True)], _NAMES
    )
