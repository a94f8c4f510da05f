"""Messages that come alone, or a few at once, are judged one by one; nobody can see a difference."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Event, Timer
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import LastId, Lookup, Window, orders
from dedup_sdk._engine.partition import Partition
from dedup_sdk._kafka.deliver import maintenance, poller
from dedup_sdk._kafka.deliver.fetcher import Fetcher
from dedup_sdk._store.memory import MemoryPartition
from dedup_sdk.errors import StoreCorruptError
from dedup_sdk.ids import function
from tests.mock.conftest import SHARED_GROUP
from tests.support import inside
from tests.support.consuming import DONE_S, PATIENCE_S, committed, poll_quiet, poll_some, values

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk import DedupConsumer, MemoryStore, Record
    from dedup_sdk._marks import Found
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


def value_of(record: Record) -> str:
    """The value, as an ID that a function reads."""
    return (record.value or b"").decode()


def one_by_one(
    consumer: DedupConsumer, send: Send, *ids: str, topic: str = "orders", partition: int = 0
) -> list[str]:
    """Send records when the consumer waits for them, one after the other; return the values that came."""
    got: list[str] = []
    for each in ids:
        send(each, topic=topic, partition=partition)
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        got += values([message])
    return got


def alone(consumer: DedupConsumer) -> list[str]:
    """The values of the messages that were judged one by one since something was written."""
    return values(inside.alone(consumer))


def rested(make: Make, *topics: str, **options: Any) -> DedupConsumer:
    """A consumer that has read its topics to their ends, and does no maintenance by itself for long."""
    consumer = make(*topics, **options)
    poll_quiet(consumer)
    consumer.poll(0)
    inside.rest_from_maintenance(consumer)
    return consumer


def test_a_message_that_comes_alone_is_judged_at_once(make: Make, send: Send) -> None:
    """It shares a chunk with those that follow it."""
    consumer = rested(make, "orders")

    assert one_by_one(consumer, send, "a", "b", "c") == ["a", "b", "c"]
    assert alone(consumer) == ["a", "b", "c"]
    assert consumer.counters.verdicts["fresh"] == 3
    assert consumer.counters.delivered == 3
    assert consumer.position([TopicPartition("orders", 0)])[0].offset == 3


def test_a_copy_of_a_lone_message_is_a_duplicate(make: Make, send: Send) -> None:
    """Of one in hand, of one that was completed, and of one in the store."""
    consumer = rested(make, "orders")
    assert one_by_one(consumer, send, "a") == ["a"]
    send("a")
    assert one_by_one(consumer, send, "b") == ["b"]
    consumer.commit(asynchronous=False)
    assert alone(consumer) == []
    send("b", "a")
    assert one_by_one(consumer, send, "c") == ["c"]

    assert consumer.counters.verdicts["duplicate"] == 3
    assert consumer.counters.verdicts["fresh"] == 3


@pytest.mark.parametrize("end", ["close", "kill", "block"])
def test_an_end_with_lone_messages(make: Make, send: Send, memory: MemoryStore, end: str) -> None:
    """All but the last are completed by an orderly end, and that one by the end of the block; a kill completes none."""
    consumer = rested(make, "orders")
    assert one_by_one(consumer, send, "a", "b", "c") == ["a", "b", "c"]
    assert alone(consumer) == ["a", "b", "c"]
    if end == "close":
        consumer.close()
    elif end == "block":
        with consumer:
            pass
    else:
        inside.lose_all(consumer)
        consumer.close()
    send("d")

    rest = {"close": ["c", "d"], "block": ["d"], "kill": ["a", "b", "c", "d"]}[end]
    assert values(poll_some(make("orders", store=memory), len(rest))) == rest


def test_a_commit_completes_lone_messages(make: Make, send: Send, kafka: MockKafka) -> None:
    """All that was delivered, as after a batch."""
    consumer = rested(make, "orders")
    assert one_by_one(consumer, send, "a", "b", "c") == ["a", "b", "c"]
    assert alone(consumer) == ["a", "b", "c"]
    consumer.commit(asynchronous=False)
    assert committed(kafka.bootstrap, "g", "orders").offset == 3


def test_the_last_message_of_two_partitions_is_the_last(make: Make, send: Send, memory: MemoryStore) -> None:
    """The message that `close` does not complete is the one delivered last."""
    consumer = rested(make, "pairs")
    for partition, each in enumerate(["a", "b", "c", "d", "e"]):
        send(each, topic="pairs", partition=partition % 2)
        [message] = poll_some(consumer, 1)
        assert values([message]) == [each]
    consumer.close()

    assert values(poll_some(make("pairs", store=memory), 1)) == ["e"]


def test_a_lone_message_can_be_released(make: Make, send: Send) -> None:
    """Calls that name a message find it."""
    consumer = rested(make, "orders")
    send("a")
    first = consumer.poll(PATIENCE_S)
    assert first is not None
    assert alone(consumer) == ["a"]
    verdict = consumer.verdict(first)
    assert verdict is not None
    assert verdict.kind.value == "fresh"
    consumer.release(first)
    assert values(poll_some(consumer, 1)) == ["a"]


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "observe"},
        {"dedup": Lookup(id="header:dedup-id", window=Window(count=2))},
        {"dedup": Lookup(id=function(value_of, name="value", version="1"), window="7d")},
        {"dedup": LastId(id="header:dedup-id", order=orders.integer())},
    ],
    ids=["observe", "count", "function", "last"],
)
def test_where_more_decides_than_an_id_batches_are_judged(
    make: Make, send: Send, options: dict[str, Any]
) -> None:
    """Also of one message."""
    consumer = rested(make, "orders", **options)
    assert one_by_one(consumer, send, "1", "2") == ["1", "2"]
    assert alone(consumer) == []


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"completion": "explicit"}, ["1", "2"]),
        ({"durability": "record"}, ["2"]),
        ({"config": {"enable.auto.commit": False}}, ["1", "2"]),
        ({"observers": [list]}, ["1", "2"]),
    ],
    ids=["explicit", "record", "commits", "observers"],
)
def test_lone_messages_in_every_mode(
    make: Make, send: Send, options: dict[str, Any], kept: list[str]
) -> None:
    """However messages are completed, and whoever looks."""
    told: list[Any] = []
    if "observers" in options:
        options = {"observers": [told.append]}
    consumer = rested(make, "orders", **options)
    assert one_by_one(consumer, send, "1", "2") == ["1", "2"]
    assert alone(consumer) == kept
    assert [event.verdict.kind.value for event in told] == ["fresh"] * len(told)
    assert len(told) == (2 if "observers" in options else 0)


def test_a_record_without_an_id_is_judged_in_a_batch(make: Make, send: Send) -> None:
    """Nothing can be looked up."""
    consumer = rested(make, "orders", dedup=Lookup(id="header:other", window="7d"))
    assert one_by_one(consumer, send, "a", "b") == ["a", "b"]
    assert alone(consumer) == []
    assert consumer.counters.reasons["unkeyed.absent"] == 2


def with_lone_messages(make: Make, send: Send, *topics: str, **options: Any) -> DedupConsumer:
    """A consumer that has delivered "a", "b" and "c" of "orders", or of both partitions of "pairs"."""
    consumer = rested(make, *topics, **options)
    for number, each in enumerate("abc"):
        one_by_one(consumer, send, each, topic=topics[0], partition=number % 2 if topics == ("pairs",) else 0)
    assert sorted(alone(consumer)) == ["a", "b", "c"]
    return consumer


def test_a_rebalance_inside_the_call_for_more_repeats_nothing(make: Make, send: Send) -> None:
    """That call has completed the messages before it, although it waits still."""
    consumer = with_lone_messages(make, send, "pairs", config=SHARED_GROUP)
    other = make("pairs", config=SHARED_GROUP)
    got, stop = list[Any](), Event()

    def read_other() -> None:
        while not stop.is_set():
            got.extend(message for message in [other.poll(0.1)] if message)

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_other)
        until = time.monotonic() + PATIENCE_S
        while not other.partition_statuses and time.monotonic() < until:
            got.extend(message for message in [consumer.poll(8)] if message)
        got += poll_quiet(consumer)
        stop.set()
        reading.result()
    got += poll_quiet(other, DONE_S)

    assert len(other.partition_statuses) == 1
    assert values(got) == []


def test_poll_survives_a_damaged_store(make: Make, send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-up of a lone message finds the damage; what the store may have lost comes again."""
    consumer = with_lone_messages(make, send, "orders")
    find = MemoryPartition.find

    def broken(*_: object) -> Found:
        monkeypatch.setattr(MemoryPartition, "find", find)
        raise StoreCorruptError("damaged")

    monkeypatch.setattr(MemoryPartition, "find", broken)
    send("d")
    assert values(poll_some(consumer, 1)) == ["d"]


def test_a_bug_while_a_lone_message_is_judged_is_raised(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the call that meets it; the message comes with a later one."""
    consumer = with_lone_messages(make, send, "orders")
    admit = Partition.admit_one

    def failing(*_: object, **__: object) -> None:
        monkeypatch.setattr(Partition, "admit_one", admit)
        raise ValueError("a bug")

    monkeypatch.setattr(Partition, "admit_one", failing)
    send("d")
    with pytest.raises(ValueError, match="a bug"):
        consumer.poll(PATIENCE_S)
    assert values(poll_some(consumer, 1)) == ["d"]


def tear_a_waiting_call(consumer: DedupConsumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll, and be interrupted while the client waits for a message."""

    def torn(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Fetcher, "listen", torn)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(1)


def test_a_refused_message_leaves_nothing_behind(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A duplicate that came alone was looked up; its partition is then opened anew, and looked up in the new store."""
    consumer = rested(make, "orders", store=tmp_path / "store")
    assert one_by_one(consumer, send, "a") == ["a"]
    assert consumer.counters.verdicts["fresh"] == 1
    send("a")
    while not consumer.counters.verdicts["duplicate"]:
        consumer.poll(0.1)
    tear_a_waiting_call(consumer, monkeypatch)
    send("b")

    assert values(poll_some(consumer, 1)) == ["b"]


def test_few_messages_of_one_fetch_are_judged_one_by_one(make: Make, send: Send) -> None:
    """A duplicate among them is judged with those behind it; many are judged together at once."""
    consumer = rested(make, "orders")
    send("a", "b", "c", "b", "d")
    assert values(poll_some(consumer, 3)) == ["a", "b", "c"]
    assert alone(consumer) == ["a", "b", "c"]
    assert values(poll_some(consumer, 1)) == ["d"]
    assert alone(consumer) == []
    send(*map(str, range(20)))
    # The client has them before the call.
    time.sleep(0.2)
    assert values(poll_some(consumer, 1)) == ["0"]
    assert alone(consumer) == []
    assert values(poll_some(consumer, 19)) == list(map(str, range(1, 20)))
    assert consumer.counters.verdicts == {
        "fresh": 24, "duplicate": 1, "redelivered": 0, "unverified": 0, "unkeyed": 0,
    }  # fmt: skip


def test_the_client_is_served_while_fetched_messages_wait(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler of each takes longer than maintenance waits: the group must hear from this member meanwhile."""
    monkeypatch.setattr(poller, "SILENCE_S", 0.02)
    consumer = make("orders")
    poll_quiet(consumer)
    send(*map(str, range(10)))
    served: list[float] = []
    fetch, listen = Fetcher.fetch, Fetcher.listen

    def fetching(fetcher: Fetcher, at_most: int, wait_s: float) -> None:
        served.append(wait_s)
        fetch(fetcher, at_most, wait_s)

    def listening(fetcher: Fetcher, wait_s: float) -> None:
        # Of a slow broker some messages come later, one by one.
        served.append(wait_s)
        listen(fetcher, wait_s)

    assert values(poll_some(consumer, 1)) == ["0"]
    monkeypatch.setattr(Fetcher, "fetch", fetching)
    monkeypatch.setattr(Fetcher, "listen", listening)
    for number in range(1, 10):
        time.sleep(0.03)
        assert values(poll_some(consumer, 1)) == [str(number)]
    assert len(served) >= 9


def test_an_interruption_of_the_waiting_call_repeats_nothing(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call for more has begun, so that the messages before it are handled."""
    consumer = with_lone_messages(make, send, "orders")
    tear_a_waiting_call(consumer, monkeypatch)
    send("d")

    assert values(poll_some(consumer, 1)) == ["d"]


def test_a_lone_message_whose_call_is_torn_comes_again(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those before it do not."""
    consumer = with_lone_messages(make, send, "orders")
    rest = Fetcher.rest

    def torn(fetcher: Fetcher, messages: list[Any]) -> None:
        monkeypatch.setattr(Fetcher, "rest", rest)
        rest(fetcher, messages)
        raise KeyboardInterrupt

    monkeypatch.setattr(Fetcher, "rest", torn)
    send("d")
    with pytest.raises(KeyboardInterrupt):
        consumer.poll(PATIENCE_S)

    assert values(poll_some(consumer, 1)) == ["d"]


def test_a_callbacks_error_is_raised_by_the_call_that_ran_it(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that call has fetched a lone message, which comes with the next call."""
    consumer = with_lone_messages(make, send, "orders")
    listen = Fetcher.listen

    def listen_and_fail(fetcher: Fetcher, wait_s: float) -> None:
        monkeypatch.setattr(Fetcher, "listen", listen)
        listen(fetcher, wait_s)
        assert values(fetcher.messages) == ["d"]
        inside.keep_error(consumer, ValueError("from a callback"))

    monkeypatch.setattr(Fetcher, "listen", listen_and_fail)
    send("d")
    with pytest.raises(ValueError, match="from a callback"):
        consumer.poll(PATIENCE_S)
    assert values(poll_some(consumer, 1)) == ["d"]


def test_a_crash_repeats_no_more_lone_messages_than_others(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count as records since the last maintenance, which writes them."""
    consumer = rested(make, "orders")
    monkeypatch.setattr(maintenance, "MAINTENANCE_RECORDS", 3)
    most = 0
    for number in range(10):
        one_by_one(consumer, send, str(number))
        most = max(most, len(alone(consumer)))
    assert most == 3


class Life:
    """A consumer of two partitions, what was sent, what came, and how often each ID is expected."""

    def __init__(self, make: Make, send: Send, seed: int) -> None:
        self._make, self._send, self._seed, self._random = make, send, seed, Random(seed)
        self._consumer = rested(make, "pairs")
        self._sent: list[str] = []
        self._last: Any = None
        self.expected: Counter[str] = Counter()
        self.got: list[str] = []
        self.alone = 0

    def step(self) -> None:
        """Mostly have a record come alone; else do something else."""
        others = (self.look, self.give_back, self.pause, self.commit, self.read_many, self.poll)
        (self._random.choice(others) if self._random.random() < 0.2 else self.send_one)()

    def send_one(self) -> None:
        """Send a record, often a copy of one before on the same partition, while the consumer waits for it."""
        copies = self._sent and self._random.random() < 0.4
        each = self._random.choice(self._sent[-3:]) if copies else f"{self._seed}-{len(self._sent)}"
        partition = int(each.rpartition("-")[2]) % 2
        self._sent.append(each)
        self.expected[each] = self.expected[each] or 1
        sending = Timer(0.01, self._send, (each,), {"topic": "pairs", "partition": partition})
        sending.start()
        self.poll(0.15)
        self.alone += bool(alone(self._consumer))
        sending.join()

    def poll(self, timeout_s: float = 0) -> None:
        """Ask for the next message."""
        self._last = self._consumer.poll(timeout_s)
        self.got += values([self._last] if self._last else [])

    def read_many(self) -> None:
        """Ask for several messages."""
        found = self._consumer.consume(3, 0.05)
        self._last = found[-1] if found else None
        self.got += values(found)

    def look(self) -> None:
        """Read the counters."""
        assert sum(self._consumer.counters.verdicts.values()) <= len(self._sent)
        assert self._consumer.counters.delivered == len(self.got)

    def give_back(self) -> None:
        """Release the last message."""
        if self._last is not None and self._consumer.holds(self._last):
            self._consumer.release(self._last)
            self.expected[values([self._last])[0]] += 1
            self._last = None

    def pause(self) -> None:
        """Pause a partition for one call."""
        partition = [TopicPartition("pairs", self._random.randrange(2))]
        self._consumer.pause(partition)
        self.poll(0.02)
        self._consumer.resume(partition)

    def commit(self) -> None:
        """Commit; this completes all delivered messages but the last."""
        self._consumer.commit()

    def start_again(self) -> None:
        """Close, which gives the last message back, and read the rest with another consumer."""
        if self._last is not None and self._consumer.holds(self._last):
            self.expected[values([self._last])[0]] += 1
        self._consumer.close()
        self.got += values(poll_quiet(self._make("pairs")))


@pytest.mark.parametrize("seed", range(4))
def test_a_random_life_shows_no_difference(make: Make, send: Send, seed: int) -> None:
    """Each ID comes once, and once more for each time that it was given back, whatever is called in between."""
    life = Life(make, send, seed)
    for _ in range(30):
        life.step()
    life.start_again()

    assert Counter(life.got) == life.expected
    assert life.alone > 2
