"""Transactions from Kafka to Kafka on a real broker: each end of one, and what is known after it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from dedup_sdk import ConfigurationError, DedupConsumer, LastId, header
from dedup_sdk.errors import TransactionError
from dedup_sdk.orders import integer
from dedup_sdk.shared import MemoryClaimStore, Shared
from tests.support.consuming import PATIENCE_S, numbers, poll_quiet, poll_some, values
from tests.support.interrupting import strike_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk._transactions.transactions import TransactionBlock
    from tests.support.worlds import World

OUT: Final = "bills"
IDLE_S: Final = 3
"""Seconds without a message after which a copy is over; on a busy machine the first fetch takes more than one."""


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


def copy_one(transactions: TransactionBlock, topic: str) -> None:
    """Copy the messages of the first transaction, which the end of the block commits."""
    transaction = next(iter(transactions))
    for message in transaction:
        transaction.produce(topic, message.value())


def interrupt() -> None:
    """Raise what Ctrl-C does."""
    raise KeyboardInterrupt


def copy_one_and_strike(consumer: DedupConsumer, topic: str, place: str) -> None:
    """Copy a transaction, and interrupt the end of the block where that calls this function."""
    with consumer.transactions() as transactions:
        copy_one(transactions, topic)
        strike_at(place, interrupt)


@pytest.fixture
def copied(world: World, out: str) -> Callable[..., dict[str, Any]]:
    """Copy the topic in a consumer of its own, on some machine."""

    def copied(disk: str = "one", **options: Any) -> dict[str, Any]:
        with world.consumer(disk, idle_timeout=IDLE_S) as consumer:
            return copy(consumer, out, **options)

    return copied


def committed_of(world: World) -> tuple[int, bool]:
    """The group's offset, and whether its text is ours."""
    found = world.committed()
    return found.offset, bool(found.metadata and "at=" in found.metadata)


@pytest.mark.parametrize("size", [7, 1_000])
def test_a_copy_has_each_message_once_also_after_a_restart_on_an_empty_disk(
    world: World, out: str, copied: Callable[..., dict[str, Any]], size: int
) -> None:
    """The group's offsets have the text: what is sent again is hidden, and so is what another disk has handled."""
    world.send(*numbers(0, 50), *numbers(40, 60))
    assert copied(max_messages=size)["fresh"] == 60
    assert seen(world, out) == numbers(0, 60)
    assert committed_of(world) == (70, True)
    world.send(*numbers(0, 70))
    again = copied("two", max_messages=size)
    assert (again["duplicate"], again["fresh"], again.get("unverified", 0)) == (60, 10, 0)
    assert seen(world, out) == numbers(0, 70)
    assert world.committed().offset == 140


def test_each_record_has_an_id_made_of_its_messages_own(world: World, out: str) -> None:
    """So the next consumer recognises a copy that an aborted transaction left to readers of uncommitted records."""
    world.send("a", "b")
    with world.consumer(idle_timeout=IDLE_S) as consumer, consumer.transactions(seconds=0.05) as transactions:
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
    ours = [each for each in ids if each != b"mine"]
    # In another partition the same ID is another message.
    assert all(each.startswith(f"{world.topic}-0-".encode()) for each in ours)
    assert b"a" not in b"".join(ours).split(b"-")


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

    with world.consumer(idle_timeout=IDLE_S) as consumer:
        with pytest.raises(ValueError, match="poison"):
            copy(consumer, out, fail, seconds=5, max_messages=3)
        assert seen(world, out) == []
        copy(consumer, out, note)
    assert seen(world, out) == ["a", "b", "c"]
    assert attempts == [2, 2, 1]


def test_hidden_records_alone_are_no_lag(
    world: World, out: str, copied: Callable[..., dict[str, Any]]
) -> None:
    """Their offsets are committed beside the transactions."""
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
    monkeypatch.setattr("dedup_sdk._transactions.producer.Producer", failing(is_done=is_done))
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        copy(consumer, out, max_messages=10)
        assert consumer.counters.released == (0 if is_done else 10)
    assert seen(world, out) == numbers(0, 20)
    assert "by the group's offsets it was" in caplog.text
    assert world.committed().offset == 20


def test_a_broker_that_takes_no_long_text_is_told(
    world: World, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each further transaction would be refused as well."""

    class Refused(Producer):
        def send_offsets_to_transaction(self, *_: Any) -> None:
            raise KafkaException(KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE))

    monkeypatch.setattr("dedup_sdk._transactions.producer.Producer", Refused)
    world.send("a")
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        with pytest.raises(TransactionError, match=r"offset\.metadata\.max\.bytes"):
            copy(consumer, out)
        assert values(poll_quiet(consumer)) == []
    assert seen(world, out) == []


def test_offsets_that_are_never_taken_hold_nothing_up(
    world: World, out: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client waits for its coordinator for as long as that takes; another producer does the work meanwhile."""
    connected, asked = threading.Event(), list[bool]()

    class Hanging(Producer):
        def send_offsets_to_transaction(self, *given: Any) -> None:
            asked.append(True)
            if len(asked) == 1:
                connected.wait()
            super().send_offsets_to_transaction(*given)

    monkeypatch.setattr("dedup_sdk._transactions.producer.Producer", Hanging)
    monkeypatch.setattr("dedup_sdk._transactions.producer.OFFSETS_S", 0.2)
    world.send(*numbers(0, 10))
    try:
        with world.consumer(idle_timeout=IDLE_S) as consumer:
            copy(consumer, out)
    finally:
        connected.set()
    assert "the coordinator does not answer" in caplog.text
    assert seen(world, out) == numbers(0, 10)
    assert world.committed().offset == 10


def test_a_record_that_the_broker_refuses_is_the_cause_that_is_told(
    world: World, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not that of the transaction, which says less."""
    monkeypatch.setattr("dedup_sdk._transactions.committer.PAUSE_S", 0.001)
    world.send("a")
    settings = {"message.max.bytes": 20_000_000}
    refused = pytest.raises(TransactionError, match=r"a record was not written: .*too large")
    with (
        world.consumer(idle_timeout=IDLE_S) as consumer,
        refused,
        consumer.transactions(settings) as transactions,
    ):
        for transaction in transactions:
            for _ in transaction:
                transaction.produce(out, b"x" * 5_000_000)
    assert seen(world, out) == []


def test_transactions_that_only_fail_are_no_endless_loop(
    world: World, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last cause is told; nothing is committed."""

    class Refused(Producer):
        def send_offsets_to_transaction(self, *_: Any) -> None:
            raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    monkeypatch.setattr("dedup_sdk._transactions.producer.Producer", Refused)
    monkeypatch.setattr("dedup_sdk._transactions.committer.PAUSE_S", 0.001)
    world.send("a")
    handled = list[Message]()
    refused = pytest.raises(TransactionError, match="10 transactions in a row were aborted")
    with world.consumer(idle_timeout=IDLE_S) as consumer, refused:
        copy(consumer, out, handled.append)
    assert len(handled) == 10
    assert seen(world, out) == []


def of_the_application(world: World) -> dict[str, Any]:
    """The settings of a producer of the application."""
    return {"bootstrap.servers": world.bootstrap, "transactional.id": world.group, "log_level": 0}


def test_an_unknown_end_of_your_own_producer_is_raised(world: World, out: str) -> None:
    """It cannot be replaced here; the next start begins where the group's offsets are."""
    world.send(*numbers(0, 10))
    producer = failing(is_done=True)(of_the_application(world))
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        with pytest.raises(TransactionError, match="close the consumer"):
            copy(consumer, out, producer=producer)
        assert values(poll_quiet(consumer)) == []
    assert seen(world, out) == numbers(0, 10)
    with world.consumer() as consumer:
        assert values(poll_quiet(consumer)) == []


def test_who_has_lost_a_message_aborts(world: World, out: str, caplog: pytest.LogCaptureFixture) -> None:
    """A seek forgets the messages in hand, as a rebalance does."""
    world.send(*numbers(0, 10))
    handled = list[str]()
    with world.consumer(idle_timeout=IDLE_S) as consumer, consumer.transactions(seconds=0.2) as transactions:
        for transaction in transactions:
            for message in transaction:
                handled += values([message])
                transaction.produce(out, message.value())
                if len(handled) == 6:
                    consumer.seek(TopicPartition(world.topic, 0, 0))
    # Messages that come again while that transaction lasts come once more after its end.
    assert (handled[:6], handled[-10:]) == (numbers(0, 6), numbers(0, 10))
    assert caplog.text.count("in your hands no more") == 1
    assert seen(world, out) == numbers(0, 10)


def test_an_empty_message_that_has_ended_is_in_no_transaction(world: World) -> None:
    """An empty message is false: whoever asks for its truth takes it for none, and the offsets count as given."""
    world.send("", "b")
    with world.consumer(completion="explicit") as consumer:
        empty, other = poll_some(consumer, 2)
        consumer.complete(empty)
        with pytest.raises(TransactionError, match="in your hands no more"):
            consumer.transaction_offsets([empty, other])
        assert consumer.transaction_offsets([other])[0].offset == 2


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


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_loop_with_offsets_of_its_own_is_told_so_once(
    world: World, caplog: pytest.LogCaptureFixture, *, is_ours: bool
) -> None:
    """At the second transaction, with the calls to make instead; a loop that makes them is told nothing."""
    producer = Producer(of_the_application(world))
    producer.init_transactions(PATIENCE_S)
    world.send(*numbers(0, 3))
    with world.consumer(completion="explicit") as consumer:
        for _ in range(3):
            messages = poll_some(consumer, 1)
            member = consumer.consumer_group_metadata()
            producer.begin_transaction()
            if is_ours:
                offsets = consumer.transaction_offsets(messages)
            else:
                offsets = [TopicPartition(world.topic, 0, (messages[0].offset() or 0) + 1)]
            producer.send_offsets_to_transaction(offsets, member)
            producer.commit_transaction()
            consumer.transaction_committed(messages, offsets if is_ours else [])
    told = [each.message for each in caplog.records if "consumer_group_metadata" in each.message]
    assert [("transaction_offsets(messages)" in each, "transactions()" in each) for each in told] == (
        [] if is_ours else [(True, True)]
    )


def test_the_next_consumer_hides_what_aborted_transactions_left(world: World, out: str) -> None:
    """It reads uncommitted records, with those that were produced again for the same messages."""
    world.send(*numbers(0, 6))
    dirty = {"isolation.level": "read_uncommitted"}
    reader = Consumer(
        {"bootstrap.servers": world.bootstrap, "group.id": "r", "auto.offset.reset": "earliest", **dirty}
    )
    reader.assign([TopicPartition(out, 0, 0)])

    def fail(message: Message) -> None:
        if message.value() == b"4":
            # They are in the log before they are aborted.
            poll_some(reader, 5)
            raise ValueError("not yet")

    with reader, world.consumer(idle_timeout=IDLE_S) as consumer:
        with pytest.raises(ValueError, match="not yet"):
            copy(consumer, out, fail, seconds=5, max_messages=6)
        copy(consumer, out)
    with world.idle_consumer("next", dirty, group=f"{world.group}-next", idle_timeout=IDLE_S) as consumer:
        consumer.subscribe([out])
        assert values(list(consumer)) == numbers(0, 6)
        assert consumer.counters.as_dict()["duplicate"] == 5


def test_a_static_member_has_a_transactional_id_that_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the next process of it ends the transaction that a killed one has left open; others have one each."""
    made = list[str]()

    class Noting(Producer):
        def __init__(self, config: dict[str, Any]) -> None:
            made.append(config["transactional.id"])
            super().__init__(config)

    monkeypatch.setattr("dedup_sdk._transactions.producer.Producer", Noting)
    for config in ({"group.instance.id": "pod-1"}, {"group.instance.id": "pod-1"}, {}, {}):
        with world.idle_consumer(config=config) as consumer, consumer.transactions():
            pass
    assert made[:2] == [f"{world.group}-pod-1"] * 2
    assert len({*made}) == 3


def test_where_the_next_call_completes_there_are_no_offsets_of_a_transaction(world: World) -> None:
    """The refusal names what to write."""
    with world.consumer() as consumer, pytest.raises(ConfigurationError, match="or use transactions"):
        consumer.transaction_offsets([])


@pytest.mark.parametrize("given", ["billing-1", Consumer, None, 5])
def test_what_is_no_producer_is_refused(world: World, given: Any) -> None:
    """Before anything is asked of a broker."""
    with world.idle_consumer() as consumer, pytest.raises(ConfigurationError, match="give settings, e"):
        consumer.transactions(given)


@pytest.mark.parametrize("end", ["complete", "release", "once", "commit", "store_offsets"])
def test_in_a_transaction_nothing_else_ends_a_message(world: World, out: str, end: str) -> None:
    """Else a message that is completed, and whose transaction is aborted, would never be seen."""
    world.send(*numbers(0, 3))
    aborted = list[Message]()

    def handle(message: Message) -> None:
        if end == "once":
            with consumer.once(message):
                pass
        else:
            getattr(consumer, end)(message)
        if message.value() == b"1" and not aborted:
            aborted.append(message)
            raise ValueError("not now")

    with world.consumer(idle_timeout=IDLE_S) as consumer:
        with pytest.raises(ValueError, match="not now"):
            copy(consumer, out, handle)
        copy(consumer, out, handle)
        assert (consumer.counters.stale > 0) == (end in {"complete", "release", "once"})
    assert seen(world, out) == numbers(0, 3)


def test_stop_in_the_middle_commits_and_ends(world: World, out: str) -> None:
    """The transaction under way is committed; what has not come yet is for the next block."""
    world.send(*numbers(0, 20))

    def stop(message: Message) -> None:
        if message.value() == b"5":
            consumer.stop()

    with world.consumer(idle_timeout=IDLE_S) as consumer:
        copy(consumer, out, stop, seconds=60)
        assert seen(world, out) == numbers(0, 6)
        copy(consumer, out)
    assert seen(world, out) == numbers(0, 20)


def test_new_credentials_reach_the_producer_under_way_and_the_next_one(
    world: World, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the transaction of a long-lived program fails when its first password is over."""
    told, made = list[tuple[str, str]](), list[dict[str, Any]]()

    class Noting(failing(is_done=False)):  # type: ignore[misc]  # a class that is made
        def __init__(self, config: dict[str, Any]) -> None:
            made.append(dict(config))
            super().__init__({name: value for name, value in config.items() if "sasl" not in name})

        def set_sasl_credentials(self, username: str, password: str) -> None:
            told.append((username, password))

    monkeypatch.setattr("dedup_sdk._transactions.producer.Producer", Noting)
    world.send("a")
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        copy(consumer, out, lambda _: consumer.set_sasl_credentials("shop", "new"))
    # The first commit's end is unknown, so that another producer is made.
    assert told[0] == ("shop", "new")
    assert [each.get("sasl.password") for each in made] == [None, "new"]
    assert seen(world, out) == ["a"]


def test_a_block_that_is_never_entered_has_no_client(
    world: World, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep its connections until a garbage collection, and the credentials of the time when it was made."""
    made = list[dict[str, Any]]()

    class Noting(Producer):
        def __init__(self, config: dict[str, Any]) -> None:
            made.append(dict(config))
            super().__init__({name: value for name, value in config.items() if "sasl" not in name})

    monkeypatch.setattr("dedup_sdk._transactions.producer.Producer", Noting)
    world.send("a")
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        consumer.transactions()
        transactions = consumer.transactions(seconds=0.05)
        assert made == []
        consumer.set_sasl_credentials("shop", "new")
        with transactions:
            copy_one(transactions, out)
        refused = consumer.transactions({"transactional.id": "billing-1", "no.such.setting": 1})
        with pytest.raises(ConfigurationError, match="such"), refused:
            pass
        copy(consumer, out)
    assert [each["sasl.password"] for each in made] == ["new"] * 3
    assert seen(world, out) == ["a"]


def test_messages_that_come_again_twice_stay_in_order(world: World, out: str) -> None:
    """Also where those of the first aborted transaction are not all handed out when the second one is aborted."""
    world.send(*numbers(0, 30))
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        for size in (20, 3, 1):

            def fail(message: Message, last: bytes = b"%d" % (size - 1)) -> None:
                if message.value() == last:
                    raise ValueError("not yet")

            with pytest.raises(ValueError, match="not yet"):
                copy(consumer, out, fail, seconds=5, max_messages=size)
        copy(consumer, out)
    assert seen(world, out) == numbers(0, 30)


def test_an_added_partition_is_copied_too(world: World, out: str) -> None:
    """The group gets it while transactions go on."""
    world.send(*numbers(0, 5))
    config = {"topic.metadata.refresh.interval.ms": 500}
    added = list[bool]()

    def add(_: Message) -> None:
        if not added:
            added.append(True)
            admin = AdminClient({"bootstrap.servers": world.bootstrap, "log_level": 0})
            [done] = admin.create_partitions([NewPartitions(world.topic, 2)]).values()
            done.result(PATIENCE_S)
            # Of a client that knows the new partition.
            producer = Producer({"bootstrap.servers": world.bootstrap, "log_level": 0})
            for each in numbers(5, 10):
                producer.produce(world.topic, each, headers={"dedup-id": each}, partition=1)
            assert producer.flush(PATIENCE_S) == 0

    with world.consumer(config=config, idle_timeout=2 * IDLE_S) as consumer:
        copy(consumer, out, add)
    assert Counter(seen(world, out)) == Counter(numbers(0, 10))
    assert (world.committed().offset, world.committed(1).offset) == (5, 5)


def test_last_id_in_transactions(world: World, out: str) -> None:
    """What is not newer is hidden, also on another disk, by the text of the group's offsets."""
    strategy = LastId(id=header("dedup-id"), order=integer())
    world.send(*numbers(0, 10), *numbers(5, 12))
    for disk in ("one", "two"):
        with world.consumer(disk, dedup=strategy, idle_timeout=IDLE_S) as consumer:
            copy(consumer, out, max_messages=4)
        world.send(*numbers(3, 12))
    assert seen(world, out) == numbers(0, 12)


def test_transactions_belong_into_a_block(world: World, out: str) -> None:
    """Outside of one the next call would complete their messages, before they are committed."""
    world.send(*numbers(0, 3))
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        transactions = consumer.transactions()
        with pytest.raises(RuntimeError, match="in a block only"):
            list(transactions)
        with transactions, pytest.raises(RuntimeError, match="at work already"), consumer.transactions():
            pass
        with pytest.raises(RuntimeError, match="in a block only"):
            list(transactions)
        with pytest.raises(RuntimeError, match="used before"), transactions:
            pass
        with consumer.transactions(), pytest.raises(RuntimeError, match="at work already"):
            consumer.run(id)
        copy(consumer, out)
    assert seen(world, out) == numbers(0, 3)


def test_a_transaction_that_is_over_takes_no_record(world: World, out: str) -> None:
    """It would be in the next one, and stay if that alone is committed."""
    world.send(*numbers(0, 2))
    before = list[Any]()
    with (
        world.consumer(idle_timeout=IDLE_S) as consumer,
        consumer.transactions(max_messages=1) as transactions,
    ):
        for transaction in transactions:
            for message in transaction:
                transaction.produce(out, message.value())
                for each in before:
                    with pytest.raises(TransactionError, match="is over"):
                        each.produce(out, "late")
            before.append(transaction)
    with pytest.raises(TransactionError, match="is over"):
        before[-1].produce(out, "late")
    assert seen(world, out) == numbers(0, 2)


@pytest.mark.parametrize("is_used_on", [True, False])
def test_an_interruption_of_the_last_commit_aborts(
    world: World, out: str, monkeypatch: pytest.MonkeyPatch, *, is_used_on: bool
) -> None:
    """Also where the block ends: the messages come again, in this consumer and in the next one of this disk."""
    world.send(*numbers(0, 5))
    interrupted = list[bool]()

    class Interrupted(Producer):
        def flush(self, timeout: float = -1) -> int:
            if not interrupted:
                interrupted.append(True)
                raise KeyboardInterrupt
            return super().flush(timeout)

    monkeypatch.setattr("dedup_sdk._transactions.producer.Producer", Interrupted)
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        transactions = consumer.transactions(max_messages=5)
        with pytest.raises(KeyboardInterrupt), transactions:
            copy_one(transactions, out)
        if is_used_on:
            copy(consumer, out)
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        copy(consumer, out)
    assert seen(world, out) == numbers(0, 5)
    assert world.committed().offset == 5


@pytest.mark.parametrize("is_done", [False, True])
def test_a_program_that_goes_on_after_an_interrupted_commit_doubles_nothing(
    world: World, out: str, monkeypatch: pytest.MonkeyPatch, *, is_done: bool
) -> None:
    """The end of that transaction is settled first: committed again, its records would be there twice."""
    struck = list[bool]()

    class Struck(Producer):
        def commit_transaction(self, timeout: float = -1) -> None:
            if is_done or struck:
                super().commit_transaction(timeout)
            if not struck:
                struck.append(True)
                raise KeyboardInterrupt

    world.send(*numbers(0, 10))
    monkeypatch.setattr("dedup_sdk._transactions.producer.Producer", Struck)
    with (
        world.consumer(idle_timeout=IDLE_S) as consumer,
        consumer.transactions(max_messages=5, seconds=0.05) as transactions,
    ):
        for _ in range(2):
            with suppress(KeyboardInterrupt):
                for transaction in transactions:
                    for message in transaction:
                        transaction.produce(out, message.value())
    assert struck
    assert sorted(seen(world, out)) == numbers(0, 10)
    assert committed_of(world) == (10, True)


@pytest.mark.parametrize("place", ["Committer.close", "InHand.end_explicit", "_end_block"])
def test_a_block_whose_end_is_interrupted_is_over(world: World, out: str, place: str) -> None:
    """The consumer goes on without it: messages are completed as before, and another block may begin."""
    world.send(*numbers(0, 5))
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        with pytest.raises(KeyboardInterrupt):
            copy_one_and_strike(consumer, out, place)
        world.send(*numbers(5, 10))
        poll_some(consumer, 5)
        copy(consumer, out)
    assert world.committed().offset == 10
    assert seen(world, out) == numbers(0, 5)


@pytest.mark.parametrize("is_done", [True, False])
def test_after_an_unknown_end_nothing_is_completed_or_committed(
    world: World, out: str, caplog: pytest.LogCaptureFixture, *, is_done: bool
) -> None:
    """A program that uses the consumer on all the same loses nothing, and doubles nothing."""
    world.send(*numbers(0, 10))
    producer = failing(is_done=is_done)(of_the_application(world))
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        with pytest.raises(TransactionError, match="close the consumer"):
            copy(consumer, out, producer=producer, max_messages=5)
        with pytest.raises(TransactionError, match="has not ended"):
            copy(consumer, out)
        assert values(poll_quiet(consumer)) == numbers(5, 10)
    assert "Traceback" not in caplog.text
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        copy(consumer, out, producer=of_the_application(world))
    assert seen(world, out) == numbers(0, 5)


def test_of_two_transactions_at_once_the_second_is_refused(world: World) -> None:
    """The one that reaches the broker last would win, with the lower offset."""
    world.send(*numbers(0, 4))
    with world.consumer(completion="explicit") as consumer:
        messages = poll_some(consumer, 4)
        for _ in range(2):
            assert consumer.transaction_offsets(messages[:2])[0].offset == 2
        with pytest.raises(TransactionError, match="has not ended"):
            consumer.transaction_offsets(messages[2:])
        consumer.transaction_aborted(messages[:2])
        assert consumer.transaction_offsets(messages[2:])[0].offset == 0


def test_a_transaction_that_fails_before_the_body_ends_is_aborted(
    world: World, out: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What the body produces then goes nowhere; the error is not the body's."""
    world.send(*numbers(0, 6))
    settings = {"message.max.bytes": 20_000_000}
    handled = list[str]()

    with (
        world.consumer(idle_timeout=IDLE_S) as consumer,
        consumer.transactions(settings, seconds=5) as transactions,
    ):
        for transaction in transactions:
            for message in transaction:
                handled += values([message])
                if len(handled) == 3:
                    # The broker refuses it, which the client hears later.
                    transaction.produce(out, b"x" * 5_000_000)
                    time.sleep(1)
                transaction.produce(out, message.value())
    # The client's next transaction may fail as well: it goes on from the sequence number of the refused record.
    assert handled[:9] == numbers(0, 3) + numbers(0, 6)
    assert "the transaction is aborted" in caplog.text
    assert seen(world, out) == numbers(0, 6)


def test_transactions_need_committed_offsets(world: World) -> None:
    """With the other level the next owner of a partition would not wait for the end of an open transaction."""
    config = {"isolation.level": "read_uncommitted"}
    with world.idle_consumer(config=config, completion="explicit") as consumer:
        with pytest.raises(ConfigurationError, match="need read_committed"):
            consumer.transactions()
        with pytest.raises(ConfigurationError, match="need read_committed"):
            consumer.transaction_offsets([])


def test_close_in_a_block_aborts(world: World, out: str, caplog: pytest.LogCaptureFixture) -> None:
    """The records of the open transaction are never seen; readers wait for nothing."""
    world.send(*numbers(0, 3))
    with world.consumer(idle_timeout=IDLE_S) as consumer, pytest.raises(RuntimeError, match="closed"):
        copy(consumer, out, lambda _: consumer.close(), max_messages=3)
    assert "could not be aborted" not in caplog.text
    assert seen(world, out) == []
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        copy(consumer, out)
    assert seen(world, out) == numbers(0, 3)


def test_a_commit_before_without_an_answer_is_waited_for(
    world: World, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for any other answer of a broker that stands still: the program does not end."""
    world.send(*numbers(0, 3))
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        really, calls = consumer.transaction_offsets, list[bool]()

        def offsets(messages: list[Message]) -> list[TopicPartition]:
            if messages:
                calls.append(True)
                if len(calls) == 1:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return really(messages)

        monkeypatch.setattr(consumer, "transaction_offsets", offsets)
        copy(consumer, out)
    assert seen(world, out) == numbers(0, 3)


def test_a_producer_of_yours_serves_block_after_block(world: World, out: str) -> None:
    """Also if you, or an earlier block, called its ``init_transactions``, and if it has a transaction open."""
    producer = Producer(of_the_application(world))
    producer.init_transactions(PATIENCE_S)
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        for batch in (numbers(0, 3), numbers(3, 6), numbers(6, 9)):
            world.send(*batch)
            if batch[0] == "6":
                producer.begin_transaction()
                producer.produce(out, "of no transaction")
            copy(consumer, out, producer=producer)
    assert seen(world, out) == numbers(0, 9)


def test_an_offset_that_the_group_had_before_proves_no_commit(
    pair_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction also has the offsets of hidden records, which an earlier one may have committed, too."""
    world = pair_world
    out = world.create_topic(f"{world.topic}-{OUT}")
    commits = list[int]()

    class Second(Producer):
        def commit_transaction(self, timeout: float = -1) -> None:
            commits.append(1)
            if len(commits) == 2:
                raise KafkaException(KafkaError(KafkaError._FATAL, "the connection is gone", fatal=True))
            super().commit_transaction(timeout)

    offsets_of = DedupConsumer.transaction_offsets

    def with_hidden(consumer: DedupConsumer, messages: list[Message]) -> list[TopicPartition]:
        """As while the watermark of partition 0 stands before a hidden record: its offset goes with each."""
        asked = offsets_of(consumer, messages)
        before = consumer.committed([TopicPartition(world.topic, 0)], PATIENCE_S)
        return [*asked, *before] if all(tp.partition for tp in asked) else asked

    world.send("a")
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        copy(consumer, out)
    world.send("b", "c", "d", partition=1)
    monkeypatch.setattr("dedup_sdk._transactions.producer.Producer", Second)
    monkeypatch.setattr(DedupConsumer, "transaction_offsets", with_hidden)
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        copy(consumer, out, max_messages=1)
    assert len(commits) > 2
    assert sorted(seen(world, out)) == ["a", "b", "c", "d"]


def test_an_id_that_another_consumer_may_have_by_now_is_given_back(pair_world: World) -> None:
    """A process that stood still for longer than a lease of the shared memory keeps its partition, and not its IDs."""
    world = pair_world
    out = world.create_topic(f"{world.topic}-{OUT}")
    stood_s = [0.0]
    store = MemoryClaimStore(lambda: time.monotonic() + stood_s[0])
    shared = Shared(store, lease=3, scope="global")

    def stand_still(_: Message) -> None:
        stood_s[0] = 60
        with world.idle_consumer("two", shared=shared, idle_timeout=1, group=f"{world.group}-2") as consumer:
            consumer.assign([TopicPartition(world.topic, 1, 0)])
            copy(consumer, out)
        # A renewal finds out.
        time.sleep(3)

    world.send("a")
    world.send("a", partition=1)
    with world.idle_consumer("one", shared=shared, idle_timeout=3) as consumer:
        consumer.assign([TopicPartition(world.topic, 0, 0)])
        copy(consumer, out, stand_still)
    assert seen(world, out) == ["a"]


def test_a_fatal_error_that_a_flush_raises_aborts(
    world: World, out: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As that of a producer whose transaction took too long, or whose ID another process has by now."""
    world.send(*numbers(0, 3))
    failed = list[bool]()

    class Fenced(Producer):
        def flush(self, timeout: float = -1) -> int:
            if not failed:
                failed.append(True)
                raise KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=True))
            return super().flush(timeout)

    monkeypatch.setattr("dedup_sdk._transactions.producer.Producer", Fenced)
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        copy(consumer, out)
    assert "the transaction is aborted" in caplog.text
    assert seen(world, out) == numbers(0, 3)
