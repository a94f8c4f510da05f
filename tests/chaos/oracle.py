"""The judge of messages lost, doubled, out of order, or committed too early. It knows nothing of stores and verdicts.

Which records are one message the naive log says (`tests.support.naive_log`), as in all tests of lookups. The rest is no
prediction of verdicts: it judges runs of processes from outside, by the calls of their handlers and the commits.

message
    handled once: the records of one partition that bear the same ID, each no later than a
    window after the one before it; of all partitions where a memory is shared. A record without an ID is a message
    by itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.analysis import analyse
from tests.chaos.at_risk import HAND_OVER_NS, messages_at_risk
from tests.chaos.evidence import evidence
from tests.chaos.history import (
    BEFORE_A_RESTORE,
    ByKey,
    Call,
    Forget,
    History,
    LogRecord,
    Place,
    Rewind,
    Sample,
    Skip,
)
from tests.support.naive_log import Entry, read_log

_EXAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The findings of the oracle; all are counts, and a promise was broken unless those of `broken` are zero.

    Attributes:
        records: in the log.
        messages: in the log, see the module.
        handled: calls of handlers.
        lost: messages that no handler saw.
        doubled: calls beyond the first of their message.
        doubled_bound: how many calls the faults could have doubled.
        unexplained: doubled calls that no fault explains.
        disordered: first calls of a key that came before those of its earlier records.
        premature: records that were committed before a handler was done with their message.
        trespassed: calls that began after their run was told that the partition is not its own.
        unsettled: records that were not committed although all was done.
        regressed: commits below an earlier one, of a partition whose offsets nobody set.
        unsent: IDs that were in the sender's outbox, or that bridges had to bring, and are not in the log.
        unpersisted: records whose ID was never in the sender's outbox, nor one that bridges had to bring: a resend
            would bear another one.
        recopied: records beyond those that bridges had to bring, by their IDs, where each is copied once.
        analysed: the findings of the checks of published analyses, by name (see `tests.chaos.analysis`).
        examples: a few of the faults, with all that is known of it (see `evidence`).
    """

    records: int
    messages: int
    handled: int
    lost: int
    doubled: int
    doubled_bound: int
    unexplained: int
    disordered: int
    premature: int
    trespassed: int
    unsettled: int
    regressed: int
    unsent: int = 0
    unpersisted: int = 0
    recopied: int = 0
    analysed: Mapping[str, int] = field(default_factory=dict)
    examples: tuple[str, ...] = ()

    def broken(self) -> dict[str, int]:
        """Return the promises that were broken, by name, with how often."""
        names = (
            "lost",
            "unexplained",
            "disordered",
            "premature",
            "trespassed",
            "unsettled",
            "regressed",
            "unsent",
            "unpersisted",
            "recopied",
        )
        found = {name: getattr(self, name) for name in names} | dict(self.analysed)
        return {name: count for name, count in found.items() if count}


def judge(history: History) -> Judgement:
    """Judge a history; pure."""
    message_of = messages(history.log, history.window_ms, everywhere=history.everywhere)
    calls: dict[Place, list[Call]] = defaultdict(list)
    for call in history.calls:
        # A call of a record that the log does not have cannot be a message's: it stands for itself.
        place = (call.partition, call.offset)
        calls[message_of.get(place, place)].append(call)
    skipped = {place for place in message_of if any(skip.concerns(place) for skip in history.skips)}
    called = {(call.partition, call.offset) for call in history.calls}
    doubled = {message: len(each) - 1 for message, each in calls.items() if len(each) > 1}
    at_risk = [] if history.exactly else messages_at_risk(history, message_of)
    excused = Counter(message for messages in at_risk for message in messages)
    unexplained = {m: over for m, extra in doubled.items() if (over := extra - excused[m]) > 0}
    regressed = _regressed(history)
    wrong = {
        "lost": sorted(
            unhandled(history.log, message_of, called, skips=history.skips, by_key=history.by_key)
        ),
        "unexplained": sorted(unexplained),
        "disordered": _disordered(history, calls) if history.ordered else [],
        "premature": _premature(
            history,
            message_of,
            calls,
            skipped
            | _given_up(history, message_of)
            | _hidden_by_key(history.log, called, history.by_key)
            | {(r.partition, r.offset) for r in history.log if r.rejected},
        ),
        "trespassed": [] if history.exactly else _trespassed(history),
        "unsettled": _unsettled(history),
        "regressed": [(sample.partition, sample.offset) for sample in regressed],
        "unpersisted": [
            (record.partition, record.offset)
            for record in history.log
            if history.persisted is not None and record.ident not in history.persisted
        ],
    }
    analysed = analyse(history, message_of)
    went_back_ns = {(sample.partition, sample.offset): sample.at_ns for sample in regressed}
    counts = {what: len(places) for what, places in wrong.items()}
    return Judgement(
        records=len(history.log),
        messages=len(set(message_of.values())),
        handled=len(history.calls),
        doubled=sum(doubled.values()),
        doubled_bound=sum(map(len, at_risk)),
        recopied=_recopied(history),
        unsent=len(set(history.persisted or ()) - {record.ident for record in history.log}),
        **{**counts, "unexplained": sum(unexplained.values())},
        analysed={name: len(places) for name, places in analysed.items()},
        examples=tuple(
            evidence(
                what,
                history,
                message_of.get(place, place),
                message_of,
                went_back_ns[place] if what == "regressed" else None,
            )
            for what, places in [*wrong.items(), *analysed.items()]
            for place in places[:_EXAMPLES]
        ),
    )


def messages(log: Iterable[LogRecord], window_ms: int, *, everywhere: bool = False) -> dict[Place, Place]:
    """Return each record's message, by its first record; ``everywhere``: in whichever partition."""
    places = sorted(((record.partition, record.offset), record) for record in log)
    # The place in this order stands for the offset, so that one reading judges all partitions.
    entries = [
        Entry(at, _name(record, everywhere=everywhere), record.timestamp_ms)
        for at, (_, record) in enumerate(places)
    ]
    duplicates = read_log(entries, window_ms, None).duplicates
    found: dict[Place, Place] = {}
    for at, (place, _) in enumerate(places):
        seen = duplicates.get(at)
        found[place] = place if seen is None else found[places[seen.offset][0]]
    return found


def _name(record: LogRecord, *, everywhere: bool) -> str | None:
    """Return the ID of a record together with the partition that it is judged in."""
    if record.ident is None:
        return None
    return f"{-1 if everywhere else record.partition % BEFORE_A_RESTORE}/{record.ident.hex()}"


def unhandled(
    log: Iterable[LogRecord],
    message_of: Mapping[Place, Place],
    calls: Collection[Place],
    *,
    skips: Sequence[Skip],
    by_key: Sequence[ByKey],
) -> set[Place]:
    """Return the messages that nobody handled, though they were to be.

    Those with a record that nobody skipped for good, nor hid for its key. ``calls``: the records that handlers
    were called with.
    """
    final = [skip for skip in skips if not skip.taken_back]
    hidden = _hidden_by_key(log, calls, by_key)
    expected = {
        message
        for place, message in message_of.items()
        if place not in hidden and not any(skip.concerns(place) for skip in final)
    }
    return expected - {message_of.get(place, place) for place in calls}


def _hidden_by_key(log: Iterable[LogRecord], calls: Collection[Place], by_key: Sequence[ByKey]) -> set[Place]:
    """Return the records that may be hidden because one with their key was handled before them."""
    if not by_key:
        return set()
    handled: set[tuple[int, bytes]] = set()
    hidden: set[Place] = set()
    for record in sorted(log, key=lambda each: (each.partition, each.offset)):
        if record.key is None:
            continue
        keyed = record.partition, record.key
        if keyed in handled and any(
            each.partition == record.partition and each.low <= record.offset < each.high for each in by_key
        ):
            hidden.add((record.partition, record.offset))
        if (record.partition, record.offset) in calls:
            handled.add(keyed)
    return hidden


def _given_up(history: History, message_of: Mapping[Place, Place]) -> set[Place]:
    """Return the records of messages that became dead letters.

    These are ends, so that copies of them are duplicates.
    """
    given_up = {message_of.get(place, place) for place in history.given_up}
    return {place for place, message in message_of.items() if message in given_up}


def _disordered(history: History, calls: Mapping[Place, list[Call]]) -> list[Place]:
    key_of = {(record.partition, record.offset): record.key for record in history.log}
    rewound = [excuse for excuse in history.excuses if isinstance(excuse, Rewind)]
    firsts: dict[tuple[int, bytes], list[Call]] = defaultdict(list)
    for each in calls.values():
        first = min(each, key=lambda call: call.began_ns)
        key = key_of.get((first.partition, first.offset))
        if key is not None and not any(r.partition == first.partition for r in rewound):
            firsts[first.partition, key].append(first)
    found: list[Place] = []
    for of_key in firsts.values():
        of_key.sort(key=lambda call: call.began_ns)
        highest = -1
        for call in of_key:
            if call.offset < highest:
                found.append((call.partition, call.offset))
            highest = max(highest, call.offset)
    return found


def _premature(
    history: History,
    message_of: Mapping[Place, Place],
    calls: Mapping[Place, list[Call]],
    skipped: set[Place],
) -> list[Place]:
    """Return the records that some sample of the commits passed before any call of their message had returned."""
    done_ns = {message: min(call.ended_ns for call in each) for message, each in calls.items()}
    rising: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for sample in sorted(history.samples):
        steps = rising[sample.partition]
        if not steps or sample.offset > steps[-1][0]:
            steps.append((sample.offset, sample.at_ns))
    found: list[Place] = []
    for place, message in message_of.items():
        steps = rising.get(place[0], [])
        index = bisect_left(steps, place[1] + 1, key=lambda step: step[0])
        early = index < len(steps) and steps[index][1] < done_ns.get(message, steps[index][1] + 1)
        if early and place not in skipped:
            found.append(place)
    return found


def _trespassed(history: History) -> list[Place]:
    notices: dict[tuple[str, int], list[tuple[int, bool]]] = defaultdict(list)
    for notice in sorted(history.notices, key=lambda each: each.at_ns):
        for partition in notice.partitions:
            notices[notice.run, partition].append((notice.at_ns, notice.kind == "assigned"))
    found: list[Place] = []
    for call in history.calls:
        known = notices.get((call.run, call.partition), [])
        index = bisect_left(known, call.began_ns, key=lambda each: each[0]) - 1
        late_ns = call.began_ns - known[index][0] if index >= 0 else 0
        if index >= 0 and not known[index][1] and late_ns > (HAND_OVER_NS if history.threads else 0):
            found.append((call.partition, call.offset))
    return found


def _unsettled(history: History) -> list[Place]:
    if history.settled is None:
        return []
    return [
        (record.partition, record.offset)
        for record in history.log
        if record.offset >= history.settled.get(record.partition, 0)
    ]


def _regressed(history: History) -> list[Sample]:
    set_by_hand = {each.partition for each in history.excuses if isinstance(each, Rewind | Forget)}
    highest: dict[int, int] = {}
    found: list[Sample] = []
    for sample in sorted(history.samples):
        if sample.offset < highest.get(sample.partition, -1) and sample.partition not in set_by_hand:
            found.append(sample)
        # From there on it may rise again: that is no news.
        highest[sample.partition] = sample.offset
    return found


def _recopied(history: History) -> int:
    if history.copies is None:
        return 0
    there = Counter(record.ident for record in history.log if record.ident is not None)
    return sum(max(0, count - history.copies.get(ident, 0)) for ident, count in there.items())
