"""Units that never end, with more behind them than is kept in memory.

The partition goes on, and all of it is delivered.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import DedupConsumer, Lookup, Unit, Window
from dedup_sdk._kafka.recover import upkeep
from dedup_sdk._units import memory as unit_memory
from tests.mock.conftest import SHARED_GROUP
from tests.support import inside
from tests.support.consuming import (
    PATIENCE_S,
    lookup,
    numbers,
    poll_some,
    progress,
    run_all,
    values,
    wait_for,
)
from tests.support.sending_units import SendUnits, unit_sender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make

WAITS_LONG_S = 1e6
"""No unit fails for its time."""
OPEN = ["x/U", *(f"{number}/V{number}" for number in range(40))]
"""Units that never end."""
READ_SLOWLY = {"queued.min.messages": 1}


@pytest.fixture
def send(kafka: MockKafka) -> SendUnits:
    """Sends records as `tests.support.sending_units` writes them."""
    return unit_sender(kafka.bootstrap)


@pytest.fixture(autouse=True)
def _little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "MOST_WAITING", 50)
    monkeypatch.setattr(unit_memory, "MOST_OPEN", 140)


def crowded(**settings: Any) -> Lookup:
    """Units of at most ten records, for which time is no matter."""
    return lookup(**{"unit": Unit(records=10, timeout=WAITS_LONG_S), **settings})


def committed(consumer: DedupConsumer) -> int:
    """The offset that the group has committed of "orders"."""
    return consumer.committed([TopicPartition("orders", 0)])[0].offset


def looked_at(consumer: DedupConsumer, end: int) -> bool:
    """Whether all records below an offset of its only partition are judged."""
    return [status.position for status in consumer.partition_statuses] == [end]


def poll_for(consumer: DedupConsumer, wanted: Iterable[str]) -> list[str]:
    """Poll, and complete messages, until all that is wanted has come; return the values."""
    got: list[str] = []
    missing, until = {*wanted}, time.monotonic() + PATIENCE_S
    while missing:
        assert time.monotonic() < until, f"{missing} do not come"
        message = consumer.poll(0.1)
        if message is not None:
            consumer.complete(message)
            got += values([message])
            missing -= {*got}
    return got


def crowd_out(
    consumer: DedupConsumer, send: SendUnits, wanted: Iterable[str], topic: str = "orders", partition: int = 0
) -> list[str]:
    """Send more than there is room for behind the open unit, until that has come, too; return the values.

    The first hundred records and the open unit have room, however they are fetched.
    """
    send(*numbers(100, 200), topic=topic, partition=partition)
    got = poll_for(consumer, ["199"])
    send("last", topic=topic, partition=partition)
    return got + poll_for(consumer, {"last", *wanted} - {*got})


def coming(consumer: DedupConsumer) -> Iterator[Any]:
    """Yield messages, until nothing is left to complete."""
    until = time.monotonic() + PATIENCE_S
    while progress(consumer) != (len(OPEN) + 201, 0):
        assert time.monotonic() < until, "some of it does not come"
        message = consumer.poll(0.1)
        if message is not None:
            yield message


def polled(consumer: DedupConsumer, take: Callable[[str], None]) -> None:
    """Take messages by a loop that polls."""
    for message in coming(consumer):
        take(values([message])[0])


def completed(consumer: DedupConsumer, take: Callable[[str], None]) -> None:
    """As `polled`, each message completed by itself."""
    for message in coming(consumer):
        take(values([message])[0])
        consumer.complete(message)


def run(consumer: DedupConsumer, take: Callable[[str], None]) -> None:
    """As `polled`, by handlers."""
    run_all(consumer, lambda message: take(values([message])[0]))


@pytest.mark.parametrize("take_all", [polled, completed, run])
@pytest.mark.parametrize(
    "settings",
    [{}, {"unit_mode": "members"}, {"window": Window(count=1_000)}],
    ids=["whole", "members", "count"],
)
def test_what_lies_behind_units_that_never_end_is_delivered(
    make: Make,
    send: SendUnits,
    take_all: Callable[[DedupConsumer, Callable[[str], None]], None],
    settings: dict[str, Any],
) -> None:
    """Each record once, those of the units too; the group's offset passes them."""
    completion = "explicit" if take_all is completed else "on-next-call"
    consumer = make("orders", dedup=crowded(**settings), completion=completion, config=READ_SLOWLY)
    send(*OPEN, *numbers(0, 200))
    got: list[str] = []

    def take(value: str) -> None:
        got.append(value)
        if value == "199":
            # All that is there has been judged: with this one all of them have failed.
            send("last")

    take_all(consumer, take)
    assert sorted(got) == sorted([*OPEN, *numbers(0, 200), "last"])
    assert consumer.counters.reasons == {"unverified.unit-unfinished": len(OPEN)}
    consumer.commit(asynchronous=False)
    assert committed(consumer) == len(got)


def test_whole_units_that_overlap_are_whole_however_many_they_are(make: Make, send: SendUnits) -> None:
    """All together they are more than the partition may have in memory otherwise."""
    consumer = make("orders", dedup=crowded(), config=READ_SLOWLY)
    rows = [f"{number}-{unit}/U{unit}" for number in range(9) for unit in range(7)]
    ends = [f"end-{unit}/U{unit}." for unit in range(7)]
    send(*rows)
    wait_for(consumer, lambda: looked_at(consumer, len(rows)), "a look at all of it")
    # A look after that, too, in which it could be paused.
    consumer.poll(0.2)
    send(*ends)
    assert sorted(values(poll_some(consumer, len(rows) + len(ends)))) == sorted([*rows, *ends])
    assert consumer.counters.verdicts["unverified"] == 0


@pytest.mark.parametrize("done", [True, False], ids=["half-completed", "nothing-completed"])
def test_a_restart_in_the_same_backlog_goes_on(make: Make, send: SendUnits, *, done: bool) -> None:
    """It begins at the first of these units again, as often as it likes."""
    send(*OPEN, *numbers(0, 100))
    settings: dict[str, Any] = {"dedup": crowded(), "completion": "explicit", "config": READ_SLOWLY}
    first = make("orders", **settings)
    had = poll_some(first, 100)
    assert values(had) == numbers(0, 100)
    for message in had if done else ():
        first.complete(message)
    inside.lose_all(first)
    first.close()
    again = make("orders", **settings)
    if done:
        wait_for(again, lambda: looked_at(again, len(OPEN) + 100), "a look at all of it")
    got = [] if done else poll_for(again, numbers(0, 100))
    got += crowd_out(again, send, OPEN)
    assert Counter(got) == Counter([*OPEN, *numbers(100 if done else 0, 200), "last"])
    again.commit(asynchronous=False)
    assert committed(again) == len(OPEN) + 201


def test_a_partition_that_moves_on_goes_on_there(make: Make, send: SendUnits) -> None:
    """Where it is taken over the units are waited for anew, and fail again for the same reason."""
    for partition in (0, 1):
        send(f"x/U{partition}", *numbers(0, 100), topic="pairs", partition=partition)
    config = {**SHARED_GROUP, **READ_SLOWLY}
    first = make("pairs", dedup=crowded(), config=config)
    assert values(poll_some(first, 200)).count("99") == 2
    second = make("pairs", dedup=crowded(), config=config)
    got: list[Any] = []

    def both_have_one() -> bool:
        message = first.poll(0.05)
        if message is not None:
            got.append(message)
        return len(first.assignment()) == 1 and looked_at(second, 101)

    got += wait_for(second, both_have_one, "one partition each")
    assert not {"x/U0", "x/U1"} & {*values(got)}
    for consumer in (first, second):
        [mine] = consumer.assignment()
        unit = f"x/U{mine.partition}"
        assert crowd_out(consumer, send, [unit], "pairs", mine.partition).count(unit) == 1


def test_a_handler_that_hangs_pauses_its_partition_whatever_is_open_behind_it(
    make: Make, send: SendUnits
) -> None:
    """More room is not made by units that fail; when it is through all of it goes on."""
    consumer = make("orders", dedup=crowded(), completion="explicit", config=READ_SLOWLY)
    send("hangs", *OPEN, *numbers(0, 100))
    hanging, *others = poll_some(consumer, 101)
    for message in others:
        consumer.complete(message)
    wait_for(consumer, lambda: "backlog" in consumer.partition_statuses[0].hindrances, "the pause")
    consumer.complete(hanging)
    assert sorted(crowd_out(consumer, send, OPEN)) == sorted([*OPEN, *numbers(100, 200), "last"])


def test_units_of_large_messages_make_room_by_bytes(make: Make, send: SendUnits) -> None:
    """Few of them fill a memory that has room for many."""
    consumer = make("orders", dedup=crowded(unit=Unit(megabytes=1, timeout=WAITS_LONG_S)), config=READ_SLOWLY)
    large = [f"{number:030000}" for number in range(40)]
    send("x/U", *large)
    got = poll_for(consumer, large)
    send("last")
    got += poll_for(consumer, {"last", "x/U"} - {*got})
    assert sorted(got) == sorted(["x/U", *large, "last"])
    assert consumer.counters.reasons == {"unverified.unit-unfinished": 1}
