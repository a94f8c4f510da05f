"""Transactions from Kafka to Kafka on a real broker: each end of one, and what is known after it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from dedup_sdk import ConfigurationError
from dedup_sdk.errors import TransactionError
from tests.support.consuming import PATIENCE_S, numbers, poll_quiet, poll_some, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk import DedupConsumer
    from tests.support.worlds import World

OUT = "bills"


@pytest.fixture
def out(world: World) -> str:
    """A topic for what is produced."""
    return world.create_topic(f"{world.topic}-{OUT}")


def seen(world: World, topic: str) -> list[str]:
    """What a reader of committed records sees, in the order of the log."""
    settings = {
        "bootstrap.servers": world.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest", "log_level": 0,
        "enable.partition.eof": True, "enable.auto.commit": False,
    }  # fmt: skip
    found = list[str]()
    with Consumer(settings) as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            message = reader.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found += values([message])
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
    raise AssertionError("the end of the topic was not reached")


def copy(
    consumer: DedupConsumer, topic: str, handle: Callable[[Message], object] = id, **options: Any
) -> dict[str, Any]:
    """Copy what comes until nothing has come for a second; return the counters that are not 0."""
    with consumer.transactions(**{"seconds": 0.05, **options}) as transactions:
        for transaction in transactions:
            for message in transaction:
                transaction.produce(topic, message.value())
                handle(message)
    return {name: total for name, total in consumer.counters.as_dict().items() if total}


@pytest.fixture
def copied(world: World, out: str) -> Callable[..., dict[str, Any]]:
    """Copy the topic in a consumer of its own, on some machine."""

    def copied(disk: str = "one", **options: Any) -> dict[str, Any]:
        with world.consumer(disk, idle_timeout=1) as consumer:
            return copy(consumer, out, **options)

    return copied


def committed_of(world: World) -> tuple[int, bool]:
    """The group's offset, and whether its text is ours."""
    found = world.committed()
    return found.offset, bool(found.metadata and "at=" in found.metadata)


@pytest.mark.parametrize("records", [7, 1_000])
def test_a_copy_has_each_message_once_also_after_a_restart_on_an_empty_disk(
    world: World, out: str, copied: Callable[..., dict[str, Any]], records: int
) -> None:
    """The group's offsets have the text: what is sent again is hidden, and so is what another disk has handled."""
    world.send(*numbers(0, 50), *numbers(40, 60))
    assert copied(records=records)["fresh"] == 60
    assert seen(world, out) == numbers(0, 60)
    assert committed_of(world) == (70, True)
    world.send(*numbers(0, 70))
    again = copied("two", records=records)
    assert (again["duplicate"], again["fresh"], again.get("unverified", 0)) == (60, 10, 0)
    assert seen(world, out) == numbers(0, 70)
    assert world.committed().offset == 140


def test_each_record_has_an_id_made_of_its_messages_own(world: World, out: str) -> None:
    """So the next consumer recognises a copy that an aborted transaction left to readers of uncommitted records."""
    world.send("a", "b")
    with world.consumer(idle_timeout=1) as consumer, consumer.transactions(seconds=0.05) as transactions:
        for transaction in transactions:
            for message in transaction:
                transaction.produce(out, message.value())
                transaction.produce(out, message.value(), headers={"dedup-id": "mine"})
                transaction.produce(out, message.value(), headers=[("x", "y")])
    settings = {"bootstrap.servers": world.bootstrap, "group.id": "r", "auto.offset.reset": "earliest"}
    with Consumer(settings) as reader:
        reader.assign([TopicPartition(out, 0, 0)])
        found = [dict(message.headers()) for message in poll_some(reader, 6)]
    ids = [each["dedup-id"] for each in found]
    assert [each for each in ids if each == b"mine"] == [b"mine"] * 2
    assert len(set(ids)) == 5
    assert all(each.endswith((b"-0", b"-2")) for each in ids if each != b"mine")
    assert b"a" not in b"".join(ids).split(b"-")


def test_an_exception_aborts_and_the_messages_come_again(world: World, out: str) -> None:
    """In this consumer at once, with their attempt counted; readers see nothing of the aborted transaction."""
    world.send("a", "b", "c")
    attempts = list[int]()

    def fail(message: Message) -> None:
        if message.value() == b"b":
            raise ValueError("poison")

    def note(message: Message) -> None:
        verdict = consumer.verdict(message)
        attempts.append(0 if verdict is None else verdict.attempt)

    with world.consumer(idle_timeout=1) as consumer:
        with pytest.raises(ValueError, match="poison"):
            copy(consumer, out, fail, seconds=5, records=3)
        assert seen(world, out) == []
        copy(consumer, out, note)
    assert seen(world, out) == ["a", "b", "c"]
    assert attempts == [2, 2, 1]


def test_hidden_records_alone_are_no_lag(
    world: World, out: str, copied: Callable[..., dict[str, Any]]
) -> None:
    """Their offsets are committed by a transaction of their own."""
    world.send("a")
    copied()
    world.send(*["a"] * 20)
    assert copied()["duplicate"] == 20
    assert world.committed().offset == 21
    assert seen(world, out) == ["a"]


def failing(*, is_done: bool) -> type[Producer]:
    """A producer whose first commit, of all its instances, does not say how it ended; ``is_done``: it was made."""
    failed = list[bool]()

    class Failing(Producer):
        def commit_transaction(self, timeout: float = -1) -> None:
            if failed or is_done:
                super().commit_transaction(timeout)
            if not failed:
                failed.append(True)
                raise KafkaException(KafkaError(KafkaError._FATAL, "the connection is gone", fatal=True))

    return Failing


@pytest.mark.parametrize("is_done", [True, False])
def test_an_unknown_end_is_settled_by_the_groups_offsets(
    world: World,
    out: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    is_done: bool,
) -> None:
    """The next producer of the ID has ended the transaction before they are read; nothing is doubled, nothing lost."""
    world.send(*numbers(0, 20))
    monkeypatch.setattr("dedup_sdk._transactions.transactions.Producer", failing(is_done=is_done))
    with world.consumer(idle_timeout=1) as consumer:
        copy(consumer, out, records=10)
        assert consumer.counters.released == (0 if is_done else 10)
    assert seen(world, out) == numbers(0, 20)
    assert "by the group's offsets it was" in caplog.text
    assert world.committed().offset == 20


def of_the_application(world: World) -> dict[str, Any]:
    """The settings of a producer of the application."""
    return {"bootstrap.servers": world.bootstrap, "transactional.id": world.group, "log_level": 0}


def test_an_unknown_end_of_your_own_producer_is_raised(world: World, out: str) -> None:
    """It cannot be replaced here; the next start begins where the group's offsets are."""
    world.send(*numbers(0, 10))
    producer = failing(is_done=True)(of_the_application(world))
    with world.consumer(idle_timeout=1) as consumer:
        with pytest.raises(TransactionError, match="close the consumer"):
            copy(consumer, out, producer=producer)
        assert values(poll_quiet(consumer)) == []
    assert seen(world, out) == numbers(0, 10)
    with world.consumer() as consumer:
        assert values(poll_quiet(consumer)) == []


def test_who_has_lost_a_message_aborts(world: World, out: str, caplog: pytest.LogCaptureFixture) -> None:
    """Another member may have it."""
    world.send(*numbers(0, 10))
    handled = list[str]()
    with world.consumer(idle_timeout=1) as consumer, consumer.transactions(seconds=0.2) as transactions:
        for transaction in transactions:
            for message in transaction:
                handled += values([message])
                transaction.produce(out, message.value())
                if len(handled) == 6:
                    consumer.seek(TopicPartition(world.topic, 0, 0))
    assert handled == numbers(0, 6) + numbers(0, 10)
    assert caplog.text.count("in your hands no more") == 1
    assert seen(world, out) == numbers(0, 10)


def test_a_loop_of_your_own(world: World, out: str) -> None:
    """Three calls in place of one's own offsets: an abort gives back, a commit completes; the text is in the commit."""
    producer = Producer(of_the_application(world))
    producer.init_transactions(PATIENCE_S)
    world.send(*numbers(0, 6))
    with world.consumer(completion="explicit") as consumer:
        messages = list[Message]()
        for is_aborted in (True, False):
            messages = poll_some(consumer, 4)
            member = consumer.consumer_group_metadata()
            producer.begin_transaction()
            for message in messages:
                producer.produce(out, message.value())
            offsets = consumer.transaction_offsets(messages)
            producer.send_offsets_to_transaction(offsets, member)
            if is_aborted:
                producer.abort_transaction()
                consumer.transaction_aborted(messages)
            else:
                producer.commit_transaction()
                consumer.transaction_committed(messages, offsets)
            assert values(messages) == numbers(0, 4)
        assert committed_of(world) == (4, True)
        with pytest.raises(TransactionError, match="in your hands no more"):
            consumer.transaction_offsets(messages)
    assert seen(world, out) == numbers(0, 4)
    world.send(*numbers(0, 4))
    with world.consumer("two", completion="explicit") as consumer:
        assert values(poll_quiet(consumer)) == ["4", "5"]


def test_where_the_next_call_completes_there_are_no_offsets_of_a_transaction(world: World) -> None:
    """The refusal names what to write."""
    with world.consumer() as consumer, pytest.raises(ConfigurationError, match="or use transactions"):
        consumer.transaction_offsets([])


@pytest.mark.parametrize("given", ["billing-1", Consumer, None, 5])
def test_what_is_no_producer_is_refused(world: World, given: Any) -> None:
    """Before anything is asked of a broker."""
    with world.idle_consumer() as consumer, pytest.raises(ConfigurationError, match="give settings, e"):
        consumer.transactions(given)
