from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from dedup_sdk import ConfigurationError, LastId, MemoryStore, VerdictKind, Window, Windows, header, orders
from dedup_sdk.ids import key
from dedup_sdk.shared import (
    Claim,
    ClaimKind,
    MemoryClaimStore,
    Shared,
)
from dedup_sdk.shared._acknowledgements import MAX_PENDING, PendingAck
from dedup_sdk.testing import MockKafka
from tests.mock.conftest import QUICK_CLIENT
from tests.support import consuming, inside
from tests.support.claiming import ClockedShared, claims_of
from tests.support.consuming import committed, lookup, poll_quiet, poll_some, progress, values, wait_for
from tests.support.shared_memory import (
    LEASE_MS,
    WINDOW_MS,
    Watched,
    claim_as,
    complete_as,
    hindrances,
    shared_id,
)

if TYPE_CHECKING:
    from tests.mock.conftest import Make, Send


@pytest.fixture
def store() -> Watched:
    """A shared memory, empty."""
    return Watched()


@pytest.mark.parametrize(("scope", "total"), [("partition", 6), ("topic", 5), ("group", 4), ("global", 4)])
def test_a_scope_says_where_an_id_is_one_message(
    make: Make, send: Send, store: Watched, scope: Any, total: int
) -> None:
    """In a partition, in a topic, in a group: one message is delivered once, by whoever is first."""
    send("a", "b", topic="pairs", partition=0)
    send("b", "c", topic="pairs", partition=1)
    send("c", "d", topic="orders")
    consumer = make("pairs", "orders", shared=Shared(store, scope=scope))
    got = poll_some(consumer, total)
    assert poll_quiet(consumer) == []
    assert len(set(values(got))) == 4
    assert consumer.counters.reasons.get("duplicate.shared", 0) == 6 - total
    assert consumer.counters.verdicts["fresh"] == total


def test_a_retry_topic_shares_the_scope_of_its_origin(make: Make, send: Send, store: Watched) -> None:
    """So that the same ID is one message there, and another one elsewhere."""
    send("a", topic="orders")
    send("a", "b", topic="pairs")
    consumer = make("pairs", "orders", shared=Shared(store, origins={"pairs": "orders"}))
    assert sorted(values(poll_some(consumer, 2))) == ["a", "b"]
    assert poll_quiet(consumer) == []


@pytest.mark.parametrize(
    ("origins", "told"), [({"orders.retry": "orders"}, 1), ({"orders": "orders"}, 0), ({}, 0)]
)
def test_what_hides_a_retry_is_in_the_log(
    make: Make, store: Watched, caplog: pytest.LogCaptureFixture, origins: dict[str, str], told: int
) -> None:
    """Once, when the consumer is made.

    A handler that sends messages to the retry topic by itself has their retries hidden.
    """
    make("orders", shared=Shared(store, origins=origins))
    lines = [record.message for record in caplog.records if "equal IDs are one message" in record.message]
    assert len(lines) == told
    assert all(line.startswith("orders.retry shares the scope of orders: ") for line in lines)


def test_a_batch_is_one_question(make: Make, send: Send, store: Watched) -> None:
    """Of several partitions too; and IDs that this consumer knows itself are not asked."""
    send(*"abc", topic="pairs", partition=0)
    send(*"def", topic="pairs", partition=1)
    consumer = make("pairs", shared=store)
    poll_quiet(consumer)
    send(*"ghi", topic="pairs", partition=0)
    send(*"jkl", topic="pairs", partition=1)
    store.asked["claim"].clear()
    fetcher = inside.fetcher_of(consumer)
    while len(fetcher.messages) < 6:
        fetcher.fetch(100, 0.1)
    poll_some(consumer, 6)
    assert store.asked["claim"] == [6]
    send(*"abcabc", topic="pairs", partition=0)
    wait_for(consumer, lambda: consumer.counters.verdicts["duplicate"] >= 6, "the duplicates")
    assert consumer.counters.verdicts["duplicate"] == 6
    assert store.asked["claim"] == [6]


def test_what_is_in_flight_elsewhere_is_parked(make: Make, send: Send, store: Watched) -> None:
    """Those behind it go on; when it is completed there it is a duplicate here, and leaves its place in the log."""
    given = claim_as(store, "b")
    send(*"abcb", "d")
    consumer = make("orders", shared=Shared(store, scope="global"))
    assert values(poll_some(consumer, 3)) == ["a", "c", "d"]
    assert poll_quiet(consumer) == []
    [status] = consumer.partition_statuses
    assert status.hindrances == ("elsewhere",)
    assert inside.next_offset(consumer) == 1
    assert complete_as(store, "b", given)
    wait_for(consumer, lambda: progress(consumer) == (5, 0), "the end")
    assert consumer.counters.verdicts["duplicate"] == 2
    assert consumer.counters.verdicts["fresh"] == 3
    assert hindrances(consumer) == ()


def test_what_was_released_elsewhere_is_handled_here(make: Make, send: Send, store: Watched) -> None:
    """Once: its twin waits behind it."""
    given = claim_as(store, "b")
    send(*"abbc")
    consumer = make("orders", shared=Shared(store, scope="global"))
    assert values(poll_some(consumer, 2)) == ["a", "c"]
    MemoryClaimStore.release(store, shared_id("b"), [given.token])
    [b] = poll_some(consumer, 1)
    verdict = consumer.verdict(b)
    assert (b.value(), b.offset(), verdict and verdict.kind) == (b"b", 1, VerdictKind.FRESH)
    assert poll_quiet(consumer) == []
    assert progress(consumer) == (4, 0)
    assert claim_as(store, "b").kind is ClaimKind.DUPLICATE


@pytest.mark.slow
def test_a_partition_may_stand_still_instead(make: Make, send: Send, store: Watched) -> None:
    """With ``wait`` nothing overtakes a message in flight elsewhere, also of later batches.

    And others get the messages behind it.
    """
    given = claim_as(store, "b")
    send(*"abc")
    consumer = make("orders", shared=Shared(store, scope="global", in_flight="wait"))
    assert values(poll_some(consumer, 1)) == ["a"]
    send(*"de")
    assert poll_quiet(consumer) == []
    assert claim_as(store, "c").kind is ClaimKind.FRESH, "two that wait for each other would wait for ever"
    assert claim_as(store, "e").kind is ClaimKind.FRESH
    MemoryClaimStore.release(store, shared_id("b"), [given.token])
    assert values(poll_some(consumer, 1)) == ["b"]
    assert poll_quiet(consumer) == []
    assert complete_as(store, "c", Claim(ClaimKind.FRESH, claim_as(store, "c").token))
    assert values(poll_some(consumer, 1)) == ["d"]
    complete_as(store, "e", Claim(ClaimKind.FRESH, claim_as(store, "e").token))
    wait_for(consumer, lambda: progress(consumer) == (5, 0), "the end")
    send("f")
    assert values(poll_some(consumer, 1)) == ["f"]


def test_a_dead_owners_messages_come_when_its_lease_is_over(make: Make, send: Send, store: Watched) -> None:
    """Nothing is lost that another one claimed and never completed."""
    claim_as(store, "a")
    send("a")
    consumer = make("orders", shared=Shared(store, scope="global"))
    assert poll_quiet(consumer) == []
    store.now_s += LEASE_MS / 1000
    assert values(poll_some(consumer, 1)) == ["a"]


def test_a_zombies_completion_is_refused_and_counted(
    make: Make, send: Send, store: Watched, kafka: MockKafka
) -> None:
    """It handled the message all the same: here it is completed, and committed."""
    send("a")
    consumer = make("orders", shared=Shared(store, scope="global"), completion="explicit")
    [message] = poll_some(consumer, 1)
    store.now_s += LEASE_MS / 1000
    heir = claim_as(store, "a")
    assert heir.kind is ClaimKind.FRESH
    consumer.complete(message)
    assert consumer.counters.shared == {"claimed": 1, "refused": 1}
    assert complete_as(store, "a", heir)
    consumer.close()
    assert committed(kafka.bootstrap, "g", "orders").offset == 1


def test_what_is_in_flight_here_is_renewed(make: Make, send: Send, store: Watched) -> None:
    """Before its lease is over; and where it is lost that is counted once."""
    send("a")
    consumer = make("orders", shared=Shared(store, scope="global", lease=1.0), completion="explicit")
    [message] = poll_some(consumer, 1)
    wait_for(consumer, lambda: len(store.asked["renew"]) >= 2, "renewals")
    assert claim_as(store, "a").kind is ClaimKind.IN_FLIGHT
    claims = claims_of(consumer)
    with claims.leases.lock:
        # Nothing is renewed meanwhile.
        store.now_s += 10
        assert claim_as(store, "a").kind is ClaimKind.FRESH
    wait_for(consumer, lambda: "lapsed" in consumer.counters.shared, "the loss")
    consumer.complete(message)
    assert consumer.counters.shared == {"claimed": 1, "lapsed": 1, "refused": 1}


def test_completed_is_said_before_it_is_committed(
    make: Make, send: Send, store: Watched, kafka: MockKafka
) -> None:
    """A crash in between suppresses handled messages: another consumer without the first one's disk knows it."""
    send("a", "b")
    consumer = make("orders", shared=Shared(store, scope="global"), config={"enable.auto.commit": False})
    messages = poll_some(consumer, 2)
    consumer.commit(messages[0], asynchronous=False)
    assert claim_as(store, "a").kind is ClaimKind.DUPLICATE
    assert claim_as(store, "b").kind is ClaimKind.IN_FLIGHT
    consumer.close()
    assert claim_as(store, "b").kind is ClaimKind.FRESH, "what is in flight at the end is free for others"
    assert committed(kafka.bootstrap, "g", "orders").offset == 1


def test_a_crash_between_the_two_repeats_nothing(
    make: Make, send: Send, store: Watched, kafka: MockKafka
) -> None:
    """The messages come again, on another disk, and the shared memory has them."""
    send("a", "b")
    for ident in "ab":
        complete_as(store, ident, claim_as(store, ident, "the one that crashed"))
    consumer = make("orders", shared=Shared(store, scope="global"), store=MemoryStore())
    wait_for(consumer, lambda: consumer.counters.verdicts["duplicate"] >= 2, "the duplicates")
    assert consumer.counters.verdicts["duplicate"] == 2
    consumer.close()
    assert committed(kafka.bootstrap, "g", "orders").offset == 2


def test_a_dead_letter_is_a_duplicate_for_others(
    make: Make, send: Send, store: Watched, letters: str
) -> None:
    """The shared memory has dead-lettered messages like handled ones; a copy here is a duplicate, too."""
    send("a", "a", "b")
    consumer = make("orders", shared=Shared(store, scope="global"))

    def handle(message: Any) -> None:
        if message.value() == b"a":
            raise ValueError("no")
        consumer.stop()

    consumer.run(handle, on_error="dead-letter", dead_letters=letters)
    assert (consumer.counters.dead_lettered, consumer.counters.verdicts["duplicate"]) == (1, 1)
    assert claim_as(store, "a").kind is ClaimKind.DUPLICATE
    assert claim_as(store, "b").kind is ClaimKind.DUPLICATE


def test_an_outage_delivers_and_is_counted(
    make: Make, send: Send, store: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """As unverified; the store is not asked for each batch, and told of completed messages when it is back."""
    store.away = True
    send("a", "b")
    consumer = make("orders", shared=Shared(store, scope="global"))
    got = poll_some(consumer, 2)
    verdict = consumer.verdict(got[1])
    assert verdict is not None
    assert (verdict.kind, verdict.reason) == (VerdictKind.UNVERIFIED, "shared-outage")
    assert poll_quiet(consumer) == []
    assert consumer.counters.reasons == {"unverified.shared-outage": 2}
    assert hindrances(consumer) == ("outage",)
    assert progress(consumer) == (2, 0)
    claims = claims_of(consumer)
    store.away = False
    wait_for(
        consumer,
        lambda: store.asked["complete"][-1:] == [2] and not claims.acks.pending,
        "what is owed",
    )
    assert claim_as(store, "a").kind is ClaimKind.DUPLICATE
    assert claim_as(store, "b").kind is ClaimKind.DUPLICATE
    assert hindrances(consumer) == ()
    lines = [record.message for record in caplog.records if "shared store" in record.message]
    assert lines[0].startswith(
        "the shared store is away; start it; until it answers, new messages are delivered as unverified"
    )
    assert lines[-1] == "the shared store answers again"


def test_what_is_owed_is_known_here(make: Make, send: Send, store: Watched) -> None:
    """A twin in another partition is a duplicate though nobody was told: this consumer completed it itself."""
    consumer = make("pairs", shared=Shared(store))
    store.away = True
    send("a", topic="pairs", partition=0)
    poll_some(consumer, 1)
    assert poll_quiet(consumer) == []
    send("a", topic="pairs", partition=1)
    wait_for(consumer, lambda: consumer.counters.verdicts["duplicate"] >= 1, "the duplicate")
    assert consumer.counters.verdicts["duplicate"] == 1


@pytest.mark.slow
def test_an_outage_may_pause(make: Make, send: Send, store: Watched) -> None:
    """Nothing comes until the store is back; then everything, in order."""
    store.away = True
    send(*"abc")
    consumer = make("orders", shared=Shared(store, scope="global", on_outage="pause"))
    assert poll_quiet(consumer) == []
    assert "outage" in consumer.partition_statuses[0].hindrances
    send("d")
    assert poll_quiet(consumer) == []
    store.away = False
    assert values(poll_some(consumer, 4)) == list("abcd")
    assert consumer.counters.verdicts["fresh"] == 4
    assert consumer.counters.verdicts["unverified"] == 0


def test_what_another_one_has_waits_through_an_outage(make: Make, send: Send, store: Watched) -> None:
    """At least for its lease, as far as that was told: to deliver it at once would double it for nearly certain."""
    claim_as(store, "a")
    send("a", "b")
    consumer = make("orders", shared=Shared(store, scope="global"))
    assert values(poll_some(consumer, 1)) == ["b"]
    store.away = True
    send("c")
    assert values(poll_some(consumer, 1)) == ["c"]
    assert poll_quiet(consumer) == []


@pytest.mark.parametrize("kind", [ClaimKind.DUPLICATE, ClaimKind.FRESH])
def test_what_is_owed_is_told_at_the_end(
    make: Make, send: Send, store: Watched, caplog: pytest.LogCaptureFixture, kind: ClaimKind
) -> None:
    """However short ago the store was away; where it still is that is counted, and in the log."""
    # A clock that stands still: the time to ask the store again never comes.
    consumer = make("orders", shared=ClockedShared(store, scope="global", clock=lambda: 0.0))
    store.away = True
    send("a")
    poll_some(consumer, 1)
    claims = claims_of(consumer)
    wait_for(consumer, lambda: bool(claims.acks.pending), "the completion")
    store.away = untold = kind is ClaimKind.FRESH
    consumer.close()
    assert claim_as(store, "a").kind is kind
    assert consumer.counters.shared.get("forgotten", 0) == untold
    assert ("1 completed IDs were not stored there" in caplog.text) is untold


def test_what_is_owed_is_bounded(make: Make, send: Send, store: Watched) -> None:
    """An outage of days does not fill the memory; completions given up are counted."""
    consumer = make("orders", shared=Shared(store, scope="global"))
    claims = claims_of(consumer)
    claims.acks.pending = {number.to_bytes(16): PendingAck(0, 0, WINDOW_MS) for number in range(MAX_PENDING)}
    store.away = True
    send("a")
    poll_some(consumer, 1)
    wait_for(consumer, lambda: consumer.counters.shared.get("forgotten", 0) >= 1, "the oldest to go")
    assert consumer.counters.shared["forgotten"] == 1
    assert (0).to_bytes(16) not in claims.acks.pending
    claims.acks.pending = {}


def test_something_foreign_in_the_place_of_an_id_costs_no_message(
    make: Make, send: Send, store: Watched
) -> None:
    """It is delivered, as unverified, and counted."""
    store.claim = lambda ids, *_, **__: [Claim(ClaimKind.FOREIGN) for _ in ids]  # type: ignore[method-assign]
    send("a")
    consumer = make("orders", shared=store)
    [message] = poll_some(consumer, 1)
    verdict = consumer.verdict(message)
    assert verdict is not None
    assert (verdict.kind, verdict.reason) == (VerdictKind.UNVERIFIED, "shared-foreign")
    assert poll_quiet(consumer) == []
    assert consumer.counters.shared == {"foreign": 1}


def test_a_record_without_an_id_is_not_claimed(make: Make, kafka: MockKafka, store: Watched) -> None:
    """There is nothing to claim."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    producer.produce("orders", "nameless")
    producer.flush()
    consumer = make("orders", shared=store)
    assert values(poll_some(consumer, 1)) == ["nameless"]
    assert store.asked["claim"] == []


def test_what_comes_again_is_claimed_again(make: Make, send: Send, store: Watched) -> None:
    """A seek, a mended interruption: this consumer's own claim does not keep it waiting."""
    send("a", "b")
    consumer = make("orders", shared=Shared(store, scope="global"))
    poll_some(consumer, 1)
    # One or both: as much as had come.
    claimed = consumer.counters.shared["claimed"]
    inside.interrupt(consumer)
    assert values(poll_some(consumer, 2)) == ["a", "b"]
    assert poll_quiet(consumer) == []
    assert progress(consumer) == (2, 0)
    assert consumer.counters.shared["claimed"] == claimed + 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shared": "redis://"}, "give e.g. RedisStore"),
        ({"shared": MemoryClaimStore}, "is not a shared store"),
        ({"dedup": lookup(window=Window(count=9))}, "forgets by time alone"),
        ({"dedup": lookup(window=Window(days=1, count=9))}, "forgets by time alone"),
        ({"dedup": lookup(window=Window.off())}, "forgets by time alone"),
        ({"dedup": lookup(unit=header("unit"), on_missing_id="process")}, "without units"),
        ({"dedup": LastId(id=header("n"), order=orders.integer())}, "needs Lookup"),
        ({"mode": "observe"}, "leave out shared, or choose"),
    ],
)
def test_what_does_not_go_with_it_is_refused(make: Make, options: dict[str, Any], text: str) -> None:
    """In one line, before anything is connected."""
    with pytest.raises(ConfigurationError, match=text) as caught:
        make("orders", **{"shared": MemoryClaimStore(), **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"scope": "world"}, "choose partition, topic, group or global"),
        ({"in_flight": "drop"}, "choose park or wait"),
        ({"on_outage": "drop"}, "choose deliver or pause"),
        ({"lease": 0.5}, "at least a second"),
        ({"lease": "1m"}, "give seconds"),
        ({"prefix": 7}, "give text"),
        ({"origins": ["a"]}, "map each topic to the topic whose scope it shares"),
    ],
)
def test_careless_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    """In one line that names the values to give."""
    with pytest.raises(ConfigurationError, match=text) as caught:
        Shared(MemoryClaimStore(), **settings)
    assert "\n" not in str(caught.value)


def test_a_topic_whose_window_is_off_is_not_claimed(make: Make, send: Send, store: Watched) -> None:
    """Nothing is looked up there; and one by count is refused when its partition comes."""
    send("a", "a", topic="orders")
    windows = Windows(topics={"orders": Window.off()}, default=Window(count=5))
    consumer = make("orders", shared=store, dedup=lookup(window=windows))
    assert values(poll_some(consumer, 2)) == ["a", "a"]
    assert store.asked["claim"] == []
    other = make("pairs", shared=store, dedup=lookup(window=windows))
    with pytest.raises(ConfigurationError, match="supports windows by time only"):
        poll_some(other, 1)


def test_two_clusters_do_not_hide_each_others_messages(store: Watched) -> None:
    """With one group, topic and ID in both; unless they are given one name, or the scope is that of all clusters."""
    options: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["a", "b"]),
        ({"cluster": "shops"}, []),
        ({"scope": "global"}, []),
    ]
    with MockKafka() as one, MockKafka() as other:
        for number, (given, expected) in enumerate(options):
            topic = f"orders{number}"
            got = []
            for each in (one, other):
                each.create_topic(topic, partitions=1)
                producer = Producer({"bootstrap.servers": each.bootstrap})
                for name in "ab":
                    producer.produce(topic, name, headers={"dedup-id": f"{name}{number}"})
                assert producer.flush(30) == 0
                with consuming.make_consumer(
                    each.bootstrap, "g", MemoryStore(), QUICK_CLIENT, shared=Shared(store, **given)
                ) as consumer:
                    consumer.subscribe([topic])
                    verdicts = consumer.counters.verdicts
                    handled: list[str] = []
                    while verdicts["fresh"] + verdicts["duplicate"] < 2 or len(handled) < verdicts["fresh"]:
                        handled += values(consumer.consume(2, 0.5))
                    got.append(handled)
            assert got == [["a", "b"], expected]


def test_what_another_id_spec_reads_is_another_id(make: Make, kafka: MockKafka, store: Watched) -> None:
    """Customer 1001 completed does not hide order 1001, whose bytes are equal."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce("orders", "first", key="1001", headers={"dedup-id": "7"})
    assert producer.flush(30) == 0
    with make("orders", dedup=lookup(id=key()), shared=store) as consumer:
        assert values(poll_some(consumer, 1)) == ["first"]
    producer.produce("orders", "second", key="1002", headers={"dedup-id": "1001"})
    assert producer.flush(30) == 0
    consumer = make("orders", store=MemoryStore(), shared=store)
    assert values(poll_some(consumer, 1)) == ["second"]


def test_a_cluster_has_a_name(store: Watched) -> None:
    """An empty one is refused: it would stand for clusters without an ID."""
    with pytest.raises(ConfigurationError, match="cluster='': give the name that two clusters share"):
        Shared(store, cluster="")
