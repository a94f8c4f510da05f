"""The lines of the log and the events for partitions that come, come up to date, and go."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import MemoryStore, PartitionEvent
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.recover import replay
from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.rocks import RocksStore
from tests.support.consuming import poll_quiet, poll_some, values, wait_for
from tests.support.damage import damage_file
from tests.support.events import Events

if TYPE_CHECKING:
    from pathlib import Path

    from tests.mock.conftest import Make, Send

PAIRS = [TopicPartition("pairs", 0), TopicPartition("pairs", 1)]


def lines(caplog: pytest.LogCaptureFixture, *first_words: str) -> list[str]:
    """The lines that begin so."""
    return [line for line in caplog.messages if line.startswith(first_words)]


def test_one_partition_that_waits_does_not_silence_the_others(
    make: Make, send: Send, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names partitions that came, then which deliver and which do not yet, and at last how each went."""
    send("a", topic="pairs")
    send("b", topic="pairs", partition=1)
    owner = make(store=RocksStore(tmp_path))
    owner.assign(PAIRS[1:])
    poll_some(owner, 1)
    caplog.set_level(logging.INFO, "dedup_sdk")
    consumer = make(store=RocksStore(tmp_path, lock_wait=30))
    consumer.incremental_assign(PAIRS)
    assert lines(caplog, "assigned") == [
        "assigned 2 partitions: pairs[0-1]; verdicts since the last rebalance: none"
    ]

    assert values(poll_some(consumer, 1)) == ["a"]
    [ready] = lines(caplog, "ready")
    assert ready.startswith("ready 1 partition: pairs[0]@0 (new, ")
    assert ready.endswith(" s); 1 still recovering: pairs[1]@0 (lock, not up to date)")

    consumer.incremental_unassign(PAIRS[1:])
    assert "revoked 1 partition: pairs[1]@0 (not up to date); " in lines(caplog, "revoked")[-1]
    consumer.incremental_assign(PAIRS[1:])
    owner.close()
    wait_for(consumer, lambda: len(lines(caplog, "ready")) > 1, "the other partition")
    assert "still recover" not in lines(caplog, "ready")[-1]


def test_a_recovery_is_told_from_its_beginning_to_its_end(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Observers hear of a replay, and the status says how far it is, at which rate, and for how long still."""
    monkeypatch.setattr(replay, "TELL_EVERY_S", 0.0)
    send("a", "b", "c")
    with make("orders") as first:
        poll_some(first, 3)
    send("d")
    details: list[str] = []

    class Noting(Events):
        def partition_event(self, event: PartitionEvent) -> None:
            details.append(consumer.partition_statuses[0].detail)
            super().partition_event(event)

    events = Noting()
    consumer = make("orders", store=MemoryStore(), observers=[events])
    assert values(poll_some(consumer, 1)) == ["d"]

    assert events.names == ["recovery-started", "recovery-progress", "recovery-ended"]
    started, progress, ended = events.seen
    assert (started.offset, started.detail) == (3, "replaying offsets 0 to 3")
    assert progress.offset == 3
    assert progress.detail.startswith("replayed up to offset 3 of 3, ")
    assert "offsets a second" in progress.detail
    assert (ended.topic, ended.partition, ended.offset) == ("orders", 0, 3)
    assert ended.detail.startswith("missing, replayed 3 records, ")
    assert details == [started.detail, progress.detail, "missing, replayed 3 records"]
    assert consumer.counters.events == dict.fromkeys(events.names, 1)


def test_a_store_that_knows_all_is_no_news(make: Make, send: Send) -> None:
    """Where nothing is replayed or installed there is no event."""
    send("a", "b")
    events = Events()
    with make("orders", observers=[events]) as first:
        poll_some(first, 1)
    second = make("orders", observers=[events])
    assert values(poll_quiet(second)) == ["b"]
    assert events.names == []


def test_a_rewind_is_told(make: Make, send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that was set back from outside is an event, with the offset that it is at now; a seek is none."""
    send("a", "b", "c")
    events = Events()
    with make("orders", observers=[events]) as consumer:
        poll_some(consumer, 3)
        consumer.commit(asynchronous=False)
        consumer.seek(TopicPartition("orders", 0, 1))
        assert values(poll_some(consumer, 2)) == ["b", "c"]
    assert "rewound" not in events.names
    moved = TopicPartition("orders", 0, 1)
    monkeypatch.setattr(Client, "committed", lambda *_: {("orders", 0): moved})
    second = make("orders", observers=[events])
    assert values(poll_some(second, 2)) == ["b", "c"]
    assert second.metrics().value("events", event="rewound") == 1

    [rewound] = [event for event in events.seen if event.name == "rewound"]
    assert (rewound.topic, rewound.partition, rewound.offset) == ("orders", 0, 1)


def test_a_damaged_store_is_told(make: Make, send: Send, tmp_path: Path) -> None:
    """An observer hears that a store was set aside, where it is kept, and of the recovery that follows."""
    ids = [f"id{number}" for number in range(600)]
    send(*ids)
    with make("orders", store=tmp_path, recent_marks=500) as first:
        poll_some(first, len(ids))
    (entry,) = list_partitions(tmp_path)
    damage_file(next(entry.path.glob("CURRENT")), "cut", random.Random(1))
    events = Events()
    second = make("orders", store=tmp_path, observers=[events])
    assert values(poll_quiet(second)) == []

    assert events.names == ["store-damaged", "recovery-started", "recovery-ended"]
    assert str(entry.path.with_name("0.damaged-1")) in events.seen[0].detail
    assert second.metrics().value("events", event="store-damaged") == 1
