from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from dedup_sdk import VerdictKind
from dedup_sdk._kafka.recover import upkeep
from tests.support import inside
from tests.support.consuming import PATIENCE_S, committed, lookup, poll_quiet, poll_some, progress, values

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


class HandlerError(Exception):
    """The error of a handler."""


def test_workers_complete_in_any_order_from_any_thread(make: Make, send: Send, kafka: MockKafka) -> None:
    """The committed part is the contiguous prefix, whatever the order of completions; in the end it is all of it."""
    send(*map(str, range(300)))
    consumer = make("orders", completion="explicit")
    messages = poll_some(consumer, 300)
    shuffled = [messages[(7 * index + 299) % 300] for index in range(300)]

    with ThreadPoolExecutor(8) as workers:
        done = [workers.submit(consumer.complete, message) for message in shuffled if message.offset() != 150]
        while not all(future.done() for future in done):
            assert consumer.poll(0.01) is None
    for future in done:
        future.result()

    consumer.commit(asynchronous=False)
    assert committed(kafka.bootstrap, "g", "orders").offset == 150
    consumer.close()
    again = make("orders", completion="explicit")
    assert values(poll_quiet(again)) == ["150"]


def test_each_completed_message_counts_once(make: Make, send: Send) -> None:
    """Completed by itself, with some others of its batch, with all of them, or a second time."""
    send("a", "b", "c", "d")
    consumer = make("orders", completion="explicit")
    first, *others = poll_some(consumer, 4)
    consumer.complete(first)
    assert consumer.counters.completed == 1
    consumer.complete(*others[:2])
    assert consumer.counters.completed == 3
    consumer.complete(*others)
    assert consumer.counters.completed == 4
    assert consumer.counters.stale == 2


def test_each_of_many_messages_completes_once_whatever_their_order(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """Long runs of a partition, with a completed one and an event inside; partitions by turns; backwards; twice."""
    kafka.create_topic("many", 2)
    for partition in (0, 1):
        send(*(f"{partition}-{number}" for number in range(300)), topic="many", partition=partition)
    consumer = make("many", completion="explicit", config={"enable.partition.eof": True})
    got = poll_some(consumer, 602)
    event = next(each for each in got if each.error() is not None)
    first, second = ([each for each in got if each.partition() == of and each is not event] for of in (0, 1))

    consumer.complete(first[50])
    consumer.complete(*first[:100], event, *second[:100])
    assert (consumer.counters.completed, consumer.counters.stale) == (200, 2)
    consumer.complete(*chain.from_iterable(zip(first[100:200], second[100:200], strict=True)))
    assert consumer.counters.completed == 400
    consumer.complete(*reversed(first[200:299]), *second[200:299])
    assert (consumer.counters.completed, consumer.counters.stale) == (598, 2)
    consumer.complete(*second[:299])
    assert (consumer.counters.completed, consumer.counters.stale) == (598, 301)
    consumer.commit(asynchronous=False)
    assert [committed(kafka.bootstrap, "g", "many", of).offset for of in (0, 1)] == [299, 299]


def test_with_explicit_completion_asking_for_more_completes_nothing(make: Make, send: Send) -> None:
    """Messages stay in flight while more are polled; completing twice is counted, and harmless."""
    send("a", "b", "c")
    consumer = make("orders", completion="explicit")
    first, *_ = poll_some(consumer, 3)

    assert inside.next_offset(consumer) == 0
    consumer.complete(first)
    assert inside.next_offset(consumer) == 1
    consumer.complete(first)
    assert consumer.counters.stale == 1


def test_a_released_message_comes_again_before_new_ones(make: Make, send: Send) -> None:
    """Also when many are judged ahead; its verdict counts the attempt, and its twin stays hidden."""
    send("a", "b", "a", "c")
    consumer = make("orders")
    first = poll_some(consumer, 1)[0]

    consumer.release(first)
    again = poll_some(consumer, 1)[0]

    assert values([again]) == ["a"]
    verdict = consumer.verdict(first)
    assert verdict is not None
    assert (verdict.kind, verdict.attempt) == (VerdictKind.FRESH, 2)
    assert values(poll_some(consumer, 2)) == ["b", "c"]
    assert poll_quiet(consumer) == []
    assert consumer.counters.released == 1


def test_released_messages_come_before_ready_ones_also_behind_a_call_that_takes_none(
    make: Make, send: Send
) -> None:
    """`consume(0)` does the work that is due, after which `poll` may take ready messages at once."""
    send(*map(str, range(20)))
    consumer = make("orders", completion="explicit")
    messages = poll_some(consumer, 3)
    for message in messages:
        consumer.release(message)
    found = []
    for _ in range(20):
        consumer.consume(0)
        found += values(poll_some(consumer, 1))
    assert found == [str(number) for number in range(20)]


@pytest.mark.parametrize("is_paused", [False, True])
def test_messages_of_aborted_transactions_come_again_in_their_order(
    make: Make, send: Send, *, is_paused: bool
) -> None:
    """Before those of an earlier one that are queued still, also while the partition is paused; each once."""
    send(*"abcdef")
    consumer = make("orders", completion="explicit")
    place = [TopicPartition("orders", 0)]
    consumer.transaction_aborted(poll_some(consumer, 4))
    again = poll_some(consumer, 2)
    assert values(again) == ["a", "b"]
    if is_paused:
        consumer.pause(place)
    consumer.transaction_aborted([*again, again[0]])
    if is_paused:
        consumer.resume(place)
    assert values(poll_quiet(consumer)) == list("abcdef")


def test_once_completes_or_releases(make: Make, send: Send) -> None:
    """A block that raises has its message delivered again; one that does not has it remembered at once."""
    send("a", "b")
    consumer = make("orders")
    message = poll_some(consumer, 1)[0]

    def fail() -> None:
        with consumer.once(message):
            raise HandlerError

    with pytest.raises(HandlerError):
        fail()
    assert inside.next_offset(consumer) == 0
    again = poll_some(consumer, 1)[0]
    assert again.offset() == 0
    with consumer.once(again) as same:
        assert same is again
    assert inside.next_offset(consumer) == 1
    assert values(poll_some(consumer, 1)) == ["b"]


def test_inside_once_asking_for_more_does_not_complete(make: Make, send: Send) -> None:
    """A message taken out of implicit completion ends only by its own block, whatever is polled meanwhile."""
    send("a", "b", "c")
    consumer = make("orders")
    message = poll_some(consumer, 1)[0]
    with consumer.once(message):
        poll_some(consumer, 2)
        consumer.commit()
        assert inside.next_offset(consumer) == 0
    assert progress(consumer) == (3, 0)


def test_a_twin_waits_for_the_message_in_flight(make: Make, send: Send) -> None:
    """Twins in one batch and in a later one are judged when the first is completed, not before."""
    send("a", "a")
    consumer = make("orders", completion="explicit")
    first = poll_some(consumer, 1)[0]
    send("a", "b")
    second = poll_some(consumer, 1)[0]
    assert values([second]) == ["b"]
    assert consumer.counters.verdicts["duplicate"] == 0

    consumer.complete(first)

    assert consumer.counters.verdicts["duplicate"] == 2
    consumer.complete(second)
    assert progress(consumer) == (4, 0)
    assert poll_quiet(consumer) == []


def test_without_an_id_each_message_is_new(make: Make, send: Send) -> None:
    """By default a message without an ID is delivered and counted; nothing is a twin of it."""
    send("a", "a")
    consumer = make("orders", dedup=lookup(id="header:other"))

    assert values(poll_some(consumer, 2)) == ["a", "a"]
    assert consumer.counters.verdicts["unkeyed"] == 2


def test_without_an_id_discarded_messages_are_completed(make: Make, send: Send, kafka: MockKafka) -> None:
    """on_missing_id="discard" hides and counts them, and commits pass over them."""
    send("a", "b")
    consumer = make("orders", dedup=lookup(id="header:other", on_missing_id="discard"))

    assert poll_quiet(consumer) == []
    consumer.close()
    assert consumer.counters.verdicts["unkeyed"] == 2
    assert committed(kafka.bootstrap, "g", "orders").offset == 2


def test_without_an_id_a_strict_consumer_stops_and_loses_nothing(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """With on_missing_id="fail" the messages before come.

    Then every call says which record it is, and nothing is committed past it.
    """
    from dedup_sdk import MissingIdError
    from tests.support.producing import Outgoing, produce

    send("a", "b")
    produce(kafka.bootstrap, "orders", [Outgoing(value=b"bare", partition=0)])
    send("c")
    consumer = make("orders", dedup=lookup(on_missing_id="fail"))

    got = poll_some(consumer, 2)
    with pytest.raises(MissingIdError, match=r"orders\[0\]@2"):
        consumer.poll(PATIENCE_S)
    consumer.close()

    assert values(got) == ["a", "b"]
    assert committed(kafka.bootstrap, "g", "orders").offset <= 2
    assert values(poll_quiet(make("orders")))[-2:] == ["bare", "c"]


def test_the_verdict_of_a_message_goes_by_its_coordinates(make: Make, send: Send) -> None:
    """While a message is in flight its verdict can be asked for; an unknown one has none."""
    send("a", "b")
    consumer = make("orders", completion="explicit")
    first, second = poll_some(consumer, 2)
    consumer.complete(second)

    for message in (first, second):
        verdict = consumer.verdict(message)
        assert verdict is not None
        assert (verdict.kind, verdict.deliver, verdict.attempt) == (VerdictKind.FRESH, True, 1)
    consumer.complete(first)
    consumer.poll(0)
    consumer.close()
    assert consumer.verdict(first) is None


def test_observers_hear_every_final_verdict(make: Make, send: Send) -> None:
    """One event a record, with its coordinates; an observer that fails disturbs nobody."""
    events: list[Any] = []

    def fail(_: object) -> None:
        raise HandlerError

    send("a", "b", "a")
    consumer = make("orders", observers=[fail, events.append])

    assert values(poll_some(consumer, 2)) == ["a", "b"]
    poll_quiet(consumer)
    assert sorted((event.offset, event.verdict.kind) for event in events) == [
        (0, VerdictKind.FRESH), (1, VerdictKind.FRESH), (2, VerdictKind.DUPLICATE),
    ]  # fmt: skip
    assert consumer.counters.observer_errors == 3


def test_observing_hides_nothing_and_counts(make: Make, send: Send, kafka: MockKafka) -> None:
    """mode="observe": the application sees every record, in order; verdicts and commits are as if they were hidden."""
    send("a", "b", "a", "a")
    consumer = make("orders", mode="observe")

    assert values(poll_some(consumer, 4)) == ["a", "b", "a", "a"]
    send("b")
    assert values(poll_quiet(consumer)) == ["b"]
    assert consumer.counters.verdicts["duplicate"] == 3
    consumer.close()
    assert committed(kafka.bootstrap, "g", "orders").offset == 5


def test_too_many_in_flight_pause_the_partition(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one message is not completed, waiting messages behind it are bounded; then they come, none lost."""
    monkeypatch.setattr(upkeep, "MOST_WAITING", 50)
    send(*map(str, range(40)))
    consumer = make("orders", completion="explicit", config={"queued.min.messages": 1})
    first, *rest = poll_some(consumer, 40)
    for message in rest:
        consumer.complete(message)
    for start in range(40, 400, 40):
        send(*map(str, range(start, start + 40)))
        for message in poll_quiet(consumer, 0.15):
            rest.append(message)
            consumer.complete(message)

    assert len(rest) < 300
    [status] = consumer.partition_statuses
    assert status.position is not None
    assert status.position < 300
    consumer.complete(first)
    while len(rest) < 399:
        rest += poll_some(consumer, 1)
        consumer.complete(rest[-1])
    assert values(rest) == list(map(str, range(1, 400)))


def test_where_the_user_paused_too_a_full_partition_stays_paused(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound's own pause neither undoes the user's nor is undone by the user's resume."""
    send(*map(str, range(20)))
    consumer = make("orders", completion="explicit")
    messages = poll_some(consumer, 20)
    monkeypatch.setattr(upkeep, "MOST_WAITING", 5)
    orders = [TopicPartition("orders", 0)]
    consumer.poll(0)
    send("new")
    consumer.resume(orders)
    assert poll_quiet(consumer) == []
    consumer.pause(orders)
    for message in messages:
        consumer.complete(message)
    assert poll_quiet(consumer) == []
    consumer.resume(orders)
    assert values(poll_some(consumer, 1)) == ["new"]


def test_completing_what_is_not_ours_any_more_is_counted(make: Make, send: Send) -> None:
    """A completion that comes after the partition went changes nothing."""
    send("a")
    consumer = make("orders", completion="explicit")
    message = poll_some(consumer, 1)[0]
    consumer.unassign()

    consumer.complete(message)
    consumer.release(message)

    assert consumer.counters.stale == 2


def test_an_event_of_a_partition_is_stale(make: Make, send: Send) -> None:
    """It has topic and partition, and no offset: to complete it ends nothing."""
    send("a")
    consumer = make("orders", completion="explicit")
    (message,) = poll_some(consumer, 1)
    event = Message(topic="orders", partition=0, error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    consumer.complete(event, message, event)
    assert consumer.counters.stale == 2
    assert consumer.counters.as_dict()["completed"] == 1


def test_committing_an_error_event_is_an_error(make: Make, send: Send) -> None:
    """As the plain client has it: an event has no offset to commit."""
    send("a")
    consumer = make("orders", config={"enable.partition.eof": True})
    event = poll_some(consumer, 2)[1]

    for call in (consumer.commit, consumer.store_offsets):
        with pytest.raises(KafkaException, match=r"the message is an error.*end of partition") as caught:
            call(message=event)
        assert caught.value.args[0].code() == KafkaError._INVALID_ARG
