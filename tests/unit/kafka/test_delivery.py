"""The table of the messages that are out: those that a commit completes, and the state behind an interruption."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.interrupting import Interrupted, InterruptedAt
from tests.support.table import TOPIC, Record, Table, offset_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

HERE = (TOPIC, 0)


def of(*names: str) -> list[Record]:
    """Return records of the first partition."""
    return [Record(0, name) for name in names]


def read_all(table: Table) -> None:
    """Have the next batch judged, with all records of the first partition."""
    table.delivery.policy.ask_for_more()
    table.delivery.fill(table.read([0] * len(table.log[0])))


def given_behind_ready_ones(policy: str) -> tuple[Table, Message]:
    """Return a table, and a message that was given by itself, before messages of its batch with lower offsets."""
    table = Table(policy)
    table.write(*of("a"))
    read_all(table)
    [first] = table.delivery.take(1)
    table.in_hand.take_out(first)
    table.write(*of("b", "c", "a"))
    read_all(table)
    table.in_hand.complete([first])
    [held_back] = table.delivery.take(1)
    assert offset_of(held_back) == 3
    assert len(table.delivery.batch.ready) == 2
    return table, held_back


@pytest.mark.parametrize("policy", ["on next call", "by offsets", "only stored"])
@pytest.mark.parametrize("end", [4, 1_000])
def test_a_commit_of_a_message_completes_it_before_messages_that_wait_below_it(policy: str, end: int) -> None:
    """The application has named it: after a crash it must not come again. Those that wait are not completed."""
    table, _ = given_behind_ready_ones(policy)
    table.in_hand.complete_below({HERE: end})
    flight = table.partition(0).flight
    assert [flight.is_completed(offset) for offset in range(4)] == [True, False, False, True]


def test_a_commit_of_all_messages_completes_one_before_messages_that_wait_below_it() -> None:
    """The application has got it."""
    table, _ = given_behind_ready_ones("by offsets")
    table.in_hand.complete_below(None)
    flight = table.partition(0).flight
    assert [flight.is_completed(offset) for offset in range(4)] == [True, False, False, True]


def test_a_seek_behind_a_message_of_the_last_call_completes_it() -> None:
    """It is skipped else, and its ID would come as a new one."""
    table, _ = given_behind_ready_ones("on next call")
    table.delivery.policy.skip({HERE: 10})
    assert table.partition(0).flight.is_completed(3)


@pytest.mark.parametrize("asks", [False, True])
def test_the_message_of_the_last_call_stays_unhandled_at_a_close(asks: bool) -> None:  # noqa: FBT001 (a parameter)
    """Also when its batch is over, and was let go of: a commit in the callback of the close leaves it out."""
    table = Table("by offsets")
    table.write(*of("a", "b"))
    read_all(table)
    table.delivery.take(1)
    table.delivery.batch.ready.popleft()
    if asks:
        table.in_hand.complete_given()
    table.delivery.policy.close()
    table.delivery.release_all()
    table.in_hand.complete_below(None)
    flight = table.partition(0).flight
    assert [flight.is_completed(offset) for offset in (0, 1)] == [True, False]


def in_every_place(policy: str) -> tuple[Table, list[Message]]:
    """Return a table with messages that are given by themselves and with a batch, queued, ready, and set aside."""
    table = Table(policy)
    table.write(*of(*"abcdefgh"), *(Record(1, name) for name in "xy"))
    table.delivery.policy.ask_for_more()
    table.delivery.fill(table.read([1, 1, *[0] * 8]))
    table.delivery.set_aside({(TOPIC, 1)})
    early = table.delivery.take(3)
    for message in early:
        table.in_hand.release(message)
    got = table.delivery.take(2)
    got += [table.delivery.batch.ready.popleft(), table.delivery.batch.ready.popleft()]
    return table, [*got, *early]


CHANGES: dict[str, Callable[[Table, list[Message]], object]] = {
    "ask for more": lambda table, _: table.delivery.policy.ask_for_more(),
    "commit": lambda table, _: table.delivery.complete_below({HERE: None}),
    "take": lambda table, _: table.delivery.take(2),
    "complete": lambda table, got: table.in_hand.complete(got[:2]),
    "release": lambda table, got: table.in_hand.release(got[0]),
    "put back": lambda table, got: table.in_hand.deliver_again(got[:3]),
    "set aside": lambda table, _: table.delivery.set_aside({HERE}),
    "bring back": lambda table, _: table.delivery.waiting.bring_back({(TOPIC, 1)}),
    "take back": lambda table, _: table.delivery.take_back(lambda *_: True),
    "release a partition": lambda table, _: table.delivery.release({HERE}),
    "purge": lambda table, _: table.delivery.purge({HERE}),
}
CALLS: dict[str, Callable[[Table, list[Message]], object]] = {
    "complete": lambda table, got: table.in_hand.complete(got),
    "release": lambda table, got: list(map(table.in_hand.release, got)),
    "commit": lambda table, _: table.in_hand.complete_below(None),
    "pause": lambda table, _: table.delivery.set_aside({HERE, (TOPIC, 1)}),
    "resume": lambda table, _: table.delivery.waiting.bring_back({HERE, (TOPIC, 1)}),
    "revoke": lambda table, _: table.delivery.release({HERE}),
    "close": lambda table, _: table.delivery.policy.close(),
}


ORDERS = [("complete", "pause", "resume", "close"), ("pause", "close", "release", "revoke", "commit")]


@pytest.mark.parametrize("calls", ORDERS)
@pytest.mark.parametrize("change", CHANGES)
def test_calls_behind_an_interrupted_change_find_a_table_that_they_can_use(
    change: str, calls: tuple[str, ...]
) -> None:
    """Wherever it struck: the application ends its messages before the call that opens the partitions again."""
    place, struck = 1, True
    while struck:
        table, got = in_every_place("by offsets" if place % 2 else "on next call")
        struck = interrupted(table, place, lambda: CHANGES[change](table, got))  # noqa: B023 (called at once)
        for call in calls:
            CALLS[call](table, got)
        table.delivery.release_all()
        assert table.delivery.is_over
        place += 1


def interrupted(table: Table, place: int, change: Callable[[], Any]) -> bool:
    """Do a change with an interruption at the n-th place; return whether it has so many places."""
    with InterruptedAt(place) as strike:
        try:
            change()
        except Interrupted:
            table.interruption.note()
    return strike.struck
