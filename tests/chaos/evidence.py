"""The evidence on a message with which something is wrong: enough to explain it without another run.

Its records and calls, and in the order of time the events of its partition meanwhile: who was told that it
came or went, the commits, the faults, the consumers' lines on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tests.chaos.history import Away, Forget, History, Rewind

_AROUND_NS: Final = 8_000_000_000
"""Nanoseconds before the first call and after the last one that are told of."""
_MOST_LINES: Final = 60

Place = tuple[int, int]


def evidence(
    what: str, history: History, message: Place, message_of: Mapping[Place, Place], at_ns: int | None = None
) -> str:
    """Return the evidence on a message, in lines, the first of which names its fault.

    Times are seconds of the machine's monotonic clock. ``at_ns``: when it went wrong, where that is not when the
    message was handled.
    """
    partition = message[0]
    places = {place for place, first in message_of.items() if first == message} | {message}
    calls = sorted(
        (call for call in history.calls if (call.partition, call.offset) in places),
        key=lambda call: call.ended_ns,
    )
    lines = [f"{what} {partition}@{message[1]}, {len(calls)} calls; records:"]
    lines += [
        f"    {record.partition}@{record.offset} timestamp {record.timestamp_ms} id {(record.ident or b'')[:60]!r}"
        for record in sorted(history.log)
        if (record.partition, record.offset) in places
    ]
    events = [
        (call.ended_ns, (f"{call.run} HANDLED {call.partition}@{call.offset}, begun {_s(call.began_ns)}, as: "
            f"{call.verdict}"))
        for call in calls
    ]  # fmt: skip
    begin = calls[0].began_ns - _AROUND_NS if calls else 0
    end = calls[-1].ended_ns + _AROUND_NS if calls else 2**63
    if at_ns is not None:
        begin, end = at_ns - _AROUND_NS, at_ns + _AROUND_NS
    around = [*_notices(history, partition), *_commits(history, partition), *_faults(history, partition)]
    around += [
        (line.at_ns, f"{line.run} says {line.text}") for line in history.told if _of(line.text, partition)
    ]
    events += [event for event in around if not event[0] or begin <= event[0] <= end]
    told = [f"    {_s(at_ns) if at_ns else ''} {text}" for at_ns, text in sorted(events)]
    if len(told) > _MOST_LINES:
        told = [*told[: _MOST_LINES // 2], "    ...", *told[-_MOST_LINES // 2 :]]
    return "\n".join(lines + told)


def _s(at_ns: int) -> str:
    return f"{at_ns / 1e9:.3f}"


def _of(text: str, partition: int) -> bool:
    """Whether a line speaks of a partition, or of none in particular."""
    return "[" not in text or f"[{partition % 1000}]" in text


def _notices(history: History, partition: int) -> Iterable[tuple[int, str]]:
    return (
        (notice.at_ns, f"{notice.run} was told: {notice.kind} {sorted(notice.partitions)}")
        for notice in history.notices
        if partition in notice.partitions or not notice.partitions
    )


def _commits(history: History, partition: int) -> Iterable[tuple[int, str]]:
    """Return the commits, each time that it was seen to have changed."""
    last = -1
    for sample in sorted(history.samples):
        if sample.partition == partition and sample.offset != last:
            last = sample.offset
            yield sample.at_ns, f"committed {sample.offset}"


def _faults(history: History, partition: int) -> Iterable[tuple[int, str]]:
    for excuse in history.excuses:
        if isinstance(excuse, Rewind | Forget):
            if excuse.partition == partition:
                yield 0, f"{excuse}"
            continue
        name, committed = type(excuse).__name__.lower(), getattr(excuse, "committed", None)
        safe = "the same disk" if committed is None else f"committed {committed.get(partition, 0)}"
        until_ns = getattr(excuse, "until_ns", None)
        until = "" if until_ns is None else f" until {_s(until_ns)}"
        whose = "the shared memory" if isinstance(excuse, Away) else excuse.run
        yield excuse.at_ns, f"FAULT {name} of {whose}{until}, {safe}"
