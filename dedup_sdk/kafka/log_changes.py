"""What is believed where the log is no longer the one that the group saw: made anew, or shorter than what was completed.

Nothing is lost: what cannot be told from work that was done is delivered again. Marks stay, because their IDs were handled,
whatever became of the log; ``high``, the completions above it and the committed offset go back to where the log ceases to be
the one that the store knows.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import numpy as np

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.engine.partition import Partition
from dedup_sdk.errors import RecoveryError
from dedup_sdk.kafka.assigned import Start
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.reader import Slice
from dedup_sdk.kafka.settings import ClientSettings
from dedup_sdk.lane.state import cut_digests
from dedup_sdk.observe import PartitionEvent
from dedup_sdk.store.protocol import Loaded


def start_in_the_log(
    start: Start, held: Partition, engine: Deduplicator, client: Client, settings: ClientSettings
) -> Generator[None, None, Start]:
    """Return where to start, and set back what ``held`` has loaded, where the log ends below what the group has completed.

    Raises `RecoveryError` when that is so, nothing here tells how far the log is the old one, and
    ``auto.offset.reset=error``.
    """
    if start.new or (
        held.loaded is not None and held.loaded.progress.high == start.offset and not start.suspect
    ):
        # Asking takes a while, for each partition; the client tells where the log ends below what is to be read next.
        return start
    first, end = client.bounds(held.topic, held.partition)
    loaded = held.loaded
    known = max(start.offset, 0 if loaded is None else loaded.progress.high)
    if known <= end and not start.suspect:
        return start
    if loaded is None:
        if settings.reset == "error":
            raise RecoveryError(
                f"{held.topic}[{held.partition}]: the group committed {start.offset}, but the log ends at {end}; was it "
                "truncated or made anew? Reset the group's offsets"
            )
        common = first
    else:
        common = yield from _common_end(held, loaded, engine, client, first=first, end=min(end, known))
        held.loaded = _cut_back(loaded, common)
    offset = min(start.offset, common)
    metadata = start.metadata
    if metadata is not None and (loaded is None or metadata.low > offset):
        metadata = replace(metadata, low=offset, complete=False)
    detail = f"offset {known} was completed or committed, the log ends at {end}"
    if known <= end:
        detail = f"offset {known} was completed or committed in a log that the broker no longer has"
    engine.tell(PartitionEvent("log-truncated", held.topic, held.partition, offset, detail))
    return replace(start, offset=offset, metadata=metadata, seek=True, at_once=True)


def _cut_back(loaded: Loaded, end: int) -> Loaded:
    """Return what was loaded, without any completion from ``end`` on."""
    progress = loaded.progress
    done = tuple((begin, min(stop, end)) for begin, stop in progress.done if begin < end)
    high = max(min(progress.high, end), min(progress.low, end))
    return replace(
        loaded,
        progress=replace(progress, low=min(progress.low, end), high=high, done=done, committed=None),
    )


def _common_end(
    held: Partition, loaded: Loaded, engine: Deduplicator, client: Client, *, first: int, end: int
) -> Generator[None, None, int]:
    """Return the first offset of the log whose record this store has not seen completed there, ``end`` if there is none.

    Whatever is completed leaves a mark at its offset or above. So the first record of the last window that has none is
    where the log goes another way; a dead-lettered one looks the same, which costs a repetition.
    """
    window_ms = held.window.time_ms
    horizon_ms = None if window_ms is None else loaded.progress.newest_ms - window_ms
    begin = max(first, loaded.progress.low)
    recent = dict(zip(cut_digests(loaded.recent.digests), loaded.recent.offsets.tolist(), strict=True))
    reader = client.tail_reader(held.topic, held.partition)
    try:
        if horizon_ms is not None:
            begin = max(begin, reader.first_at(horizon_ms) or begin)
        for piece in reader.slices(begin, end, engine.strategy.id):
            unseen = None if piece is None else _first_unseen(piece, held, recent, horizon_ms)
            if unseen is not None:
                return unseen
            yield
    finally:
        reader.close()
    return end


def _first_unseen(
    piece: Slice, held: Partition, recent: dict[bytes, int], horizon_ms: int | None
) -> int | None:
    keyed = [(row, digest) for row, digest in enumerate(piece.digests) if digest is not None]
    seen = np.fromiter((recent.get(digest, -1) for _, digest in keyed), np.int64, len(keyed))
    if keyed:
        found = held.store.find(b"".join(digest for _, digest in keyed), len(keyed))
        seen[found.indexes] = np.maximum(seen[found.indexes], found.offsets)
    for (row, _), offset in zip(keyed, seen.tolist(), strict=True):
        if offset < piece.offsets[row] and (horizon_ms is None or piece.timestamps[row] >= horizon_ms):
            return piece.offsets[row]
    return None
