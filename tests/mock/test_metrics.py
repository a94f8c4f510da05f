"""A consumer's metrics: what its loop, its commits and its store have to tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from dedup_sdk._kafka.assign import health
from dedup_sdk._store.memory import MemoryPartition
from dedup_sdk._store.rocks import RocksStore
from tests.support.consuming import poll_quiet, poll_some, run_all, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from dedup_sdk import DedupConsumer
    from dedup_sdk._store.protocol import StoreStats
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


def observed(consumer: DedupConsumer, name: str) -> int:
    """How many values a histogram has."""
    found = [each for each in consumer.metrics().samples if each.metric.full_name == name]
    return sum(sum(each.buckets) for each in found)


def test_a_loop_is_counted_by_partition(make: Make, send: Send) -> None:
    """Its group is on the snapshot, which changes no more."""
    send("a", "b", "a", topic="pairs", partition=0)
    send("c", topic="pairs", partition=1)
    consumer = make("pairs")
    poll_some(consumer, 3)
    poll_quiet(consumer, 1.2)
    before = consumer.metrics()
    assert before.group == "g"
    assert before.value("delivered") == 3
    assert [before.value("delivered", partition=number) for number in "01"] == [2, 1]
    assert before.value("records", topic="pairs", partition="0", verdict="fresh") == 2
    assert before.value("records", topic="pairs", partition="0", verdict="duplicate") == 1
    assert before.value("completed", partition="0") == 2
    assert before.value("completed", partition="1") == 1
    assert [before.value("position", partition=number) for number in "01"] == [3, 1]
    assert [before.value("state", partition=number, state="active") for number in "01"] == [1, 1]
    assert observed(consumer, "duplicate_age_seconds") == 1
    send("d", topic="pairs", partition=1)
    poll_some(consumer, 1)
    assert before.value("delivered") == 3
    assert consumer.metrics().value("delivered") == 4


def test_counters_of_a_partition_outlive_its_assignment(make: Make, send: Send) -> None:
    """A count that falls would be read as a restart; the gauges end with it."""
    send("a", "b")
    consumer = make("orders")
    poll_some(consumer, 2)
    consumer.close()
    after = consumer.metrics()
    assert after.value("records", topic="orders", verdict="fresh") == 2
    assert [each for each in after.samples if each.metric.kind == "gauge"] == []


def test_commits_have_a_time_and_failures(make: Make, send: Send, kafka: MockKafka) -> None:
    """Of the answer that comes later, and of the one that is waited for."""
    send("a", "b")
    consumer = make("orders")
    poll_some(consumer, 1)
    wait_for(consumer, lambda: observed(consumer, "commit_seconds") == 1, "the answer to the first commit")
    consumer.commit(asynchronous=False)
    assert observed(consumer, "commit_seconds") == 2
    assert consumer.metrics().value("failed_commits") == 0
    poll_quiet(consumer)
    kafka.push_errors("OffsetCommit", KafkaError.UNKNOWN_MEMBER_ID, 1)
    consumer.commit(asynchronous=True)
    wait_for(consumer, lambda: consumer.metrics().value("failed_commits", topic="orders") == 1, "the refusal")


def test_retries_are_counted_by_partition(make: Make, send: Send) -> None:
    """The first call of a handler is none."""
    send("a")
    consumer = make("orders")
    calls: list[int] = []

    def handle(_: object) -> None:
        calls.append(1)
        if len(calls) < 3:
            raise ValueError("not yet")

    run_all(consumer, handle, on_error="retry", wait_initial=0.01)
    assert consumer.metrics().value("retried", topic="orders", partition="0") == 2


def test_a_store_has_its_sizes_and_times(
    make: Make, send: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are looked up by the polling thread, because somebody has asked."""
    monkeypatch.setattr(health, "PUBLISH_EVERY_S", 0.1)
    send(*map(str, range(50)))
    consumer = make("orders", store=RocksStore(tmp_path, recent_marks=10))
    poll_some(consumer, 50)
    assert [each for each in consumer.metrics().samples if each.metric.full_name == "store_bytes"] == []
    wait_for(consumer, lambda: consumer.metrics().value("store_bytes") > 0, "the size")
    found = consumer.metrics()
    assert found.value("store_files") >= 1
    assert found.value("store_marks") >= 10
    assert observed(consumer, "journal_seconds") > 0
    assert observed(consumer, "flush_seconds") > 0


def test_a_look_at_the_sizes_stops_no_loop(make: Make, send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails is met where marks are read and written."""
    looked: list[int] = []

    def broken(_: MemoryPartition) -> StoreStats:
        looked.append(1)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(MemoryPartition, "stats", broken)
    monkeypatch.setattr(health, "PUBLISH_EVERY_S", 0.1)
    send("a")
    consumer = make("orders")
    poll_some(consumer, 1)
    assert consumer.metrics().value("store_bytes") == 0
    wait_for(consumer, lambda: bool(looked), "the look")
    send("b")
    assert len(poll_some(consumer, 1)) == 1
