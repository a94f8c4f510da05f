"""`run` in transactions, on a real broker: several handlers in one, order by key, and what becomes of each failure."""

from __future__ import annotations

import threading
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from dedup_sdk import ConfigurationError, _commit_text
from dedup_sdk.errors import TransactionError
from tests.integration.kafka.test_transactions import (
    IDLE_S,
    OUT,
    committed_of,
    failing,
    interrupt,
    of_the_application,
    seen,
)
from tests.support.bridging import until
from tests.support.consuming import PATIENCE_S, numbers, values
from tests.support.interrupting import strike_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk import DedupConsumer
    from tests.support.worlds import World

PRODUCER: Final = "dedup_sdk._transactions.producer.Producer"


@pytest.fixture
def out(world: World) -> str:
    """A topic for what is produced."""
    return world.create_topic(f"{world.topic}-{OUT}")


def run(
    consumer: DedupConsumer, handler: Any, *, given: dict[str, Any] | None = None, **options: Any
) -> None:
    """Run until nothing has come for a while, in small transactions."""
    consumer.run(handler, transactions=consumer.transactions(**{"seconds": 0.05, **(given or {})}), **options)


def copying(out: str, then: Callable[[Message], object] = id) -> Any:
    """A handler that copies a message, and does something."""

    def copy(message: Message, produce: Callable[..., None]) -> None:
        produce(out, message.value())
        then(message)

    return copy


@pytest.mark.parametrize("size", [3, 1_000])
def test_each_message_is_there_once_also_after_a_restart_on_an_empty_disk(
    world: World, out: str, size: int
) -> None:
    """Of several handlers at once; what is sent again is hidden by the text of the group's offsets."""
    world.send(*numbers(0, 50), *numbers(40, 60))
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        run(consumer, copying(out), workers=4, given={"max_messages": size})
        assert consumer.counters.as_dict()["fresh"] == 60
    assert Counter(seen(world, out)) == Counter(numbers(0, 60))
    assert committed_of(world) == (70, True)
    world.send(*numbers(0, 70))
    with world.consumer("two", idle_timeout=IDLE_S) as consumer:
        run(consumer, copying(out), workers=4)
        counted = consumer.counters.as_dict()
        assert (counted["fresh"], counted["unverified"]) == (10, 0)
    assert Counter(seen(world, out)) == Counter(numbers(0, 70))
    assert world.committed().offset == 140


def test_messages_of_one_key_stay_in_order(world: World, out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a transaction is aborted: it is tried again with the same output, and no handler is called again."""

    class Aborting(Producer):
        failed = 0

        def commit_transaction(self, timeout: float = -1) -> None:
            if Aborting.failed < 3:
                Aborting.failed += 1
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "once", txn_requires_abort=True))
            super().commit_transaction(timeout)

    producer = Producer({"bootstrap.servers": world.bootstrap, "log_level": 0})
    for number in range(60):
        producer.produce(world.topic, str(number), str(number % 3), headers={"dedup-id": str(number)})
    assert producer.flush(PATIENCE_S) == 0
    monkeypatch.setattr(PRODUCER, Aborting)
    handled = list[str]()
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        run(
            consumer,
            copying(out, lambda message: handled.extend(values([message]))),
            workers=8,
            given={"max_messages": 7},
        )
    assert Aborting.failed == 3
    found = seen(world, out)
    assert Counter(handled) == Counter(found) == Counter(numbers(0, 60))
    for key in range(3):
        assert [each for each in found if int(each) % 3 == key] == [str(n) for n in range(key, 60, 3)]


def test_what_the_text_of_the_offsets_has_no_room_for_waits(
    world: World, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next owner, who knows only that text, would produce once more what was handled behind a slow key."""
    monkeypatch.setattr(_commit_text, "MOST_CHARACTERS", 240)
    producer = Producer({"bootstrap.servers": world.bootstrap, "log_level": 0})
    slow = {0, *Random(5).sample(range(400), 200)}  # a text would have room for regular gaps
    for number in range(400):
        key = "slow" if number in slow else None
        producer.produce(world.topic, str(number), key, headers={"dedup-id": str(number)})
    assert producer.flush(PATIENCE_S) == 0
    handled = list[str]()
    with world.consumer(idle_timeout=IDLE_S) as consumer:

        def handle(message: Message) -> None:
            handled.extend(values([message]))
            if message.key():
                until(lambda: len(handled) > 400 - len(slow))
                consumer.stop()

        run(consumer, copying(out, handle), workers=4)
    assert 0 < len(seen(world, out)) < 200, len(seen(world, out))
    with world.consumer("two", idle_timeout=IDLE_S) as consumer:
        run(consumer, copying(out), workers=4)
    assert Counter(seen(world, out)) == Counter(numbers(0, 400))


def test_a_call_that_raises_has_produced_nothing(world: World, out: str) -> None:
    """Only the output of the call that returned is committed."""
    world.send(*numbers(0, 10))
    failed = set[str]()

    def fail_once(message: Message) -> None:
        [value] = values([message])
        if value not in failed:
            failed.add(value)
            raise OSError("not yet")

    with world.consumer(idle_timeout=IDLE_S) as consumer:
        run(consumer, copying(out, fail_once), workers=2, on_error="retry", wait_initial=0.01, wait_max=0.01)
    assert Counter(seen(world, out)) == Counter(numbers(0, 10))


def test_a_slow_handler_holds_no_transaction_open(world: World, out: str) -> None:
    """Others are committed meanwhile, and a restart hides them although an earlier message is not handled."""
    world.send(*numbers(0, 5))
    others_are_there = threading.Event()

    def wait(message: Message) -> None:
        if message.value() == b"0":
            assert others_are_there.wait(PATIENCE_S)

    def watch() -> None:
        until(lambda: len(seen(world, out)) >= 4)
        others_are_there.set()

    thread = threading.Thread(target=watch)
    thread.start()
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        run(consumer, copying(out, wait), workers=5)
    thread.join()
    found = seen(world, out)
    assert (found[-1], Counter(found)) == ("0", Counter(numbers(0, 5)))


def test_an_error_ends_the_run_and_keeps_what_others_have_handled(world: World, out: str) -> None:
    """The failed message comes again with the next run."""
    world.send(*numbers(0, 4))

    def fail(message: Message) -> None:
        if message.value() == b"2":
            raise ValueError("poison")

    with world.consumer(idle_timeout=IDLE_S) as consumer:
        with pytest.raises(ValueError, match="poison"):
            run(consumer, copying(out, fail))
        assert seen(world, out) == numbers(0, 2)
        run(consumer, copying(out))
    assert Counter(seen(world, out)) == Counter(numbers(0, 4))
    assert world.committed().offset == 4


def test_a_dead_letter_is_an_end(world: World, out: str) -> None:
    """What its handler has produced goes nowhere."""
    letters = world.create_topic(f"{world.topic}-letters")
    world.send(*numbers(0, 4))

    def fail(message: Message) -> None:
        if message.value() == b"2":
            raise ValueError("poison")

    with world.consumer(idle_timeout=IDLE_S) as consumer:
        run(consumer, copying(out, fail), on_error="dead-letter", dead_letters=letters, attempts=1)
        assert consumer.counters.dead_lettered == 1
    assert (seen(world, out), seen(world, letters)) == (["0", "1", "3"], ["2"])
    assert world.committed().offset == 4


def test_stop_in_a_handler_commits_what_is_handled(world: World, out: str) -> None:
    """What has not begun comes with the next run."""
    world.send(*numbers(0, 20))

    def stop(message: Message) -> None:
        if message.value() == b"5":
            consumer.stop()

    with world.consumer(idle_timeout=IDLE_S) as consumer:
        run(consumer, copying(out, stop), given={"seconds": 60})
        first = seen(world, out)
        assert first == numbers(0, 6)
        run(consumer, copying(out))
    assert Counter(seen(world, out)) == Counter(numbers(0, 20))


@pytest.mark.parametrize("is_done", [True, False])
def test_an_unknown_end_is_settled(
    world: World, out: str, monkeypatch: pytest.MonkeyPatch, *, is_done: bool
) -> None:
    """By the group's offsets, when the next producer of the ID has ended the transaction."""
    world.send(*numbers(0, 20))
    monkeypatch.setattr(PRODUCER, failing(is_done=is_done))
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        run(consumer, copying(out), workers=2, given={"max_messages": 10})
    assert Counter(seen(world, out)) == Counter(numbers(0, 20))
    assert world.committed().offset == 20


@pytest.mark.parametrize("is_done", [True, False])
def test_after_an_unknown_end_of_your_own_producer_nothing_comes_again(
    world: World, out: str, *, is_done: bool
) -> None:
    """The next consumer begins where the group's offsets are."""
    world.send(*numbers(0, 10))
    producer = failing(is_done=is_done)(of_the_application(world))
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        with pytest.raises(TransactionError, match="close the consumer"):
            run(consumer, copying(out), given={"producer": producer, "max_messages": 5})
        with pytest.raises(TransactionError, match="has not ended"):
            run(consumer, copying(out))
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        run(consumer, copying(out), given={"producer": of_the_application(world)})
    assert Counter(seen(world, out)) == Counter(numbers(0, 10))


def test_who_has_lost_a_message_leaves_it_out(world: World, out: str) -> None:
    """A seek forgets what is in hand, handled or not: it comes again, and is there once."""
    world.send(*numbers(0, 10))
    sought = list[bool]()

    def seek(message: Message) -> None:
        if message.value() == b"5" and not sought:
            sought.append(True)
            consumer.seek(TopicPartition(world.topic, 0, 0))

    with world.consumer(idle_timeout=IDLE_S) as consumer:
        run(consumer, copying(out, seek), given={"seconds": 1})
    assert sought
    assert Counter(seen(world, out)) == Counter(numbers(0, 10))


@pytest.mark.parametrize(
    "place", ["InHand.transaction_committed", "InHand.complete", "Partition.complete_items"]
)
def test_an_interruption_as_a_transaction_is_noted_doubles_nothing(
    world: World, out: str, place: str
) -> None:
    """A message before those of the transaction is still with its handler; the program goes on."""
    world.send(*numbers(0, 6))
    others_are_done = threading.Event()

    def handle(message: Message, produce: Callable[..., None]) -> None:
        if message.offset() == 0:
            others_are_done.wait(3)
        produce(out, message.value())

    with world.consumer(idle_timeout=IDLE_S) as consumer:
        strike_at(place, interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(consumer, handle, workers=2, order="none")
        others_are_done.set()
        run(consumer, handle, workers=2, order="none")
    assert sorted(seen(world, out)) == numbers(0, 6)


def test_a_record_belongs_into_the_call_of_its_handler(world: World, out: str) -> None:
    """Later its transaction may be over."""
    world.send("a")
    kept = list[Any]()
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        run(consumer, lambda _, produce: kept.append(produce))
    with pytest.raises(TransactionError, match="the handler has returned"):
        kept[0](out, "late")
    assert seen(world, out) == []


def test_a_record_that_the_client_refuses_ends_the_run(world: World, out: str) -> None:
    """With the client's own error; nothing of its transaction is seen."""
    world.send("a", "b")
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        with pytest.raises(KafkaException) as caught:
            run(consumer, lambda _, produce: produce(out, b"x" * 2_000_000))
        assert caught.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
        run(consumer, copying(out))
    assert seen(world, out) == ["a", "b"]


def test_what_does_not_fit_is_refused(world: World) -> None:
    """Before anything is asked of a broker."""
    with world.idle_consumer() as consumer, world.idle_consumer(group="another") as another:
        with pytest.raises(ConfigurationError, match="a function of a message and produce"):
            consumer.run(lambda _: None, transactions=consumer.transactions())
        with pytest.raises(ConfigurationError, match="of another consumer"):
            consumer.run(lambda _, __: None, transactions=another.transactions())


def test_transactions_are_used_once(world: World, out: str) -> None:
    """Each run, and each block, has a producer of its own."""
    world.send("a")
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        transactions = consumer.transactions(seconds=0.05)
        consumer.run(copying(out), transactions=transactions)
        with pytest.raises(RuntimeError, match="used before"):
            consumer.run(copying(out), transactions=transactions)
        with pytest.raises(RuntimeError, match="used before"), transactions:
            pass
    assert seen(world, out) == ["a"]


@pytest.mark.parametrize(
    ("given", "said"),
    [({"max_messages": 0}, "max_messages"), ({"seconds": -1}, "seconds"), ({"id_header": 5}, "id_header")],
)
def test_settings_that_make_no_sense(world: World, given: dict[str, Any], said: str) -> None:
    """They are named."""
    with world.idle_consumer() as consumer, pytest.raises(ConfigurationError, match=said):
        consumer.transactions(**given)
