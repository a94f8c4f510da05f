"""The cluster of a run.

A real broker from its jars or in a container, a proxy before its producers, and one before each of its consumers.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol, Self

from docker.errors import DockerException

from dedup_sdk.errors import KafkaHelperError
from dedup_sdk.testing import CuttingProxy, LocalKafka, free_port
from dedup_sdk.testing._local_kafka import create_topic
from tests.chaos.forgetful import LOGGER
from tests.chaos.options import SESSION_MS, Broker
from tests.support.databases import PostgreSQL
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

    def address(self, listener: str) -> tuple[str, int]:
        """Return where the broker itself listens for an extra listener."""

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create a topic; return its name."""

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


class ContainerCluster:
    """A broker in a container as a `Cluster`. Raises `KafkaHelperError` where no engine answers."""

    def __init__(self, ports: dict[str, int]) -> None:
        if (trouble := engine_trouble()) is not None:
            raise KafkaHelperError(f"{trouble}; start one, or take --broker jars")
        self._container = KafkaContainer(config=_SETTINGS, extra_listeners=ports)
        self._made = False
        self.bootstrap = self._container.bootstrap
        self.address = self._container.address
        self.kill = self._container.kill
        self.pause = self._container.pause
        self.resume = self._container.resume
        self.stop = self._container.stop
        self.logged = self._container.logged
        self.data: Path | None = None

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


class Bed:
    """A broker and its proxies; several scenarios may follow each other on it."""

    def __init__(self, seed: int, broker: Broker = "jars") -> None:
        ports = {name: free_port() for name in ("PRODUCERS", *map(_listener, range(CONSUMER_PROXIES)))}
        from_jars = OlderCluster if broker == "older" else JarsCluster
        self.kafka: Cluster = (
            ContainerCluster(ports)
            if broker == "container"
            else from_jars(config=_SETTINGS, extra_listeners=ports, start_timeout_s=_START_S)
        )
        self._ports, self._seed = ports, seed
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

    def _proxy(self, listener: str, every: int = 0) -> CuttingProxy:
        proxy = CuttingProxy(
            self.kafka.address(listener), listen_port=self._ports[listener], every=every, seed=self._seed
        )
        return self._open.enter_context(proxy)


def _listener(index: int) -> str:
    return f"CONSUMERS{'ABCDE'[index]}"
