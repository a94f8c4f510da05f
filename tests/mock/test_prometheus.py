"""The collector for Prometheus: its names are the registry's, and nobody waits for it or because of it."""

from __future__ import annotations

import gc
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dedup_adapters._consumer_totals import ConsumerTotals
from dedup_adapters._prometheus_text import MEDIA_TYPE, text_of
from dedup_adapters.prometheus import DedupCollector
from dedup_sdk import METRICS, MemoryStore
from tests.support import inside
from tests.support.consuming import PATIENCE_S, make_consumer, poll_quiet, poll_some, wait_for

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


def read_back(text: str) -> list[tuple[str, str, str, list[tuple[str, dict[str, str], float]]]]:
    """The families of a text as Prometheus' client reads them."""
    return [
        (
            family.name,
            family.type,
            family.documentation,
            [(each.name, each.labels, each.value) for each in family.samples],
        )
        for family in text_string_to_metric_families(text)
    ]


def registered(collector: DedupCollector) -> CollectorRegistry:
    """A registry with nothing else."""
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


def test_names_and_helps_are_the_registry(make: Make) -> None:
    """All of them are there from the start, each with its kind, unit, labels and sentences."""
    collector = DedupCollector(make("orders"))
    for families in (list(collector.describe()), list(collector.collect())):
        assert len(families) == len(METRICS)
        for family, metric in zip(families, METRICS, strict=True):
            assert (family.name, family.type, family.unit) == (
                f"dedup_{metric.full_name}", metric.kind, metric.unit,
            )  # fmt: skip
            assert family.documentation == f"{metric.meaning}. When it grows: {metric.advice}."
            labels = {name for sample in family.samples for name in sample.labels} - {"le"}
            assert labels <= {"group", *metric.labels}


def test_a_scrape_has_the_values_of_the_consumer(make: Make, send: Send) -> None:
    """By the names that Prometheus expects: `_total`, `_seconds`, `_bucket`; what it reads back is what is counted."""
    send("a", "b", "a", topic="pairs", partition=1)
    consumer = make("pairs")
    registry = registered(DedupCollector(consumer))
    poll_some(consumer, 2)
    poll_quiet(consumer)
    place = {"group": "g", "topic": "pairs", "partition": "1"}
    duplicates = {**place, "verdict": "duplicate", "reason": ""}
    assert registry.get_sample_value("dedup_records_total", duplicates) == 1
    assert registry.get_sample_value("dedup_delivered_total", place) == 2
    assert registry.get_sample_value("dedup_state", {**place, "state": "active"}) == 1
    assert registry.get_sample_value("dedup_position", place) == 3
    assert registry.get_sample_value("dedup_stale_total", {"group": "g"}) == 0
    ages = {"group": "g", "topic": "pairs"}
    assert registry.get_sample_value("dedup_duplicate_age_seconds_count", ages) == 1
    assert registry.get_sample_value("dedup_duplicate_age_seconds_bucket", {**ages, "le": "60.0"}) == 1
    assert registry.get_sample_value("dedup_duplicate_age_seconds_bucket", {**ages, "le": "+Inf"}) == 1
    text = generate_latest(registry).decode()
    assert {family.name for family in text_string_to_metric_families(text)} == {
        f"dedup_{metric.full_name}" for metric in METRICS
    }


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("group", ["g", 'a "b" \\n c\nd'])
def test_the_page_says_the_same_as_the_collector(make: Make, send: Send, group: str, count: int) -> None:
    """In the text format of Prometheus' own client: names, kinds, helps, labels and values, also of odd groups."""
    send("a", "b", "a", topic="pairs", partition=1)
    consumers = []
    for _ in range(count):
        consumers.append(make("pairs", config={"group.id": group}, store=MemoryStore()))
        wait_for(consumers[-1], lambda: consumers[-1].metrics().value("records") > 0, "a record")
        consumers[-1].close()
    collector = DedupCollector(*consumers)
    by_client = generate_latest(registered(collector)).decode()
    ours = text_of(ConsumerTotals(consumers).totals())
    assert read_back(ours) == read_back(by_client)
    assert sum(len(samples) for *_, samples in read_back(ours)) > 100
    assert ours.splitlines()[0] == by_client.splitlines()[0]
    assert MEDIA_TYPE == "text/plain; version=0.0.4; charset=utf-8"


def test_consumers_of_a_process_are_one_sum(make: Make, send: Send) -> None:
    """No series is there twice, and no count falls when a consumer is gone."""
    send("a", "b", topic="pairs", partition=0)
    first = make("pairs")
    collector = DedupCollector(first)
    registry = registered(collector)
    poll_some(first, 2)
    first.close()
    second = make("pairs", store=MemoryStore())
    collector.add(second)
    collector.add(second)
    wait_for(second, lambda: len(second.partition_statuses) == 2, "its partitions")
    send("c", topic="pairs", partition=0)
    poll_some(second, 1)
    names = [
        (sample.name, *sample.labels.values())
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    ]
    assert len(names) == len(set(names))
    counted = [first.counters.delivered, second.counters.delivered]
    assert min(counted) > 0
    places = [{"group": "g", "topic": "pairs", "partition": number} for number in "01"]
    delivered = [registry.get_sample_value("dedup_delivered_total", place) or 0 for place in places]
    assert sum(delivered) == sum(counted)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(DedupCollector(second))


def test_counts_of_a_consumer_that_is_gone_stay(kafka: MockKafka, send: Send) -> None:
    """As of the last scrape; its gauges end with it. The collector keeps no consumer alive."""
    send("a", "b")
    consumer = make_consumer(kafka.bootstrap, "g", MemoryStore())
    registry = registered(DedupCollector(consumer))
    consumer.subscribe(["orders"])
    poll_some(consumer, 2)
    place = {"group": "g", "topic": "orders", "partition": "0"}
    assert registry.get_sample_value("dedup_in_flight", place) is not None
    consumer.close()
    del consumer
    gc.collect()
    assert registry.get_sample_value("dedup_delivered_total", place) == 2
    assert registry.get_sample_value("dedup_in_flight", place) is None


def test_a_scrape_waits_for_no_step_of_the_consumer(make: Make, send: Send) -> None:
    """While another thread has the consumer's lock, e.g. in a recovery, a flush or a rebalance."""
    send("a")
    consumer = make("orders")
    collector = DedupCollector(consumer)
    poll_some(consumer, 1)
    held, over, scraped = Event(), Event(), Event()

    def hold() -> None:
        with inside.lock_of(consumer).lock:
            held.set()
            assert over.wait(PATIENCE_S)

    def scrape() -> None:
        assert list(collector.collect())
        scraped.set()

    holder, scraper = Thread(target=hold), Thread(target=scrape, daemon=True)
    holder.start()
    assert held.wait(PATIENCE_S)
    scraper.start()
    try:
        assert scraped.wait(PATIENCE_S)
    finally:
        over.set()
        holder.join(PATIENCE_S)


def test_a_scrape_has_no_id_key_value_or_password(kafka: MockKafka, make: Make) -> None:
    """Nor a text of an error: labels are topics, partitions and words of the package."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for _ in range(2):
        producer.produce(
            "orders", b"secret-value", key=b"secret-key", headers={"dedup-id": b"secret-id"}, partition=0
        )
    producer.produce("orders", b"secret-value", key=b"secret-key", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    consumer = make("orders", config={"sasl.username": "secret-user", "sasl.password": "secret-word"})
    poll_some(consumer, 2)
    poll_quiet(consumer)
    text = generate_latest(registered(DedupCollector(consumer))).decode()
    assert 'verdict="duplicate"} 1.0' in text
    assert "secret" not in text
