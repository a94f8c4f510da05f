"""What a consumer holds in a shared memory, where the same ID, or the same partition, comes a second time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from dedup_sdk import ClaimKind, MemoryClaimStore, Shared, Window
from tests.mock.test_shared import LEASE_MS, claim_as, complete_as, shared_id
from tests.support.consuming import lookup, poll_quiet, poll_some, values, wait_for

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

FLUSH_S = 30.0


@pytest.fixture
def store() -> MemoryClaimStore:
    """A shared memory, empty."""
    return MemoryClaimStore()


def test_a_partition_that_begins_anew_within_a_batch_keeps_no_claims(
    make: Make, send: Send, store: MemoryClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch has two runs of it; the second one is of another log, after the first one was judged. Both come again."""
    send("a", "b", topic="pairs", partition=0)
    send("c", topic="pairs", partition=1)
    consumer = make("pairs", shared=Shared(store, scope="global"))
    wait_for(
        consumer, lambda: all(each.held for each in consumer._session.assigned.values()), "the partitions"
    )
    while len(consumer._fetched) < 3:
        consumer._tidy()
        consumer._fetch(100, 0.1)
    by_place = {(message.partition(), message.offset()): message for message in consumer._fetched}
    lane = consumer._engine.partitions["pairs", 0].lane
    monkeypatch.setattr(lane, "is_another_log", lambda offsets, _epochs: offsets[0] == 1)
    consumer._fetched = [by_place[0, 0], by_place[1, 0], by_place[0, 1]]
    consumer._judge_fetched()
    assert ("pairs", 0) not in consumer._engine.partitions
    assert sorted(values(poll_some(consumer, 3))) == ["a", "b", "c"]


def test_an_interrupted_completion_leaves_no_id_with_nobody(
    make: Make, send: Send, store: MemoryClaimStore
) -> None:
    """Ctrl-C in the middle of it: the ID in another partition is a duplicate, and does not wait for what nobody has."""
    send("a", topic="pairs", partition=0)
    consumer = make("pairs", shared=Shared(store, scope="global"))
    poll_some(consumer, 1)
    claims = consumer._engine.claims
    assert claims is not None
    claims._holders = Interrupting(claims._holders)
    with pytest.raises(KeyboardInterrupt):
        poll_quiet(consumer)
    send("a", topic="pairs", partition=1)
    wait_for(consumer, lambda: consumer.counters.reasons.get("duplicate.shared") == 1, "the duplicate")


class Interrupting(set[bytes]):
    """A set that is interrupted once, before something is taken out of it."""

    interrupted = False

    def discard(self, element: object) -> None:
        """Be interrupted, the first time."""
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        if isinstance(element, bytes):
            super().discard(element)


@pytest.mark.parametrize("durability", ["batch", "commit"])
def test_an_older_mark_does_not_complete_a_claim(
    make: Make, kafka: MockKafka, store: MemoryClaimStore, durability: str
) -> None:
    """An ID comes again out of its window: what is remembered is the later record, once it is completed, and not the earlier one."""
    old_ms = int(time.time() * 1000) - 100_000
    complete_as(store, "x", claim_as(store, "x"), old_ms)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for timestamp_ms in (old_ms, old_ms + 50_000):
        producer.produce("orders", "x", headers={"dedup-id": "x"}, timestamp=timestamp_ms)
    assert producer.flush(FLUSH_S) == 0
    consumer = make(
        "orders",
        dedup=lookup(window=Window(seconds=10)),
        shared=Shared(store, scope="global"),
        config={"enable.auto.commit": False},
        durability=durability,
    )
    [message] = poll_some(consumer, 1)
    assert message.offset() == 1
    consumer._engine.partitions["orders", 0].persist()
    assert claim_as(store, "x").kind is ClaimKind.IN_FLIGHT
    consumer.commit(message, asynchronous=False)
    [claim] = store.claim(
        shared_id("x"), "another", LEASE_MS, timestamps_ms=[old_ms + 59_000], window_ms=10_000
    )
    assert claim.kind is ClaimKind.DUPLICATE
