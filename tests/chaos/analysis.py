"""The checks of published analyses of Kafka, on the output of transactions and on what their consumers were given.

The names are those of the analyses. A write is one record that a handler produced; its value names the call.

aborted-read
    a reader of committed records got a write whose transaction was aborted.
lost-write
    a write that was acknowledged or read is not there, and its reader is past it.
duplicate
    a write is there more than once.
int-poll-skip, poll-skip
    a reader went past a record, within one poll or between two of them. A consumer may go past a record whose message
    was handled before, or is being handled by its run.
int-nonmonotonic-poll, nonmonotonic-poll
    a reader got a record at or before one that it had, within one poll or between two of them. A consumer may when its
    assignment or its transaction ended in between.
unseen
    a write was acknowledged, and the reader has not got as far at the end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeVar

from tests.chaos.at_risk import HAND_OVER_NS
from tests.chaos.history import Call, Copies, Delivery, History, Notice, Place

T = TypeVar("T")
K = TypeVar("K")

CHECKS: Final = (
    "aborted-read", "lost-write", "duplicate", "int-poll-skip", "int-nonmonotonic-poll", "poll-skip",
    "nonmonotonic-poll", "unseen",
)  # fmt: skip


def analyse(history: History, message_of: Mapping[Place, Place]) -> dict[str, list[Place]]:
    """Return, by the name of the check, the records of the input that each finding is about; pure."""
    found: dict[str, list[Place]] = {name: [] for name in CHECKS}
    if (copied := history.copied) is None:
        return found
    _judge_writes(copied, found)
    of_partition: dict[int, list[int]] = defaultdict(list)
    for partition, offset in sorted(copied.log):
        of_partition[partition].append(offset)
    for sequence in _by(copied.polls, lambda each: (each.reader, each.partition)):
        _judge_polls(
            sequence,
            lambda low, after: [
                (after.partition, offset)
                for offset in _between(of_partition[after.partition], low, after.offset)
            ],
            lambda place: _source(copied.log.get(place), place),
            found,
        )
    _judge_deliveries(history, copied, message_of, found)
    return found


def _judge_writes(copied: Copies, found: dict[str, list[Place]]) -> None:
    places: dict[Call, list[Place]] = defaultdict(list)
    for place, write in copied.log.items():
        places[write].append(place)
    found["duplicate"] = [_source(write) for write, at in places.items() if len(at) > 1]
    # A record that was read is known by its place; one that is there no more was read all the same.
    read = {copied.log[place] for place in map(_place, copied.polls) if place in copied.log}
    found["lost-write"] = [
        place for place in dict.fromkeys(map(_place, copied.polls)) if place not in copied.log
    ]
    found["aborted-read"] = [
        _source(end.write) for end in copied.ends if not end.is_committed and end.write in places
    ]
    newest: dict[tuple[str, int], int] = {}
    for end in copied.ends:
        if end.write in read:
            lane = end.write.run, end.write.partition
            newest[lane] = max(end.transaction, newest.get(lane, 0))
    for end in copied.ends:
        if end.is_committed and end.write not in read:
            is_passed = end.transaction < newest.get((end.write.run, end.write.partition), 0)
            if not is_passed:
                found["unseen"].append(_source(end.write))
            elif end.write not in places:
                found["lost-write"].append(_source(end.write))


def _judge_polls(
    sequence: Sequence[Delivery],
    skipped: Callable[[int, Delivery], Iterable[Place]],
    source: Callable[[Place], Place],
    found: dict[str, list[Place]],
) -> None:
    """Judge what one reader got of one partition, without an event in between after which it may begin anew.

    ``skipped``: returns the records between an offset and a delivery that the reader must not go past.
    """
    high = sequence[0].offset
    for before, after in pairwise(sequence):
        within = "int-" if before.poll == after.poll else ""
        if after.offset <= before.offset:
            found[f"{within}nonmonotonic-poll"].append(source(_place(after)))
        found[f"{within}poll-skip"] += map(source, skipped(high, after))
        high = max(high, after.offset)


def _judge_deliveries(
    history: History, copied: Copies, message_of: Mapping[Place, Place], found: dict[str, list[Place]]
) -> None:
    log: dict[tuple[int, str], list[int]] = defaultdict(list)
    for record in sorted(history.log):
        log[record.partition, ""].append(record.offset)
        log[record.partition, (record.key or b"").decode()].append(record.offset)
    handled_ns: dict[Place, int] = {}
    for call in copied.log.values():
        message = message_of.get(_source(call), _source(call))
        handled_ns[message] = min(call.ended_ns, handled_ns.get(message, call.ended_ns))
    given_ns: dict[tuple[str, Place], int] = {}
    for each in copied.deliveries:
        owned = each.reader, message_of.get(_place(each), _place(each))
        given_ns[owned] = min(each.at_ns, given_ns.get(owned, each.at_ns))

    def skipped(low: int, after: Delivery) -> Iterable[Place]:
        for offset in _between(log[after.partition, after.key], low, after.offset):
            place = after.partition, offset
            message = message_of.get(place, place)
            known_ns = (handled_ns.get(message), given_ns.get((after.reader, message)))
            if not any(at_ns is not None and at_ns <= after.at_ns for at_ns in known_ns):
                yield place

    notices = _by(history.notices, lambda each: each.run)
    resets = {each[0].run: sorted(each, key=lambda notice: notice.at_ns) for each in notices}
    for sequence in _by(copied.deliveries, lambda each: (each.reader, each.partition, each.key)):
        reader, partition = sequence[0].reader, sequence[0].partition
        own = [notice for notice in resets.get(reader, []) if partition in notice.partitions]
        for kept in _assignments(sequence, own):
            _judge_polls(kept, skipped, lambda place: place, found)


def _assignments(sequence: Sequence[Delivery], notices: Sequence[Notice]) -> Iterable[Sequence[Delivery]]:
    """Cut what a run got of a partition where it was assigned, revoked or lost, or where its transaction was aborted.

    Of a handler on a thread of its own, which may begin before a notice and be noted after it, those are left out that
    are too near.
    """
    times = [notice.at_ns for notice in notices]
    parts: dict[int, list[Delivery]] = defaultdict(list)
    for each in sequence:
        at = bisect_right(times, each.at_ns)
        late = each.key and at and each.at_ns - times[at - 1] < HAND_OVER_NS
        if not late and (at == 0 or notices[at - 1].kind in {"assigned", "aborted"}):
            parts[at].append(each)
    return parts.values()


def _by(items: Iterable[T], name: Callable[[T], K]) -> Iterable[list[T]]:
    grouped: dict[K, list[T]] = defaultdict(list)
    for item in items:
        grouped[name(item)].append(item)
    return grouped.values()


def _between(offsets: Sequence[int], low: int, high: int) -> Sequence[int]:
    """Return those of sorted offsets that lie between two others."""
    return offsets[bisect_right(offsets, low) : bisect_left(offsets, high)]


def _place(delivery: Delivery) -> Place:
    return delivery.partition, delivery.offset


def _source(write: Call | None, place: Place = (0, 0)) -> Place:
    """Return the record of the input that a write is about; ``place``: of a write that is there no more."""
    return place if write is None else (write.partition, write.offset)
