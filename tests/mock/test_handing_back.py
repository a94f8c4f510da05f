"""A message that another consumer has in flight for too long goes to a topic that shares its scope, and is judged there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, Message, Producer

from dedup_sdk import (
    ConfigurationError,
    DeadLetter,
    Lookup,
    MemoryClaimStore,
    MemoryStore,
    Shared,
    StoreFullError,
    VerdictKind,
    Window,
    Windows,
    py,
)
from dedup_sdk.engine.counted import Counted
from dedup_sdk.kafka import handing_back
from dedup_sdk.kafka.fields import as_record
from tests.mock.test_run_errors import dead_letters
from tests.mock.test_shared import Watched, claim_as, complete_as, hindrances, now_ms, shared_id
from tests.support.consuming import PATIENCE_S, committed, lookup, poll_quiet, poll_some, values, wait_for
from tests.support.given_up import letter_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk import Claim, DedupConsumer
    from dedup_sdk.lane.chunk import Place
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

DAY_MS = 86_400_000


@pytest.fixture
def store() -> Watched:
    """A shared memory, empty."""
    return Watched()


@pytest.fixture
def back(make: Make, store: Watched, letters: str) -> Callable[..., DedupConsumer]:
    """Makes a consumer that hands back at once, to the topic "letters"."""

    def back(*topics: str, after: float = 0, **options: Any) -> DedupConsumer:
        shared = Shared(store, scope="global", in_flight="hand-back", hand_back_after=after)
        return make(*topics, **{"shared": shared, "dead_letters": letters, **options})

    return back


def release(store: Watched, name: str, given: Claim) -> None:
    """Give up what was claimed for another consumer."""
    MemoryClaimStore.release(store, shared_id(name), [given.token])


def handed_back(consumer: DedupConsumer, count: int) -> Callable[[], bool]:
    """Whether it has handed back so many."""
    return lambda: consumer.counters.shared.get("handed_back", 0) == count


def test_it_is_over_here_when_its_copy_is_there(
    back: Any, send: Send, store: Watched, kafka: MockKafka
) -> None:
    """Those before and behind it are handled, nothing waits, and what is there says whose place it takes."""
    claim_as(store, "b")
    send(*"abc")
    consumer = back("orders")
    assert sorted(values(poll_some(consumer, 2))) == ["a", "c"]
    assert wait_for(consumer, handed_back(consumer, 1), "the copy") == []
    assert hindrances(consumer) == ()
    consumer.close()
    assert committed(kafka.bootstrap, "g", "orders").offset == 3
    [copy] = dead_letters(kafka, "letters")
    letter = DeadLetter.read(copy)
    assert letter is not None
    assert (letter.topic, letter.partition, letter.offset, letter.group) == ("orders", 0, 1, "g")
    assert (letter.error_type, letter.attempts) == ("InFlightElsewhereError", 0)
    assert (copy.value(), dict(as_record(copy).headers)["dedup-id"]) == (b"b", b"b")
    assert consumer.counters.dead_lettered == 0


@pytest.mark.parametrize("completed", [True, False])
def test_it_is_judged_where_it_comes_again(
    back: Any, send: Send, store: Watched, kafka: MockKafka, *, completed: bool
) -> None:
    """While it is in flight it waits there, and is not sent round in circles; then it is a duplicate, or handled, once."""
    given = claim_as(store, "b")
    send("b")
    consumer = back("orders", "letters")
    assert wait_for(consumer, handed_back(consumer, 1), "the copy") == []
    assert poll_quiet(consumer) == []
    assert {status.topic for status in consumer.partition_statuses if "elsewhere" in status.hindrances} == {
        "letters"
    }
    if completed:
        assert complete_as(store, "b", given)
        wait_for(consumer, lambda: consumer.counters.verdicts["duplicate"] == 1, "the duplicate")
    else:
        release(store, "b", given)
        [again] = poll_some(consumer, 1)
        assert (again.topic(), again.value()) == ("letters", b"b")
    assert poll_quiet(consumer) == []
    assert len(dead_letters(kafka, "letters")) == 1
    assert consumer.counters.shared["handed_back"] == 1


def test_it_waits_for_a_while_first(back: Any, send: Send, store: Watched, kafka: MockKafka) -> None:
    """What is over by then needs no copy."""
    given = claim_as(store, "b")
    send("b")
    consumer = back("orders", after=3600)
    assert poll_quiet(consumer) == []
    assert hindrances(consumer) == ("elsewhere",)
    release(store, "b", given)
    assert values(poll_some(consumer, 1)) == ["b"]
    assert dead_letters(kafka, "letters") == []


def test_its_twins_follow_it(back: Any, send: Send, store: Watched, kafka: MockKafka) -> None:
    """Each by itself, and each names the one before it."""
    claim_as(store, "b")
    send(*"abbab")
    consumer = back("orders")
    assert values(wait_for(consumer, handed_back(consumer, 3), "the copies")) == ["a"]
    read = [DeadLetter.read(copy) for copy in dead_letters(kafka, "letters")]
    assert sorted((each.offset, each.before or 0) for each in read if each) == [(1, 0), (2, 2), (4, 3)]
    assert consumer._engine.next_offset("orders", 0) == 5
    [held] = consumer._engine.partitions.values()
    assert held.lane.unwritten == 0, "what is over is written"


def test_what_this_consumer_has_itself_is_handed_back_too(back: Any, send: Send, kafka: MockKafka) -> None:
    """In another of its partitions: what waits for a slow handler there does not hold up this one."""
    send("a", topic="pairs", partition=0)
    consumer = back("pairs", completion="explicit")
    [first] = poll_some(consumer, 1)
    send("a", "b", topic="pairs", partition=1)
    assert values(wait_for(consumer, handed_back(consumer, 1), "the copy")) == ["b"]
    consumer.complete(first)
    assert values(dead_letters(kafka, "letters")) == ["a"]


def test_a_copy_that_is_not_taken_keeps_it_here(
    back: Any,
    send: Send,
    store: Watched,
    kafka: MockKafka,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line says so; it is asked for as ever, and is sent again later."""
    monkeypatch.setattr(handing_back, "TRY_AGAIN_S", 0.05)
    claim_as(store, "b")
    given = claim_as(store, "c")
    send(*"bc")
    kafka.push_errors("Produce", KafkaError.TOPIC_AUTHORIZATION_FAILED, 1_000)
    consumer = back("orders")
    wait_for(consumer, lambda: "cannot be handed back to letters" in caplog.text, "the line")
    assert hindrances(consumer) == ("elsewhere",)
    release(store, "c", given)
    assert values(poll_some(consumer, 1)) == ["c"]
    assert consumer._engine.next_offset("orders", 0) == 0
    assert caplog.text.count("cannot be handed back") == 1
    kafka.clear_errors("Produce")
    wait_for(consumer, handed_back(consumer, 1), "the copy")
    assert values(dead_letters(kafka, "letters")) == ["b"]
    assert consumer._engine.next_offset("orders", 0) == 2


def test_a_client_that_failed_for_good_is_replaced(
    back: Any,
    send: Send,
    store: Watched,
    kafka: MockKafka,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E.g. for want of the right to be idempotent: the loop hears nothing of it, and who is given the right later need not begin anew."""
    monkeypatch.setattr(handing_back, "TRY_AGAIN_S", 0.05)
    claim_as(store, "b")
    kafka.push_errors("InitProducerId", KafkaError.CLUSTER_AUTHORIZATION_FAILED, 2)
    send("b")
    consumer = back("orders")
    assert wait_for(consumer, handed_back(consumer, 1), "the copy") == []
    assert caplog.text.count("cannot be handed back to letters: KafkaError{FATAL") == 1
    assert values(dead_letters(kafka, "letters")) == ["b"]


def test_one_that_cannot_be_ended_costs_the_others_nothing(
    back: Any, send: Send, store: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full: the partition begins anew, and nothing counts as under way for ever."""
    end_waiting = Counted.end_waiting
    failed: list[Place] = []

    def end_once_there_is_room(held: Counted, place: Place) -> None:
        if not failed:
            failed.append(place)
            raise StoreFullError("no room")
        end_waiting(held, place)

    monkeypatch.setattr(Counted, "end_waiting", end_once_there_is_room)
    for name in "bcd":
        claim_as(store, name)
    send(*"bcd")
    consumer = back("orders")
    wait_for(consumer, lambda: bool(failed) and consumer._engine.next_offset("orders", 0) == 3, "the end")
    assert consumer._handing_back is not None
    assert not consumer._handing_back._under_way


def test_a_lost_report_costs_nothing(
    back: Any, send: Send, store: Watched, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message comes again, here and there: whoever is first has it."""
    given = claim_as(store, "b")
    send("b")
    with monkeypatch.context() as patched:
        patched.setattr(handing_back.HandingBack, "_end", lambda *_: [])
        consumer = back("orders")
        until = time.monotonic() + PATIENCE_S
        while not dead_letters(kafka, "letters"):
            poll_quiet(consumer)
            assert time.monotonic() < until
        consumer.close()
    assert committed(kafka.bootstrap, "g", "orders").offset == 0
    again = back("orders", "letters", after=3600)
    assert poll_quiet(again) == []
    release(store, "b", given)
    assert values(poll_some(again, 1)) == ["b"]
    wait_for(again, lambda: again.counters.verdicts["duplicate"] == 1, "its twin")
    assert poll_quiet(again) == []


def test_a_report_that_comes_after_the_partition_went_ends_nothing(
    back: Any, send: Send, store: Watched
) -> None:
    """Somebody else may have it by then."""
    claim_as(store, "b")
    send("b")
    consumer = back("orders", after=3600)
    assert poll_quiet(consumer) == []
    handing, claims = consumer._handing_back, consumer._engine.claims
    assert handing is not None
    assert claims is not None
    [held] = consumer._engine.partitions.values()
    assert held.claims is not None
    [waiting] = held.claims.waiting
    consumer.unsubscribe()
    wait_for(consumer, lambda: not consumer._session.assigned, "the partition to go")
    assert claims.hand_back(waiting) is False
    assert consumer.counters.shared.get("handed_back", 0) == 0


def test_a_store_that_is_made_again_does_not_take_it_for_handled(
    back: Any, send: Send, store: Watched
) -> None:
    """It was not: its mark is that of who handles it."""
    given = claim_as(store, "b")
    send(*"abc")
    first = back("orders")
    wait_for(first, handed_back(first, 1), "the copy")
    first.close()
    release(store, "b", given)
    send(*"abc")
    second = back("orders", store=MemoryStore())
    assert values(poll_quiet(second)) == ["b"]
    assert second.counters.verdicts["duplicate"] == 2


def test_nothing_is_handed_back_while_the_memory_is_away(back: Any, send: Send, store: Watched) -> None:
    """Where it comes again nobody could say that another consumer has it."""
    claim_as(store, "b")
    send("b")
    consumer = back("orders", after=3600)
    assert poll_quiet(consumer) == []
    claims = consumer._engine.claims
    assert claims is not None
    [held] = consumer._engine.partitions.values()
    store.away = True
    send("c")
    assert values(poll_some(consumer, 1)) == ["c"]
    claims._clock = lambda: time.monotonic() + 3601
    assert claims.take_overdue([held], 10) == []
    store.away = False
    wait_for(consumer, handed_back(consumer, 1), "the copy")


def topic_of(record: Any) -> str:
    """An ID that hangs on the topic in which a record lies."""
    return f"{record.topic}:{record.value!r}"


def partition_of(record: Any) -> str:
    """An ID that hangs on the partition in which a record lies."""
    return f"{record.partition}:{record.value!r}"


@pytest.mark.parametrize("place", ["topic_of", "partition_of"])
def test_an_id_that_would_be_another_one_there_stays_here(
    back: Any, send: Send, kafka: MockKafka, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    """Else the message could be handled twice."""
    send("a", topic="orders")
    spec = py(f"tests.mock.test_handing_back:{place}")
    consumer = back("orders", completion="explicit", dedup=Lookup(id=spec, window=Window(days=7)))
    other = back(
        "orders", completion="explicit", dedup=Lookup(id=spec, window=Window(days=7)),
        config={"group.id": "other"}, store=MemoryStore(),
    )  # fmt: skip
    [first] = poll_some(consumer, 1)
    wait_for(other, lambda: "its ID would be another one there" in caplog.text, "the line")
    assert dead_letters(kafka, "letters") == []
    consumer.complete(first)
    wait_for(other, lambda: other.counters.verdicts["duplicate"] == 1, "the duplicate")


def test_a_copy_is_as_old_as_its_message(back: Any, store: Watched, kafka: MockKafka) -> None:
    """Also one that a handler gave up in a backlog of ten days, with a window of seven: what was completed then is its duplicate, and it tells the memory that time."""
    then_ms = round(time.time() * 1000) - 10 * DAY_MS
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for offset, name in enumerate("bc"):
        letter = letter_of(offset, timestamp_ms=then_ms)
        message = Message(topic="orders", partition=0, headers=[("dedup-id", name.encode())])
        producer.produce("letters", name, headers=[*letter.headers(message)], partition=0)
    assert producer.flush(PATIENCE_S) == 0
    claimed = claim_as(store, "b")
    assert complete_as(store, "b", claimed, then_ms - DAY_MS)
    consumer = back("letters")
    [c] = poll_some(consumer, 1)
    verdict = consumer.verdict(c)
    assert (c.value(), verdict and verdict.kind) == (b"c", VerdictKind.FRESH)
    poll_quiet(consumer)
    assert consumer.counters.verdicts["duplicate"] == 1
    # Completed: whoever is a day behind it finds it.
    [known] = MemoryClaimStore.claim(
        store, shared_id("c"), "late", 60_000, timestamps_ms=[then_ms + DAY_MS], window_ms=7 * DAY_MS
    )
    assert known.seen_ms == then_ms


def test_what_is_old_is_not_handed_back(back: Any, store: Watched, kafka: MockKafka) -> None:
    """One ID that names two messages, ten days apart, in a backlog: copies of both would be one for who goes by when they were sent."""
    now = now_ms()
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for partition, age_days in enumerate([20, 10]):
        producer.produce(
            "pairs", "b", headers={"dedup-id": "b"}, partition=partition, timestamp=now - age_days * DAY_MS
        )
    producer.produce("orders", "y", headers={"dedup-id": "y"}, partition=0, timestamp=now - 60_000)
    assert producer.flush(PATIENCE_S) == 0
    claim_as(store, "y")
    given = claim_as(store, "b")
    consumer = back("pairs", "orders", "letters")
    wait_for(consumer, handed_back(consumer, 1), "the copy of what is young")
    assert poll_quiet(consumer) == []
    release(store, "b", given)
    assert values(poll_some(consumer, 2)) == ["b", "b"]
    assert values(dead_letters(kafka, "letters")) == ["y"]


def test_a_copy_of_a_message_without_a_timestamp_has_none(
    back: Any, store: Watched, kafka: MockKafka
) -> None:
    """As its twin that was completed, which is no older than it."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce("orders", "b", headers={"dedup-id": "b"}, partition=0, timestamp=-1)
    assert producer.flush(PATIENCE_S) == 0
    given = claim_as(store, "b")
    consumer = back("orders", "letters")
    wait_for(consumer, handed_back(consumer, 1), "the copy")
    [copy] = dead_letters(kafka, "letters")
    letter = DeadLetter.read(copy)
    assert letter is not None
    assert letter.timestamp_ms == -1
    assert complete_as(store, "b", given, -1)
    wait_for(consumer, lambda: consumer.counters.verdicts["duplicate"] == 1, "the duplicate")


def test_a_topic_of_another_window_hands_nothing_back(
    back: Any, send: Send, store: Watched, kafka: MockKafka
) -> None:
    """There it could be judged otherwise: handled again where the window is shorter."""
    given = claim_as(store, "b")
    send("b")
    windows = Windows(default=Window(days=7), topics={"letters": Window(hours=1)})
    consumer = back("orders", "letters", dedup=lookup(window=windows))
    poll_quiet(consumer)
    assert dead_letters(kafka, "letters") == []
    assert complete_as(store, "b", given, now_ms() - DAY_MS)
    wait_for(consumer, lambda: consumer.counters.verdicts["duplicate"] == 1, "the duplicate")


@pytest.mark.parametrize(
    ("shared", "options", "said"),
    [
        ({"scope": "global"}, {}, "needs the topic that messages are handed back to"),
        ({"scope": "partition"}, {"dead_letters": "retry"}, "needs a scope that holds the topic"),
        ({}, {"dead_letters": "retry"}, "origins={'retry': 'orders'}"),
        (
            {"scope": "global"},
            {
                "dead_letters": "retry",
                "dedup": lookup(window=Windows(default=Window(days=7), topics={"retry": Window.off()})),
            },
            "the window of retry is off",
        ),
        ({"scope": "global", "hand_back_after": -1}, {"dead_letters": "retry"}, "hand_back_after=-1"),
    ],
)
def test_settings_that_hand_back_nothing_are_refused(
    make: Make, store: Watched, shared: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    """In one line that says what to do."""
    with pytest.raises(ConfigurationError) as caught:
        make("orders", shared=Shared(store, in_flight="hand-back", **shared), **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_topic_of_another_scope_hands_nothing_back(
    make: Make, send: Send, store: Watched, kafka: MockKafka, letters: str
) -> None:
    """With the scope of a topic the retry topic has one origin: messages of another one wait, as if they were parked."""
    send("a", topic="pairs", partition=0)
    shared = Shared(store, in_flight="hand-back", hand_back_after=0, origins={letters: "orders"})
    consumer = make("pairs", shared=shared, dead_letters=letters, completion="explicit")
    [first] = poll_some(consumer, 1)
    send("a", topic="pairs", partition=1)
    assert poll_quiet(consumer) == []
    consumer.complete(first)
    wait_for(consumer, lambda: consumer.counters.verdicts["duplicate"] == 1, "the duplicate")
    assert dead_letters(kafka, letters) == []


def test_it_is_asked_for_until_its_copy_arrived(
    back: Any, send: Send, store: Watched, kafka: MockKafka
) -> None:
    """A broker that takes no copies delays nothing: here it is handled, and the copy, if it comes after all, is a duplicate."""
    given = claim_as(store, "b")
    send("b")
    kafka.push_errors("Produce", KafkaError.NOT_LEADER_FOR_PARTITION, 1_000_000)
    consumer = back("orders", "letters")
    assert poll_quiet(consumer) == []
    release(store, "b", given)
    [b] = poll_some(consumer, 1)
    assert b.topic() == "orders"
    kafka.clear_errors("Produce")
    wait_for(consumer, lambda: consumer.counters.verdicts["duplicate"] == 1, "the copy")
    assert consumer.counters.shared.get("handed_back", 0) == 0
    assert poll_quiet(consumer) == []
