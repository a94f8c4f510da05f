"""Records that belong to units, and an engine for them, without a broker."""

from __future__ import annotations

from collections.abc import Callable

from dedup_sdk import Deduplicator, Lookup, Record, Window, header
from dedup_sdk._store.protocol import KeyStore

DAY = Window(days=1)


def record(
    offset: int, ident: str = "", unit: str = "", *, topic: str = "t", partition: int = 0, end: bool = False
) -> Record:
    """A record with the headers that are not empty."""
    headers: list[tuple[str, bytes | None]] = [("dedup-id", ident.encode())] if ident else []
    headers += [("dedup-unit", unit.encode())] if unit else []
    headers += [("dedup-unit-end", b"")] if end else []
    return Record(topic, partition, offset, 1_000 + offset, headers=headers)


def engine(
    *, store: KeyStore | None = None, clock: Callable[[], float] = lambda: 1_000.0, **settings: object
) -> Deduplicator:
    """An engine with units."""
    return Deduplicator(
        Lookup(
            **{  # type: ignore[arg-type]
                "id": header("dedup-id"),
                "window": DAY,
                "unit": header("dedup-unit"),
                **settings,
            },
        ),
        store=store,
        clock=clock,
    )
