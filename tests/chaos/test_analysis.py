from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.analysis import CHECKS
from tests.chaos.history import Call, Copies, Delivery, End, History, LogRecord, Notice
from tests.chaos.oracle import judge

_S = 1_000_000_000
LOG = [LogRecord(0, offset, offset, b"k", b"id-%d" % offset) for offset in range(4)]
WRITES = [Call("a", 0, offset, (10 + offset) * _S, (10 + offset) * _S + 1) for offset in range(4)]
ENDS = [End(write, 1 + index // 2, is_committed=True) for index, write in enumerate(WRITES)]
# Between two transactions there is a marker.
OUTPUT = {(0, 0): WRITES[0], (0, 1): WRITES[1], (0, 3): WRITES[2], (0, 4): WRITES[3]}
ASSIGNED = Notice("a", "assigned", frozenset({0}), _S)


def polls(*offsets: int, reader: str = "output-reader", first: int = 1, key: str = "") -> list[Delivery]:
    """Deliveries of one partition, each in a poll of its own, at the time of its place."""
    return [
        Delivery(reader, first + index, 0, offset, (10 + index) * _S, key)
        for index, offset in enumerate(offsets)
    ]


GOOD = Copies(
    log=OUTPUT, polls=polls(0, 1, 3, 4), ends=ENDS, deliveries=polls(0, 1, 2, 3, reader="a"),
)  # fmt: skip


def broken(
    records: list[LogRecord] = LOG, notices: tuple[Notice, ...] = (ASSIGNED,), **changes: Any
) -> dict[str, int]:
    """The promises broken where the output differs from one in which all is well."""
    copied = replace(GOOD, **changes)
    calls = list(dict.fromkeys(copied.log.values()))
    history = History(
        log=records, calls=calls, window_ms=60_000, exactly=True, copied=copied, notices=notices
    )
    return judge(history).broken()


def in_one_poll(deliveries: list[Delivery]) -> list[Delivery]:
    """The same deliveries by one poll."""
    return [each._replace(poll=1) for each in deliveries]


BACK = polls(0, 1, 3, 1, 4)
GIVEN_BACK = polls(0, 1, 2, 1, 3, reader="a")
OF_ANOTHER = WRITES[1]._replace(run="b")
"""The write of a run that was killed when it had asked for a commit: how that ended nobody has told."""


def test_a_good_history_has_no_finding() -> None:
    """Markers between transactions are no skips, and each check is counted."""
    assert broken() == {}
    history = History(log=LOG, calls=WRITES, window_ms=60_000, exactly=True, copied=GOOD)
    assert judge(history).analysed == dict.fromkeys(CHECKS, 0)


@pytest.mark.parametrize(
    ("found", "changes"),
    [
        ({"aborted-read": 1}, {"ends": [*ENDS[:3], ENDS[3]._replace(is_committed=False)]}),
        # Acknowledged, and not there, although one of a later transaction is.
        ({"lost-write": 1}, {"log": OUTPUT | {(0, 1): OF_ANOTHER}}),
        # Read, and there no more.
        ({"lost-write": 1}, {"polls": polls(0, 1, 3, 4, 6)}),
        ({"duplicate": 1}, {"log": OUTPUT | {(0, 6): WRITES[3]}, "polls": polls(0, 1, 3, 4, 6)}),
        ({"int-poll-skip": 1}, {"polls": in_one_poll(polls(0, 3, 4))}),
        ({"poll-skip": 1}, {"polls": polls(0, 3, 4)}),
        ({"int-nonmonotonic-poll": 1}, {"polls": in_one_poll(BACK)}),
        ({"nonmonotonic-poll": 1}, {"polls": BACK}),
        # Acknowledged, and there, but at the end the reader has not come so far.
        ({"unseen": 2}, {"polls": polls(0, 1)}),
        # Acknowledged, and not there, and nothing of a later transaction is.
        ({"unseen": 1}, {"log": OUTPUT | {(0, 4): WRITES[3]._replace(run="b")}}),
    ],
)
def test_each_check_finds_what_no_other_one_does(found: dict[str, int], changes: dict[str, Any]) -> None:
    """By the calls alone nothing is lost or doubled in these."""
    assert broken(**changes) == found


@pytest.mark.parametrize(
    ("found", "deliveries"),
    [
        ({"poll-skip": 1}, polls(0, 2, 3, reader="a")),
        ({"int-poll-skip": 1}, in_one_poll(polls(0, 2, 3, reader="a"))),
        ({"nonmonotonic-poll": 1}, GIVEN_BACK),
        ({"int-nonmonotonic-poll": 1}, in_one_poll(GIVEN_BACK)),
        # Handlers on threads keep the order of a key.
        ({"poll-skip": 1}, polls(0, 2, 3, reader="a", key="k")),
        ({"nonmonotonic-poll": 1}, polls(0, 1, 2, 1, 3, reader="a", key="k")),
        ({}, polls(0, 2, 3, reader="a", key="l")),
    ],
)
def test_a_consumer_goes_past_nothing_and_not_back(found: dict[str, int], deliveries: list[Delivery]) -> None:
    """What a run was given is checked like what the reader of the output was given."""
    # Later than the run was given the record behind: it had no reason to hide it.
    late = {place: write._replace(ended_ns=20 * _S) for place, write in OUTPUT.items()}
    assert broken(log=late, ends=[], deliveries=deliveries) == found


@pytest.mark.parametrize("kind", ["assigned", "aborted"])
def test_behind_an_assignment_and_an_aborted_transaction_a_consumer_may_begin_anew(kind: Any) -> None:
    """What it got before it may get again; a partition that is gone is judged no more."""
    between = Notice("a", kind, frozenset({0}), 12 * _S + 1)
    elsewhere = between._replace(partitions=frozenset({1}))
    of_another = between._replace(run="b")
    deliveries = GIVEN_BACK
    assert broken(deliveries=deliveries, notices=(ASSIGNED, between)) == {}
    for notice in (elsewhere, of_another):
        assert broken(deliveries=deliveries, notices=(ASSIGNED, notice)) == {"nonmonotonic-poll": 1}
    gone = between._replace(kind="revoked")
    assert broken(deliveries=deliveries, notices=(ASSIGNED, gone)) == {}


def test_a_call_of_a_thread_that_outlives_its_partition_is_not_judged() -> None:
    """It began just before the partition came back, and is noted behind that."""
    deliveries = polls(2, 1, reader="a", key="k")
    again = ASSIGNED._replace(at_ns=10 * _S - 1)
    assert broken(deliveries=deliveries, notices=(ASSIGNED,)) == {"nonmonotonic-poll": 1}
    assert broken(deliveries=deliveries, notices=(again,)) == {}


@pytest.mark.parametrize(
    "deliveries", [polls(0, 2, 3, reader="a"), [Delivery("b", 1, 0, 0, 9 * _S), *polls(2, 3, reader="a")]]
)
def test_a_consumer_may_go_past_a_duplicate(deliveries: list[Delivery]) -> None:
    """One whose message its run has in hand, or that another one has handled before."""
    records = [LOG[0], LOG[1]._replace(ident=LOG[0].ident), *LOG[2:]]
    written = {place: write for place, write in OUTPUT.items() if write.offset != 1}
    more: dict[str, Any] = {"log": written, "polls": polls(0, 3, 4), "ends": []}
    assert broken(records, deliveries=deliveries, **more) == {}
