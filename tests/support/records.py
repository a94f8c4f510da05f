"""Records for tests: an offset, a name, and a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._record import Record, Settled, Verdict
from dedup_sdk._strategy import Lookup, MissingIdPolicy
from dedup_sdk._window import Window, Windows
from dedup_sdk.ids import key

DAY_MS = 86_400_000
HOUR = Window(hours=1)


def record(
    offset: int, ident: str | None = None, timestamp_ms: int = DAY_MS, *, partition: int = 0, topic: str = "t"
) -> Record:
    """One record whose key is its ID; without a name it is called by its offset, and ``""`` has no ID."""
    name = f"#{offset}" if ident is None else ident
    return Record(topic, partition, offset, timestamp_ms, key=name.encode() if name else None)


def engine(
    window: Window | Windows = HOUR, *, on_missing_id: MissingIdPolicy = "process", **settings: Any
) -> Deduplicator:
    """An engine whose IDs are keys, and whose clock stands at the day of the records."""
    strategy = Lookup(id=key(), window=window, on_missing_id=on_missing_id)
    return Deduplicator(strategy, **{"clock": lambda: DAY_MS / 1000, **settings})


def kinds(answers: Sequence[Verdict | Settled]) -> list[str]:
    """The kinds of verdicts, in order."""
    return [(one.verdict if isinstance(one, Settled) else one).kind.value for one in answers]


def offsets(settled: Sequence[Settled]) -> list[int]:
    """The offsets of settled records, in order."""
    return [one.record.offset for one in settled]
