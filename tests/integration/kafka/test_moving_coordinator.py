"""Exactly once on three brokers, while the coordinators of transactions and of groups move from one to another."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pytest
from confluent_kafka import Message, Producer

from dedup_sdk.testing._local_kafka import create_topic
from tests.integration.kafka.test_run_in_transactions import PRODUCER
from tests.integration.kafka.test_transactions import OUT, seen
from tests.support.bridging import until
from tests.support.consuming import PATIENCE_S, numbers
from tests.support.kafka_cluster import GROUPS, REPLICATED, TRANSACTIONS, KafkaCluster, KafkaNode
from tests.support.worlds import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dedup_sdk import DedupConsumer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PROTOCOLS: Final[list[dict[str, Any]]] = [
    {},
    {"partition.assignment.strategy": "cooperative-sticky"},
    {"group.protocol": "consumer"},
]
_SOON: Final = {"socket.timeout.ms": 3_000, "reconnect.backoff.max.ms": 500}
"""The client would wait a minute for a broker that hangs, and some seconds until it tries one again that was away."""
_SOON_TOO: Final = {"request.timeout.ms": "3000"}
"""The coordinator would wait half a minute for a broker that hangs, to end a transaction there; until then the next one
of the same ID cannot begin."""
_MESSAGES: Final = 240
"""Before each fault."""
_AGAIN: Final = 100
"""Earlier messages that are sent again beside them."""
_AT_WORK: Final = 50
"""Messages of these that are copied before the fault, in more than one transaction."""
_SMALL: Final[dict[str, Any]] = {"max_messages": 30, "seconds": 0.1}


class Killing(Producer):
    """Does `armed`, once, when the offsets of a transaction are sent, and it is not committed yet."""

    armed: ClassVar[list[Callable[[], object]]] = []

    def send_offsets_to_transaction(self, *arguments: Any) -> None:
        """See the client."""
        super().send_offsets_to_transaction(*arguments)
        if self.armed:
            self.armed.pop()()


class Copier:
    """A consumer that copies in a thread of its own, in a block or by ``run``."""

    def __init__(self, world: World, kind: str, protocol: dict[str, Any]) -> None:
        self.world, self.count = world, 0
        self._out = world.create_topic(f"{world.group}-{OUT}")
        self._consumer = world.consumer(config={**_SOON, **protocol})
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._work, args=({"block": self._copy, "run": self._run}[kind],)
        )
        self._thread.start()

    def copies(self) -> Counter[str]:
        """How often each message is there for a reader of committed records."""
        return Counter(seen(self.world, self._out))

    def is_at_work(self, count: int) -> bool:
        """Whether so many messages were handled; raises the error that has ended the copying."""
        if self._error is not None:
            raise self._error
        return self.count >= count

    def end(self) -> None:
        """Stop, and close the consumer; raises the error that has ended the copying."""
        self._consumer.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._consumer.close()
        self.is_at_work(0)

    def _work(self, copy: Callable[[DedupConsumer], None]) -> None:
        try:
            copy(self._consumer)
        except BaseException as error:  # noqa: BLE001 - raised by `is_at_work`
            self._error = error

    def _copy(self, consumer: DedupConsumer) -> None:
        with consumer.transactions(**_SMALL) as transactions:
            for transaction in transactions:
                for message in transaction:
                    transaction.produce(self._out, message.value())
                    self.count += 1

    def _run(self, consumer: DedupConsumer) -> None:
        def handle(message: Message, produce: Callable[..., None]) -> None:
            produce(self._out, message.value())
            self.count += 1

        consumer.run(handle, transactions=consumer.transactions(**_SMALL))


class Play:
    """Two copiers, each of a group of its own, and messages that come before each fault."""

    def __init__(self, cluster: KafkaCluster[KafkaNode], copiers: list[Copier]) -> None:
        self.cluster, self._copiers, self.sent = cluster, copiers, 0

    def send(self) -> None:
        """Send new messages and old ones, and let both copiers begin with them."""
        [world, *_] = [each.world for each in self._copiers]
        wanted = [each.count + _AT_WORK for each in self._copiers]
        old = numbers(max(0, self.sent - _AGAIN), self.sent)
        self.sent += _MESSAGES
        for partition in range(2):
            new = numbers(self.sent - _MESSAGES, self.sent)
            world.send(
                *(each for each in [*old, *new, *new[:_AGAIN]] if int(each) % 2 == partition),
                partition=partition,
            )
        until(lambda: all(each.is_at_work(count) for each, count in zip(self._copiers, wanted, strict=True)))

    def moved(self, topic: str, fault: Callable[[KafkaNode], object]) -> KafkaNode:
        """Do something about the coordinator while messages are copied, until another broker is the coordinator.

        Return the former one.
        """
        self.send()
        before = self.cluster.coordinator(topic)
        fault(before)
        self.cluster.await_move(topic, before)
        return before

    def check(self) -> None:
        """Both have copied everything, once."""
        wanted = Counter(numbers(0, self.sent))
        for copier in self._copiers:
            found = Counter[str]()
            until_s = time.monotonic() + PATIENCE_S
            while found.keys() != wanted.keys() and time.monotonic() < until_s:
                assert copier.is_at_work(0)
                found = copier.copies()
            assert found == wanted

    def end(self) -> None:
        """Send everything again, which is hidden, and a message more, which comes behind that."""
        [world, *_] = [each.world for each in self._copiers]
        self.sent += 2
        for partition in range(2):
            everything = [each for each in numbers(0, self.sent) if int(each) % 2 == partition]
            world.send(*everything, partition=partition)
        self.check()
        for copier in self._copiers:
            copier.end()
        self.check()


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster[KafkaNode]]:
    """Three brokers."""
    with KafkaCluster(partial(KafkaNode, config={**REPLICATED, **_SOON_TOO})) as cluster:
        yield cluster


@pytest.fixture
def play(
    cluster: KafkaCluster[KafkaNode],
    group: str,
    tmp_path: Path,
    fresh_seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Play]:
    """Copiers at work; the seed chooses their protocols."""
    monkeypatch.setattr(PRODUCER, Killing)
    create_topic(cluster.bootstrap, group, 2)
    with ExitStack() as stack:
        copiers = [
            Copier(
                World(cluster.bootstrap, group, f"{group}-{kind}", tmp_path / kind, stack),
                kind,
                PROTOCOLS[(fresh_seed + number) % len(PROTOCOLS)],
            )
            for number, kind in enumerate(["block", "run"])
        ]
        yield Play(cluster, copiers)


@pytest.mark.parametrize(("topic", "hangs"), [(TRANSACTIONS, True), (GROUPS, False)])
def test_a_coordinator_moves(
    cluster: KafkaCluster[KafkaNode], play: Play, topic: str, *, hangs: bool
) -> None:
    """Its broker ends in order, is killed amid a transaction, and hangs; it moves back while all brokers go on."""

    def kill_amid_a_transaction(node: KafkaNode) -> None:
        Killing.armed.append(node.kill)
        until(lambda: node.pid is None)

    ended = play.moved(topic, lambda node: node.end())
    play.check()
    ended.start()
    cluster.await_copies()
    play.moved(topic, lambda _: cluster.give_back(topic))
    killed = play.moved(topic, kill_amid_a_transaction)
    play.check()
    killed.start()
    cluster.await_copies()
    play.moved(topic, lambda _: cluster.give_back(topic))
    if hangs:
        hanging = play.moved(topic, lambda node: node.pause())
        play.check()
        hanging.resume()
        cluster.await_copies()
        play.moved(topic, lambda _: cluster.give_back(topic))
    play.end()
