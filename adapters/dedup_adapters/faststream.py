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
import logging
from collections.abc import Callable
from itertools import compress
from typing import TYPE_CHECKING, Any, Unpack

from confluent_kafka import Message, TopicPartition

try:
    from faststream import BaseMiddleware
    from faststream.confluent import KafkaBroker
    from faststream.confluent.helpers import AsyncConfluentConsumer
    from faststream.confluent.parser import AsyncConfluentParser
    from faststream.exceptions import SkipMessage, SubscriberNotFound
except ImportError as error:  # pragma: no cover (the environment has it)
    raise ImportError(
        "dedup_adapters.faststream needs FastStream: pip install 'dedup-sdk[faststream]'"
    ) from error

from dedup_sdk import LastId, Lookup, MemoryStore, Recovery, RocksStore
from dedup_sdk.aio import AsyncDedupConsumer

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import TypedDict

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
    default) a message is completed by the next one or by the stop, whatever became of its handler; with the others it
    is completed when FastStream acknowledges or rejects it, and released by ``nack``. With ``MANUAL`` a message that
    your program does not end stays open, and comes again after a restart.

    An error of a parser, a filter or a middleware of yours ends a message as one of the handler does. A message whose
    work is cancelled is released; a cancellation that leaves the handler ends its subscriber, as in FastStream, which
    then leaves the group. A message that a handler skips (``SkipMessage``) is completed, as is one that FastStream
    cannot read, and, with ``MANUAL``, one for which there is no handler. Messages without an ID pass.

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
    if any(isinstance(each, _Consumers) for each in config.broker_middlewares):
        raise TypeError("this broker is deduplicated already: call deduplicate() once")
    consumers = _Consumers()

    def build(*topics: Any, **arguments: Any) -> _Consumer:
        return _Consumer(
            *topics,
            consumers=consumers,
            config=config.connection_config,
            admin_service=config.admin,
            logger=config.logger,
            dedup_options={"dedup": dedup, "store": store, **options},
            **arguments,
        )

    config.builder = build
    # The outermost of the broker's middlewares ends last, and sees the error that FastStream's acknowledgement sees.
    broker.insert_middleware(consumers)
    return broker


class _Consumer(AsyncConfluentConsumer):
    """FastStream's consumer, with an `AsyncDedupConsumer` in place of the client."""

    def __init__(
        self, *topics: Any, consumers: _Consumers, dedup_options: dict[str, Any], **arguments: Any
    ) -> None:
        # FastStream's own constructor turns its arguments into settings of the client.
        super().__init__(*topics, **arguments)
        self.consumer.close()
        self._wish = _Wish()
        self.consumer = self._wish  # type: ignore[assignment]
        settings = {name: value for name, value in self.config.items() if value is not None}
        # FastStream turns the commits of the client off if it acknowledges messages itself; ours go on.
        self._by_next = bool(settings.pop("enable.auto.commit"))
        self._dedup = AsyncDedupConsumer(
            settings,
            completion="on-next-call" if self._by_next else "explicit",
            **dedup_options,
        )
        self._consumers = consumers
        self._last: tuple[Message, ...] = ()
        """The messages of the last call that are still open."""
        self._is_done = False
        """Whether they are over if FastStream's acknowledgement does not end them."""

    async def start(self) -> None:
        """Create topics as FastStream does, then subscribe."""
        await super().start()
        self._consumers.open.add(self)
        wish = self._wish
        if wish.partitions:
            await self._dedup.assign(wish.partitions)
        else:
            await self._dedup.subscribe(wish.topics, **wish.callbacks)

    async def stop(self) -> None:
        """Close: what is completed or counts as handled is committed, what is in hand comes again."""
        self._consumers.open.discard(self)
        try:
            await self._complete_done()
        finally:
            try:
                await self._dedup.close()
            finally:
                self._thread_pool.shutdown(wait=False)

    async def getone(self, timeout: float = 0.1) -> Message | None:  # noqa: ASYNC109 (FastStream's signature)
        """Return the next message that is no duplicate."""
        await self._begin()
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
        await self._begin()
        got = await self._dedup.consume(max_records or 10, timeout)
        self._last = tuple(message for message in got if message.error() is None)
        return self._last

    async def _begin(self) -> None:
        if not self._by_next:
            await self._complete_done()
        self._last, self._is_done = (), False

    async def _complete_done(self) -> None:
        if self._is_done and self._last:
            await self.complete(self._last)

    async def commit(self, asynchronous: bool = True) -> None:  # noqa: FBT001, FBT002, ARG002 (FastStream's signature)
        """Complete the messages of the last call: FastStream could not say which one it means."""
        await self.complete(self._last)

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """Release the messages of the last call from an offset on."""
        await self.release(self._last, TopicPartition(topic, partition, offset))

    async def complete(self, messages: tuple[Message, ...]) -> None:
        """Complete messages, in one step; what is over already is counted as stale."""
        self._forget(messages)
        await self._dedup.complete(*messages)

    async def release(self, messages: tuple[Message, ...], start: TopicPartition | None = None) -> None:
        """Release messages; ``start``: those of its partition from its offset on."""
        released = tuple(
            message
            for message in messages
            if start is None
            or (
                (message.topic(), message.partition()) == (start.topic, start.partition)
                and (message.offset() or 0) >= start.offset
            )
        )
        self._forget(released)
        for message in released:
            await self._dedup.release(message)

    def _forget(self, messages: tuple[Message, ...]) -> None:
        over = set(map(id, messages))
        self._last = tuple(message for message in self._last if id(message) not in over)

    def has_open(self, messages: tuple[Message, ...]) -> bool:
        """Whether one of these is a message of the last call, and open."""
        return not {id(message) for message in self._last}.isdisjoint(map(id, messages))

    async def leave(self, error: BaseException | None, *, had_scope: bool) -> None:
        """Leave the messages of the last call to FastStream's acknowledgement, which comes next.

        ``had_scope``: whether the work got to a scope, which is behind parsers and filters. FastStream acknowledges
        nothing that is cancelled or skipped, or that it cannot parse itself, and nothing at all with ``MANUAL``.
        """
        if isinstance(error, asyncio.CancelledError):
            await self.release(self._last)
        elif self._by_next or isinstance(error, (SkipMessage, SubscriberNotFound)):
            self._is_done = True
        elif not had_scope:
            can_be_parsed = [await _can_be_parsed(message) for message in self._last]
            if not all(can_be_parsed):
                self._is_done = True
                await self.release(tuple(compress(self._last, can_be_parsed)))

    async def end_loop(self) -> None:
        """Leave the group, whose other members go on: FastStream asks for no more messages.

        It stops to poll then, by which a plain client leaves after a while; ours polls in its own thread.
        """
        self.logger_state.log(
            "a cancelled handler ended its subscriber, which leaves the group: catch asyncio.CancelledError there, or "
            "restart the broker",
            logging.ERROR,
        )
        if self._wish.topics:
            await self._dedup.unsubscribe()


async def _can_be_parsed(message: Message) -> bool:
    """Whether FastStream's own parser reads a message: by that one it also acknowledges what got to no handler."""
    try:
        await AsyncConfluentParser().parse_message(message)
    except Exception:  # noqa: BLE001 (whatever it is, it stands in FastStream's way, too)
        return False
    return True


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


class _Consumers:
    """The open consumers of a broker, and the middleware that tells each how FastStream's work on its message ended."""

    def __init__(self) -> None:
        self.open: set[_Consumer] = set()

    def __call__(self, msg: Any, /, *, context: Any) -> _EndOfMessage:
        return _EndOfMessage(msg, context=context, consumers=self.open)


class _EndOfMessage(BaseMiddleware):
    """Gives each message of FastStream its own consumer, and tells that one how the work on the message ended."""

    def __init__(self, msg: Any, /, *, context: Any, consumers: set[_Consumer]) -> None:
        super().__init__(msg, context=context)
        self._consumers = consumers
        self._had_scope = False

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        """Give the message the consumer that ends only this one."""
        self._had_scope = True
        if isinstance(msg.consumer, _Consumer):
            msg.consumer = _Held(msg.consumer, _messages(self.msg))
        return await call_next(msg)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> bool | None:
        """Tell the consumer how the work ended, if the message is open still."""
        for consumer in self._consumers:
            if consumer.has_open(_messages(self.msg)):
                await consumer.leave(exc_val, had_scope=self._had_scope)
                break
        if isinstance(exc_val, asyncio.CancelledError):
            # It goes on through FastStream's loop, if this is a subscriber's (and not `get_one`).
            ended = getattr(self.context.get("handler_"), "consumer", None)
            if ended in self._consumers:
                await ended.end_loop()
        return await super().__aexit__(exc_type, exc_val, exc_tb)


def _messages(raw: Any) -> tuple[Message, ...]:
    return raw if isinstance(raw, tuple) else (raw,)
