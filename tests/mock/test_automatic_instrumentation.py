"""Automatic instrumentation replaces the package's `Consumer` and `Producer`: it must change nothing in ours.

Each program runs in a process of its own, because an instrumentation cannot be undone. The packages are the real ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import confluent_kafka
import pytest

from dedup_sdk import DedupConsumer
from dedup_sdk.producer import DedupProducer
from tests.support.consuming import poll_some

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Send

OPENTELEMETRY = """
from opentelemetry import trace
from opentelemetry.instrumentation.confluent_kafka import ConfluentKafkaInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
ConfluentKafkaInstrumentor().instrument()

def spans():
    return [span.name for span in exporter.get_finished_spans()]
"""
DDTRACE = """
import ddtrace
from ddtrace.trace import TraceFilter, tracer

found = []

class Keep(TraceFilter):
    def process_trace(self, trace):
        found.extend(span.name for span in trace)
        return None

tracer.configure(trace_processors=[Keep()])
ddtrace.patch(kafka=True)

from ddtrace.opentelemetry import TracerProvider
from opentelemetry import trace

trace.set_tracer_provider(TracerProvider())

def spans():
    return found
"""
READ = """
import json, sys
import confluent_kafka

def consume(dedup_sdk):
    consumer = dedup_sdk.DedupConsumer(
        {"bootstrap.servers": sys.argv[1], "group.id": "g", "auto.offset.reset": "earliest", "log_level": 0},
        dedup=dedup_sdk.Lookup(id=dedup_sdk.header("dedup-id"), window=dedup_sdk.Window(days=7)),
        store=sys.argv[2],
    )
    values = []
    with consumer:
        consumer.subscribe(["orders"])
        while len(values) < 3:
            values += [message.value().decode() for message in traced(consumer)(consumer.consume(1, 1.0))]
        bases = [f"{each.__module__}.{each.__name__}" for each in type(consumer).__mro__[1:]]
    return values, bases

def plain():
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": sys.argv[1], "group.id": "h", "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe(["orders"])
    while not consumer.consume(1, 1.0):
        pass
    consumer.close()
"""
REPORT = """
values, bases = consume(dedup_sdk)
before = list(spans())
plain()
print(json.dumps({"values": values, "bases": bases, "spans": before, "plain": list(spans())[len(before):]}))
"""
PRODUCE = """
import sys
from dedup_sdk.producer import DedupProducer
with DedupProducer({"bootstrap.servers": sys.argv[1], "log_level": 0}, outbox=sys.argv[2]) as producer:
    producer.produce("orders", b"sent", headers=[("traceparent", b"of the caller")])
assert spans() == [], spans()
"""
PLAINLY = """
def traced(consumer):
    return iter
"""
TRACED = """
def traced(consumer):
    from dedup_adapters.opentelemetry import Tracing
    return Tracing(consumer).iterate
"""


@pytest.mark.parametrize("ways", [PLAINLY, TRACED], ids=["untraced", "traced"])
@pytest.mark.parametrize("order", ["patched first", "imported first"])
@pytest.mark.parametrize("instrumentation", [OPENTELEMETRY, DDTRACE], ids=["opentelemetry", "ddtrace"])
def test_it_changes_nothing(
    kafka: MockKafka, send: Send, tmp_path: Path, instrumentation: str, order: str, ways: str
) -> None:
    """No other base class, the same messages, and no span but those asked for; a plain client beside it has its own."""
    send("a", "b", "a", "c")
    ours = "import dedup_sdk; dedup_sdk.DedupConsumer\n"
    program = instrumentation + ours if order == "patched first" else ours + instrumentation
    ended = subprocess.run(
        [sys.executable, "-c", program + ways + READ + REPORT, kafka.bootstrap, str(tmp_path)],
        check=False, capture_output=True, text=True, timeout=120,
        env={**os.environ, "DD_TRACE_STARTUP_LOGS": "false", "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
             "DD_REMOTE_CONFIGURATION_ENABLED": "false"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["values"] == ["a", "b", "c"]
    assert found["bases"] == ["cimpl.Consumer", "builtins.object"]
    assert len(found["spans"]) == (3 if ways == TRACED else 0)
    assert len(set(found["spans"])) <= 1
    assert found["plain"] != []


@pytest.mark.parametrize("instrumentation", [OPENTELEMETRY, DDTRACE], ids=["opentelemetry", "ddtrace"])
def test_it_changes_no_header_of_a_producer(kafka: MockKafka, tmp_path: Path, instrumentation: str) -> None:
    """An outbox sends on a thread of its own, where the caller's span is not: a header would name another one."""
    environment = {**os.environ, "DD_KAFKA_PROPAGATION_ENABLED": "true", "DD_TRACE_STARTUP_LOGS": "false"}
    ended = subprocess.run(
        [sys.executable, "-c", instrumentation + PRODUCE, kafka.bootstrap, str(tmp_path / "outbox")],
        check=False, capture_output=True, text=True, timeout=120, env=environment,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    [message] = poll_some(reader := plain_reader(kafka), 1)
    reader.close()
    headers = dict(message.headers())
    assert headers.pop("dedup-id")
    assert headers == {"traceparent": b"of the caller"}


def plain_reader(kafka: MockKafka) -> confluent_kafka.Consumer:
    """A plain client that reads from the beginning."""
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "plain", "auto.offset.reset": "earliest"}
    reader = confluent_kafka.Consumer(settings)
    reader.subscribe(["orders"])
    return reader


def test_it_is_still_a_consumer_of_the_package() -> None:
    """For whoever asks with `isinstance`, without a patch."""
    assert issubclass(DedupConsumer, confluent_kafka.Consumer)
    assert issubclass(DedupProducer, confluent_kafka.Producer)
