"""Process spans: one for each message that is handled, as a child of the span that produced the message.

A span costs some 40 µs, most of it to read the producer's context and to ask the sampler. So a message whose producer
was not sampled takes a shorter way, which reads one byte of its header: the handler runs inside the producer's context,
as with a sampler that follows the parent, but that context is only read if somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeVar, cast

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

from dedup_adapters.opentelemetry import _names as names

if TYPE_CHECKING:
    from contextvars import Token

    from confluent_kafka import Message

    from dedup_sdk import DedupConsumer

_Result = TypeVar("_Result")
_Headers = Mapping[str, bytes | None]

_TRACE_PARENT: Final = "traceparent"
_FLAGS_END: Final = 55
"""The length of a ``traceparent``; its last digit has the flag for sampled messages."""
_NOT_SAMPLED: Final = b"02468ace"
[_SPAN] = set_span_in_context(INVALID_SPAN, Context())
"""The key of the span in a context."""


class Tracing:
    """Makes spans for the messages of a consumer that are handled, and for no others.

    Each span is named ``process <topic>``, is a child of the span that produced the message (by the propagated headers;
    of several headers of a name the last counts), and has the attributes of OpenTelemetry's conventions for messaging
    and the verdict. It has no ID, key or value of a message, and of an exception only the class. No span is made for a
    message whose producer was not sampled: the handler runs in that producer's context.

    Args:
        consumer: the consumer whose messages are handled.
        tracer_provider: None: the global one.
    """

    def __init__(self, consumer: DedupConsumer, *, tracer_provider: TracerProvider | None = None) -> None:
        self._consumer, self._group = consumer, consumer.metrics().group
        self._tracer = get_tracer(names.SCOPE, tracer_provider=tracer_provider)
        self._reads_flag = _TRACE_PARENT in propagate.get_global_textmap().fields

    def span(self, *messages: Message) -> AbstractContextManager[Span]:
        """Return a context manager: the block handles a message, or a batch, inside one span.

        For example ``with consumer.once(message), tracing.span(message): ...``. The span of several messages is the
        root of a trace, with a link to the producer of each. From any thread.
        """
        return self._of_one(messages[0]) if len(messages) == 1 else self._of_batch(messages)

    def handler(self, handle: Callable[[Message], _Result]) -> Callable[[Message], _Result]:
        """Return a handler that calls another one inside a span, for `DedupConsumer.run`; a retry has its own."""

        @wraps(handle)
        def traced(message: Message) -> _Result:
            with self._of_one(message):
                return handle(message)

        return traced

    def iterate(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Yield messages, and run the body of the loop inside a span for each.

        ``messages``: the consumer itself, or those of a `consume`; error events have no span. An exception of the body
        ends the span, which does not hear of it: use `span` where spans must say so.
        """
        for message in messages:
            if message.error() is not None:
                yield message
                continue
            with self._of_one(message):
                yield message

    def _of_one(self, message: Message) -> _Entered:
        headers = _headers_of(message)
        if self._reads_flag and "baggage" not in headers:
            parent = headers.get(_TRACE_PARENT) or b""
            if len(parent) == _FLAGS_END and parent[-1] in _NOT_SAMPLED:
                of_producer = _NotSampled(headers)
                # As `set_span_in_context` does, in a third of its time.
                return _Entered(of_producer, Context({**get_current(), _SPAN: of_producer}))
        topic = message.topic() or ""
        attributes = self._attributes(topic) | {
            names.PARTITION: str(message.partition()),
            names.OFFSET: message.offset() or 0,
        }
        context = _context_of(headers)
        span = self._tracer.start_span(f"process {topic}", context, SpanKind.CONSUMER, attributes)
        if span.is_recording() and (verdict := self._consumer.verdict(message)) is not None:
            span.set_attribute(names.VERDICT, verdict.kind.value)
            span.set_attribute(names.ATTEMPT, verdict.attempt)
            if verdict.reason:
                span.set_attribute(names.REASON, verdict.reason)
        return _Entered(span, set_span_in_context(span, context))

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
    """A span that has begun, and the context in which a block runs."""

    __slots__ = ("_context", "_span", "_token")

    def __init__(self, span: Span, context: Context) -> None:
        self._span, self._context = span, context
        self._token: Token[Context] | None = None

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
