"""The cluster of a run.

A real broker from its jars or in a container, or three; a proxy before its producers, and one before each of its
consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol, Self

from docker.errors import DockerException

from dedup_sdk.errors import KafkaHelperError
from dedup_sdk.testing import CuttingProxy, LocalKafka, free_port
from dedup_sdk.testing._cutting_proxy import Direction
from dedup_sdk.testing._local_kafka import create_topic
from tests.chaos.forgetful import LOGGER
from tests.chaos.options import SESSION_MS, Broker
from tests.support.databases import PostgreSQL
from tests.support.kafka_cluster import BROKERS, GROUPS, REPLICATED, TRANSACTIONS, KafkaCluster, KafkaNode
from tests.support.kafka_container import KafkaContainer, engine_trouble
from tests.support.older_kafka import OlderKafka

CONSUMER_PROXIES: Final = 5
_CUT_EVERY_ANSWERS: Final = 25
_START_S: Final = 180.0
"""A broker whose disk was copied starts beside all else that this machine does."""
_SETTINGS: Final = {
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    # Aborted transactions are ended soon, and hanging ones too.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # A broker on a busy machine is not put out of its own cluster while its coordinators load; a restart takes
    # that much longer.
    "broker.session.timeout.ms": "4000",
}


class Cluster(Protocol):
    """The methods a run needs of a broker: `LocalKafka`, or a container."""

    @property
    def bootstrap(self) -> str:
        """``host:port``."""

    def addresses(self, listener: str) -> list[tuple[str, int]]:
        """Return where each broker itself listens for an extra listener."""

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create a topic; return its name."""

    @property
    def moves(self) -> int:
        """How often a coordinator has moved from one broker to another."""

    def start(self) -> None:
        """Start, also after `kill`; return when all partitions are served."""

    def kill(self) -> None:
        """End it with SIGKILL; the data stays."""

    def pause(self) -> None:
        """Stop it where it is."""

    def resume(self) -> None:
        """Let it go on."""

    def stop(self) -> None:
        """End it for good."""

    def logged(self) -> bytes:
        """Return its log since it was made."""

    @property
    def data(self) -> Path | None:
        """The folder of its topics and its metadata, to be copied while it is down; None where that is out of reach."""


class JarsCluster(LocalKafka):
    """A broker from its jars as a `Cluster`; its log tells the loads of its group coordinators."""

    moves = 0

    def addresses(self, listener: str) -> list[tuple[str, int]]:
        """See `Cluster`."""
        return [self.address(listener)]

    @property
    def data(self) -> Path | None:
        """See `Cluster`."""
        return self.log.parent / "data"

    def _prepare(self) -> None:
        super()._prepare()
        self._command.insert(1, f"-Dorg.slf4j.simpleLogger.log.{LOGGER}=info")

    def logged(self) -> bytes:
        """See `Cluster`; nothing of a broker that did not start again, whose folder is gone."""
        return b"" if self._folder is None else self.log.read_bytes()


class OlderCluster(OlderKafka, JarsCluster):
    """The same with the transactions of Kafka before 4.0."""


class _Node(KafkaNode, JarsCluster):
    pass


class ThreeBrokers(KafkaCluster[_Node]):
    """Three brokers as a `Cluster`: what happens to a broker happens to a coordinator, each kind in turn.

    Then another broker is the coordinator, and, when all brokers are there again, the former one.
    """

    data: Path | None = None

    def __init__(self, ports: Sequence[Mapping[str, int]]) -> None:
        super().__init__(
            lambda number, controllers, cluster: _Node(
                number, controllers, cluster, config={**REPLICATED, **_SETTINGS},
                extra_listeners=ports[number - 1], start_timeout_s=_START_S,
            )
        )  # fmt: skip
        self._struck: _Node | None = None
        self._next, self._after = TRANSACTIONS, GROUPS
        self._logged = dict.fromkeys(self.nodes, b"")
        self._log = b""
        self.moves = 0

    def addresses(self, listener: str) -> list[tuple[str, int]]:
        """See `Cluster`."""
        return [node.address(listener) for node in self.nodes.values()]

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """See `Cluster`."""
        return create_topic(self.bootstrap, name, partitions, config)

    def start(self) -> None:
        """See `Cluster`."""
        if self._struck is None:
            super().start()
        else:
            self._struck.start()
            self._move_back()

    def kill(self) -> None:
        """See `Cluster`."""
        self._strike(lambda node: node.kill())

    def pause(self) -> None:
        """See `Cluster`."""
        self._strike(lambda node: node.pause())

    def resume(self) -> None:
        """See `Cluster`."""
        if self._struck is not None:
            self._struck.resume()
            self._move_back()

    def logged(self) -> bytes:
        """See `Cluster`."""
        for number, node in self.nodes.items():
            # Behind all that was returned before: who asks looks at the end.
            before, self._logged[number] = self._logged[number], node.logged()
            self._log += self._logged[number][len(before) :]
        return self._log

    def _strike(self, fault: Callable[[_Node], None]) -> None:
        self._struck = self.coordinator(self._next)
        fault(self._struck)
        self.await_move(self._next, self._struck)
        self.moves += 1

    def _move_back(self) -> None:
        self.await_copies()
        self.give_back(self._next)
        self.moves += 1
        self._next, self._after = self._after, self._next


class ContainerCluster:
    """A broker in a container as a `Cluster`. Raises `KafkaHelperError` where no engine answers."""

    moves = 0

    def __init__(self, ports: dict[str, int]) -> None:
        if (trouble := engine_trouble()) is not None:
            raise KafkaHelperError(f"{trouble}; start one, or take --broker jars")
        self._container = KafkaContainer(config=_SETTINGS, extra_listeners=ports)
        self._made = False
        self.bootstrap = self._container.bootstrap
        self.kill = self._container.kill
        self.pause = self._container.pause
        self.resume = self._container.resume
        self.stop = self._container.stop
        self.logged = self._container.logged
        self.data: Path | None = None

    def addresses(self, listener: str) -> list[tuple[str, int]]:
        """See `Cluster`."""
        return [self._container.address(listener)]

    def start(self) -> None:
        """Make the container, or start it again."""
        if self._made:
            self._container.start_again()
        else:
            try:
                self._container.__enter__()
            except DockerException as error:
                said = " ".join(str(error).split())[:200]
                raise KafkaHelperError(
                    f"{self._container.image} does not start ({said}); name another image by "
                    "DEDUP_TEST_KAFKA_IMAGE, or take --broker jars"
                ) from None
            self._made = True

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create a topic and return its name when every partition has a leader."""
        return create_topic(self.bootstrap, name, partitions, config)


class Proxies:
    """A proxy before each broker, for the same clients."""

    def __init__(self, proxies: Sequence[CuttingProxy]) -> None:
        self._proxies = proxies

    @property
    def bootstrap(self) -> str:
        """The addresses of all."""
        return ",".join(proxy.bootstrap for proxy in self._proxies)

    def cut_now(self) -> None:
        """Cut all connections."""
        for proxy in self._proxies:
            proxy.cut_now()

    def stall(self, direction: Direction) -> None:
        """Forward nothing in one direction."""
        for proxy in self._proxies:
            proxy.stall(direction)

    def flow(self) -> None:
        """Forward everything again."""
        for proxy in self._proxies:
            proxy.flow()


class Bed:
    """A cluster and its proxies; several scenarios may follow each other on it."""

    def __init__(self, seed: int, broker: Broker = "jars") -> None:
        names = ("PRODUCERS", *map(_listener, range(CONSUMER_PROXIES)))
        brokers = BROKERS if broker == "three" else 1
        self._ports = [{name: free_port() for name in names} for _ in range(brokers)]
        self.kafka = _cluster(broker, self._ports)
        self._seed = seed
        self._open = ExitStack()
        self._database: PostgreSQL | None = None

    def __enter__(self) -> Self:
        self.kafka.start()
        self._open.callback(self.kafka.stop)
        self.producers = self._proxy("PRODUCERS", every=_CUT_EVERY_ANSWERS)
        self.consumers = [self._proxy(_listener(index)) for index in range(CONSUMER_PROXIES)]
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def database(self) -> PostgreSQL:
        """PostgreSQL in a container, started when it is first asked for.

        Raises `KafkaHelperError` where no engine answers.
        """
        if self._database is None:
            if (trouble := engine_trouble()) is not None:
                raise KafkaHelperError(f"{trouble}; start one, or play another scenario")
            self._database = self._open.enter_context(PostgreSQL())
        return self._database

    def _proxy(self, listener: str, every: int = 0) -> Proxies:
        return Proxies(
            [
                self._open.enter_context(
                    CuttingProxy(address, listen_port=ports[listener], every=every, seed=self._seed)
                )
                for address, ports in zip(self.kafka.addresses(listener), self._ports, strict=True)
            ]
        )


def _cluster(broker: Broker, ports: list[dict[str, int]]) -> Cluster:
    if broker == "three":
        return ThreeBrokers(ports)
    if broker == "container":
        return ContainerCluster(ports[0])
    from_jars = OlderCluster if broker == "older" else JarsCluster
    return from_jars(config=_SETTINGS, extra_listeners=ports[0], start_timeout_s=_START_S)


def _listener(index: int) -> str:
    return f"CONSUMERS{'ABCDE'[index]}"
