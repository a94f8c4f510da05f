"""FastStream: subscribers that see each logical message once (extra ``[faststream]``).

    from dedup_adapters.faststream import deduplicate
    from dedup_sdk import Lookup
    from faststream.confluent import KafkaBroker

    broker = deduplicate(
        KafkaBroker("localhost:9092"), dedup=Lookup(id="header:dedup-id", window="7d"), store="var/faststream"
    )

Each subscriber then reads by an `AsyncDedupConsumer` of its own. What acknowledges a message in FastStream completes
that message, and what refuses it for another try (``nack``) releases it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from confluent_kafka import Message, TopicPartition

try:
    from faststream import BaseMiddleware
    from faststream.confluent import KafkaBroker
    from faststream.confluent.helpers import AsyncConfluentConsumer
except ImportError as error:  # pragma: no cover (the environment has it)
    raise ImportError(
        "dedup_adapters.faststream needs FastStream: pip install 'dedup-sdk[faststream]'"
    ) from error

from dedup_sdk.aio import AsyncDedupConsumer

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import TypedDict

    from dedup_sdk import LastId, Lookup, MemoryStore, Recovery, RocksStore

    class Options(TypedDict, total=False):
        """Arguments of `AsyncDedupConsumer`."""

        durability: Any
        mode: Any
        recovery: Recovery
        shared: Any
        observers: Any
        revoke_deadline: float


def deduplicate(
    broker: KafkaBroker,
    *,
    dedup: Lookup | LastId,
    store: str | Path | RocksStore | MemoryStore,
    **options: Unpack[Options],
) -> KafkaBroker:
    """Let the subscribers of a broker see each logical message once; return the broker.

    Call it before the broker starts. FastStream's acknowledgement policies keep their meaning: with ``ACK_FIRST`` (its
    default) a message is completed by the next one, whatever became of its handler; with the others it is completed
    when FastStream acknowledges or rejects it, and released by ``nack``. A handler that is cancelled releases its
    message. Messages without an ID pass.

    Args:
        broker: FastStream's broker for confluent-kafka.
        dedup: how duplicates are recognised, as for `dedup_sdk.DedupConsumer`.
        store: a folder for the key stores, which all subscribers and processes may share, or a store.
        options: further arguments of `dedup_sdk.aio.AsyncDedupConsumer`.

    Raises `TypeError` for a broker that is none, or that is deduplicated already. The consumer's errors are raised when
    the broker starts.
    """
    if not isinstance(broker, KafkaBroker):
        raise TypeError(f"broker={type(broker).__name__}: give a faststream.confluent.KafkaBroker")
    config = broker.config.broker_config
    if _EndOfMessage in config.broker_middlewares:
        raise TypeError("this broker is deduplicated already: call deduplicate() once")

    def build(*topics: Any, **arguments: Any) -> _Consumer:
        return _Consumer(
            *topics,
            config=config.connection_config,
            admin_service=config.admin,
            logger=config.logger,
            dedup_options={"dedup": dedup, "store": store, **options},
            **arguments,
        )

    config.builder = build
    broker.add_middleware(_EndOfMessage)
    return broker


class _Consumer(AsyncConfluentConsumer):
    """FastStream's consumer, with an `AsyncDedupConsumer` in place of the client."""

    def __init__(self, *topics: Any, dedup_options: dict[str, Any], **arguments: Any) -> None:
        # FastStream's own constructor turns its arguments into settings of the client.
        super().__init__(*topics, **arguments)
        self.consumer.close()
        self._wish = _Wish()
        self.consumer = self._wish  # type: ignore[assignment]
        settings = {name: value for name, value in self.config.items() if value is not None}
        # FastStream turns the commits of the client off if it acknowledges messages itself; ours go on.
        by_next = bool(settings.pop("enable.auto.commit"))
        self._dedup = AsyncDedupConsumer(
            settings,
            completion="on-next-call" if by_next else "explicit",
            **dedup_options,
        )
        self._last: tuple[Message, ...] = ()

    async def start(self) -> None:
        """Create topics as FastStream does, then subscribe."""
        await super().start()
        wish = self._wish
        if wish.partitions:
            await self._dedup.assign(wish.partitions)
        else:
            await self._dedup.subscribe(wish.topics, **wish.callbacks)

    async def stop(self) -> None:
        """Close: what is completed is committed, what is in hand comes again."""
        try:
            await self._dedup.close()
        finally:
            self._thread_pool.shutdown(wait=False)

    async def getone(self, timeout: float = 0.1) -> Message | None:  # noqa: ASYNC109 (FastStream's signature)
        """Return the next message that is no duplicate."""
        message = await self._dedup.poll(timeout)
        if message is None or message.error() is not None:
            return None
        self._last = (message,)
        return message

    async def getmany(
        self,
        timeout: float = 0.1,  # noqa: ASYNC109 (FastStream's signature)
        max_records: int | None = 10,
    ) -> tuple[Message, ...]:
        """Return up to ``max_records`` messages that are no duplicates."""
        got = await self._dedup.consume(max_records or 10, timeout)
        messages = tuple(message for message in got if message.error() is None)
        if messages:
            self._last = messages
        return messages

    async def commit(self, asynchronous: bool = True) -> None:  # noqa: FBT001, FBT002, ARG002 (FastStream's signature)
        """Complete the messages of the last call: FastStream could not say which one it means."""
        await self.complete(self._last)

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """Release the messages of the last call from an offset on."""
        await self.release(self._last, TopicPartition(topic, partition, offset))

    async def complete(self, messages: tuple[Message, ...]) -> None:
        """Complete messages, in one step; what is over already is counted as stale."""
        await self._dedup.complete(*messages)

    async def release(self, messages: tuple[Message, ...], start: TopicPartition | None = None) -> None:
        """Release messages; ``start``: those of its partition from its offset on."""
        for message in messages:
            place = message.topic(), message.partition()
            if start is None or (
                place == (start.topic, start.partition) and (message.offset() or 0) >= start.offset
            ):
                await self._dedup.release(message)


class _Wish:
    """Stands for the client while FastStream starts: notes what to read, which the event loop then asks for."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.partitions: list[TopicPartition] = []
        self.callbacks: dict[str, Callable[..., None]] = {}

    def subscribe(self, topics: list[str], **callbacks: Callable[..., None]) -> None:
        self.topics, self.callbacks = topics, callbacks

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.partitions = partitions


class _Held:
    """The consumer of one message of FastStream, which may be a batch: it ends that message, and no other."""

    def __init__(self, consumer: _Consumer, messages: tuple[Message, ...]) -> None:
        self._consumer, self._messages = consumer, messages

    async def commit(self) -> None:
        await self._consumer.complete(self._messages)

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        await self._consumer.release(self._messages, TopicPartition(topic, partition, offset))


class _EndOfMessage(BaseMiddleware):
    """Lets each message of FastStream know its own consumer, and ends what FastStream leaves open."""

    _is_parsed = False

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        """Give the message the consumer that ends only this one; release the message of a cancelled handler."""
        self._is_parsed = True
        consumer = msg.consumer
        if not isinstance(consumer, _Consumer):
            return await call_next(msg)
        messages = _messages(msg.raw_message)
        msg.consumer = _Held(consumer, messages)
        try:
            return await call_next(msg)
        except asyncio.CancelledError:
            await consumer.release(messages)
            raise

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> bool | None:
        """Complete a message that FastStream could not parse, and passes over."""
        if exc_val is not None and not self._is_parsed and not isinstance(exc_val, asyncio.CancelledError):
            consumer = getattr(self.context.get("handler_"), "consumer", None)
            if isinstance(consumer, _Consumer):
                await consumer.complete(_messages(self.msg))
        return await super().__aexit__(exc_type, exc_val, exc_tb)


def _messages(raw: Any) -> tuple[Message, ...]:
    return raw if isinstance(raw, tuple) else (raw,)
