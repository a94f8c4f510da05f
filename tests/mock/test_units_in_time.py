"""The time that a unit may take: records in the topic are not late for how long it takes to get there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError

from dedup_sdk import Unit
from dedup_sdk._engine.partition import Partition
from dedup_sdk._kafka.assign.log_end import LogEnds
from dedup_sdk._kafka.recover import upkeep
from dedup_sdk._units import memory as unit_memory
from tests.support.consuming import lookup, numbers, poll_quiet, poll_some, values, wait_for
from tests.support.sending_units import SendUnits, unit_sender, units

if TYPE_CHECKING:
    from collections.abc import Collection

    from dedup_sdk._kafka.assign.assignment import Assigned
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make

TIMEOUT_S = 60.0
HOUR_MS = 3_600_000


@pytest.fixture
def send(kafka: MockKafka) -> SendUnits:
    """Sends records as `tests.support.sending_units` writes them."""
    return unit_sender(kafka.bootstrap)


class Clock:
    """The engine's clock: the machine's, and as far ahead as a test has it."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        """Return ms since the epoch."""
        return int(time.time() * 1_000) + self.ahead_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of units."""
    clock = Clock()
    monkeypatch.setattr(Partition, "now_ms", lambda _self: clock.now_ms())
    return clock


def test_slow_handlers_fail_no_unit_that_lies_in_the_topic(make: Make, send: SendUnits, clock: Clock) -> None:
    """Its rest is behind more than is judged at once, and each message takes an hour."""
    count = 3_000
    send("x/U", *(f"i{number}" for number in range(count)), "y/U.")
    consumer = make("orders", dedup=units(TIMEOUT_S))
    got: list[str] = []
    while len(got) < count + 2:
        got += values(poll_some(consumer, 1))
        clock.ahead_ms += HOUR_MS
    assert {"x/U", "y/U."} < set(got)
    assert consumer.counters.verdicts["unverified"] == 0


@pytest.mark.parametrize(
    "away", [("Fetch",), ("Fetch", "ListOffsets")], ids=["fetches-fail", "nobody-answers"]
)
def test_an_outage_fails_no_unit_that_lies_in_the_topic(
    make: Make,
    send: SendUnits,
    clock: Clock,
    kafka: MockKafka,
    away: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client saw the end before; the rest came while it could not be fetched, for longer than a unit may take."""
    consumer = make("orders", dedup=units(TIMEOUT_S), config={"reconnect.backoff.max.ms": 200})
    send("x/U", "a")
    assert values(poll_some(consumer, 1)) == ["a"]
    for request in away:
        kafka.push_errors(request, KafkaError._TRANSPORT, 5_000)
    send("y/U.")
    late, asked = LogEnds.late, list[set[bytes]]()

    def noted(watch: LogEnds, assigned: Assigned, position: int, overdue: Collection[bytes]) -> set[bytes]:
        asked.append(late(watch, assigned, position, overdue))
        return asked[-1]

    monkeypatch.setattr(LogEnds, "late", noted)
    clock.ahead_ms += HOUR_MS
    came = wait_for(consumer, lambda: len(asked) >= 3, "the leader is asked")
    for request in away:
        kafka.clear_errors(request)
    came += poll_some(consumer, 2 - len(came))
    assert values(came) == ["x/U", "y/U."]
    assert consumer.counters.verdicts["unverified"] == 0
    assert not any(asked)


def test_what_is_not_there_is_late_after_its_time(make: Make, send: SendUnits, clock: Clock) -> None:
    """Once the leader has said that nothing is behind it."""
    consumer = make("orders", dedup=units(TIMEOUT_S))
    send("x/U", "a")
    assert values(poll_some(consumer, 1)) == ["a"]
    assert values(poll_quiet(consumer)) == []
    clock.ahead_ms += HOUR_MS
    assert values(poll_some(consumer, 1)) == ["x/U"]
    assert consumer.counters.reasons == {"unverified.unit-unfinished": 1}


def test_a_unit_that_never_ends_does_not_stop_its_partition(
    make: Make, send: SendUnits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where more lies behind it than is kept in memory it has failed, and the next one after it, whatever the time."""
    monkeypatch.setattr(upkeep, "MOST_WAITING", 50)
    monkeypatch.setattr(unit_memory, "MOST_OPEN", 60)
    consumer = make("orders", dedup=lookup(unit=Unit(records=10)), config={"queued.min.messages": 1})
    send("x/U", "y/V", *numbers(0, 100))
    # Where the client gets them in small batches a unit may fail before all hundred are out.
    came = values(poll_some(consumer, 100))
    send(*numbers(100, 200))
    came += values(poll_some(consumer, 102))
    assert sorted(came) == sorted(["x/U", "y/V", *numbers(0, 200)])
    assert [each for each in came if each.isdigit()] == numbers(0, 200)
    assert consumer.counters.reasons == {"unverified.unit-unfinished": 2}


def test_what_a_unit_waits_for_is_read_however_much_waits_behind_it(
    make: Make, send: SendUnits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that was paused for another message, which is completed now, goes on for the unit behind that."""
    monkeypatch.setattr(upkeep, "MOST_WAITING", 20)
    consumer = make("orders", dedup=units(), completion="explicit", config={"queued.min.messages": 1})
    send("a", "x/U", *numbers(0, 60))
    [first] = poll_some(consumer, 1)
    came: list[str] = []
    while "backlog" not in consumer.partition_statuses[0].hindrances:
        message = consumer.poll(0.2)
        if message is not None:
            consumer.complete(message)
            came += values([message])
    send(*numbers(60, 120), "y/U.")
    consumer.complete(first)
    came += values(poll_some(consumer, 122 - len(came)))
    assert sorted(came) == sorted([*numbers(0, 120), "x/U", "y/U."])
    assert consumer.counters.verdicts["unverified"] == 0
