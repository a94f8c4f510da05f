"""The committed offset behind transactions: their markers, and aborted records, are nobody's work, and no lag."""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from dedup_sdk import MemoryStore
from tests.support.consuming import PATIENCE_S, numbers, poll_quiet, poll_some, values, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.worlds import World

QUICK: Final[dict[str, Any]] = {"auto.commit.interval.ms": 100}
AT_THE_END: Final[dict[str, Any]] = {"auto.commit.interval.ms": 600_000}


class Transactions:
    """A transactional producer of a world."""

    def __init__(self, world: World) -> None:
        self._topic = world.topic
        self._producer = Producer(
            {"bootstrap.servers": world.bootstrap, "transactional.id": world.group, "log_level": 0}
        )
        self._producer.init_transactions(PATIENCE_S)

    def send(self, ids: Iterable[str], *, aborted: bool = False) -> None:
        """Send records in one transaction."""
        self._producer.begin_transaction()
        for each in ids:
            self._producer.produce(self._topic, each, headers={"dedup-id": each}, partition=0)
        assert self._producer.flush(PATIENCE_S) == 0
        (self._producer.abort_transaction if aborted else self._producer.commit_transaction)(PATIENCE_S)


def end_of(world: World) -> int:
    """The end of the log, as a tool for lags sees it."""
    with Consumer({"bootstrap.servers": world.bootstrap, "group.id": "lag", "log_level": 0}) as plain:
        return int(plain.get_watermark_offsets(TopicPartition(world.topic, 0), PATIENCE_S)[1])


@pytest.mark.parametrize("config", [QUICK, AT_THE_END, {**AT_THE_END, "enable.auto.commit": False}])
def test_nothing_lags_behind_an_aborted_tail(world: World, config: dict[str, Any]) -> None:
    """Committed, aborted, committed, aborted; then the next life goes on without a loss and without a repetition."""
    sends = Transactions(world)
    for ids in (numbers(0, 100), numbers(100, 150)):
        sends.send(ids)
        sends.send(["lost", "gone"], aborted=True)
    consumer = world.consumer(config=config)
    got = values(poll_some(consumer, 150))
    assert got == numbers(0, 150)
    by_user = "enable.auto.commit" in config
    if config is QUICK:
        wait_for(consumer, lambda: world.committed().offset == end_of(world), "a commit behind all")
    else:
        assert poll_quiet(consumer) == []
    if by_user:
        consumer.commit(asynchronous=False)
        assert world.committed().offset == end_of(world), "as the plain client's commit() without arguments"
    assert consumer.position([TopicPartition(world.topic, 0)])[0].offset == end_of(world)
    sends.send(["more"], aborted=True)
    assert poll_quiet(consumer) == []
    consumer.close()
    assert world.committed().offset == end_of(world)

    sends.send([*numbers(140, 160), "lost"])
    for disk in ("one", "two"):
        with world.consumer(disk, config=config) as again:
            came = values(poll_some(again, 11)) if disk == "one" else values(poll_quiet(again))
            assert came == ([*numbers(150, 160), "lost"] if disk == "one" else [])
            assert poll_quiet(again) == []
            if by_user and disk == "one":
                again.commit(asynchronous=False)
            assert again.counters.verdicts["unverified"] == 0
            assert again.counters.stores_set_aside == 0
        assert world.committed().offset == end_of(world)


def test_no_record_in_hand_is_passed(world: World) -> None:
    """The commit stays before it, and moves behind the aborted tail when it is completed."""
    sends = Transactions(world)
    sends.send(["a", "b"])
    sends.send(["gone"], aborted=True)
    with world.consumer(config=QUICK, completion="explicit", store=MemoryStore()) as consumer:
        first, second = poll_some(consumer, 2)
        consumer.complete(second)
        assert poll_quiet(consumer) == []
        assert world.committed().offset == 0
        consumer.complete(first)
        wait_for(consumer, lambda: world.committed().offset == end_of(world), "a commit behind all")


def test_a_log_of_aborted_records_only_has_no_lag(world: World) -> None:
    """A new group there has nothing to handle; what is sent afterwards is delivered."""
    sends = Transactions(world)
    sends.send(["gone"], aborted=True)
    with world.consumer(config=QUICK) as consumer:
        wait_for(consumer, lambda: world.committed().offset == end_of(world), "a commit behind all")
        sends.send(["a"])
        assert values(poll_some(consumer, 1)) == ["a"]
    with world.consumer("two", config=QUICK) as consumer:
        sends.send(["a", "b"])
        assert values(poll_some(consumer, 1)) == ["b"]
        assert poll_quiet(consumer) == []


def test_messages_of_the_running_call_are_not_passed_when_another_thread_commits(world: World) -> None:
    """Nor is anything else lost, whoever commits, asks for the position, and moves meanwhile."""
    sends = Transactions(world)
    place = TopicPartition(world.topic, 0)
    with world.consumer(config=QUICK, completion="explicit") as consumer:
        over = Event()

        def commit() -> None:
            while not over.is_set():
                consumer.commit()
                consumer.position([place])

        thread = Thread(target=commit)
        thread.start()
        try:
            got: list[Any] = []
            for batch in range(20):
                sends.send(numbers(50 * batch, 50 * batch + 50))
                sends.send(["gone"], aborted=True)
                for message in poll_some(consumer, 50):
                    got.append(message)
                    consumer.complete(message)
        finally:
            over.set()
            thread.join()
        assert values(got) == numbers(0, 1_000)
        assert consumer.counters.verdicts["redelivered"] == 0
