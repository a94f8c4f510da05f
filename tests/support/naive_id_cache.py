"""The duplicate ID cache of Artemis and HornetQ as a list: what everything that stands for one is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class NaiveIdCache:
    """One cache as the documents have it: a list of the last ``size`` accepted IDs."""

    size: int = 0
    persist: bool = True
    ids: list[bytes] = field(default_factory=list)

    def start(self, size: int, *, persist: bool) -> None:
        """The broker starts: of what was stored the newest come back, if anything was, and is to be."""
        kept = self.ids if self.persist and persist else []
        self.size, self.persist = size, persist
        self.ids = kept[-size:] if size else []

    def accepts(self, dedup_id: bytes | None) -> bool:
        """Whether a message is new; then its ID takes the slot of the oldest."""
        if dedup_id is None or not self.size:
            return True
        if dedup_id in self.ids:
            return False
        self.ids = [*self.ids, dedup_id][-self.size :]
        return True
