"""The claims of a consumer in a shared memory, where the same ID, or the same partition, comes a second time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer, TopicPartition

from dedup_sdk import MemoryStore, VerdictKind, Window
from dedup_sdk.shared import ClaimKind, MemoryClaimStore, Shared
from dedup_sdk.shared._breaker import MAX_WAIT_S
from tests.support import inside
from tests.support.claiming import ClockedShared, claims_of
from tests.support.consuming import active, lookup, poll_quiet, poll_some, progress, values, wait_for
from tests.support.interrupting import Interrupted, strike_at
from tests.support.shared_memory import LEASE_MS, Watched, claim_as, complete_as, shared_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import Message

    from dedup_sdk import DedupConsumer, VerdictEvent
    from dedup_sdk._engine.partition import Partition
    from dedup_sdk.shared._settings import InFlight
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
    consumer = make("pairs", shared=Shared(store, scope="global"))
    wait_for(consumer, lambda: active(consumer) == [0, 1], "the partitions")
    send("a", "b", topic="pairs", partition=0)
    send("c", topic="pairs", partition=1)
    fetcher = inside.fetcher_of(consumer)
    while len(fetcher.messages) < 3:
        fetcher.fetch(100, 0.1)
    by_place = {(message.partition(), message.offset()): message for message in fetcher.messages}
    flight = inside.partition_of(consumer, "pairs", 0).flight
    monkeypatch.setattr(flight, "is_another_log", lambda offsets, _epochs: offsets[0] == 1)
    fetcher.rest([by_place[0, 0], by_place[1, 0], by_place[0, 1]])
    got = poll_some(consumer, 1)
    states = {status.partition: status.state for status in consumer.partition_statuses}
    assert (values(got), states) == (["c"], {0: "recovering", 1: "active"})
    assert sorted(values(poll_some(consumer, 2))) == ["a", "b"]


def test_an_interrupted_completion_leaves_no_id_with_nobody(
    make: Make, send: Send, store: MemoryClaimStore
) -> None:
    """Ctrl-C in the middle: the ID in another partition is a duplicate, and waits for no claim that nobody has."""
    send("a", topic="pairs", partition=0)
    consumer = make("pairs", shared=Shared(store, scope="global"))
    poll_some(consumer, 1)
    claims = claims_of(consumer)
    claims.owned_keys = Interrupting(claims.owned_keys)
    with pytest.raises(KeyboardInterrupt):
        poll_quiet(consumer)
    send("a", topic="pairs", partition=1)
    wait_for(consumer, lambda: consumer.counters.reasons.get("duplicate.shared", 0) >= 1, "the duplicate")
    assert consumer.counters.as_dict()["delivered"] == 1


@pytest.mark.parametrize(
    "place", ["Partition.abandon", "ClaimGate.leave", "ClaimGatekeeper.leave", "Leases.leave"]
)
@pytest.mark.parametrize("goes", ["seek", "unassign"])
def test_an_interrupted_end_of_a_partition_leaves_no_claim_with_nobody(
    make: Make, send: Send, store: MemoryClaimStore, place: str, goes: str
) -> None:
    """Its claims would be renewed for ever: the messages come, here or to another owner."""
    send("a", "b", "c")
    owner = make(shared=Shared(store), store=MemoryStore())
    owner.assign([TopicPartition("orders", 0)])
    poll_some(owner, 1)
    strike_at(place)
    with pytest.raises(Interrupted):
        owner.seek(TopicPartition("orders", 0, 0)) if goes == "seek" else owner.unassign()
    if goes == "unassign":
        owner.poll(0)
        owner.unassign()
        owner.poll(0)
        owner = make(shared=Shared(store), store=MemoryStore())
        owner.assign([TopicPartition("orders", 0)])
    assert values(poll_some(owner, 3, patience_s=LEASE_MS / 1000 / 4)) == [*"abc"]


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
    """An ID comes again out of its window.

    The later record is remembered, once it is completed, and not the earlier one.
    """
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
    inside.partition_of(consumer).persist()
    assert claim_as(store, "x").kind is ClaimKind.IN_FLIGHT
    consumer.commit(message, asynchronous=False)
    [claim] = store.claim(
        shared_id("x"), "another", LEASE_MS, timestamps_ms=[old_ms + 59_000], window_ms=10_000
    )
    assert claim.kind is ClaimKind.DUPLICATE


def test_what_was_claimed_without_hearing_of_it_is_completed(make: Make, send: Send) -> None:
    """The server did it, the answer was lost, and the message is handled as unverified.

    It is not handled again when the lease is over.
    """
    store = Watched()
    store.deaf = True
    send("a")
    consumer = make("orders", shared=Shared(store, scope="global"))
    [message] = poll_some(consumer, 1)
    verdict = consumer.verdict(message)
    assert verdict is not None
    assert verdict.reason == "shared-outage"
    assert claim_as(store, "a").kind is ClaimKind.IN_FLIGHT, "the server has the claim"
    store.deaf = False
    wait_for(consumer, lambda: claim_as(store, "a").kind is ClaimKind.DUPLICATE, "the end")
    assert progress(consumer) == (1, 0)


def test_what_was_claimed_without_hearing_of_it_is_in_flight_in_other_partitions(
    make: Make, send: Send
) -> None:
    """The owner gets its own claim again, but not while it handles the message.

    Its twin waits, and is a duplicate then.
    """
    store = Watched()
    consumer = make("pairs", shared=Shared(store, scope="global"), completion="explicit")
    store.deaf = True
    send("a", topic="pairs", partition=0)
    [message] = poll_some(consumer, 1)
    store.deaf = False
    send("a", topic="pairs", partition=1)
    wait_for(consumer, lambda: progress(consumer, "pairs", 1) == (1, 1), "the twin")
    assert poll_quiet(consumer) == []
    consumer.complete(message)
    wait_for(consumer, lambda: consumer.counters.reasons.get("duplicate.shared", 0) >= 1, "the duplicate")
    assert consumer.counters.reasons["duplicate.shared"] == 1
    assert progress(consumer, "pairs", 1) == (1, 0)


def test_no_two_consumers_have_one_name(make: Make, store: MemoryClaimStore) -> None:
    """Also in one process: by its name alone each completes its own claims."""
    claims = [claims_of(make("orders", shared=store)) for _ in range(2)]
    assert len({each.acks.owner for each in claims}) == 2


def test_what_is_owed_is_told_before_its_id_is_claimed_again(
    make: Make, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ID comes again out of its window, while the completion of the first is to be told.

    Nobody heard of the first one's claim; that completion is not the second one's.
    """
    store = Watched()
    store.deaf = store.away = True
    old_ms = int(time.time() * 1000) - 100_000
    # A clock that stands still: the time to ask the store again does not come by itself.
    now_s = [0.0]
    consumer = make(
        "orders",
        dedup=lookup(window=Window(seconds=10)),
        shared=ClockedShared(store, scope="global", clock=lambda: now_s[0]),
    )
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    producer.produce("orders", "x", headers={"dedup-id": "x"}, timestamp=old_ms)
    assert producer.flush(FLUSH_S) == 0
    poll_some(consumer, 1)
    claims = claims_of(consumer)
    wait_for(consumer, lambda: bool(claims.acks.pending), "the completion")
    # From here on the store is not asked but where the second one is claimed, when it is back.
    admit = claims.admit

    def come_back(partitions: Sequence[Partition]) -> None:
        store.deaf = store.away = False
        now_s[0] = MAX_WAIT_S
        admit(partitions)

    monkeypatch.setattr(claims, "admit", come_back)
    producer.produce("orders", "x", headers={"dedup-id": "x"}, timestamp=old_ms + 50_000)
    assert producer.flush(FLUSH_S) == 0
    [again] = poll_some(consumer, 1)
    assert again.offset() == 1
    claims.retry([])
    [other] = store.claim(
        shared_id("x"), "another", LEASE_MS, timestamps_ms=[old_ms + 55_000], window_ms=10_000
    )
    assert other.kind is ClaimKind.IN_FLIGHT


@pytest.mark.parametrize("in_flight", ["park", "wait"])
def test_a_twin_whose_turn_comes_is_counted_once(
    make: Make, kafka: MockKafka, store: MemoryClaimStore, in_flight: InFlight
) -> None:
    """Out of the window of the one that it waited for: judged here, then claimed there, told of once."""
    told: list[VerdictEvent] = []
    consumer = make(
        "orders",
        dedup=lookup(window=Window(seconds=10)),
        shared=Shared(store, scope="global", in_flight=in_flight),
        completion="explicit",
        observers=[told.append],
    )
    [first] = poll_first(consumer, kafka, ["x", "x"])
    consumer.complete(first)
    [second] = poll_some(consumer, 1)
    assert second.offset() == 1
    consumer.complete(second)
    assert consumer.counters.verdicts["fresh"] == 2
    assert [(event.offset, event.verdict.kind) for event in told] == [
        (0, VerdictKind.FRESH),
        (1, VerdictKind.FRESH),
    ]


def test_in_order_a_twin_comes_before_what_waits_behind_it(make: Make, kafka: MockKafka) -> None:
    """It lies before the message that another consumer has, though its turn comes later."""
    store = MemoryClaimStore(lambda: 0.0)
    claim_as(store, "b")
    consumer = make(
        "orders",
        dedup=lookup(window=Window(seconds=10)),
        shared=Shared(store, scope="global", in_flight="wait"),
        completion="explicit",
    )
    [first] = poll_first(consumer, kafka, ["x", "x", "b"])
    consumer.complete(first)
    [second] = poll_some(consumer, 1)
    assert second.offset() == 1


def poll_first(
    consumer: DedupConsumer, kafka: MockKafka, names: list[str], *, apart_ms: int = 20_000
) -> list[Message]:
    """Send messages so far apart, and return the first one, when all are judged."""
    old_ms = int(time.time() * 1000) - 100_000
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for number, name in enumerate(names):
        producer.produce("orders", name, headers={"dedup-id": name}, timestamp=old_ms + number * apart_ms)
    assert producer.flush(FLUSH_S) == 0
    got = poll_some(consumer, 1)
    wait_for(consumer, lambda: progress(consumer)[0] == len(names), "all")
    return got
