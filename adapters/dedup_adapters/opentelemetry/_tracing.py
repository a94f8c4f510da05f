"""Process spans: one for each message that is handled, as a child of the span that produced the message.

A recorded span costs some 40 µs (`benchmarks/observed.py`), 17 of them to begin and to end a span that has nothing;
attributes, the producer's context and the current one are the rest, all of it in OpenTelemetry's SDK. So a message
whose producer was not sampled takes a shorter way, which reads one byte of its header: the handler runs inside the
producer's context, as with a sampler that follows the parent, but that context is only read if somebody asks for it.
That is still half the time of an empty loop. So a ratio of our own counts messages down before anything of a message or
of OpenTelemetry is touched.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from functools import wraps
from itertools import islice
from math import log
from random import random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar, cast, overload

from opentelemetry import propagate
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)

from dedup_adapters._looks import AnyConsumer
from dedup_adapters.opentelemetry import _names as names
from dedup_sdk import Verdict
from dedup_sdk.errors import ConfigurationError, shown

if TYPE_CHECKING:
    from contextvars import Token

    from confluent_kafka import Message


_Result = TypeVar("_Result")
_Headers = Mapping[str, bytes | None]

_TRACE_PARENT: Final = "traceparent"
_FLAGS_END: Final = 55
"""The length of a ``traceparent``; its last digit has the flag for sampled messages."""
_NOT_SAMPLED: Final = b"02468ace"
_USUAL_FIELDS: Final = frozenset({_TRACE_PARENT, "tracestate", "baggage"})
"""The headers that OpenTelemetry's usual propagators read; of others we do not know that they are all."""
[_SPAN] = set_span_in_context(INVALID_SPAN, Context())
"""The key of the span in a context."""


class EnteredSpan(Protocol):
    """What `Tracing.span` returns: a context manager, for ``with`` and for ``async with``."""

    def __enter__(self) -> Span: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    async def __aenter__(self) -> Span: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Tracing:
    """Makes spans for the messages of a consumer that are handled, and for no others.

    Each span is named ``process <topic>``, is a child of the span that produced the message (by the propagated headers;
    of several headers of a name the last counts), and has the attributes of OpenTelemetry's conventions for messaging
    and the verdict. It has no ID, key or value of a message, and of an exception only the class. No span is made for a
    message whose producer was not sampled: the handler runs in that producer's context.

    Args:
        consumer: the consumer whose messages are handled; a `DedupConsumer` or an `AsyncDedupConsumer`.
        tracer_provider: None: the global one.
        ratio: the part of the messages, taken at random, that may have a span. The others are handled as without
            tracing: neither their producer's context nor your sampler is asked.

    Raises `ConfigurationError` if ``ratio`` is not above 0, and at most 1.
    """

    def __init__(
        self,
        consumer: AnyConsumer,
        *,
        tracer_provider: TracerProvider | None = None,
        ratio: float = 1.0,
    ) -> None:
        if type(ratio) not in (int, float) or not 0 < ratio <= 1:
            raise ConfigurationError(f"ratio={shown(ratio)}: give a number above 0, and at most 1, e.g. 0.01")
        self._consumer: Any = consumer
        self._group = consumer.metrics().group
        self._is_async = hasattr(consumer, "__aiter__")
        self._tracer = get_tracer(names.SCOPE, tracer_provider=tracer_provider)
        fields = propagate.get_global_textmap().fields
        self._reads_flag = _TRACE_PARENT in fields
        self._has_usual_fields = fields <= _USUAL_FIELDS
        self._log_of_rest = log(1 - ratio) if ratio < 1 else None
        """Of the part of the messages that have no span; None: each may have one."""
        self._left = 0 if self._log_of_rest is None else self._gap(self._log_of_rest)
        """How many messages have no span before the next one that may; of `span` and handlers."""

    def span(self, *messages: Message) -> EnteredSpan:
        """Return a context manager: the block handles a message, or a batch, inside one span.

        For example ``with consumer.once(message), tracing.span(message): ...``; ``async with`` for an
        `AsyncDedupConsumer`. The span of several messages is the root of a trace, with a link to the producer of each.
        From any thread.
        """
        if self._skips():
            return _NOTHING
        return self._of_one(messages[0]) if len(messages) == 1 else self._of_batch(messages)

    def handler(self, handle: Callable[[Message], _Result]) -> Callable[[Message], _Result]:
        """Return a handler that calls another one inside a span, for `run`; a retry has its own.

        For an `AsyncDedupConsumer` both are coroutine functions.
        """
        if self._is_async:
            awaited = cast("Callable[[Message], Awaitable[object]]", handle)

            @wraps(handle)
            async def traced_coroutine(message: Message) -> object:
                async with self.span(message):
                    return await awaited(message)

            return cast("Callable[[Message], _Result]", traced_coroutine)

        @wraps(handle)
        def traced(message: Message) -> _Result:
            if self._skips():
                return handle(message)
            with self._of_one(message):
                return handle(message)

        return traced

    @overload
    def iterate(self, messages: AsyncIterable[Message]) -> AsyncIterator[Message]: ...
    @overload
    def iterate(self, messages: Iterable[Message]) -> Iterator[Message]: ...

    def iterate(
        self, messages: Iterable[Message] | AsyncIterable[Message]
    ) -> Iterator[Message] | AsyncIterator[Message]:
        """Yield messages, and run the body of the loop inside a span for each.

        ``messages``: the consumer itself (with ``async for`` if it is an `AsyncDedupConsumer`), or those of a
        `consume`; error events have no span. An exception of the body ends the span, which does not hear of it: use
        `span` where spans must say so.
        """
        if isinstance(messages, AsyncIterable):
            return _AsyncIteration(messages, self)
        return self._iterate(iter(messages))

    def _iterate(self, messages: Iterator[Message]) -> Iterator[Message]:
        while True:
            if self._log_of_rest is not None:
                yield from islice(messages, self._gap(self._log_of_rest))
            message = next(messages, None)
            if message is None:
                return
            if message.error() is not None:
                yield message
                continue
            with self._of_one(message):
                yield message

    @staticmethod
    def _gap(log_of_rest: float) -> int:
        """Return how many messages come before the next one that is taken, if each is with the same probability."""
        return int(log(1 - random()) / log_of_rest)  # noqa: S311 (no secret)

    def _skips(self) -> bool:
        """Whether a message has no span; two threads that meet here make the ratio a little larger or smaller."""
        if self._left > 0:
            self._left -= 1
            return True
        if self._log_of_rest is not None:
            self._left = self._gap(self._log_of_rest)
        return False

    def next_of(self, message: Message) -> _Entered | None:
        """Return what an iteration enters for its next message, None for nothing."""
        if self._skips() or message.error() is not None:
            return None
        return self._of_one(message)

    def _of_one(self, message: Message) -> _Entered:
        headers = _headers_of(message)
        parent = (headers.get(_TRACE_PARENT) or b"") if self._reads_flag else b""
        is_flagged = len(parent) == _FLAGS_END
        if is_flagged and parent[-1] in _NOT_SAMPLED and "baggage" not in headers:
            of_producer = _NotSampled(headers)
            # As `set_span_in_context` does, in a third of its time.
            return _Entered(of_producer, Context({**get_current(), _SPAN: of_producer}))
        topic = message.topic() or ""
        attributes = self._attributes(topic) | {
            names.PARTITION: str(message.partition()),
            names.OFFSET: message.offset() or 0,
        }
        # A span whose producer was sampled is mostly recorded: attributes cost less if they are given at its beginning.
        is_described = is_flagged and not self._is_async
        if is_described:
            attributes |= _attributes_of(self._consumer.verdict(message))
        has_none = self._has_usual_fields and _USUAL_FIELDS.isdisjoint(headers)
        context = set_span_in_context(INVALID_SPAN) if has_none else _context_of(headers)
        span = self._tracer.start_span(f"process {topic}", context, SpanKind.CONSUMER, attributes)
        entered = _Entered(span, set_span_in_context(span, context))
        if span.is_recording() and not is_described:
            if self._is_async:
                entered.ask = lambda: self._consumer.verdict(message)
            else:
                span.set_attributes(_attributes_of(self._consumer.verdict(message)))
        return entered

    def _of_batch(self, messages: Iterable[Message]) -> _Entered:
        records = [each for each in messages if each.error() is None]
        topics = {each.topic() or "" for each in records}
        topic = topics.pop() if len(topics) == 1 else ""
        attributes = self._attributes(topic) | {names.BATCH: len(records)}
        root = set_span_in_context(INVALID_SPAN)
        span = self._tracer.start_span(f"process {topic}".rstrip(), root, SpanKind.CONSUMER, attributes)
        if span.is_recording():
            # Not given to the sampler: to read them would cost more than all the rest of a batch that is not sampled.
            for each in records:
                linked = get_current_span(_context_of(_headers_of(each))).get_span_context()
                if linked.is_valid:
                    span.add_link(linked)
        return _Entered(span, set_span_in_context(span, root))

    def _attributes(self, topic: str) -> dict[str, str | int]:
        of_topic: dict[str, str | int] = {names.TOPIC: topic} if topic else {}
        return {
            names.SYSTEM: "kafka",
            names.OPERATION_TYPE: "process",
            names.OPERATION_NAME: "process",
            names.GROUP: self._group,
            **of_topic,
        }


class _Entered:
    """A span that has begun, and the context in which a block runs.

    ``ask``: asks an `AsyncDedupConsumer` for the verdict, which its span does not have yet.
    """

    __slots__ = ("_context", "_span", "_token", "ask")

    def __init__(self, span: Span, context: Context) -> None:
        self._span, self._context = span, context
        self._token: Token[Context] | None = None
        self.ask: Callable[[], Awaitable[Verdict | None]] | None = None

    def __enter__(self) -> Span:
        self._token = attach(self._context)
        return self._span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            detach(self._token)
        if kind is not None and kind is not GeneratorExit:
            # The class alone: a text may have a value of the message in it.
            self._span.set_status(StatusCode.ERROR)
            self._span.set_attribute(names.ERROR_TYPE, kind.__qualname__)
        self._span.end()

    async def describe(self) -> None:
        """Add the verdict to the span."""
        if self.ask is not None:
            self._span.set_attributes(_attributes_of(await self.ask()))

    async def __aenter__(self) -> Span:
        try:
            await self.describe()
        except BaseException:
            self._span.end()
            raise
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


class _Nothing:
    """A block without a span."""

    __slots__ = ()

    def __enter__(self) -> Span:
        return INVALID_SPAN

    def __exit__(self, *_: object) -> None:
        pass

    async def __aenter__(self) -> Span:
        return INVALID_SPAN

    async def __aexit__(self, *_: object) -> None:
        pass


_NOTHING: Final = _Nothing()


class _AsyncIteration(AsyncIterator["Message"]):
    """One ``async for``; no generator, which a loop that is left would keep open until another task closes it.

    The verdict is asked for when the body is over: between the message and its body nothing may be awaited, because a
    cancellation there would lose the message.
    """

    def __init__(self, messages: AsyncIterable[Message], tracing: Tracing) -> None:
        self._messages, self._tracing = aiter(messages), tracing
        self._entered: _Entered | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if self._entered is not None:
            try:
                await self._entered.describe()
            finally:
                self._end()
        message = await anext(self._messages)
        self._entered = self._tracing.next_of(message)
        if self._entered is not None:
            self._entered.__enter__()
        return message

    def _end(self) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.__exit__(None, None, None)

    def __del__(self) -> None:
        """End the span of a body that was left."""
        self._end()


def _attributes_of(verdict: Verdict | None) -> dict[str, str | int]:
    """Return the attributes of a verdict; none if it is forgotten."""
    if verdict is None:
        return {}
    attributes: dict[str, str | int] = {names.VERDICT: verdict.kind.value, names.ATTEMPT: verdict.attempt}
    if verdict.reason:
        attributes[names.REASON] = verdict.reason
    return attributes


class _NotSampled(NonRecordingSpan):
    """The producer's span, which was not sampled; its context is read when somebody asks for it."""

    def __init__(self, headers: _Headers) -> None:
        self._headers = headers

    def get_span_context(self) -> SpanContext:
        """Return the producer's context."""
        return get_current_span(_context_of(self._headers)).get_span_context()

    def __repr__(self) -> str:
        return f"NonRecordingSpan({self.get_span_context()!r})"


class _HeaderGetter(Getter[_Headers]):
    def get(self, carrier: _Headers, key: str) -> list[str] | None:
        value = carrier.get(key)
        return None if value is None else [value.decode(errors="replace")]

    def keys(self, carrier: _Headers) -> list[str]:
        return list(carrier)


_GETTER: Final = _HeaderGetter()


def _headers_of(message: Message) -> _Headers:
    """Return the headers of a message that was read; of several with a name the last."""
    headers = message.headers()
    return cast("_Headers", dict(headers)) if headers else {}


def _context_of(headers: _Headers) -> Context:
    """Return the current context with the span and the baggage of the producer; without a span, if it had none."""
    return propagate.extract(headers, set_span_in_context(INVALID_SPAN), _GETTER)
