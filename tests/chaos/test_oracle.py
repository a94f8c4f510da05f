from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.at_risk import IMPLICIT_BATCH_RECORDS
from tests.chaos.history import (
    BEFORE_A_RESTORE,
    Away,
    ByKey,
    Call,
    Crash,
    Forget,
    History,
    LogRecord,
    Notice,
    Outage,
    Rewind,
    Sample,
    Skip,
    Takeover,
)
from tests.chaos.oracle import judge

_MS = 1_000_000
_S = 1_000 * _MS
_WINDOW_MS = 60_000


def log(
    *idents: str | None, partition: int = 0, step_ms: int = 1, key: bytes | None = None
) -> list[LogRecord]:
    """Records of one partition, from offset 0 on."""
    return [
        LogRecord(partition, offset, offset * step_ms, key, None if ident is None else ident.encode())
        for offset, ident in enumerate(idents)
    ]


def call(offset: int, at_ms: int, run: str = "a", partition: int = 0) -> Call:
    """A call that took a millisecond."""
    return Call(run, partition, offset, (at_ms - 1) * _MS, at_ms * _MS)


def broken(records: list[LogRecord], calls: list[Call], **others: Any) -> dict[str, int]:
    """The promises broken, by the oracle."""
    return judge(History(log=records, calls=calls, window_ms=_WINDOW_MS, **others)).broken()


def test_each_message_once_is_all_that_is_promised() -> None:
    """A topic whose duplicates were hidden keeps every promise."""
    records = log("x", "y", "x", None, None)
    calls = [call(0, 10), call(1, 11), call(3, 12), call(4, 13)]
    assert broken(records, calls, samples=[Sample(20 * _MS, 0, 5)], settled={0: 5}) == {}


@pytest.mark.parametrize(("taken_back", "found"), [(False, {}), (True, {"lost": 1})])
def test_what_an_operator_skipped_and_went_back_over_is_to_be_handled(
    *, taken_back: bool, found: dict[str, int]
) -> None:
    """It was committed before, which is no fault of anybody's."""
    skip = Skip(partition=0, low=0, high=2, taken_back=taken_back)
    samples = [Sample(5 * _MS, 0, 2), Sample(20 * _MS, 0, 3)]
    assert broken(log("x", "y", "z"), [call(0, 10), call(2, 11)], samples=samples, skips=[skip]) == found


def test_what_was_hidden_for_its_key_is_lost_where_only_its_id_counts() -> None:
    """Behind the change of the ID spec nothing is hidden for its key, nor before one with that key was handled."""
    records = log("x", "y", "y", key=b"k")
    to_the_change = [ByKey(partition=0, low=0, high=2)]
    samples = [Sample(5 * _MS, 0, 0), Sample(20 * _MS, 0, 3)]
    assert broken(records[:2], [call(0, 10)], by_key=to_the_change, samples=samples) == {}
    assert broken(records[:2], [call(1, 10)], by_key=to_the_change) == {"lost": 1}
    assert broken(records[:2], [call(0, 10)]) == {"lost": 1}
    assert broken(records, [call(0, 10)], by_key=to_the_change) == {"lost": 1}
    assert broken(records, [call(0, 10), call(2, 11)], by_key=to_the_change, samples=samples) == {}


def test_a_message_that_nobody_handled_is_lost() -> None:
    """An ID without a call is lost, and so is a record without an ID."""
    assert broken(log("x", "y", None), [call(0, 10)]) == {"lost": 2}


def test_a_message_is_handled_whichever_of_its_records_was() -> None:
    """A call of a later record with the same ID is a call of the message."""
    assert broken(log("x", "x"), [call(1, 10)]) == {}


def test_the_same_id_in_two_partitions_is_two_messages() -> None:
    """Each partition is judged by itself."""
    records = [*log("x"), *log("x", partition=1)]
    assert broken(records, [call(0, 10)]) == {"lost": 1}


def test_an_id_beyond_the_window_is_a_message_of_its_own() -> None:
    """A record a window after the last sighting has to be handled again; one within must not."""
    records = log("x", "x", "x", step_ms=_WINDOW_MS + 1)
    assert broken(records, [call(0, 10)]) == {"lost": 2}
    records = log("x", "x", "x", step_ms=_WINDOW_MS)
    assert broken(records, [call(0, 10), call(2, 11)]) == {"unexplained": 1}


def test_a_second_call_wants_a_reason() -> None:
    """A message handled twice without a fault breaks a promise."""
    assert broken(log("x"), [call(0, 10), call(0, 20, run="b")]) == {"unexplained": 1}


def test_a_crash_explains_what_was_in_doubt_and_no_more() -> None:
    """On the same disk only messages completed in the last tenth of a second may come again, once."""
    records = log("x", "y")
    first, second = call(0, 1_000), call(1, 2_000)
    crash = Crash(run="a", at_ns=3 * _S)
    assert broken(records, [first, second, call(1, 4_000, "b")], excuses=[crash]) == {}
    assert broken(records, [first, second, call(0, 4_000, "b")], excuses=[crash]) == {"unexplained": 1}
    twice = [call(1, 4_000, "b"), call(1, 5_000, "c")]
    assert broken(records, [first, second, *twice], excuses=[crash]) == {"unexplained": 1}


def test_a_crash_explains_nothing_of_other_runs() -> None:
    """A kill is no excuse for messages another worker had in hand."""
    calls = [call(0, 1_000, "b"), call(0, 2_000, "c")]
    assert broken(log("x"), calls, excuses=[Crash(run="a", at_ns=3 * _S)]) == {"unexplained": 1}


def test_on_another_disk_what_was_not_committed_may_come_again() -> None:
    """A crash whose successor has another disk explains messages above the commit, and nothing below it."""
    records = log("x", "y", "z")
    calls = [call(0, 1_000), call(1, 2_000), call(2, 3_000)]
    crash = Crash(run="a", at_ns=4 * _S, committed={0: 1})
    assert broken(records, [*calls, call(1, 5_000, "b")], excuses=[crash]) == {}
    assert broken(records, [*calls, call(0, 5_000, "b")], excuses=[crash]) == {"unexplained": 1}


def test_no_more_than_a_batch_may_be_in_doubt() -> None:
    """However quick a handler is: the last 1,000 completions and no more may come again."""
    count = IMPLICIT_BATCH_RECORDS + 1
    records = log(*map(str, range(count)))
    calls = [Call("a", 0, offset, _S, _S + offset) for offset in range(count)]
    again = [Call("b", 0, offset, 2 * _S, 2 * _S + offset) for offset in range(count)]
    history = History(
        log=records, calls=[*calls, *again], window_ms=_WINDOW_MS, excuses=[Crash(run="a", at_ns=2 * _S)]
    )
    assert judge(history).doubled_bound == IMPLICIT_BATCH_RECORDS
    assert judge(history).broken() == {"unexplained": 1}


def test_a_takeover_explains_what_its_victim_did_before_it_knew() -> None:
    """Calls of a run that lost its partitions unknowingly are explained until it was told."""
    takeover = Takeover(run="a", at_ns=1 * _S, until_ns=3 * _S)
    lost = Notice("a", "lost", frozenset({0}), 2 * _S)
    other = call(0, 1_500, "b")
    assert broken(log("x"), [other, call(0, 1_800)], excuses=[takeover], notices=[lost]) == {}
    late = call(0, 2_500)
    assert broken(log("x"), [other, late], excuses=[takeover], notices=[lost]) == {
        "unexplained": 1,
        "trespassed": 1,
    }


def test_an_outage_explains_what_was_handled_meanwhile() -> None:
    """While a disk takes nothing, handled messages may come again; those handled long before, or later, may not."""
    records = log("x", "y", "z")
    calls = [call(0, 1_000), call(1, 3_000), call(2, 6_000)]
    outage = Outage(run="a", at_ns=2 * _S, until_ns=4 * _S)
    assert broken(records, [*calls, call(1, 7_000)], excuses=[outage]) == {}
    assert broken(records, [*calls, call(2, 7_000)], excuses=[outage]) == {"unexplained": 1}


def test_a_handler_that_outlives_its_partition_may_be_repeated() -> None:
    """Messages in a worker's hands when its partition goes may come again; those finished before may not."""
    records = log("x", "y")
    slow = Call("a", 0, 1, 100 * _MS, 300 * _MS)
    gone = Notice("a", "revoked", frozenset({0}), 200 * _MS)
    committed = [Sample(50 * _MS, 0, 1)]
    calls = [call(0, 9), slow]
    assert broken(records, [*calls, call(1, 400, "b")], notices=[gone], samples=committed, threads=True) == {}
    finished = [*calls, call(0, 400, "b")]
    assert broken(records, finished, notices=[gone], samples=committed, threads=True) == {"unexplained": 1}


def test_what_threads_finished_above_a_message_in_hand_may_be_repeated() -> None:
    """On another disk nobody knows the completions above the commit; without threads there is nothing above it."""
    records = log("x", "y")
    calls = [call(1, 10), call(0, 400, "b"), call(1, 401, "b")]
    gone = Notice("a", "revoked", frozenset({0}), 200 * _MS)
    committed = [Sample(150 * _MS, 0, 0)]
    assert broken(records, calls, notices=[gone], samples=committed, threads=True) == {}
    assert broken(records, calls, notices=[gone], samples=committed) == {"unexplained": 1}


def test_a_refused_commit_explains_what_lay_above_the_one_before() -> None:
    """A broker that refuses the commit of partitions that go has uncommitted messages handled again, and no more."""
    records = log("x", "y")
    calls = [call(0, 1_000), call(1, 2_000)]
    refused = Notice("a", "refused", frozenset(), 3 * _S)
    committed = [Sample(1_500 * _MS, 0, 1)]
    more = {"notices": [refused], "samples": committed}
    assert broken(records, [*calls, call(1, 4_000, "b")], **more) == {}
    assert broken(records, [*calls, call(0, 4_000, "b")], **more) == {"unexplained": 1}


def test_a_member_that_was_put_out_explains_what_it_could_not_commit() -> None:
    """Messages not committed when another got its partition may come again, once.

    Those committed, or elsewhere, may not.
    """
    records = [*log("x", "y"), *log("z", partition=1)]
    calls = [call(0, 1_000), call(1, 5_000), call(0, 5_000, partition=1)]
    had = Notice("a", "assigned", frozenset({0, 1}), 0)
    lost = Notice("a", "lost", frozenset({0}), 6 * _S)
    other = Notice("b", "assigned", frozenset({0}), 5_200 * _MS)
    more = {"notices": [had, lost, other], "samples": [Sample(2 * _S, 0, 1), Sample(5_500 * _MS, 0, 2)]}
    again = call(1, 7_000, "b")
    assert broken(records, [*calls, again], **more) == {}
    assert broken(records, [*calls, again, call(1, 8_000, "b")], **more) == {"unexplained": 1}
    assert broken(records, [*calls, call(0, 7_000, "b")], **more) == {"unexplained": 1}
    assert broken(records, [*calls, call(0, 7_000, "b", partition=1)], **more) == {"unexplained": 1}


def test_a_crash_long_after_another_got_the_partition_explains_what_was_not_committed_then() -> None:
    """A worker that is killed before it hears that it was put out had done work that the other's commits lack."""
    records = log("x", "y", "z")
    had = Notice("a", "assigned", frozenset({0}), 0)
    other = Notice("b", "assigned", frozenset({0}), 3 * _S)
    samples = [Sample(1_500 * _MS, 0, 1), Sample(5 * _S, 0, 2)]
    more = {"samples": samples, "excuses": [Crash(run="a", at_ns=6 * _S, committed={0: 2})]}
    calls = [call(0, 1_000), call(1, 2_000), call(2, 2_800), call(1, 4_000, "b")]
    assert broken(records, calls, notices=[had, other], **more) == {}
    assert broken(records, calls, notices=[had], **more) == {"unexplained": 1}
    assert broken(records, [*calls, call(0, 4_500, "b")], notices=[had, other], **more) == {"unexplained": 1}


def test_what_a_busy_machine_delays_is_still_in_doubt() -> None:
    """A call that ended just before the clock was looked at may be unwritten, also when the next call began late."""
    records = log("x", "y", "z")
    calls = [call(0, 1_000), call(1, 1_090), Call("a", 0, 2, 1_400 * _MS, 1_401 * _MS)]
    crash = Crash(run="a", at_ns=2 * _S)
    assert broken(records, [*calls, call(0, 3_000, "b")], excuses=[crash]) == {}
    waited = [*calls[:2], Call("a", 0, 2, 1_900 * _MS, 1_901 * _MS)]
    assert broken(records, [*waited, call(0, 3_000, "b")], excuses=[crash]) == {"unexplained": 1}


def test_a_rewind_explains_one_more_call_of_what_it_covers() -> None:
    """Messages an operator had handled again may be handled again, once."""
    records = log("x", "y")
    calls = [call(0, 10), call(1, 11), call(1, 20)]
    rewind = Rewind(partition=0, low=1, high=2)
    assert broken(records, calls, excuses=[rewind]) == {}
    assert broken(records, [*calls, call(0, 21)], excuses=[rewind]) == {"unexplained": 1}


def test_what_a_restored_broker_lost_is_the_same_message_when_it_is_sent_again() -> None:
    """It need not be handled again, and may be, once; a new record at its offset is a message of its own."""
    lost = log("x", partition=BEFORE_A_RESTORE)
    before, other = call(0, 10, partition=BEFORE_A_RESTORE), log("y", "x")
    assert broken([*lost, *other], [before, call(0, 20)]) == {}
    assert broken([*lost, *other], [before]) == {"lost": 1}
    again = [before, call(0, 20), call(1, 21)]
    assert broken([*lost, *other], again) == {"unexplained": 1}
    restored = Rewind(partition=BEFORE_A_RESTORE, low=0, high=1)
    assert broken([*lost, *other], again, excuses=[restored]) == {}


def test_what_was_forgotten_explains_a_duplicate_across_it() -> None:
    """Where history begins anew, a duplicate of an earlier record may come through once.

    One of a later record may not.
    """
    records = log("x", "y", "x", "y", "z", "z")
    calls = [call(0, 10), call(1, 11), call(4, 14)]
    forget = Forget(partition=0, offset=2)
    assert broken(records, [*calls, call(2, 12)], excuses=[forget]) == {}
    assert broken(records, [*calls, call(5, 15)], excuses=[forget]) == {"unexplained": 1}


def test_a_sighting_older_than_a_window_need_not_be_known() -> None:
    """A duplicate of a record a window before the newest time may come through, once for each.

    One of a record within may not.
    """
    times = {"old": 0, "new": _WINDOW_MS + 1, "edge": 1, "far": 2**50}

    def sent(*names: str) -> list[LogRecord]:
        return [LogRecord(0, at, times[name], None, name.encode()) for at, name in enumerate(names)]

    late = sent("old", "new", "old")
    calls = [call(0, 10), call(1, 11), call(2, 12)]
    assert broken(late, calls) == {}
    assert broken(late, [*calls, call(2, 13)]) == {"unexplained": 1}
    assert broken(sent("old", "old", "new"), calls) == {"unexplained": 1}
    assert broken(sent("edge", "new", "edge"), calls) == {"unexplained": 1}
    # A record from the future pushes nothing: it counts as now.
    assert broken(sent("old", "far", "old"), calls, now_ms=_WINDOW_MS) == {"unexplained": 1}


def test_what_was_skipped_on_purpose_is_not_lost() -> None:
    """Records that an operator jumped over need no call; those around them do."""
    assert broken(log("x", "y"), [], skips=[Skip(partition=0, low=0, high=1)]) == {"lost": 1}


def test_a_commit_may_not_pass_unfinished_work() -> None:
    """A sample that is past a record whose handler had not returned is a promise broken, whoever handles it later."""
    records = log("x", "y")
    calls = [call(0, 10), call(1, 30)]
    assert broken(records, calls, samples=[Sample(20 * _MS, 0, 1)]) == {}
    assert broken(records, calls, samples=[Sample(20 * _MS, 0, 2)]) == {"premature": 1}


def test_a_commit_may_pass_a_duplicate_of_what_was_handled() -> None:
    """The commit goes over hidden records when their message was handled, and not before."""
    records = log("x", "x")
    assert broken(records, [call(0, 10)], samples=[Sample(20 * _MS, 0, 2)]) == {}
    assert broken(records, [call(0, 30)], samples=[Sample(20 * _MS, 0, 2)]) == {"premature": 2}


@pytest.mark.parametrize(("ordered", "expected"), [(True, {"disordered": 1}), (False, {})])
def test_first_calls_of_a_key_keep_its_order(*, ordered: bool, expected: dict[str, int]) -> None:
    """Where handlers run one after the other, a key's messages are handled in the order of the log."""
    assert broken(log("x", "y", key=b"k"), [call(1, 10), call(0, 20)], ordered=ordered) == expected


def test_a_repetition_is_no_disorder() -> None:
    """A message that comes again after a crash came in its place the first time."""
    calls = [call(0, 1_000), call(1, 1_001), call(0, 2_000, "b")]
    crash = Crash(run="a", at_ns=1_500 * _MS)
    assert broken(log("x", "y", key=b"k"), calls, excuses=[crash]) == {}


def test_a_call_after_the_partition_went_is_a_trespass() -> None:
    """After a worker was told that a partition went, it handles nothing of it until it has it again."""
    partitions = frozenset({0})
    notices = [Notice("a", "assigned", partitions, 1 * _MS), Notice("a", "lost", partitions, 20 * _MS)]
    assert broken(log("x"), [call(0, 10)], notices=notices) == {}
    assert broken(log("x"), [call(0, 30)], notices=notices) == {"trespassed": 1}
    again = Notice("a", "assigned", frozenset({0}), 25 * _MS)
    assert broken(log("x"), [call(0, 30)], notices=[*notices, again]) == {}


def test_what_is_done_gets_committed() -> None:
    """When nothing is left to do, the commit has to cover the whole log."""
    calls = [call(0, 10), call(1, 11)]
    assert broken(log("x", "y"), calls, settled={0: 1}) == {"unsettled": 1}
    assert broken(log("x", "y"), calls, settled={}) == {"unsettled": 2}


def test_commits_do_not_go_back_by_themselves() -> None:
    """Each step back of the committed offset is counted, unless somebody set the partition's offsets."""
    records, calls = log("x", "y", "z"), [call(0, 10), call(1, 11), call(2, 12)]
    samples = [Sample(20 * _MS, 0, 3), Sample(21 * _MS, 0, 1), Sample(22 * _MS, 0, 2)]
    assert broken(records, calls, samples=samples) == {"regressed": 1}
    assert broken(records, calls, samples=samples, excuses=[Rewind(partition=0, low=1, high=3)]) == {}


def test_a_commit_that_went_back_is_told_with_what_was_around_it() -> None:
    """Not with events around the call of its record, which may have been long before."""
    notices = [Notice("b", "assigned", frozenset({0}), at_s * _S) for at_s in (60, 101)]
    samples = [Sample(2 * _S, 0, 1), Sample(100 * _S, 0, 2), Sample(102 * _S, 0, 1)]
    calls = [call(0, 1_000), call(1, 90_000)]
    history = History(log=log("x", "y"), calls=calls, window_ms=_WINDOW_MS, notices=notices, samples=samples)
    [told] = judge(history).examples
    assert "102.000 committed 1" in told
    assert "101.000 b was told: assigned" in told
    assert "60.000" not in told


def test_what_an_outbox_had_is_in_the_log_and_nothing_else() -> None:
    """An ID that was on the sender's disk and never came is unsent.

    A record whose ID was never there is unpersisted; without an outbox neither is asked.
    """
    records = log("x", "y", "x")
    calls = [call(0, 10), call(1, 11)]
    assert broken(records, calls, persisted=[b"x", b"y"]) == {}
    assert broken(records, calls, persisted=[b"x", b"y", b"z"]) == {"unsent": 1}
    assert broken(records, calls, persisted=[b"y"]) == {"unpersisted": 2}
    assert broken(records, calls) == {}


def test_what_bridges_copy_once_is_there_once() -> None:
    """One more than the source had is recopied; where copies may come again nobody asks."""
    records = log("x", "y", "x")
    calls = [call(0, 10), call(1, 11)]
    assert broken(records, calls, copies={b"x": 2, b"y": 1}) == {}
    assert broken(records, calls, copies={b"x": 1, b"y": 1}) == {"recopied": 1}
    assert broken(records, calls, copies={b"x": 1}) == {"recopied": 2}


def test_in_the_transaction_of_its_id_nothing_is_doubled() -> None:
    """A fault that explains a second call elsewhere explains none there.

    And who lost a partition may begin work it cannot end.
    """
    records = log("x", "y")
    calls = [call(0, 10), call(1, 11), call(1, 30, run="b")]
    crash = Crash(run="a", at_ns=12 * _MS)
    lost = Notice("b", "lost", frozenset({0}), 5 * _MS)
    assert broken(records, calls, excuses=[crash]) == {}
    assert broken(records, calls, excuses=[crash], exactly=True) == {"unexplained": 1}
    assert broken(records, calls[:2], notices=[lost], exactly=True) == {}
    assert broken(records, [calls[0], call(1, 30, run="b")], notices=[lost]) == {"trespassed": 1}
    assert broken(records, [calls[0], call(1, 30, run="b")], notices=[lost], exactly=True) == {}


def test_where_a_memory_is_shared_an_id_is_one_message_in_all_partitions() -> None:
    """One call is enough for it, and a second one in another partition is one too many."""
    records = [*log("x", "y"), *log("x", partition=1)]
    calls = [call(0, 10), call(1, 11)]
    assert broken(records, calls, everywhere=True) == {}
    assert broken(records, calls) == {"lost": 1}
    assert broken(records, [*calls, call(0, 30, partition=1)], everywhere=True) == {"unexplained": 1}
    early = [Sample(9 * _MS, 1, 1)]
    assert broken(records, calls, samples=early, everywhere=True) == {"premature": 1}


def test_while_a_shared_memory_is_away_a_message_may_be_handled_once_more() -> None:
    """A message handled then, or just before, may have one more call, whenever that came.

    One handled earlier none.
    """
    records = [*log("x", "y"), *log("x", partition=1)]
    calls = [call(0, 1_000), call(1, 11), call(0, 9_000, "b", partition=1)]
    away = Away(at_ns=1_050 * _MS, until_ns=3 * _S)
    assert broken(records, calls, everywhere=True, excuses=[away]) == {}
    early = Away(at_ns=0, until_ns=900 * _MS)
    unclaimed = [calls[0]._replace(verdict="unverified shared-outage"), *calls[1:]]
    assert broken(records, unclaimed, everywhere=True, excuses=[early]) == {}
    assert broken(records, calls, everywhere=True, excuses=[early]) == {"unexplained": 1}
    later = Away(at_ns=2 * _S, until_ns=3 * _S)
    assert broken(records, calls, everywhere=True, excuses=[later]) == {"unexplained": 1}
