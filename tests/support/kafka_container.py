"""A Kafka broker in a container, reachable under one address from before its start to its end."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Self

from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient

from dedup_sdk.errors import KafkaHelperError
from dedup_sdk.testing._local_kafka import QUICK_SETTINGS, wait_until_ready
from dedup_sdk.testing._ports import LOOPBACK, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_IMAGE = "apache/kafka:4.1.1"
_READY_TIMEOUT_S = 90.0


def kafka_image() -> str:
    """The image that the container tests use."""
    return os.environ.get("DEDUP_TEST_KAFKA_IMAGE") or DEFAULT_IMAGE


@cache
def engine_trouble() -> str | None:
    """Why no container engine can be used, in one line; None when one answers, and has or gets images.

    Without a way to a registry an engine answers, and starts nothing: it lacks the image that testcontainers starts
    beside all others.
    """
    try:
        engine = DockerClient().client
        engine.ping()
    except Exception as error:  # noqa: BLE001 - whatever an engine's client raises: it does not answer
        return f"no container engine answers ({' '.join(str(error).split())[:160]})"
    if not testcontainers_config.ryuk_disabled:
        image = testcontainers_config.ryuk_image
        try:
            if not engine.images.list(image):
                engine.images.pull(image)
        except Exception as error:  # noqa: BLE001 - as above
            return f"the container engine cannot get {image} ({' '.join(str(error).split())[:160]})"
    return None


class KafkaContainer(DockerContainer):
    """One KRaft node from an image with the environment contract of ``apache/kafka``.

    The host's ports are chosen first and used inside too, so that the addresses are known before the start and stay
    the same after `kill` and `start_again`. They are published on 127.0.0.1 only. ``extra_listeners``: listener name
    (capital letters) to the port that the broker *advertises* for it on 127.0.0.1, as with `LocalKafka`.
    ``login_listener``: the name of one that wants a login by SASL.
    """

    def __init__(
        self,
        image: str | None = None,
        config: Mapping[str, str] | None = None,
        extra_listeners: Mapping[str, int] | None = None,
        login_listener: str | None = None,
    ) -> None:
        super().__init__(image or kafka_image())
        advertised = dict(extra_listeners or {})
        own = ("HOST",) if login_listener is None else ("HOST", login_listener)
        self._listens = {name: free_port() for name in (*own, *advertised)}
        advertised |= {name: self._listens[name] for name in own}
        for port in self._listens.values():
            # with_bind_ports would publish on all addresses; the engine's client takes pairs, the annotation does
            # not know.
            self.ports[f"{port}/tcp"] = (LOOPBACK, port)  # type: ignore[assignment]
        outside = [f"{name}://:{port}" for name, port in self._listens.items()]
        known = [f"{name}://{LOOPBACK}:{advertised[name]}" for name in self._listens]
        settings = {
            **QUICK_SETTINGS,
            **(config or {}),
            "node.id": "1",
            "process.roles": "broker,controller",
            "controller.quorum.voters": "1@localhost:9093",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": ",".join([*outside, "PLAINTEXT://:9092", "CONTROLLER://:9093"]),
            "advertised.listeners": ",".join([*known, "PLAINTEXT://localhost:9092"]),
            "listener.security.protocol.map": ",".join(
                f"{name}:{'SASL_PLAINTEXT' if name == login_listener else 'PLAINTEXT'}"
                for name in (*self._listens, "PLAINTEXT", "CONTROLLER")
            ),
        }
        for key, value in settings.items():
            self.with_env(_variable(key), value)

    @property
    def bootstrap(self) -> str:
        """``127.0.0.1:PORT``."""
        host, port = self.address("HOST")
        return f"{host}:{port}"

    def address(self, listener: str) -> tuple[str, int]:
        """Return host and port on which the broker itself listens for ``HOST``, or one of the extra listeners."""
        return LOOPBACK, self._listens[listener]

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except KafkaHelperError as error:
            said = b" ".join(self.get_logs()).decode(errors="replace")[-500:]
            self.stop()
            raise KafkaHelperError(f"{error}; the container's last words: {said}") from None
        return self

    def wait_ready(self) -> None:
        """Return when the broker serves all its partitions."""
        wait_until_ready(self.bootstrap, _READY_TIMEOUT_S, alive=self._runs)

    def kill(self) -> None:
        """End the broker with SIGKILL; its data stays."""
        self.get_wrapped_container().kill()

    def start_again(self) -> None:
        """Start a killed broker and wait until it serves."""
        self.get_wrapped_container().start()
        self.wait_ready()

    def pause(self) -> None:
        """Stop every process of the broker where it is."""
        self.get_wrapped_container().pause()

    def resume(self) -> None:
        """Let a paused broker go on."""
        self.get_wrapped_container().unpause()

    def logged(self) -> bytes:
        """Return the broker's output since the container was made."""
        return bytes(self.get_wrapped_container().logs())

    def _runs(self) -> bool:
        container = self.get_wrapped_container()
        with suppress(Exception):
            container.reload()
        return bool(container.status == "running")


def _variable(key: str) -> str:
    """The image's variable for a broker setting."""
    return "KAFKA_" + key.replace("_", "__").replace("-", "___").replace(".", "_").upper()
