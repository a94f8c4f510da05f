from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self

import pytest

from dedup_sdk.errors import KafkaHelperError
from dedup_sdk.testing import CuttingProxy, free_port
from tests.support.consuming import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

PRODUCE, HEARTBEAT = 0, 12


class EchoBroker:
    """Answers every frame at once with its correlation ID alone, the shortest answer there is; keeps the frames."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._server.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def wait_for(self, count: int) -> None:
        """Return when it has taken so many requests."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.taken) < count:
            assert time.monotonic() < deadline, f"{self.taken} came"
            time.sleep(0.01)

    def close(self) -> None:
        """Accept no more."""
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, EOFError):
            while True:
                (size,) = struct.unpack(">I", _read(connection, 4))
                correlation = _read(connection, size)[4:8]
                self.taken.append(struct.unpack(">I", correlation)[0])
                connection.sendall(struct.pack(">I", 4) + correlation)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


class Client:
    """Sends requests one after the other, over a new connection after a cut."""

    def __init__(self, proxy: CuttingProxy) -> None:
        self._address = ("127.0.0.1", proxy.port)
        self._connection: socket.socket | None = None
        self._correlation = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection:
            self._connection.close()

    def ask(self, api: int, timeout_s: float = PATIENCE_S) -> bool:
        """Whether the request was answered; False: the connection was cut, or nothing came in time."""
        self._correlation += 1
        if self._connection is None:
            self._connection = socket.create_connection(self._address, timeout=timeout_s)
        self._connection.settimeout(timeout_s)
        body = struct.pack(">HHI", api, 0, self._correlation) + b"x" * 100
        try:
            self._connection.sendall(struct.pack(">I", len(body)) + body)
            return _read(self._connection, 8) == struct.pack(">II", 4, self._correlation)
        except (EOFError, ConnectionError):
            self._connection.close()
            self._connection = None
            return False
        except TimeoutError:
            return False


@pytest.fixture
def upstream() -> Iterator[EchoBroker]:
    """A broker that answers everything."""
    broker = EchoBroker()
    yield broker
    broker.close()


def _answered(upstream: EchoBroker, *, every: int, seed: int, requests: int = 60) -> list[bool]:
    with CuttingProxy(upstream.address, every=every, seed=seed) as proxy, Client(proxy) as client:
        answered = [client.ask(PRODUCE) for _ in range(requests)]
        assert proxy.answers == requests
        assert proxy.cuts == answered.count(False)
    return answered


def test_a_cut_comes_after_the_broker_has_the_batch(upstream: EchoBroker) -> None:
    """Every batch whose answer never came was taken by the broker: sent again, it is a duplicate."""
    answered = _answered(upstream, every=5, seed=1)

    assert answered.count(False) > 3
    assert upstream.taken == list(range(1, 61))


def test_the_schedule_follows_its_seed(upstream: EchoBroker) -> None:
    """The same seed cuts at the same answers; another one cuts elsewhere; on average each `every`-th is cut."""
    first = _answered(upstream, every=5, seed=1)

    assert _answered(upstream, every=5, seed=1) == first
    assert _answered(upstream, every=5, seed=2) != first
    assert 200 / 10 <= _answered(upstream, every=5, seed=3, requests=200).count(False) <= 200 / 3


def test_only_produce_requests_are_cut(upstream: EchoBroker) -> None:
    """Other requests pass, however short their answers are, and do not count."""
    with CuttingProxy(upstream.address, every=1) as proxy, Client(proxy) as client:
        assert all(client.ask(HEARTBEAT) for _ in range(20))
        assert (proxy.cuts, proxy.answers) == (0, 0)
        assert not client.ask(PRODUCE)
        assert proxy.cuts == 1


def test_cutting_can_be_switched_off(upstream: EchoBroker) -> None:
    """While `cutting` is false everything passes, and is counted."""
    with CuttingProxy(upstream.address, every=1) as proxy, Client(proxy) as client:
        proxy.cutting = False
        assert all(client.ask(PRODUCE) for _ in range(20))
        proxy.cutting = True
        assert not client.ask(PRODUCE)
        assert (proxy.cuts, proxy.answers) == (1, 21)


def test_all_connections_can_be_cut_at_once(upstream: EchoBroker) -> None:
    """cut_now says how many there were; the clients can come back."""
    with CuttingProxy(upstream.address) as proxy, ExitStack() as stack:
        clients = [stack.enter_context(Client(proxy)) for _ in range(3)]
        assert all(client.ask(PRODUCE) for client in clients)

        assert proxy.cut_now() == 3

        assert not any(client.ask(PRODUCE) for client in clients)
        assert all(client.ask(PRODUCE) for client in clients)
        assert (proxy.connections, proxy.cuts) == (6, 0)


def test_answers_can_be_held_back(upstream: EchoBroker) -> None:
    """While responses stall the broker works on and the client hears nothing; afterwards it hears all."""
    with CuttingProxy(upstream.address) as proxy, Client(proxy) as client:
        assert client.ask(PRODUCE)
        proxy.stall("responses")
        assert not client.ask(PRODUCE, timeout_s=0.3)
        upstream.wait_for(2)
        assert upstream.taken == [1, 2]
        proxy.flow()
        assert client._connection is not None
        client._connection.settimeout(PATIENCE_S)
        assert _read(client._connection, 8) == struct.pack(">II", 4, 2)


def test_requests_can_be_held_back(upstream: EchoBroker) -> None:
    """While requests stall the broker gets nothing; afterwards it gets all."""
    with CuttingProxy(upstream.address) as proxy, Client(proxy) as client:
        proxy.stall("requests")
        assert not client.ask(PRODUCE, timeout_s=0.3)
        assert upstream.taken == []
        proxy.flow()
        upstream.wait_for(1)
        assert upstream.taken == [1]


def test_what_is_no_kafka_is_cut(upstream: EchoBroker) -> None:
    """A client that speaks TLS, or anything else, is shut out instead of waited for."""
    with CuttingProxy(upstream.address) as proxy:
        connection = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
        with connection, suppress(ConnectionError):
            connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
            assert connection.recv(1) == b""
    assert upstream.taken == []


def test_a_broker_that_is_down_is_down_behind_the_proxy_too() -> None:
    """Connections end at once when the broker takes none; the proxy itself stays."""
    with CuttingProxy(("127.0.0.1", free_port())) as proxy, Client(proxy) as client:
        assert not client.ask(HEARTBEAT)
        assert not client.ask(HEARTBEAT)


def test_wrong_use_is_one_line(upstream: EchoBroker) -> None:
    """A port that is taken, a schedule that is none, and a proxy that does not run are said in one line."""
    taken = upstream.address[1]
    with pytest.raises(KafkaHelperError, match=f"cannot listen on 127.0.0.1:{taken}"):
        CuttingProxy(upstream.address, listen_port=taken).start()
    with pytest.raises(KafkaHelperError, match="every=-1"):
        CuttingProxy(upstream.address, every=-1)
    proxy = CuttingProxy(upstream.address)
    with pytest.raises(KafkaHelperError, match="does not run"):
        proxy.cut_now()
    with proxy, pytest.raises(KafkaHelperError, match="listens already"):
        proxy.start()


def test_a_client_that_goes_away_amid_answers_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """What still comes for it is dropped with the connection, and not sent to nobody."""
    burst = (struct.pack(">I", 4) + b"1234") * 15_000
    with socket.create_server(("127.0.0.1", 0)) as server, CuttingProxy(server.getsockname()) as proxy:
        client = socket.create_connection(("127.0.0.1", proxy.port))
        connection, _ = server.accept()
        with connection:
            connection.sendall(burst)
            _read(client, 8)
            # It resets the connection.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            with suppress(OSError):
                assert connection.recv(1) == b""
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []
