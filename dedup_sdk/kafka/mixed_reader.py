"""A history of which only the later part was read at ``read_uncommitted``.

What was aborted before that nobody handled. Were it folded, a producer's resend of it would pass for a duplicate, and be lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from dedup_sdk.ids.redrive import ReadsKeys
from dedup_sdk.kafka.assigned import Start
from dedup_sdk.kafka.reader import Slice, TailReader
from dedup_sdk.kafka.readers import Readers
from dedup_sdk.kafka.settings import ClientSettings

_DECIDED = "read_committed"


def aborted_from(start: Start, settings: ClientSettings, *, kept: bool) -> int | None:
    """Return from which offset on the group handles records of aborted transactions; None where it does not read them.

    A group whose commits do not say it has read none of them until now. ``kept``: whether the store's marks stay; else what lies behind the
    start is handled again, at this level.
    """
    if settings.isolation.lower() == _DECIDED:
        return None
    known = None if start.metadata is None else start.metadata.aborted
    if known is None:
        return start.offset
    return known if kept else min(known, start.offset)


class MixedReader(TailReader):
    """Reads records of aborted transactions from an offset on, and none before it."""

    def __init__(self, readers: Readers, topic: str, partition: int, aborted_from: int) -> None:
        super().__init__(readers, topic, partition)
        self._aborted_from = aborted_from
        self._committed = TailReader(readers.at(_DECIDED), topic, partition)

    def bounds(self) -> tuple[int, int]:
        """See `TailReader`: while a transaction that began before the offset is open, nothing behind its beginning is decided."""
        first, end = super().bounds()
        decided = self._committed.bounds()[1]
        return first, end if decided >= self._aborted_from else decided

    def slices(self, start: int, end: int, spec: ReadsKeys) -> Iterator[Slice | None]:
        """See `TailReader`."""
        middle = min(max(start, self._aborted_from), end)
        position = start
        if start < middle:
            for piece in self._committed.slices(start, middle, spec):
                position = position if piece is None else piece.end
                yield piece
        if position == middle and middle < end:
            yield from super().slices(middle, end, spec)

    def close(self) -> None:
        """See `TailReader`."""
        with closing(self._committed):
            super().close()
