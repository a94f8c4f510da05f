"""An ID that is to be compared, read once."""

from __future__ import annotations

from typing import Any, NamedTuple

from dedup_sdk.orders import Place


class Candidate(NamedTuple):
    """An ID as it came, and its place; None where the order gives it none."""

    id_bytes: bytes
    place: Place | None

    @property
    def token(self) -> Any:
        """What is equal for IDs that are the same: the place, or the ID itself where there are no places."""
        return self.id_bytes if self.place is None else self.place
