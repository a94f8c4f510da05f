"""The judge: what was lost, doubled, out of order, or committed too early. It knows nothing of stores and verdicts.

message
    what the application should see once: the records of one partition that bear the same ID, each no later than a window
    after the one before it; of all partitions where a memory is shared. A record without an ID is a message by itself.
at risk
    messages that a crash or a takeover may double, and no others: what the run had in hand, and what it had completed
    implicitly since the last write (at most a batch, or a tenth of a second); on another disk also what was not committed.
    Where a memory is shared, what was handled while that was away, and what it refused to take for completed by two.
    So is what worker threads have in hand when a partition goes: the consumer does not wait for them. And what was handled of a unit
    that is not over then.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.chaos.evidence import evidence
from tests.chaos.history import (
    Away,
    Call,
    Crash,
    Excuse,
    Forget,
    History,
    LogRecord,
    Notice,
    Outage,
    Rewind,
    Sample,
    Takeover,
)
from tests.chaos.safety import Safety

IMPLICIT_BATCH_RECORDS = 1_000
"""How many records a consumer completes implicitly in one durable step, at most."""
IMPLICIT_NS = 100_000_000
"""Nanoseconds after which a consumer writes what was completed implicitly."""
GRACE_NS = 50_000_000
"""Nanoseconds between what a worker notes and what happens in its consumer."""
STALL_NS = 500_000_000
"""Nanoseconds for which a busy machine may not run a process between two steps of its."""
HAND_OVER_NS = 1_000_000_000
"""Nanoseconds in which worker threads may still begin a call, while their consumer hands a partition over."""
TOLD_WITHIN_NS = 3_000_000_000
"""Nanoseconds after which a run that is back and was told nothing has kept its partitions."""
_EXAMPLES = 3

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the oracle found; all are counts, and a promise was broken unless those of `broken` are zero.

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
        unpersisted: records whose ID was never in the sender's outbox, nor one that bridges had to bring: a resend would bear another one.
        recopied: records beyond those that bridges had to bring, by their IDs, where each is copied once.
        examples: a few of what is wrong, with all that is known of it (see `evidence`).
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
        return {name: count for name in names if (count := getattr(self, name))}


def judge(history: History) -> Judgement:
    """Judge a history; pure."""
    message_of = messages(history.log, history.window_ms, everywhere=history.everywhere)
    calls: dict[Place, list[Call]] = defaultdict(list)
    for call in history.calls:
        # A call of a record that the log does not have cannot be a message's: it stands for itself.
        place = (call.partition, call.offset)
        calls[message_of.get(place, place)].append(call)
    skipped = {place for place in message_of if _is_skipped(history, place)}
    expected = {message for place, message in message_of.items() if place not in skipped}
    doubled = {message: len(each) - 1 for message, each in calls.items() if len(each) > 1}
    by_run: dict[str, list[Call]] = defaultdict(list)
    for call in sorted(history.calls, key=lambda each: each.ended_ns):
        by_run[call.run].append(call)
    safety = Safety(history)
    at_risk: list[set[Place]] = []
    if not history.exactly:
        at_risk = [
            _at_risk(history, excuse, safety, message_of, by_run)
            | _cut_by(history, excuse, message_of, by_run)
            for excuse in history.excuses
        ]
        gone = [notice for notice in history.notices if notice.kind == "revoked"]
        at_risk += [_cut_by(history, notice, message_of, by_run) for notice in gone]
        at_risk += _outlived(history, message_of, by_run)
        at_risk += _put_out(history, safety, message_of, by_run)
        at_risk += _late(history, message_of)
        at_risk += _refused(history, message_of)
    excused = Counter(message for messages in at_risk for message in messages)
    unexplained = {m: over for m, extra in doubled.items() if (over := extra - excused[m]) > 0}
    regressed = _regressed(history)
    wrong = {
        "lost": sorted(expected - set(calls)),
        "unexplained": sorted(unexplained),
        "disordered": _disordered(history, calls) if history.ordered else [],
        "premature": _premature(history, message_of, calls, skipped | set(history.given_up)),
        "trespassed": [] if history.exactly else _trespassed(history),
        "unsettled": _unsettled(history),
        "regressed": [(sample.partition, sample.offset) for sample in regressed],
        "unpersisted": [
            (record.partition, record.offset)
            for record in history.log
            if history.persisted is not None and record.ident not in history.persisted
        ],
    }
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
        examples=tuple(
            evidence(
                what,
                history,
                message_of.get(place, place),
                message_of,
                went_back_ns[place] if what == "regressed" else None,
            )
            for what, places in wrong.items()
            for place in places[:_EXAMPLES]
        ),
    )


def messages(log: Iterable[LogRecord], window_ms: int, *, everywhere: bool = False) -> dict[Place, Place]:
    """Return each record's message, by its first record; ``everywhere``: in whichever partition."""
    found: dict[Place, Place] = {}
    last: dict[tuple[int, bytes], tuple[Place, int]] = {}
    for record in sorted(log, key=lambda each: (each.partition, each.offset)):
        place = (record.partition, record.offset)
        message = place
        if record.ident is not None:
            lane = (-1 if everywhere else record.partition, record.ident)
            seen = last.get(lane)
            if seen is not None and record.timestamp_ms - seen[1] <= window_ms:
                message = seen[0]
            last[lane] = (message, record.timestamp_ms)
        found[place] = message
    return found


def _at_risk(
    history: History,
    excuse: Excuse,
    safety: Safety,
    message_of: Mapping[Place, Place],
    by_run: Mapping[str, list[Call]],
) -> set[Place]:
    """Return the messages that may have one more call because of this."""
    if isinstance(excuse, Rewind):
        return {
            message
            for (partition, offset), message in message_of.items()
            if partition == excuse.partition and excuse.low <= offset < excuse.high
        }
    if isinstance(excuse, Away):
        return {
            message_of.get(place, place)
            for place in (
                (call.partition, call.offset)
                for calls in by_run.values()
                for call in calls
                if call.ended_ns >= excuse.at_ns - IMPLICIT_NS - GRACE_NS and call.began_ns <= excuse.until_ns
            )
        }
    if isinstance(excuse, Forget):
        of_partition = [(o, message) for (p, o), message in message_of.items() if p == excuse.partition]
        before_it = {message for offset, message in of_partition if offset < excuse.offset}
        return before_it & {message for offset, message in of_partition if offset >= excuse.offset}
    own = by_run.get(excuse.run, [])
    before = own[: bisect_left(own, excuse.at_ns, key=lambda call: call.ended_ns)]
    risky = _in_doubt(before)
    if isinstance(excuse, Outage):
        risky += [call for call in own[len(before) :] if call.began_ns <= excuse.until_ns]
    elif excuse.committed is not None:
        safe = {
            partition: safety.at_most(excuse.committed, excuse.run, partition, excuse.at_ns)
            for partition in {call.partition for call in before}
        }
        risky += [call for call in before if call.offset >= safe[call.partition]]
    if isinstance(excuse, Takeover):
        told = [n.at_ns for n in history.notices if n.run == excuse.run and n.kind in {"revoked", "lost"}]
        last_ns = excuse.until_ns + TOLD_WITHIN_NS
        heard_ns = min((at_ns for at_ns in told if excuse.at_ns < at_ns <= last_ns), default=excuse.until_ns)
        risky += [call for call in own[len(before) :] if call.began_ns <= heard_ns]
    places = [(call.partition, call.offset) for call in risky]
    return {message_of.get(place, place) for place in places}


def _cut_by(
    history: History,
    end: Excuse | Notice,
    message_of: Mapping[Place, Place],
    by_run: Mapping[str, list[Call]],
) -> set[Place]:
    """Return what was handled of units that were not over when a run ended, or a partition went: such a unit comes again whole."""
    if not history.unit_span or not isinstance(end, Crash | Notice):
        return set()
    highest: dict[int, int] = {}
    before = [call for call in by_run.get(end.run, []) if call.ended_ns <= end.at_ns + GRACE_NS]
    for call in before:
        highest[call.partition] = max(call.offset, highest.get(call.partition, 0))
    places = [
        (call.partition, call.offset)
        for call in before
        if call.offset > highest[call.partition] - history.unit_span
        if isinstance(end, Crash) or call.partition in end.partitions
    ]
    return {message_of.get(place, place) for place in places}


def _put_out(
    history: History, safety: Safety, message_of: Mapping[Place, Place], by_run: Mapping[str, list[Call]]
) -> list[set[Place]]:
    """Return, for each time that the group put a run out, or refused its last commit, what it had done and could not commit."""
    found: list[set[Place]] = []
    for notice in history.notices:
        if notice.kind in {"lost", "refused"}:
            own = [call for call in by_run.get(notice.run, []) if call.ended_ns <= notice.at_ns]
            concerned = notice.partitions or {call.partition for call in own}
            safe = {partition: safety.safe(notice.run, partition, notice.at_ns) for partition in concerned}
            risky = [call for call in own if call.partition in safe and call.offset >= safe[call.partition]]
            found.append({message_of.get(p, p) for p in ((call.partition, call.offset) for call in risky)})
    return found


def _outlived(
    history: History, message_of: Mapping[Place, Place], by_run: Mapping[str, list[Call]]
) -> list[set[Place]]:
    """Return, for each time that partitions went, what was at work just then, and what was finished above it.

    The commit stops at the first message in hand; what lies above it is known to this run's disk only.
    """
    found: list[set[Place]] = []
    samples = sorted(history.samples)
    for notice in history.notices:
        if notice.kind != "assigned" and history.threads:
            own = by_run.get(notice.run, [])
            safe = {
                sample.partition: sample.offset
                for sample in samples[: bisect_left(samples, notice.at_ns, key=lambda sample: sample.at_ns)]
            }
            places = [
                (call.partition, call.offset)
                for call in own
                if call.partition in notice.partitions and call.began_ns <= notice.at_ns + HAND_OVER_NS
                if call.ended_ns >= notice.at_ns - GRACE_NS or call.offset >= safe.get(call.partition, 0)
            ]
            found.append({message_of.get(place, place) for place in places})
    return found


def _late(history: History, message_of: Mapping[Place, Place]) -> list[set[Place]]:
    """Return, for each record whose ID was seen last a window or longer before the newest time then known, its message.

    No store has to know that sighting any more, although the record's own time is near to it: what is older than a window is
    collected, and a record that hangs on it is delivered as unverified.
    """
    found: list[set[Place]] = []
    newest_ms: dict[int, int] = {}
    sightings: dict[Place, int] = {}
    for record in sorted(history.log, key=lambda each: (each.partition, each.offset)):
        place = (record.partition, record.offset)
        message, newest = message_of[place], newest_ms.get(record.partition, -1)
        if message in sightings and sightings[message] < newest - history.window_ms:
            found.append({message})
        sightings[message] = record.timestamp_ms
        newest_ms[record.partition] = max(newest, min(record.timestamp_ms, history.now_ms))
    return found


def _refused(history: History, message_of: Mapping[Place, Place]) -> list[set[Place]]:
    """Return, for each completion that the shared memory refused, its message: its lease was over, and another run had it."""
    by_id = {
        record.ident: message_of[record.partition, record.offset]
        for record in history.log
        if record.ident is not None
    }
    return [{by_id[ident]} for ident in history.refused if ident in by_id]


def _in_doubt(calls: Sequence[Call]) -> list[Call]:
    """Return the calls, in order, whose completion may not have been written when the run ended.

    Those of the last list (of one, as a rule), and what ended within a tenth of a second before the end of the one before it: after
    that one the consumer looked whether it was time to write. When the last began says nothing, on a machine that is busy.
    """
    if not calls:
        return []
    earlier = calls[: bisect_right(calls, calls[-1].began_ns, key=lambda call: call.ended_ns)]
    looked_ns = earlier[-1].ended_ns if earlier else calls[-1].began_ns
    since_ns = max(looked_ns, calls[-1].began_ns - STALL_NS) - IMPLICIT_NS - GRACE_NS
    return [call for call in calls[-IMPLICIT_BATCH_RECORDS:] if call.ended_ns >= since_ns]


def _is_skipped(history: History, place: Place) -> bool:
    return any(skip.partition == place[0] and skip.low <= place[1] < skip.high for skip in history.skips)


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
