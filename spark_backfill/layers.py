"""Which files of a base stay where they are, so that a run writes only what has come since, as one more layer: pure.

A layer costs what it brings: the files that stay are neither read nor written. What expires is left out by the file,
when all of its marks are older than the window. The marks of a base stay in no window by count, whose numbers hang on
all of them, and not where the history begins behind the base's. After `MOST_LAYERS` a partition is written anew, as one
layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dedup_sdk._store.manifest import Manifest, PartitionManifest
from spark_backfill.base_range import entries_of
from spark_backfill.offset_range import OffsetRange

MOST_LAYERS: Final = 32
"""Each is a generation of the store that installs it, and one more place where an ID is looked up."""


def on_layers(offset_ranges: Sequence[OffsetRange], base: Manifest) -> tuple[OffsetRange, ...]:
    """Return the offset ranges of a window by time, so that files of the base stay wherever they can."""
    entries = entries_of(base)
    return tuple(_on_layer(each, entries.get(each.partition)) for each in offset_ranges)


def _on_layer(offset_range: OffsetRange, entry: PartitionManifest | None) -> OffsetRange:
    part, keep_from_ms = offset_range.base, offset_range.keep_from_ms
    if entry is None or part is None or part.floor > entry.low or len(entry.layers) >= MOST_LAYERS:
        return offset_range
    gone = [file for file in entry.files if keep_from_ms is not None and file.newest_ms < keep_from_ms]
    stay = tuple(file for file in entry.files if file not in gone)
    forgotten_ms = max((file.newest_ms for file in gone), default=None)
    return replace(offset_range, base=part._replace(files=stay, is_read=False, forgotten_ms=forgotten_ms))
