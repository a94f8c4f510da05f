"""Logs of units: several producers, each with a unit at a time, and records without one between them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.support.naive_units import Entry


def unit_log(
    draw: Random,
    *,
    count: int,
    idents: int,
    broken: bool = False,
    disorder_ms: int = 0,
    ahead_ms: int = 0,
    begin: int = 0,
) -> list[Entry]:
    """Return so many records or a few more, of as many different IDs.

    All units are whole, unless some are to be ``broken``. A unit has one to five records. Offsets have holes;
    timestamps rise, but for up to ``disorder_ms``; one in ten is up to ``ahead_ms`` ahead.
    """
    log: list[Entry] = []
    producers: list[list[Entry]] = []
    offset, now_ms, units = begin, 0, begin
    while len(log) < count or producers:
        if len(log) < count and (not producers or draw.random() < 0.4):
            if draw.random() < 0.4:
                producers.append([Entry(0, 0, _ident(draw, idents))])
            else:
                producers.append(_unit(draw, f"u{units}", idents))
                units += 1
        producer = draw.choice(producers)
        entry = producer.pop(0)
        if not producer:
            producers.remove(producer)
        offset += draw.choice((1, 1, 1, 2)) if log else 0
        now_ms += draw.randrange(4)
        entry = replace(entry, offset=offset, timestamp_ms=max(0, now_ms - draw.randrange(disorder_ms + 1)))
        if broken and entry.unit is not None and draw.random() < 0.1:
            entry = draw.choice(
                [
                    replace(entry, size=draw.randrange(1, 4)),
                    replace(entry, size=None, is_end=False),
                    replace(entry, is_end=True),
                ]
            )
        if ahead_ms and draw.random() < 0.1:
            entry = replace(entry, timestamp_ms=entry.timestamp_ms + draw.randrange(ahead_ms + 1))
        log.append(entry)
    return log


def _ident(draw: Random, idents: int) -> str | None:
    return None if draw.random() < 0.1 else f"i{draw.randrange(idents)}"


def _unit(draw: Random, name: str, idents: int) -> list[Entry]:
    count = draw.randrange(1, 6)
    entries = [Entry(0, 0, _ident(draw, idents), name) for _ in range(count)]
    if draw.random() < 0.5:
        return [*entries[:-1], replace(entries[-1], is_end=True)]
    says = {draw.randrange(count), draw.randrange(count)}
    return [replace(entry, size=count if row in says else None) for row, entry in enumerate(entries)]
