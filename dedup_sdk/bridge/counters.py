"""What a bridge counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class BridgeCounters:
    """Totals since the bridge was made.

    Attributes:
        copied: records that the target has confirmed.
        named: of them those that got an ID from the bridge.
        skipped: records that the target refuses, left out with ``on_refused="skip"``.
        batches: batches that were finished.
        repeated: batches that were begun again: a target that was away, an aborted transaction, partitions that went.
    """

    copied: int = 0
    named: int = 0
    skipped: int = 0
    batches: int = 0
    repeated: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the totals by name."""
        return asdict(self)
