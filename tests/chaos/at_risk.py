"""Messages that faults may have doubled: a bound for the oracle.

at risk
    messages that a crash or a takeover may double, and no others: those the run had in hand, and those completed
    implicitly since the last write (at most a batch, or a tenth of a second); on another disk also those not
    committed. Where a memory is shared, those handled while that was away; that it refused late completions of
    a run explains nothing by itself: a run that lives keeps its claims. So are messages of worker threads
    when a partition goes: the consumer does not wait for them. And handled records of a unit that is not over
    then.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence

from tests.chaos.history import (
    Away,
    Call,
    Crash,
    Excuse,
    Forget,
    History,
    Notice,
    Outage,
    Place,
    Rewind,
    Takeover,
)
from tests.chaos.safety import Safety

IMPLICIT_BATCH_RECORDS = 1_000
"""How many records a consumer completes implicitly in one durable step, at most."""
IMPLICIT_NS = 100_000_000
"""Nanoseconds after which a consumer writes implicit completions."""
GRACE_NS = 50_000_000
"""Nanoseconds between a worker's note and its consumer's step."""
STALL_NS = 500_000_000
"""Nanoseconds for which a busy machine may not run a process between two steps of its."""
HAND_OVER_NS = 1_000_000_000
"""Nanoseconds in which worker threads may still begin a call, while their consumer hands a partition over."""
LEFT_NS = 20_000_000_000
"""Nanoseconds in which a batch is handled that was judged, and not claimed, while a shared memory was away."""
TOLD_WITHIN_NS = 3_000_000_000
"""Nanoseconds after which a run that is back and was told nothing has kept its partitions."""


def messages_at_risk(history: History, message_of: Mapping[Place, Place]) -> list[set[Place]]:
    """Return, for each fault, the messages that may have one more call because of it.

    ``message_of``: each record's message.
    """
    by_run: dict[str, list[Call]] = defaultdict(list)
    for call in sorted(history.calls, key=lambda each: each.ended_ns):
        by_run[call.run].append(call)
    safety = Safety(history)
    gone = [notice for notice in history.notices if notice.kind == "revoked"]
    return [
        *(
            _by_excuse(history, excuse, safety, message_of, by_run)
            | _cut_by(history, excuse, message_of, by_run)
            for excuse in history.excuses
        ),
        *(_cut_by(history, notice, message_of, by_run) for notice in gone),
        *_outlived(history, message_of, by_run),
        *_put_out(history, safety, message_of, by_run),
        *_late(history, message_of),
    ]


def _by_excuse(
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
                if call.ended_ns >= excuse.at_ns - IMPLICIT_NS - GRACE_NS
                if call.began_ns <= excuse.until_ns + (LEFT_NS if "shared-outage" in call.verdict else 0)
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
    """Return the handled records of units that were not over when a run ended, or a partition went.

    Such a unit comes again whole. So does one whose end may not have been written when the run ended: the records of a
    unit are completed when the last of them is.
    """
    if not history.unit_span or not isinstance(end, Crash | Notice):
        return set()
    before = [call for call in by_run.get(end.run, []) if call.ended_ns <= end.at_ns + GRACE_NS]
    written: dict[int, int] = {}
    for call in before:
        written[call.partition] = max(call.offset, written.get(call.partition, 0))
    if isinstance(end, Crash):
        for call in _in_doubt(before):
            written[call.partition] = min(call.offset, written[call.partition])
    places = [
        (call.partition, call.offset)
        for call in before
        if call.offset > written[call.partition] - history.unit_span
        if isinstance(end, Crash) or call.partition in end.partitions
    ]
    return {message_of.get(place, place) for place in places}


def _put_out(
    history: History, safety: Safety, message_of: Mapping[Place, Place], by_run: Mapping[str, list[Call]]
) -> list[set[Place]]:
    """Return the work that a run could not commit.

    There is an entry for each time that the group put it out, or refused its last commit.
    """
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
    """Return, for each time that partitions went, the messages in work just then, and those finished above them.

    The commit stops at the first message in hand; messages above it are known to this run's disk only.
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

    No store has to know that sighting any more, although the record's own time is near to it: older sightings than a
    window are collected, and a record that hangs on it is delivered as unverified.
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


def _in_doubt(calls: Sequence[Call]) -> list[Call]:
    """Return the calls, in order, whose completion may not have been written when the run ended.

    Those of the last list (of one, as a rule), and those ended within a tenth of a second before the end of the one
    before it: after that one the consumer looked whether it was time to write. When the last began says nothing,
    on a machine that is busy.
    """
    if not calls:
        return []
    earlier = calls[: bisect_right(calls, calls[-1].began_ns, key=lambda call: call.ended_ns)]
    looked_ns = earlier[-1].ended_ns if earlier else calls[-1].began_ns
    since_ns = max(looked_ns, calls[-1].began_ns - STALL_NS) - IMPLICIT_NS - GRACE_NS
    return [call for call in calls[-IMPLICIT_BATCH_RECORDS:] if call.ended_ns >= since_ns]
