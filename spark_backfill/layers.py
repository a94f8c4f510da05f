"""Which files of a base stay where they are, so that a run writes only what has come since, as one more layer: pure.

A layer costs what it brings: the files that stay are neither read nor written. The marks of a base stay in no window by
count, whose numbers depend on all of them, and not where the history begins behind the base's. A partition with as many
layers as `most_layers` is written anew, as one layer.

What expires is left out by the file, when all of its marks are older than the window, from the oldest layer on: in a
later one it may hide an older mark of an ID, whose timestamp is newer. For the same reason a new layer has all marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dedup_sdk._store.manifest import Manifest, PartitionManifest, SortedFile
from spark_backfill.base import entries_of
from spark_backfill.offset_range import OffsetRange, Staying, largest

MOST_LAYERS: Final = 8
"""Each is a generation of the store that installs it: one more place where an ID is looked up, and two open files."""


def on_layers(offset_ranges: Sequence[OffsetRange], base: Manifest) -> tuple[OffsetRange, ...]:
    """Return the offset ranges of a window by time, so that files of the base stay wherever they can."""
    entries = entries_of(base)
    return tuple(_on_layer(each, entries.get(each.partition)) for each in offset_ranges)


def most_layers(partition: int) -> int:
    """Return after how many layers a partition is written anew: not all of them in the same night."""
    return MOST_LAYERS - partition % (MOST_LAYERS // 2)


def _on_layer(offset_range: OffsetRange, entry: PartitionManifest | None) -> OffsetRange:
    part, keep_from_ms = offset_range.base, offset_range.keep_from_ms
    if (
        entry is None
        or part is None
        or part.floor > entry.low
        or len(entry.layers) >= most_layers(entry.partition)
    ):
        return offset_range
    layers = [list(files) for files in entry.layers]
    gone: list[SortedFile] = []
    while layers and keep_from_ms is not None:
        expired = [file for file in layers[0] if file.newest_ms < keep_from_ms]
        gone += expired
        if len(expired) < len(layers[0]):
            layers[0] = [file for file in layers[0] if file not in expired]
            break
        del layers[0]
    return replace(
        offset_range,
        keep_from_ms=None,
        base=part._replace(
            staying=Staying(
                tuple(replace(file, layer=number) for number, files in enumerate(layers) for file in files),
                forgotten_ms=largest(file.newest_ms for file in gone),
            )
        ),
    )
