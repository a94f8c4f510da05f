"""`consume(0)` does the same work as a call for messages, and bears the same faults of a store."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import MemoryStore, StoreError
from dedup_sdk._kafka.deliver.maintenance import Collector
from dedup_sdk._store.memory import MemoryPartition
from dedup_sdk.errors import StoreCorruptError, StoreUnavailableError
from tests.support import inside
from tests.support.consuming import poll_quiet, poll_some, values

if TYPE_CHECKING:
    from tests.mock.conftest import Make, Send


@pytest.mark.parametrize("kind", [StoreUnavailableError, StoreCorruptError])
@pytest.mark.parametrize("call", ["poll", "consume(0)"])
def test_a_store_that_fails_once_ends_no_loop(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch, call: str, kind: type[StoreError]
) -> None:
    """A bad disk ends nothing: not by `poll`, and not by `consume(0)`."""
    real, failed = MemoryPartition.append, list[int]()

    def fail(*arguments: Any) -> Any:
        if not failed:
            failed.append(1)
            raise kind("the disk")
        return real(*arguments)

    consumer = make("orders", durability="batch")
    send("a", "b", "c")
    got = values(poll_some(consumer, 2))
    monkeypatch.setattr(MemoryPartition, "append", fail)
    while not failed:
        inside.let_time_pass(consumer)
        if call == "poll":
            got += values(filter(None, [consumer.poll(0.05)]))
        else:
            consumer.consume(0)
    got += values(poll_quiet(consumer))
    assert {*got} == {"a", "b", "c"}


def test_it_leaves_garbage_collection_on_while_a_partition_recovers(
    make: Make, send: Send, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance pauses the collection for each step of a recovery; the program goes on for hours behind this call."""
    send("a")
    owner = make(store=memory)
    owner.assign([TopicPartition("orders", 0)])
    poll_some(owner, 1)
    consumer, paused = make(store=memory), list[bool]()
    consumer.assign([TopicPartition("orders", 0)])
    pause = Collector.pause

    def noted(collector: Collector) -> None:
        pause(collector)
        paused.append(not gc.isenabled())

    monkeypatch.setattr(Collector, "pause", noted)
    while not paused:
        inside.let_time_pass(consumer)
        consumer.consume(0)
        assert gc.isenabled()
    assert paused[0]
