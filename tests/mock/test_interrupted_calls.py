"""An interruption inside a call that changes the messages in hand, and a commit behind it, as in a ``finally``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, TopicPartition

from dedup_sdk import MemoryStore
from tests.mock.conftest import QUICK_CLIENT
from tests.support.consuming import committed, poll_quiet, poll_some, values
from tests.support.interrupting import Interrupted, InterruptedAt

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

ORDERS = TopicPartition("orders", 0)
WAYS: dict[str, tuple[Any, ...]] = {
    "pause": ([ORDERS],),
    "assign": ([ORDERS],),
    "incremental_unassign": ([ORDERS],),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_commit_after_an_interruption_completes_nothing_that_was_never_handed_out(
    make: Make, send: Send, kafka: MockKafka, way: str
) -> None:
    """Wherever it struck: waiting messages can then not be told from delivered ones, and come again."""
    send(*map(str, range(6)))
    struck = 0
    for place in range(3, 90, 3):
        group = f"{way}-{place}"
        consumer = make(store=MemoryStore(), config={"group.id": group, "enable.auto.commit": False})
        consumer.assign([ORDERS])
        assert values(poll_some(consumer, 2)) == ["0", "1"]
        with contextlib.suppress(Interrupted), InterruptedAt(place) as interruption:
            getattr(consumer, way)(*WAYS[way])
        with contextlib.suppress(KafkaException):
            consumer.commit(asynchronous=False)
        consumer.close()

        assert committed(kafka.bootstrap, group, "orders").offset <= 2, interruption.where
        struck += interruption.struck
        if not interruption.struck:
            break
    assert struck > 5


@pytest.mark.slow
def test_what_waits_when_a_pause_is_interrupted_comes_again(make: Make, send: Send) -> None:
    """Also without a commit: the next call does not take it for handled."""
    send(*map(str, range(6)))
    struck = 0
    for place in range(3, 90, 3):
        consumer = make(store=MemoryStore(), config={"group.id": f"g-{place}"})
        consumer.assign([ORDERS])
        got = values(poll_some(consumer, 2))
        with contextlib.suppress(Interrupted), InterruptedAt(place) as interruption:
            consumer.pause([ORDERS])
        consumer.resume([ORDERS])
        got += values(poll_some(consumer, 4))
        struck += interruption.struck
        if not interruption.struck:
            break
        if got[-1] != "5":
            got += values(poll_quiet(consumer))

        assert set(got) == set(map(str, range(6))), interruption.where
        consumer.close()
    assert struck > 5


@pytest.mark.slow
def test_what_is_released_after_an_interrupted_resume_comes_again(make: Make, send: Send) -> None:
    """Wherever it struck: a partition that delivers holds nothing back."""
    send(*map(str, range(6)))
    struck = 0
    for place in range(1, 120, 2):
        consumer = make(store=MemoryStore(), config={"group.id": f"g-{place}"}, completion="explicit")
        consumer.assign([ORDERS])
        poll_some(consumer, 2)
        consumer.pause([ORDERS])
        with contextlib.suppress(Interrupted), InterruptedAt(place) as interruption:
            consumer.resume([ORDERS])
        if not interruption.struck:
            break
        struck += 1
        for message in poll_quiet(consumer):
            consumer.release(message)
            assert values(poll_some(consumer, 1)) == [message.value().decode()], interruption.where
            break
        consumer.close()
    assert struck > 5


@pytest.mark.slow
def test_what_is_handed_out_after_an_interruption_does_not_come_twice(make: Make, send: Send) -> None:
    """The very next call puts right the doubtful ones, however much is ready."""
    send(*map(str, range(6)))
    struck = 0
    for place in range(1, 90, 4):
        consumer = make(store=MemoryStore(), config={"group.id": f"g-{place}"}, completion="explicit")
        consumer.assign([ORDERS])
        got = poll_some(consumer, 2)
        with contextlib.suppress(Interrupted), InterruptedAt(place) as interruption:
            consumer.release(got[1])
        struck += interruption.struck
        if not interruption.struck:
            break
        after = values(poll_quiet(consumer))

        assert len(after) == len(set(after)), (interruption.where, after)
    assert struck > 3


@pytest.mark.slow
def test_commits_go_on_after_an_interruption_at_any_place_of_unsubscribe(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """Between two of its steps, too: where the member stays, the messages that it has released come again, and end."""
    send(*map(str, range(6)))
    struck, stand_still = 0, dict[str, int]()
    for place in range(1, 400, 6):
        group = f"g-{place}"
        consumer = make("orders", store=MemoryStore(), config={**QUICK_CLIENT, "group.id": group})
        poll_some(consumer, 3)
        with contextlib.suppress(Interrupted), InterruptedAt(place) as interruption:
            consumer.unsubscribe()
        if not interruption.struck:
            break
        struck += 1
        consumer.poll(0.1)
        if not consumer.assignment():
            consumer.subscribe(["orders"])
        poll_quiet(consumer)
        consumer.close()
        if (reached := committed(kafka.bootstrap, group, "orders").offset) != 6:
            stand_still[interruption.where] = reached
    assert struck > 5
    assert stand_still == {}
