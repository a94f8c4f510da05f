"""A TCP proxy between a producer and a broker, which cuts connections after the broker has written a batch."""

from __future__ import annotations

import asyncio
import random
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self, TypeVar

from dedup_sdk.errors import KafkaHelperError
from dedup_sdk.testing._ports import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine
    from types import TracebackType

Direction = Literal["requests", "responses"]

# Frames, big-endian. Request: u4 size, u2 API key, u2 API version, u4 correlation ID, ...
# Response: u4 size, u4 correlation ID, ...
_SIZE: Final = struct.Struct(">I")
_REQUEST: Final = struct.Struct(">HHI")
_RESPONSE: Final = struct.Struct(">I")
_PRODUCE: Final = 0

# No Kafka frame is larger; a larger size means another protocol (TLS, for instance).
_LARGEST: Final = 1 << 28


class Ends(NamedTuple):
    """Both ends of one TCP connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class ProxiedConnection:
    """Forwards whole frames both ways until one side closes, or an answer is dropped; then closes both sides."""

    def __init__(self, client: Ends, broker: Ends, proxy: CuttingProxy) -> None:
        self._client = client
        self._broker = broker
        self._proxy = proxy
        self._batches: set[int] = set()
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Return when the connection has ended."""
        pumps = [asyncio.create_task(self._requests()), asyncio.create_task(self._responses())]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.cut()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._over.set()

    async def wait_over(self) -> None:
        """Return when `run` has returned."""
        await self._over.wait()

    def cut(self) -> None:
        """Close both sides at once, without sending buffered frames."""
        for end in (self._client, self._broker):
            end.writer.transport.abort()

    async def _requests(self) -> None:
        async for frame in _frames(self._client.reader, _REQUEST.size):
            api, _, correlation = _REQUEST.unpack_from(frame)
            if api == _PRODUCE:
                self._batches.add(correlation)
            await self._proxy.passes("requests")
            await _send(self._broker.writer, frame)

    async def _responses(self) -> None:
        async for frame in _frames(self._broker.reader, _RESPONSE.size):
            (correlation,) = _RESPONSE.unpack_from(frame)
            if correlation in self._batches:
                self._batches.discard(correlation)
                if self._proxy.drops_answer():
                    return
            await self._proxy.passes("responses")
            await _send(self._client.writer, frame)


async def _frames(reader: asyncio.StreamReader, least: int) -> AsyncIterator[bytes]:
    """Yield the bodies of frames until the other side closes, or sends anything but a frame."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
            if not least <= size <= _LARGEST:
                return
            yield await reader.readexactly(size)


async def _send(writer: asyncio.StreamWriter, frame: bytes) -> None:
    """Send a frame; raises `ConnectionError` if that side is closed: further frames would be sent to nobody."""
    writer.write(_SIZE.pack(len(frame)) + frame)
    await writer.drain()


Result = TypeVar("Result")

_START_TIMEOUT_S = 10.0


class CuttingProxy:
    """Forwards Kafka's frames, and sometimes drops an answer and cuts both connections instead (no TLS).

    A cut happens when the **answer** to a produce request arrives: the broker has written the batch, and
    the producer never learns it. A producer without idempotence then resends a real producer-side
    duplicate. Requests with ``acks=0`` have no answer and are never cut.

    The schedule is seeded: between two cuts there are 1 to ``2 * every - 1`` answers, `every` on average,
    counted over all connections. The methods may be called from any thread.

    Args:
        target: host and port that connections are forwarded to, e.g. ``kafka.address("PROXIED")``.
        listen_port: the port on 127.0.0.1 to listen on; 0 = any. The broker must advertise it
            (`LocalKafka`).
        every: answers from cut to cut, on average; 0 = only `cut_now` cuts.
        seed: of the schedule.

    Attributes:
        cutting: whether the schedule is followed; may be set at any time.
    """

    def __init__(
        self, target: tuple[str, int], *, listen_port: int = 0, every: int = 0, seed: int = 0
    ) -> None:
        if every < 0:
            raise KafkaHelperError(f"CuttingProxy(every={every}): 0 (never) or a number of answers")
        self.cutting = True
        self._target = target
        self._port = listen_port
        self._every = every
        self._random = random.Random(seed)  # noqa: S311 - a schedule, no secret
        self._until_cut = self._draw()
        self._cuts = self._answers = self._connections = 0
        self._open: set[ProxiedConnection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._gates: dict[Direction, asyncio.Event] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._port

    @property
    def bootstrap(self) -> str:
        """``127.0.0.1:PORT``, for a producer's ``bootstrap.servers``."""
        return f"{LOOPBACK}:{self._port}"

    @property
    def cuts(self) -> int:
        """How many answers to produce requests were dropped by the schedule."""
        return self._cuts

    @property
    def answers(self) -> int:
        """How many answers to produce requests the broker gave, dropped ones included."""
        return self._answers

    @property
    def connections(self) -> int:
        """How many connections were accepted."""
        return self._connections

    def start(self) -> None:
        """Listen, in a thread of its own.

        Raises:
            KafkaHelperError: it runs already, or the port is taken.
        """
        if self._thread is not None:
            raise KafkaHelperError(f"CuttingProxy listens already on {self.bootstrap}: stop() it first")
        started: list[BaseException | None] = []
        ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready, started)), name="cutting-proxy", daemon=True
        )
        self._thread.start()
        ready.wait(_START_TIMEOUT_S)
        failure = started[0] if started else TimeoutError(f"not within {_START_TIMEOUT_S:g} s")
        if failure is not None:
            self._thread.join(_START_TIMEOUT_S)
            self._thread = None
            raise KafkaHelperError(f"CuttingProxy cannot listen on {self.bootstrap}: {failure}") from None

    def stop(self) -> None:
        """Cut every connection and listen no more. Does nothing when stopped."""
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
        self._thread = self._loop = None

    def cut_now(self) -> int:
        """Cut all open connections, whatever they carry; return how many there were."""
        return self._run(self._cut_all())

    def stall(self, direction: Direction) -> None:
        """Forward nothing in one direction from now on; connections stay open.

        Args:
            direction: ``requests`` (the broker gets nothing) or ``responses`` (it works, and its answers
                are held back).
        """
        self._run(self._set_gate(direction, flows=False))

    def flow(self) -> None:
        """Forward in both directions again, held-back frames included."""
        for direction in self._gates:
            self._run(self._set_gate(direction, flows=True))

    # From here on: inside the proxy's thread.

    async def _serve(self, ready: threading.Event, started: list[BaseException | None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._gates = {"requests": asyncio.Event(), "responses": asyncio.Event()}
        for gate in self._gates.values():
            gate.set()
        try:
            server = await asyncio.start_server(self._accept, LOOPBACK, self._port)
        except OSError as error:
            started.append(error)
            ready.set()
            return
        self._port = server.sockets[0].getsockname()[1]
        started.append(None)
        ready.set()
        await self._stopping.wait()
        server.close()
        await self._cut_all()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            upstream = await asyncio.open_connection(*self._target)
        except OSError:
            # The broker is down, so refuse the connection.
            writer.transport.abort()
            return
        connection = ProxiedConnection(Ends(reader, writer), Ends(*upstream), self)
        self._open.add(connection)
        try:
            await connection.run()
        finally:
            self._open.discard(connection)

    async def _cut_all(self) -> int:
        cut = list(self._open)
        for connection in cut:
            connection.cut()
        await asyncio.gather(*(connection.wait_over() for connection in cut))
        return len(cut)

    async def _set_gate(self, direction: Direction, *, flows: bool) -> None:
        gate = self._gates[direction]
        gate.set() if flows else gate.clear()

    async def passes(self, direction: Direction) -> None:
        """Return when `direction` is not stalled."""
        await self._gates[direction].wait()

    def drops_answer(self) -> bool:
        """Count an answer to a produce request, and say whether it is the one to be dropped."""
        self._answers += 1
        if not self._every or not self.cutting:
            return False
        self._until_cut -= 1
        if self._until_cut > 0:
            return False
        self._until_cut = self._draw()
        self._cuts += 1
        return True

    def _draw(self) -> int:
        return self._random.randint(1, 2 * self._every - 1) if self._every else 0

    def _run(self, work: Coroutine[None, None, Result]) -> Result:
        if self._loop is None:
            work.close()
            raise KafkaHelperError("CuttingProxy does not run: use it in a with block, or call start()")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_TIMEOUT_S)
