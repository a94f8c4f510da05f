"""One connection through `CuttingProxy`: Kafka's frames from a client to a broker, and its answers back."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Direction = Literal["requests", "responses"]

# Frames, big-endian. Request: u4 size, u2 API key, u2 API version, u4 correlation ID, ...
# Response: u4 size, u4 correlation ID, ...
_SIZE: Final = struct.Struct(">I")
_REQUEST: Final = struct.Struct(">HHI")
_RESPONSE: Final = struct.Struct(">I")
_PRODUCE: Final = 0

# No Kafka frame is larger; what says so speaks another protocol (TLS, for instance).
_LARGEST: Final = 1 << 28


class Ends(NamedTuple):
    """Both ends of one TCP connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Policy(Protocol):
    """What the proxy decides for its connections."""

    async def passes(self, direction: Direction) -> None:
        """Return when frames of this direction may go on."""

    def drops_answer(self) -> bool:
        """Whether this answer to a produce request is dropped, and its connection cut; asked once for each answer."""


class ProxiedConnection:
    """Forwards whole frames both ways until one side closes, or an answer is dropped; then closes both sides."""

    def __init__(self, client: Ends, broker: Ends, policy: Policy) -> None:
        self._client = client
        self._broker = broker
        self._policy = policy
        self._batches: set[int] = set()
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Return when the connection is over, for whatever reason."""
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
        """Return when `run` has."""
        await self._over.wait()

    def cut(self) -> None:
        """Close both sides at once, without sending what waits."""
        for end in (self._client, self._broker):
            end.writer.transport.abort()

    async def _requests(self) -> None:
        async for frame in _frames(self._client.reader, _REQUEST.size):
            api, _, correlation = _REQUEST.unpack_from(frame)
            if api == _PRODUCE:
                self._batches.add(correlation)
            await self._policy.passes("requests")
            await _send(self._broker.writer, frame)

    async def _responses(self) -> None:
        async for frame in _frames(self._broker.reader, _RESPONSE.size):
            (correlation,) = _RESPONSE.unpack_from(frame)
            if correlation in self._batches:
                self._batches.discard(correlation)
                if self._policy.drops_answer():
                    return
            await self._policy.passes("responses")
            await _send(self._client.writer, frame)


async def _frames(reader: asyncio.StreamReader, least: int) -> AsyncIterator[bytes]:
    """The bodies of the frames that arrive, until the other side closes or sends what is no frame."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
            if not least <= size <= _LARGEST:
                return
            yield await reader.readexactly(size)


async def _send(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(_SIZE.pack(len(frame)))
    writer.write(frame)
    with suppress(ConnectionError):
        await writer.drain()
