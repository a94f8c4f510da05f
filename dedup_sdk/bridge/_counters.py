"""The counters of a bridge."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class BridgeCounters:
    """Totals since the bridge was made.

    Attributes:
        copied: records that the target has confirmed.
        named: copied records that got an ID from the bridge.
        skipped: records that the target refuses, left out with ``on_refused="skip"``.
        batches: finished batches.
        repeated: batches that were started again: the target was away, a transaction aborted, or a
            partition revoked.
        made_anew: topics of the source that were deleted and created again, and copied from their
            beginning.
        gone: topics of the source that matched a pattern, and were deleted.
        nameless_headers: headers that were not copied, because their names are not UTF-8.
    """

    copied: int = 0
    named: int = 0
    skipped: int = 0
    batches: int = 0
    repeated: int = 0
    made_anew: int = 0
    gone: int = 0
    nameless_headers: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the totals by name."""
        return asdict(self)
