"""The program at the top of the page on monitoring, as a new user runs it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import urlopen

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dedup_adapters import health, opentelemetry
from dedup_sdk.testing import MockKafka
from tests.support.pages import ROOT, SENT, Stage

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from confluent_kafka import Message


def test_at_most_five_lines_have_metrics_readiness_and_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the program runs."""
    monkeypatch.chdir(tmp_path)
    servers: list[health.HealthServer] = []
    seen: dict[str, tuple[int, str]] = {}
    serve = health.serve
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def served(consumer: Any, port: int) -> health.HealthServer:
        servers.append(serve(consumer, port=port))
        return servers[-1]

    def ask(page: str) -> tuple[int, str]:
        try:
            with urlopen(f"http://127.0.0.1:{servers[0].port}/{page}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    def charge(message: Message) -> None:
        seen.update({page: ask(page) for page in ("readyz", "metrics")})
        stage.charge(message)

    monkeypatch.setattr(health, "serve", served)
    # As a program does that configures OpenTelemetry's SDK.
    monkeypatch.setattr(opentelemetry, "Tracing", partial(opentelemetry.Tracing, tracer_provider=provider))
    with MockKafka() as kafka:
        kafka.create_topic("orders")
        stage = Stage(kafka.bootstrap, tmp_path)
        example = stage.examples(ROOT / "docs" / "monitoring.md")[0]
        lines = [line for line in str(example.parsed).splitlines() if line.strip()]
        assert len(lines) <= 5
        stage.namespace["charge"] = charge
        stage.run(example)
    assert sorted(stage.handled) == sorted(set(SENT))
    assert seen["readyz"] == (200, "ok\n")
    assert (
        'dedup_records_total{group="reader-1",topic="orders",partition="0",verdict="fresh",reason=""}'
        in (seen["metrics"][1])
    )
    assert [span.name for span in exporter.get_finished_spans()] == ["process orders"] * len(set(SENT))
