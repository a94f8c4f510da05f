"""Three real brokers that hold a copy of every partition, so that a coordinator moves where one of them ends."""

from __future__ import annotations

import signal
import time
import uuid
from base64 import urlsafe_b64encode
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from dedup_sdk.testing import LocalKafka, free_port
from dedup_sdk.testing._ports import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from confluent_kafka.admin import PartitionMetadata

    from dedup_sdk.testing._supervised_child import SupervisedChild

GROUPS: Final = "__consumer_offsets"
TRANSACTIONS: Final = "__transaction_state"
BROKERS: Final = 3
_PLACES: Final = {GROUPS: [1, 2, 3], TRANSACTIONS: [2, 3, 1]}
"""The brokers of each coordinator's one partition; the first of them leads it, where it can."""
REPLICATED: Final[Mapping[str, str]] = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "1",
    # A leader changes where a test says so, and at no other time.
    "auto.leader.rebalance.enable": "false",
}
"""The settings of each broker."""
_PATIENCE_S: Final = 60.0
_ANSWER_S: Final = 3.0
"""A broker that hangs answers nothing; the next one that is asked may."""
_PAUSE_S: Final = 0.05


class KafkaNode(LocalKafka):
    """One broker of a cluster, and one voter of its controllers.

    Args:
        number: its ID.
        controllers: by the ID of each node, the port of its controller.
        cluster: the cluster's ID.
        options: as of `LocalKafka`.
    """

    def __init__(self, number: int, controllers: Mapping[int, int], cluster: str, **options: Any) -> None:
        super().__init__(heap_mib=384, **options)
        self.number, self._controllers, self._cluster = number, controllers, cluster

    def _settings(self) -> dict[str, str]:
        self._ports["CONTROLLER"] = self._controllers[self.number]
        voters = (f"{number}@{LOOPBACK}:{port}" for number, port in self._controllers.items())
        return {
            **super()._settings(),
            "node.id": str(self.number),
            "controller.quorum.voters": ",".join(voters),
        }

    def _spawn(self, main: str, *arguments: str) -> SupervisedChild:
        own = f"--cluster-id={self._cluster}"
        shared = (own if each.startswith("--cluster-id=") else each for each in arguments)
        return super()._spawn(main, *shared)

    def end(self) -> None:
        """End the broker in order: it hands what it leads to others; data and ports stay for `start`."""
        broker = self._running()
        broker.signal(signal.SIGTERM)
        broker.wait(_PATIENCE_S)
        self.kill()


Node = TypeVar("Node", bound=KafkaNode)


class KafkaCluster(Generic[Node]):
    """Three brokers; two are enough to go on.

    The coordinator of all groups leads the one partition of `GROUPS`, that of all transactions leads the one of
    `TRANSACTIONS`; they begin on different brokers.

    Args:
        node: makes one broker of its ID, the ports of all controllers, and the cluster's ID.
    """

    def __init__(self, node: Callable[[int, Mapping[int, int], str], Node]) -> None:
        controllers = {number: free_port() for number in range(1, BROKERS + 1)}
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self.nodes = {number: node(number, controllers, cluster) for number in controllers}

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Start all brokers, and return when each has all partitions."""
        try:
            with ThreadPoolExecutor(BROKERS) as pool:
                # No broker is ready before most of them are.
                list(pool.map(LocalKafka.start, self.nodes.values()))
            settings = {
                "socket.timeout.ms": int(_ANSWER_S * 1_000),
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, **settings})
            self._place_coordinators()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End all brokers, and remove their data."""
        for node in self.nodes.values():
            node.stop()

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    def _place_coordinators(self) -> None:
        topics = [
            NewTopic(
                name, num_partitions=1, replica_assignment=[places], config={"cleanup.policy": "compact"}
            )
            for name, places in _PLACES.items()
        ]
        for future in self._admin.create_topics(topics, operation_timeout=_ANSWER_S).values():
            future.result(_PATIENCE_S)
        self.await_copies()

    def coordinator(self, topic: str) -> Node:
        """Return the broker that leads the partition of `GROUPS` or `TRANSACTIONS`."""
        found: list[int] = []

        def is_led() -> bool:
            found[:] = [each.leader for each in self._partitions(topic)]
            return len(found) == 1 and found[0] in self.nodes

        _until(is_led, f"nobody leads {topic}")
        return self.nodes[found[0]]

    def await_copies(self) -> None:
        """Wait until every broker is up to date in every partition."""

        def are_complete() -> bool:
            partitions = self._partitions()
            return bool(partitions) and all(set(each.isrs) == set(each.replicas) for each in partitions)

        _until(are_complete, "copies lag behind")

    def give_back(self, topic: str) -> None:
        """Have the first broker of a coordinator's partition lead it again, while all brokers go on."""
        place = TopicPartition(topic, 0)
        self._admin.elect_leaders(ElectionType.PREFERRED, [place]).result(_PATIENCE_S)
        _until(
            lambda: self.coordinator(topic).number == _PLACES[topic][0],
            f"{topic} is not led by its first broker",
        )

    def await_move(self, topic: str, former: Node) -> None:
        """Wait until another broker is the coordinator."""
        _until(lambda: self.coordinator(topic) is not former, f"{topic} is still led by {former.number}")

    def _partitions(self, topic: str | None = None) -> list[PartitionMetadata]:
        try:
            if topic is None:
                topics = self._admin.list_topics(timeout=_ANSWER_S).topics
            else:
                topics = self._admin.list_topics(topic, timeout=_ANSWER_S).topics
        except KafkaException:
            return []
        return [partition for found in topics.values() for partition in found.partitions.values()]


def _until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(otherwise)
        time.sleep(_PAUSE_S)
