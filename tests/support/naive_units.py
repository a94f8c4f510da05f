"""Units in the plainest way: the log as a list, read again in the order of ends for every question.

Nothing here is taken from the code under test; whether an ID is known the naive log says. A record without a unit is an
event of its own, where it lies; a unit is one where its last record lies. An event is rejected if one of its IDs was
completed before it inside the window; an accepted one is remembered once all of it is handled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.naive_log import Sighting, in_window


@dataclass(frozen=True, slots=True)
class Entry:
    """One record: ``ident`` None has no ID, ``unit`` None belongs to none, ``size`` None says none."""

    offset: int
    timestamp_ms: int
    ident: str | None
    unit: str | None = None
    size: int | None = None
    is_end: bool = False


@dataclass(slots=True)
class Event:
    """Records judged at once: one, or all those of a unit, at the offset and timestamp of the last."""

    entries: list[Entry] = field(default_factory=list)

    @property
    def end(self) -> Entry:
        """Where it is judged."""
        return self.entries[-1]

    @property
    def idents(self) -> list[str]:
        """Its IDs, each once, in order."""
        return list(dict.fromkeys(entry.ident for entry in self.entries if entry.ident is not None))


def events_of(log: Iterable[Entry]) -> list[Event]:
    """Return the events of a log whose units are all well formed, in the order in which they are judged.

    Unfinished ones are left out.
    """
    events: list[Event] = []
    still_open: dict[str, Event] = {}
    for entry in log:
        if entry.unit is None:
            events.append(Event([entry]))
            continue
        event = still_open.setdefault(entry.unit, Event())
        event.entries.append(entry)
        sizes = {each.size for each in event.entries if each.size is not None}
        if entry.is_end or len(event.entries) in sizes:
            events.append(still_open.pop(entry.unit))
    return events


@dataclass(slots=True)
class Outcome:
    """The results of a log: offset -> kind (``fresh``, ``duplicate``, ``unkeyed``), and each ID's last sighting."""

    kinds: dict[int, str] = field(default_factory=dict)
    seen: dict[str, Sighting] = field(default_factory=dict)
    accepted: int = 0


def read_events(
    events: Iterable[Event],
    *,
    time_ms: int | None,
    count: int | None = None,
    members: bool = False,
    repeats: str = "drop",
) -> Outcome:
    """Judge all events in their order."""
    outcome = Outcome()
    for event in events:
        end = event.end
        known = {
            ident
            for ident in event.idents
            if (seen := outcome.seen.get(ident))
            and in_window(end.timestamp_ms, seen, outcome.accepted, time_ms=time_ms, count=count)
        }
        rejected = bool(known) and not members
        firsts = set[str]()
        for entry in event.entries:
            repeated = entry.ident in firsts and repeats == "drop"
            duplicate = rejected or entry.ident in known or repeated
            no_id = not event.idents or (entry.ident is None and entry.unit is None)
            outcome.kinds[entry.offset] = "duplicate" if duplicate else "unkeyed" if no_id else "fresh"
            if entry.ident is not None:
                firsts.add(entry.ident)
        for ident in known:
            outcome.seen[ident] = Sighting(end.offset, end.timestamp_ms, outcome.seen[ident].number)
        for ident in () if rejected else event.idents:
            if ident not in known:
                outcome.accepted += 1
                outcome.seen[ident] = Sighting(end.offset, end.timestamp_ms, outcome.accepted)
    return outcome
