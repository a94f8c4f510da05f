"""A real Kafka broker as a child process, from its published jars, which are fetched once into the cache."""

from __future__ import annotations

import shutil
import signal
import socket
import struct
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from dedup_sdk._checks import whole
from dedup_sdk._masking import shown
from dedup_sdk.errors import KafkaHelperError
from dedup_sdk.testing._java_home import find_java
from dedup_sdk.testing._kafka_jars import DEFAULT_VERSION, kafka_jars
from dedup_sdk.testing._ports import LOOPBACK, free_ports, is_free
from dedup_sdk.testing._supervised_child import SupervisedChild

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from confluent_kafka.admin import ClusterMetadata, TopicMetadata

_PAUSE_S = 0.05
_REQUEST_TIMEOUT_S = 10.0

# ApiVersions, version 0: key 18, correlation 1, no client name. Every Kafka answers it to everybody.
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


def wait_until_ready(bootstrap: str, timeout_s: float, *, alive: Callable[[], bool] = lambda: True) -> None:
    """Return when the broker at `bootstrap` answers, is a member of its cluster, and all partitions have leaders.

    Args:
        bootstrap: ``host:port``.
        timeout_s: seconds, for all of it.
        alive: returns whether the broker's process still runs.

    Raises:
        KafkaHelperError: not in time, or no longer alive.
    """
    deadline = time.monotonic() + timeout_s
    # A socket first: a client would log a closed port, and wait longer and longer.
    while not _answers(bootstrap):
        _check(bootstrap, deadline, timeout_s, alive)
    admin = _admin(bootstrap)
    while not _serves(admin):
        _check(bootstrap, deadline, timeout_s, alive)


def create_topic(
    bootstrap: str,
    name: str,
    partitions: int = 1,
    config: Mapping[str, str] | None = None,
    timeout_s: float = 30,
) -> str:
    """Create a topic and return its name when every partition has a leader.

    Args:
        bootstrap: ``host:port``.
        name: the topic's name.
        partitions: how many, at least 1.
        config: topic settings.
        timeout_s: seconds, for all of it.

    Raises:
        KafkaHelperError: the broker refused it, or the partitions had no leader in time.
    """
    # The client needs a name while its future is waited for, or it is destroyed first.
    admin = _admin(bootstrap)
    # As many copies as the broker makes by itself.
    topic = NewTopic(name, num_partitions=partitions, config=dict(config or {}))
    try:
        admin.create_topics([topic], operation_timeout=timeout_s)[name].result(timeout_s)
    except KafkaException as error:
        raise KafkaHelperError(
            f"topic {shown(name)} was not created at {bootstrap}: {error.args[0].str()}"
        ) from None
    deadline = time.monotonic() + timeout_s
    while True:
        metadata = _metadata(admin, name)
        found = metadata.topics.get(name) if metadata else None
        if found is not None and len(found.partitions) == partitions and _led(found):
            return name
        _check(bootstrap, deadline, timeout_s, lambda: True)


def _admin(bootstrap: str) -> AdminClient:
    # Quiet: a broker that does not answer yet is expected.
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 500})


def _answers(bootstrap: str) -> bool:
    host, port = bootstrap.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout=1) as connection:
            connection.sendall(_API_VERSIONS)
            return len(connection.recv(8)) == len(struct.pack(">ii", 0, 1))
    except OSError:
        return False


def _serves(admin: AdminClient) -> bool:
    metadata = _metadata(admin)
    return (
        metadata is not None
        and bool(metadata.brokers)
        and all(_led(topic) for topic in metadata.topics.values())
    )


def _led(topic: TopicMetadata) -> bool:
    return topic.error is None and all(each.leader >= 0 for each in topic.partitions.values())


def _metadata(admin: AdminClient, topic: str | None = None) -> ClusterMetadata | None:
    try:
        if topic is None:
            return admin.list_topics(timeout=1)
        return admin.list_topics(topic=topic, timeout=_REQUEST_TIMEOUT_S)
    except KafkaException:
        return None


def _check(bootstrap: str, deadline: float, timeout_s: float, alive: Callable[[], bool]) -> None:
    if not alive():
        raise KafkaHelperError(f"the broker for {bootstrap} ended before it was ready")
    if time.monotonic() > deadline:
        raise KafkaHelperError(f"the broker at {bootstrap} was not ready within {timeout_s:g} s")
    time.sleep(_PAUSE_S)


_MOST_PORT: Final = 65_535
_LOG_TAIL_LINES = 3
_LOG_TAIL_CHARACTERS = 600

QUICK_SETTINGS: Final[Mapping[str, str]] = {
    # One node: nothing can be replicated, and few partitions are loaded quickly after a restart.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    # Groups: no wait for the first member, short sessions allowed, a KIP-848 rebalance in 0.5 s instead of 5.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.session.timeout.ms": "1000",
    # After a SIGKILL the old session must end before the broker is let in again: 5 s instead of 13. A shorter session
    # ends on a busy machine while the broker lives, and then it refuses new topics until its next heartbeat.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "200",
    # A misspelt topic is an error, and records may bear the timestamps of any year.
    "auto.create.topics.enable": "false",
    "log.retention.ms": "-1",
    # Small threads and buffers for a small machine.
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.cleaner.dedupe.buffer.size": "16777216",
}
"""The broker's settings that differ from Kafka's defaults; `LocalKafka(config=...)` overrides them."""


class LocalKafka:
    """A Kafka broker (KRaft, one node, broker and controller in one) for tests, demos and benchmarks.

    It listens on 127.0.0.1, keeps its data in a temporary folder, and ends with the ``with`` block;
    when this process is killed, broker and data are removed, too. Ports and data survive `kill` and `start`.

    Args:
        version: the Kafka version to fetch, e.g. "4.1.1".
            Any but the default one needs Maven.
        libs: a folder with the broker's jars; None = fetched once into the cache.
        port: the port of `bootstrap`, e.g. 9092; None = a free one.
        config: broker settings, which override `QUICK_SETTINGS`; not those of listeners and folders.
        extra_listeners: listener name (capital letters) to the port that the broker *advertises* for it on 127.0.0.1:
            the port of a proxy in front. `address` returns where the broker itself listens for it.
        heap_mib: the most heap the broker may take, MiB.
        start_timeout_s: how long one start may take, seconds.

    Raises:
        KafkaHelperError: no Java, no jars, or the broker did not start; from `start` and from entering the block.

    Example: a producer whose connections are cut, and consumers whose are not.

        port = free_port()
        with (
            LocalKafka(extra_listeners={"PROXIED": port}) as kafka,
            CuttingProxy(listen_port=port, target=kafka.address("PROXIED"), every=20) as proxy,
        ):
            producer = Producer({"bootstrap.servers": proxy.bootstrap})
            consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "g"})
    """

    def __init__(
        self,
        *,
        version: str = DEFAULT_VERSION,
        libs: Path | str | None = None,
        port: int | None = None,
        config: Mapping[str, str] | None = None,
        extra_listeners: Mapping[str, int] | None = None,
        heap_mib: int = 1024,
        start_timeout_s: float = 60,
    ) -> None:
        self._version = version
        self._libs = libs
        self._port = (
            None
            if port is None
            else whole("port", port, most=_MOST_PORT, advice="give a TCP port, e.g. 9092")
        )
        self._config = dict(config or {})
        self._advertised = dict(extra_listeners or {})
        self._heap_mib = heap_mib
        self._start_timeout_s = start_timeout_s
        self._ports: dict[str, int] = {}
        self._folder: Path | None = None
        self._broker: SupervisedChild | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """``127.0.0.1:PORT``, for ``bootstrap.servers``; the same from the first `start` to `stop`."""
        host, port = self.address("CLIENT")
        return f"{host}:{port}"

    @property
    def pid(self) -> int | None:
        """The broker's process ID; None while it does not run."""
        return self._broker.pid if self._broker else None

    @property
    def log(self) -> Path:
        """The file with the broker's warnings and errors."""
        return self._home / "broker.log"

    def address(self, listener: str) -> tuple[str, int]:
        """Return host and port on which the broker itself listens for `listener` (``CLIENT``, or one of the extra)."""
        if listener not in self._ports:
            known = ", ".join(self._ports) or "none, for it was not started"
            raise KafkaHelperError(f"LocalKafka has no listener {shown(listener)}: it has {known}")
        return LOOPBACK, self._ports[listener]

    def start(self) -> None:
        """Start the broker and return when it serves all its partitions: 5 s the first time, 2-4 s after `kill`.

        Raises:
            KafkaHelperError: it runs already, did not start, or was not ready in time; the message has its
                last log lines.
        """
        if self._broker is not None:
            raise KafkaHelperError(f"LocalKafka runs already at {self.bootstrap}: kill() or stop() it first")
        try:
            # Folder, ports and format are made by the first start, and kept by later ones.
            if self._folder is None:
                self._prepare()
            self._broker = self._spawn("kafka.Kafka", str(self._home / "server.properties"))
            wait_until_ready(self.bootstrap, self._start_timeout_s, alive=self._alive)
        except BaseException as error:
            ended = self._broker is not None
            last_words = self._last_words() if ended else ""
            self.stop()
            if ended and isinstance(error, KafkaHelperError):
                raise KafkaHelperError(f"{error}; its last words: {last_words}") from None
            raise

    def kill(self) -> None:
        """End the broker as a crash does (SIGKILL); ports and data stay for `start`."""
        if self._broker is not None:
            self._broker.kill()
            self._broker = None

    def restart(self) -> None:
        """`kill`, then `start`."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Suspend the broker's process (SIGSTOP): connections stay open, and no request is answered.

        After more than a second the resumed broker is outside its own cluster for some 10 ms: wait half a
        second before creating topics.
        """
        self._running().freeze()

    def resume(self) -> None:
        """Resume a paused broker (SIGCONT)."""
        self._running().signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the broker and remove its data. A later `start` is a new, empty broker. Does nothing when stopped."""
        # The data is removed, so that an orderly shutdown would only take time.
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder, self._ports = None, {}

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create a topic and return its name when every partition has a leader.

        Args:
            name: the topic's name.
            partitions: how many, at least 1.
            config: topic settings, e.g. ``{"cleanup.policy": "compact"}``.

        Raises:
            KafkaHelperError: the broker refused it, e.g. because it exists.
        """
        return create_topic(self.bootstrap, name, partitions, config)

    @property
    def _home(self) -> Path:
        if self._folder is None:
            raise KafkaHelperError("LocalKafka was not started: use it in a with block, or call start()")
        return self._folder

    def _prepare(self) -> None:
        jars = kafka_jars(self._version, libs=self._libs)
        java = find_java()
        self._command = [
            str(java.executable),
            "-XX:+UseSerialGC",
            # A broker that lives some minutes: to compile its code thoroughly takes longer than its start,
            # and a third of all its work.
            "-XX:TieredStopAtLevel=1",
            f"-Xmx{self._heap_mib}m",
            "-Xms64m",
            "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            f"{jars}/*",
        ]
        names = ("CLIENT", "CONTROLLER", *self._advertised)
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        if self._port is not None:
            if not is_free(self._port):
                raise KafkaHelperError(
                    f"port={self._port} is taken on {LOOPBACK}: end what listens there, or give another port"
                )
            self._ports["CLIENT"] = self._port
        self._folder = Path(tempfile.mkdtemp(prefix="dedup-kafka-"))
        properties = self._folder / "server.properties"
        properties.write_text("".join(f"{k}={v}\n" for k, v in self._settings().items()), encoding="utf-8")
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        # With "=": an ID that begins with "-" would be read as an option.
        format_storage = ("format", f"--cluster-id={cluster_id}", "-c", str(properties))
        process = self._spawn("kafka.tools.StorageTool", *format_storage)
        try:
            status = process.wait(self._start_timeout_s)
        finally:
            process.kill()
        if status != 0:
            raise KafkaHelperError(f"Kafka's storage could not be formatted ({status}): {self._last_words()}")

    def _settings(self) -> dict[str, str]:
        extra = {name: port for name, port in self._ports.items() if name not in {"CLIENT", "CONTROLLER"}}
        return {
            **QUICK_SETTINGS,
            **self._config,
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{LOOPBACK}:{self._ports['CONTROLLER']}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "CLIENT",
            "listeners": _listeners(self._ports),
            "advertised.listeners": _listeners({"CLIENT": self._ports["CLIENT"], **self._advertised}),
            "listener.security.protocol.map": ",".join(
                f"{name}:PLAINTEXT" for name in (*self._ports, *extra)
            ),
            "log.dirs": str(self._home / "data"),
        }

    def _spawn(self, main: str, *arguments: str) -> SupervisedChild:
        with self.log.open("ab") as output:
            return SupervisedChild([*self._command, main, *arguments], folder=self._home, output=output)

    def _alive(self) -> bool:
        return self._broker is not None and self._broker.exit_status is None

    def _last_words(self) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
        telling = [line for line in lines if line and not line.startswith(("at ", "..."))]
        return " | ".join(telling[-_LOG_TAIL_LINES:])[-_LOG_TAIL_CHARACTERS:] or "none"

    def _running(self) -> SupervisedChild:
        if self._broker is None:
            raise KafkaHelperError("LocalKafka does not run: start() it first")
        return self._broker


def _listeners(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items())
