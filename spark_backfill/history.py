"""Which part of a topic's history is folded, decided once for the whole run (`spark_backfill.history_plan`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_backfill.offset_range import OffsetRange

NOTHING_COMMITTED: Final = "nothing committed"
"""Why a partition contributes nothing that the group has not begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The offset ranges of a topic, by partition ascending.

    Partitions that contribute nothing are named with the reason. ``partitions``: how many the topic has, 0 where
    nobody asked. ``eras``: by partition, as the group's commits say, the value that changes when an operator rewinds it
    (those that are not empty). ``committed``: the last offset known to be committed, where it is not the cut.
    ``epochs``: the leader epochs of those commits, or of the snapshot that is the history, where they are known.
    """

    cluster: str
    topic: str
    topic_id: str
    offset_ranges: tuple[OffsetRange, ...]
    skipped: Mapping[int, str] = field(default_factory=dict)
    partitions: int = 0
    eras: Mapping[int, str] = field(default_factory=dict)
    epochs: Mapping[int, int] = field(default_factory=dict)
    committed: Mapping[int, int | None] = field(default_factory=dict)

    @property
    def offsets(self) -> int:
        """How many offsets are read."""
        return sum(offset_range.offsets for offset_range in self.offset_ranges)

    @property
    def rows(self) -> int:
        """At most how many rows are folded."""
        return sum(offset_range.rows for offset_range in self.offset_ranges)

    @property
    def base_marks(self) -> int:
        """How many marks are taken from the base, read or not."""
        return sum(
            offset_range.base.marks for offset_range in self.offset_ranges if offset_range.base is not None
        )
