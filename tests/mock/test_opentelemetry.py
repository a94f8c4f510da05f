"""Spans and instruments for OpenTelemetry: one process span a handled message, and the registry as it is."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Message
from opentelemetry import baggage, propagate, trace
from opentelemetry.propagators.textmap import default_getter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dedup_adapters.opentelemetry import DedupInstruments, Tracing
from dedup_sdk import METRICS, MemoryStore
from dedup_sdk.aio import AsyncDedupConsumer
from dedup_sdk.errors import ConfigurationError
from tests.mock.conftest import QUICK_CLIENT
from tests.support.consuming import PATIENCE_S, lookup, poll_quiet, poll_some, run_all, wait_for
from tests.support.producing import Outgoing, produce

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make

    Handle = Callable[[Message], Coroutine[Any, Any, None]]

SENT = 2_000
HANDLED = 1_800


class Spans:
    """A provider of tracers that keeps what has ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=ParentBased(ALWAYS_ON), shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def ended(self) -> Sequence[ReadableSpan]:
        """The spans that have ended, in this order."""
        return self._exporter.get_finished_spans()


def parent(number: int, *, sampled: bool = True) -> bytes:
    """The header by which a producer's span is propagated."""
    return f"00-{number + 1:032x}-{number + 1:016x}-{int(sampled):02x}".encode()


def traced(number: int, dedup_id: int, *, sampled: bool = True) -> Outgoing:
    """A message whose producer had a span; its value is the number of that."""
    headers = {"dedup-id": b"secret-%d" % dedup_id, "traceparent": parent(number, sampled=sampled)}
    return Outgoing(value=b"%d" % number, key=b"secret", headers=headers, partition=0)


def by_iteration(consumer: DedupConsumer, tracing: Tracing, handle: Callable[[Message], None]) -> None:
    """The loop."""
    for message in tracing.iterate(consumer):
        handle(message)


def by_once(consumer: DedupConsumer, tracing: Tracing, handle: Callable[[Message], None]) -> None:
    """Each message in a block."""
    for message in consumer:
        with consumer.once(message), tracing.span(message):
            handle(message)


def by_run(consumer: DedupConsumer, tracing: Tracing, handle: Callable[[Message], None]) -> None:
    """Worker threads."""
    consumer.run(tracing.handler(handle), workers=4)


def by_batch(consumer: DedupConsumer, tracing: Tracing, handle: Callable[[Message], None]) -> None:
    """Batches, message by message."""
    empty = 0
    while empty < 3:
        messages = consumer.consume(300, 0.5)
        empty = 0 if messages else empty + 1
        for message in tracing.iterate(messages):
            handle(message)


WAYS = [by_iteration, by_once, by_run, by_batch]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_each_handled_message_has_one_span(
    kafka: MockKafka, make: Make, way: Callable[[DedupConsumer, Tracing, Any], None]
) -> None:
    """A child of its producer's span; duplicates have none, and the handler's own spans are inside."""
    ids = [number - 1 if number % 10 == 9 else number for number in range(SENT)]
    produce(kafka.bootstrap, "orders", [traced(*pair) for pair in enumerate(ids)])
    spans = Spans()
    tracer = spans.provider.get_tracer("handler")
    handled: list[int] = []

    def handle(message: Message) -> None:
        with tracer.start_as_current_span("work"):
            handled.append(int(message.value() or b""))
            if len(handled) == HANDLED:
                consumer.stop()

    consumer = make("orders")
    way(consumer, Tracing(consumer, tracer_provider=spans.provider), handle)

    assert len(set(handled)) == len(handled) == HANDLED
    of_messages = [span for span in spans.ended if span.kind is SpanKind.CONSUMER]
    inside = [span for span in spans.ended if span.name == "work"]
    assert len(of_messages) == len(inside) == HANDLED
    assert len(spans.ended) == 2 * HANDLED
    found: dict[int, ReadableSpan] = {}
    for span in of_messages:
        assert span.parent is not None
        assert span.name == "process orders"
        assert span.parent.trace_id == span.parent.span_id
        found[span.parent.span_id - 1] = span
    assert sorted(found) == sorted(handled)
    begun = {context.span_id for span in of_messages if (context := span.get_span_context())}
    assert {span.parent.span_id for span in inside if span.parent} == begun


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_ratio_takes_so_many_messages(
    kafka: MockKafka, make: Make, way: Callable[[DedupConsumer, Tracing, Any], None]
) -> None:
    """At random; the others are handled outside of any span."""
    produce(kafka.bootstrap, "orders", [traced(number, number) for number in range(SENT)])
    spans, inside = Spans(), 0
    handled: list[int] = []

    def handle(message: Message) -> None:
        nonlocal inside
        inside += trace.get_current_span().get_span_context().is_valid
        handled.append(int(message.value() or b""))
        if len(handled) == SENT:
            consumer.stop()

    consumer = make("orders")
    way(consumer, Tracing(consumer, tracer_provider=spans.provider, ratio=0.1), handle)

    assert len(set(handled)) == SENT
    # Of 2,000 messages 200, by ten standard deviations.
    assert 66 < len(spans.ended) == inside < 334


@pytest.mark.parametrize("ratio", [0, -0.1, 1.1, float("nan"), "0.1", True])
def test_a_ratio_is_a_part(make: Make, ratio: Any) -> None:
    """Zero would be no tracing: leave it out."""
    with pytest.raises(ConfigurationError, match="above 0, and at most 1"):
        Tracing(make("orders"), ratio=ratio)


async def by_async_iteration(consumer: AsyncDedupConsumer, tracing: Tracing, handle: Handle) -> None:
    """The loop."""
    async for message in tracing.iterate(consumer):
        await handle(message)


async def by_async_once(consumer: AsyncDedupConsumer, tracing: Tracing, handle: Handle) -> None:
    """Each message in a block."""
    async for message in consumer.explicit():
        async with consumer.once(message), tracing.span(message):
            await handle(message)


async def by_async_run(consumer: AsyncDedupConsumer, tracing: Tracing, handle: Handle) -> None:
    """Tasks side by side."""
    await consumer.run(tracing.handler(handle), concurrency=4)


async def by_async_batch(consumer: AsyncDedupConsumer, tracing: Tracing, handle: Handle) -> None:
    """Batches, message by message."""
    while messages := await consumer.consume(60, 2):
        for message in messages:
            async with tracing.span(message):
                await handle(message)


ASYNC_WAYS = [by_async_iteration, by_async_once, by_async_run, by_async_batch]


@asynccontextmanager
async def opened(kafka: MockKafka) -> AsyncIterator[AsyncDedupConsumer]:
    """A consumer for coroutines."""
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    async with AsyncDedupConsumer(
        settings | QUICK_CLIENT, dedup=lookup(), store=MemoryStore(), idle_timeout=30
    ) as made:
        await made.subscribe(["orders"])
        yield made


async def next_value(consumer: AsyncDedupConsumer) -> bytes:
    """The value of the next message."""
    message = await consumer.poll(PATIENCE_S)
    assert message is not None
    return message.value() or b""


@pytest.mark.parametrize("way", ASYNC_WAYS, ids=lambda way: way.__name__)
def test_each_message_that_coroutines_handle_has_one_span(kafka: MockKafka, way: Any) -> None:
    """Of an `AsyncDedupConsumer`: with its verdict, and the handler's own spans are inside."""
    sent, expected = 100, 90
    ids = [number - 1 if number % 10 == 9 else number for number in range(sent)]
    produce(kafka.bootstrap, "orders", [traced(*pair) for pair in enumerate(ids)])
    spans, handled = Spans(), list[int]()
    tracer = spans.provider.get_tracer("handler")

    async def main() -> None:
        async with opened(kafka) as consumer:

            async def handle(message: Message) -> None:
                with tracer.start_as_current_span("work"):
                    await asyncio.sleep(0)
                    handled.append(int(message.value() or b""))
                    if len(handled) == expected:
                        consumer.stop()

            await way(consumer, Tracing(consumer, tracer_provider=spans.provider), handle)
            assert not trace.get_current_span().get_span_context().is_valid

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert len(set(handled)) == len(handled) == expected
    of_messages = [span for span in spans.ended if span.kind is SpanKind.CONSUMER]
    inside = [span for span in spans.ended if span.name == "work"]
    assert len(of_messages) == len(inside) == expected
    assert sorted(span.parent.span_id - 1 for span in of_messages if span.parent) == sorted(handled)
    begun = {context.span_id for span in of_messages if (context := span.get_span_context())}
    assert {span.parent.span_id for span in inside if span.parent} == begun
    assert {(span.attributes or {})["dedup.verdict"] for span in of_messages} == {"fresh"}


def test_a_loop_of_coroutines_that_is_left_ends_its_span(kafka: MockKafka) -> None:
    """At once, in the task that left it; and the message comes again to the next loop if its body was cancelled."""
    produce(kafka.bootstrap, "orders", [traced(number, number) for number in range(3)])
    spans = Spans()

    async def main() -> list[bytes]:
        async with opened(kafka) as consumer:
            tracing = Tracing(consumer, tracer_provider=spans.provider)
            begun = asyncio.Event()

            async def hangs() -> None:
                async for _ in tracing.iterate(consumer):
                    break
                assert [span.name for span in spans.ended] == ["process orders"]
                assert not trace.get_current_span().get_span_context().is_valid
                async for _ in tracing.iterate(consumer):
                    begun.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(hangs())
            await begun.wait()
            task.cancel()
            await asyncio.wait([task])
            del task
            return sorted([await next_value(consumer), await next_value(consumer)])

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == [b"1", b"2"]
    assert len(spans.ended) == 2


def test_the_instruments_read_a_consumer_for_coroutines(kafka: MockKafka) -> None:
    """As any other."""
    produce(kafka.bootstrap, "orders", [traced(0, 0)])
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)

    async def main() -> None:
        async with opened(kafka) as consumer:
            instruments = DedupInstruments(consumer, meter_provider=provider)
            await consumer.poll()
            [point] = collected(reader)["dedup.delivered"].data.data_points
            assert point.value == 1
            del instruments

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_span_has_the_names_of_the_conventions(kafka: MockKafka, make: Make) -> None:
    """And the verdict; of an exception only the class, of the message no ID, key or value."""
    records = [traced(0, 0), traced(1, 1), Outgoing(value=b"secret", partition=0)]
    produce(kafka.bootstrap, "orders", records)
    spans, consumer = Spans(), make("orders", completion="explicit")
    tracing = Tracing(consumer, tracer_provider=spans.provider)
    first, second, third = poll_some(consumer, 3)
    with tracing.span(first):
        pass
    consumer.release(second)
    [again] = [message for message in poll_some(consumer, 1) if message.offset() == 1]
    with pytest.raises(ValueError, match="secret"), tracing.span(again):
        raise ValueError("secret-value")
    with tracing.span(third):
        pass
    common = {
        "messaging.system": "kafka", "messaging.operation.type": "process", "messaging.operation.name": "process",
        "messaging.destination.name": "orders", "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "g",
    }  # fmt: skip
    fresh = {"dedup.verdict": "fresh", "dedup.attempt": 1}
    assert [dict(span.attributes or {}) for span in spans.ended[:2]] == [
        {**common, "messaging.kafka.offset": 0, **fresh},
        {**common, "messaging.kafka.offset": 1, **fresh, "dedup.attempt": 2, "error.type": "ValueError"},
    ]
    assert [span.status.status_code for span in spans.ended[:2]] == [StatusCode.UNSET, StatusCode.ERROR]
    assert spans.ended[2].parent is None
    assert "secret" not in "".join(span.to_json() for span in spans.ended)


def test_a_sampler_knows_the_verdict(kafka: MockKafka, make: Make) -> None:
    """Of a message whose producer was sampled: all attributes are there when the span begins."""
    asked: list[dict[str, object]] = []

    class Asked(Sampler):
        def should_sample(self, *arguments: Any, **_: object) -> SamplingResult:
            asked.append(dict(arguments[4]))
            return SamplingResult(Decision.RECORD_AND_SAMPLE, arguments[4])

        def get_description(self) -> str:
            return "asked"

    produce(kafka.bootstrap, "orders", [traced(0, 0)])
    consumer, provider = make("orders"), TracerProvider(sampler=Asked(), shutdown_on_exit=False)
    [message] = poll_some(consumer, 1)
    with Tracing(consumer, tracer_provider=provider).span(message):
        pass
    [attributes] = asked
    assert (attributes["dedup.verdict"], attributes["dedup.attempt"]) == ("fresh", 1)


def test_a_propagator_of_another_format_is_asked(
    kafka: MockKafka, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a message without the headers of the usual one: the format may have others than it tells."""

    class Other(TraceContextTextMapPropagator):
        fields = {"other"}  # noqa: RUF012 (as the base class has it)

        def extract(self, carrier: Any, context: Any = None, getter: Any = default_getter) -> Any:
            [found] = getter.get(carrier, "another") or [""]
            return super().extract({"traceparent": found}, context)

    monkeypatch.setattr(propagate, "get_global_textmap", Other)
    monkeypatch.setattr(propagate, "extract", Other().extract)
    headers = {"another": parent(6), "dedup-id": b"a"}
    produce(kafka.bootstrap, "orders", [Outgoing(value=b"0", headers=headers, partition=0)])
    spans, consumer = Spans(), make("orders")
    [message] = poll_some(consumer, 1)
    with Tracing(consumer, tracer_provider=spans.provider).span(message):
        pass
    assert [span.parent and span.parent.trace_id for span in spans.ended] == [7]


def test_a_batch_is_one_span_with_links(kafka: MockKafka, make: Make) -> None:
    """To the producer of each of its messages; hidden ones have none."""
    produce(kafka.bootstrap, "orders", [traced(0, 0), traced(1, 0), traced(2, 2)])
    spans, consumer = Spans(), make("orders")
    tracing = Tracing(consumer, tracer_provider=spans.provider)
    wait_for(consumer, lambda: bool(consumer.partition_statuses), "an assignment")
    messages = poll_some(consumer, 2)
    with tracing.span(*messages):
        pass
    [span] = spans.ended
    assert span.parent is None
    assert [link.context.span_id for link in span.links] == [1, 3]
    assert (span.attributes or {})["messaging.batch.message_count"] == 2


def test_a_message_of_a_producer_that_was_not_sampled_has_no_span(kafka: MockKafka, make: Make) -> None:
    """But the handler runs in the producer's context, with its baggage: its own spans are not sampled, either."""
    headers = {"traceparent": parent(2, sampled=False), "baggage": b"shop=berlin", "dedup-id": b"c"}
    records = [traced(0, 0, sampled=False), traced(1, 1), Outgoing(value=b"2", headers=headers, partition=0)]
    produce(kafka.bootstrap, "orders", records)
    spans, consumer = Spans(), make("orders")
    tracing, tracer = Tracing(consumer, tracer_provider=spans.provider), spans.provider.get_tracer("handler")
    seen: list[tuple[int, bool, object]] = []

    def handle(_: Message) -> None:
        context = trace.get_current_span().get_span_context()
        seen.append((context.trace_id, context.trace_flags.sampled, baggage.get_baggage("shop")))
        with tracer.start_as_current_span("work"):
            pass

    run_all(consumer, tracing.handler(handle))
    assert sorted(seen) == [(1, False, None), (2, True, None), (3, False, "berlin")]
    assert sorted(span.name for span in spans.ended) == ["process orders", "work"]
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_recovery_has_no_spans(kafka: MockKafka, make: Make) -> None:
    """A replay reads all records again, and hands out none of them."""
    produce(kafka.bootstrap, "orders", [traced(number, number) for number in range(50)])
    spans, first = Spans(), make("orders")
    by_run_all = Tracing(first, tracer_provider=spans.provider)
    run_all(first, by_run_all.handler(lambda _: None))
    first.close()
    assert len(spans.ended) == 50
    second = make("orders", store=MemoryStore())
    tracing = Tracing(second, tracer_provider=spans.provider)
    produce(kafka.bootstrap, "orders", [traced(50, 7), traced(51, 51)])
    with tracing.span(*poll_some(second, 1)):
        pass
    assert poll_quiet(second) == []
    assert second.counters.verdicts["duplicate"] == 1
    assert len(spans.ended) == 51


def collected(reader: InMemoryMetricReader) -> dict[str, Any]:
    """The metrics that a reader gets, by name."""
    data = reader.get_metrics_data()
    assert data is not None
    [resource] = data.resource_metrics
    [scope] = resource.scope_metrics
    return {metric.name: metric for metric in scope.metrics}


def test_the_instruments_are_the_registry(kafka: MockKafka, make: Make) -> None:
    """Each metric is there, with its unit and sentences; a histogram as three counters. Each look is a new one."""
    produce(kafka.bootstrap, "orders", [traced(0, 0), traced(1, 0), traced(2, 2)])
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    consumer = make("orders")
    instruments = DedupInstruments(meter_provider=provider)
    instruments.add(consumer)
    poll_some(consumer, 1)
    collected(reader)
    poll_some(consumer, 1)
    poll_quiet(consumer)
    consumer.metrics()
    wait_for(consumer, lambda: "dedup.store" in collected(reader), "the sizes of the store")
    found = collected(reader)
    expected = {
        f"dedup.{metric.full_name}.{part}"
        for metric in METRICS
        if metric.kind == "histogram"
        for part in ("bucket", "count", "sum")
    } | {f"dedup.{metric.name}" for metric in METRICS if metric.kind != "histogram"}
    assert set(found) == expected
    for metric in METRICS:
        if metric.kind != "histogram":
            assert found[f"dedup.{metric.name}"].unit == {"seconds": "s", "bytes": "By", "": ""}[metric.unit]
            assert metric.meaning in found[f"dedup.{metric.name}"].description
    place = {
        "messaging.consumer.group.name": "g", "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
    }  # fmt: skip
    values = {
        frozenset(point.attributes.items()): point.value for point in found["dedup.records"].data.data_points
    }
    assert values[frozenset({**place, "dedup.verdict": "fresh", "dedup.reason": ""}.items())] == 2
    assert values[frozenset({**place, "dedup.verdict": "duplicate", "dedup.reason": ""}.items())] == 1
    [point] = found["dedup.delivered"].data.data_points
    assert point.value == 2
    assert found["dedup.delivered"].data.is_monotonic
    bounds = {
        point.attributes["dedup.le"]: point.value
        for point in found["dedup.duplicate_age_seconds.bucket"].data.data_points
    }
    assert bounds["60.0"] == bounds["+Inf"] == 1
    assert "secret" not in str(found)
