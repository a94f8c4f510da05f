"""Two threads at the queue of ready messages: one polls without the lock, the other one changes it. What is freed."""

from __future__ import annotations

from collections import deque
from functools import partial
from sys import getrefcount
from types import SimpleNamespace
from typing import Any

from confluent_kafka import Message

from dedup_sdk._kafka.deliver.classifier import Classified
from dedup_sdk._kafka.deliver.completion import ByName, OnNextCall
from dedup_sdk._kafka.deliver.delivery import Delivery
from dedup_sdk._observe import Counters, by_partition, of_partition


def place_of(message: Message) -> tuple[str, int]:
    """Its topic and partition."""
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    return topic, partition


class Contended(deque[Any]):
    """A queue at which another thread polls once, after this one has taken something."""

    polled: Any = None

    def pop(self) -> Any:  # type: ignore[override]
        """Take the last; the other thread takes the first then."""
        taken = super().pop()
        if self.polled is None:
            self.polled = super().popleft()
        return taken


def test_what_was_polled_meanwhile_was_given_out_and_the_rest_was_not() -> None:
    """Or a message would end before the application has it, and one that it has would never end."""
    open_partitions: dict[tuple[str, int], Any] = {}
    counters = Counters()
    hand = Delivery(lambda topic, partition: open_partitions.get((topic, partition)), counters)
    hand.use(OnNextCall(hand))
    ready = hand.batch.ready = Contended()
    batch = [
        Message(topic="orders", partition=partition, offset=offset)
        for partition, offset in ((0, 5), (1, 7), (0, 6), (1, 8))
    ]
    hand.fill(Classified(batch, [], [(of_partition(counters, *place_of(each)), 1) for each in batch], []))

    hand.set_aside({("orders", 0)})

    assert ready.polled == batch[0]
    assert list(ready) == [batch[1], batch[3]]
    assert hand.first_waiting("orders", 0) == 6
    ended: list[tuple[int, list[int]]] = []

    def complete(partition: int, offsets: list[int], **_: object) -> list[Any]:
        ended.append((partition, offsets))
        return []

    for partition in (0, 1):
        open_partitions["orders", partition] = SimpleNamespace(complete=partial(complete, partition))
    hand.policy.ask_for_more()
    assert ended == [(0, [5])]
    assert {place: each.delivered for place, each in by_partition(counters).items()} == {
        ("orders", 0): 1,
        ("orders", 1): 0,
    }


def test_messages_that_a_call_completed_are_kept_until_the_next_batch_is_here() -> None:
    """They are freed while the collector rests, and balance those that came; what no batch frees has a bound."""
    hand = Delivery(lambda *_: None, Counters())
    hand.use(ByName(hand))
    message = Message(topic="orders", partition=0, offset=5)
    references = getrefcount(message)

    hand.batch.free_later([message])
    assert getrefcount(message) == references + 1
    hand.fill(Classified([], [], [], []))
    assert getrefcount(message) == references

    hand.batch.free_later([message])
    for _ in range(11):
        hand.batch.free_later([None] * 1_000)
    assert getrefcount(message) == references
