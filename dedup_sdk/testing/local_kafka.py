"""A real Kafka broker as a child process, from its published jars."""

from __future__ import annotations

import shutil
import signal
import tempfile
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from dedup_sdk.errors import KafkaHelperError
from dedup_sdk.testing.broker_probe import create_topic, wait_until_ready
from dedup_sdk.testing.java_home import find_java
from dedup_sdk.testing.kafka_jars import DEFAULT_VERSION, kafka_jars
from dedup_sdk.testing.ports import LOOPBACK, free_ports
from dedup_sdk.testing.tethered import Tethered

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

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
    # After a SIGKILL the old session must end before the broker is let in again: 3 s instead of 13.
    "broker.session.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "200",
    # A misspelt topic is an error, and records may bear the timestamps of any year.
    "auto.create.topics.enable": "false",
    "log.retention.ms": "-1",
    # Small threads and buffers for a small machine.
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.cleaner.dedupe.buffer.size": "16777216",
}
"""The broker's settings that differ from Kafka's defaults; `LocalKafka(config=...)` goes before them."""


class LocalKafka:
    """A Kafka broker (KRaft, one node, broker and controller in one) for tests, demos and benchmarks.

    It listens on free ports of 127.0.0.1, keeps its data in a temporary folder, and is gone with the ``with`` block;
    when this process is killed, broker and data go too. Ports and data survive `kill` and `start`.

    Args:
        version: the Kafka version to fetch, e.g. "4.1.1".
        libs: a folder with the broker's jars; None = fetched once into the cache (see `kafka_jars`).
        config: broker settings, which go before `QUICK_SETTINGS`; not those of listeners and folders.
        extra_listeners: listener name (capital letters) to the port that the broker *advertises* for it on 127.0.0.1:
            the port of a proxy in front. Where the broker itself listens for it: `address`.
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
        config: Mapping[str, str] | None = None,
        extra_listeners: Mapping[str, int] | None = None,
        heap_mib: int = 1024,
        start_timeout_s: float = 60,
    ) -> None:
        self._version = version
        self._libs = libs
        self._config = dict(config or {})
        self._advertised = dict(extra_listeners or {})
        self._heap_mib = heap_mib
        self._start_timeout_s = start_timeout_s
        self._ports: dict[str, int] = {}
        self._folder: Path | None = None
        self._broker: Tethered | None = None

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
        """The file that the broker's warnings and errors go to."""
        return self._home / "broker.log"

    def address(self, listener: str) -> tuple[str, int]:
        """Return host and port on which the broker itself listens for `listener` (``CLIENT``, or one of the extra)."""
        if listener not in self._ports:
            known = ", ".join(self._ports) or "none, for it was not started"
            raise KafkaHelperError(f"LocalKafka has no listener {listener!r}: it has {known}")
        return LOOPBACK, self._ports[listener]

    def start(self) -> None:
        """Start the broker and return when it serves all its partitions: 5 s the first time, 2-4 s after `kill`.

        Raises:
            KafkaHelperError: it runs already, did not start, or was not ready in time; the message has its last words.
        """
        if self._broker is not None:
            raise KafkaHelperError(f"LocalKafka runs already at {self.bootstrap}: kill() or stop() it first")
        try:
            # Folder, ports and format belong to the first start; later ones find what is there.
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
        """Stop the broker's process where it is (SIGSTOP): connections stay open and nothing is answered.

        After more than a second the broker is out of its own cluster when it goes on, for some 10 ms: wait half a
        second before creating topics.
        """
        self._running().freeze()

    def resume(self) -> None:
        """Let a paused broker go on (SIGCONT)."""
        self._running().signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the broker and remove its data. A later `start` is a new, empty broker. Does nothing when stopped."""
        # Nothing is kept, so that an orderly shutdown would only take time.
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
            f"-Xmx{self._heap_mib}m",
            "-Xms64m",
            "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            f"{jars}/*",
        ]
        names = ("CLIENT", "CONTROLLER", *self._advertised)
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
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

    def _spawn(self, main: str, *arguments: str) -> Tethered:
        with self.log.open("ab") as output:
            return Tethered([*self._command, main, *arguments], folder=self._home, output=output)

    def _alive(self) -> bool:
        return self._broker is not None and self._broker.exit_status is None

    def _last_words(self) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
        telling = [line for line in lines if line and not line.startswith(("at ", "..."))]
        return " | ".join(telling[-_LOG_TAIL_LINES:])[-_LOG_TAIL_CHARACTERS:] or "none"

    def _running(self) -> Tethered:
        if self._broker is None:
            raise KafkaHelperError("LocalKafka does not run: start() it first")
        return self._broker


def _listeners(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items())
