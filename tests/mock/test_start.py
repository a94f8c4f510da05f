"""Where a partition starts, and the commits when its reading moves."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk import ConfigurationError, MemoryStore, Recovery
from dedup_sdk._commit_text import parse_metadata
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.client.reader import TailReader
from dedup_sdk._kafka.recover import scheduler
from dedup_sdk.errors import RecoveryError
from tests.support.consuming import (
    commit_plainly,
    commit_text,
    committed,
    committed_metadata,
    lookup,
    poll_quiet,
    poll_some,
    values,
)

if TYPE_CHECKING:
    from dedup_sdk._kafka.recover.settings import WithoutCommit
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


SET_BACK = "below the committed offset"
"""What the line says that an assignment sets the group back."""


def at(offset: int) -> TopicPartition:
    """A place in orders[0]."""
    return TopicPartition("orders", 0, offset)


def begin_at(offset: int) -> Any:
    """A callback that sets where reading begins."""
    return lambda consumer, _: consumer.assign([at(offset)])


@pytest.mark.parametrize("same_disk", [True, False])
def test_an_offset_set_back_by_the_user_keeps_the_history(
    make: Make, send: Send, kafka: MockKafka, *, same_disk: bool
) -> None:
    """Messages handled before it are still known, later ones come again, on any machine."""
    send("a", "b", "c")
    with make("orders") as first:
        poll_some(first, 3)
    store: dict[str, Any] = {} if same_disk else {"store": MemoryStore()}
    consumer = make(**store)
    consumer.subscribe(["orders"], on_assign=begin_at(1))

    assert values(poll_quiet(consumer)) == ["b", "c"]
    send("a", "d")
    assert values(poll_quiet(consumer)) == ["d"]
    assert consumer.counters.verdicts["unverified"] == 0
    metadata = committed_metadata(kafka.bootstrap, "g", "orders")
    assert metadata is not None
    assert (metadata.low, metadata.complete) == (0, True)


@pytest.mark.parametrize("same_disk", [True, False])
def test_an_overlap_of_known_messages_makes_none_new(
    make: Make, send: Send, *, same_disk: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """With ``set_back="known"`` they are not handled again, at no assignment; the default says once that they are."""
    send("a", "b", "c")
    with make("orders") as first:
        poll_some(first, 3)
    store: dict[str, Any] = {} if same_disk else {"store": MemoryStore()}
    known = make(recovery=Recovery(set_back="known"), **store)
    known.subscribe(["orders"], on_assign=begin_at(1))
    assert poll_quiet(known) == []
    send("a", "d")
    assert values(poll_quiet(known)) == ["d"]
    assert known.counters.verdicts["unverified"] == 0
    known.close()
    assert SET_BACK not in caplog.text

    again = make(**store)
    again.subscribe(["orders"], on_assign=begin_at(1))
    assert values(poll_quiet(again)) == ["b", "c", "d"]
    again.unsubscribe()
    again.subscribe(["orders"], on_assign=begin_at(1))
    assert values(poll_quiet(again)) == ["b", "c", "d"]
    (line,) = [each.getMessage() for each in caplog.records if SET_BACK in each.getMessage()]
    assert 'Recovery(set_back="known")' in line
    again.close()

    caplog.clear()
    chosen = make(recovery=Recovery(set_back="again"), **store)
    chosen.subscribe(["orders"], on_assign=begin_at(1))
    assert values(poll_quiet(chosen)) == ["b", "c", "d"]
    assert SET_BACK not in caplog.text


@pytest.mark.parametrize("metadata", ["", commit_text(3, low=2), commit_text(3, dedup=lookup(window="9n"))])
def test_an_overlap_of_unknown_messages_is_handled(
    make: Make, send: Send, kafka: MockKafka, metadata: str
) -> None:
    """Also with ``set_back="known"``.

    The group's history does not reach back so far, or does not exist by this rule.
    """
    send("a", "b", "c", "d")
    commit_plainly(kafka.bootstrap, "g", "orders", 3, metadata=metadata)
    consumer = make(recovery=Recovery(set_back="known"))
    consumer.subscribe(["orders"], on_assign=begin_at(1))
    assert values(poll_quiet(consumer)) == ["b", "c", "d"]


@pytest.mark.parametrize(
    "text", [commit_text(50, log="deadbeef"), commit_text(4000, low=4000, epoch=7), commit_text(40)]
)
def test_a_text_that_was_copied_from_another_cluster_is_not_believed(
    make: Make, send: Send, kafka: MockKafka, text: str
) -> None:
    """The text that a mirror brought beside a translated offset vouches for nothing.

    Earlier messages are unverified, not new, not seen.
    """
    send(*map(str, range(50)))
    commit_plainly(kafka.bootstrap, "g", "orders", 50, metadata=text)
    send("7", "new", "7")
    consumer = make("orders")
    assert values(poll_quiet(consumer)) == ["7", "new"]
    assert consumer.counters.verdicts["unverified"] == 2
    consumer.close()
    metadata = committed_metadata(kafka.bootstrap, "g", "orders")
    assert metadata is not None
    assert (metadata.low, metadata.complete) == (50, False)


def test_a_text_without_a_log_is_believed_and_gets_one(make: Make, send: Send, kafka: MockKafka) -> None:
    """A commit made before commits named their log stays good.

    The next commit names it, and another host believes it.
    """
    send(*map(str, range(50)))
    commit_plainly(kafka.bootstrap, "g", "orders", 50, metadata=commit_text(50))
    send("7", "new")
    with make("orders") as consumer:
        assert values(poll_quiet(consumer)) == ["new"]
    now = committed(kafka.bootstrap, "g", "orders")
    named = parse_metadata(now.metadata, committed=now.offset)
    assert named is not None
    assert len(named.log) == 8, "mock brokers have no topic IDs"
    send("7", "new", "newer")
    other = make("orders", store=MemoryStore())
    assert values(poll_quiet(other)) == ["newer"]


@pytest.mark.parametrize("by_group", [True, False])
@pytest.mark.parametrize(("last", "expected"), [(0, ""), (2, "cd"), (100, "abcd")])
def test_an_offset_counted_from_the_end_is_where_it_lies(
    make: Make, send: Send, last: int, expected: str, *, by_group: bool
) -> None:
    """As OFFSET_TAIL(n) of librdkafka: the last n records, whatever the group has committed."""
    send(*"abcd")
    consumer = make()
    if by_group:
        consumer.subscribe(["orders"], on_assign=begin_at(-2000 - last))
    else:
        consumer.assign([at(-2000 - last)])

    assert values(poll_quiet(consumer)) == list(expected)


def test_an_offset_that_is_no_place_is_refused(make: Make, send: Send) -> None:
    """It is not taken for something else: poll names the error."""
    send("a")
    consumer = make()
    consumer.subscribe(["orders"], on_assign=begin_at(-5))

    with pytest.raises(ConfigurationError, match="offset -5 is not valid"):
        poll_quiet(consumer)


@pytest.mark.parametrize("chosen", ["resume", "reset"])
def test_commits_that_expired_move_nobody_but_who_wants_it(
    make: Make,
    send: Send,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    chosen: WithoutCommit,
) -> None:
    """The group looks new, its store says that it is not: a warning says which of them counts.

    By the user's choice everything comes again, and with no doubt: the store knows what lies before.
    """
    send("a", "b")
    with make("orders") as first:
        poll_some(first, 2)

    def nothing(
        _: Client, partitions: list[TopicPartition], timeout_s: float | None = None
    ) -> dict[tuple[str, int], TopicPartition]:
        assert timeout_s is None or timeout_s > 0
        return {(p.topic, p.partition): TopicPartition(p.topic, p.partition, -1001) for p in partitions}

    monkeypatch.setattr(Client, "committed", nothing)
    consumer = make("orders", recovery=Recovery(without_commit=chosen))
    again = ["a", "b"] if chosen == "reset" else []
    with caplog.at_level(logging.WARNING, "dedup_sdk"):
        assert values(poll_quiet(consumer)) == again

    assert consumer.counters.verdicts["unverified"] == 0
    said = "the group has no committed offset" if again else "the group's commits are gone"
    assert f"orders[0]: {said}" in caplog.text


def gone(_: Client, partitions: list[TopicPartition], timeout_s: float | None = None) -> Any:
    """The group's offsets have expired."""
    assert timeout_s is None or timeout_s > 0
    return {(p.topic, p.partition): TopicPartition(p.topic, p.partition, -1001) for p in partitions}


def test_a_store_says_where_to_begin_where_a_reset_would_raise(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``auto.offset.reset=error`` is for groups of which nobody knows where they stand."""
    send("a", "b")
    with make("orders") as first:
        poll_some(first, 2)
    monkeypatch.setattr(Client, "committed", gone)
    send("c")
    strict = {"auto.offset.reset": "error"}
    with make("orders", config=strict) as consumer:
        assert values(poll_quiet(consumer)) == ["c"]
    for chosen in ({"store": MemoryStore()}, {"recovery": Recovery(without_commit="reset")}):
        consumer = make("orders", config=strict, **chosen)
        with pytest.raises(RecoveryError, match=r"auto\.offset\.reset=error"):
            poll_quiet(consumer)
        consumer.close()


@pytest.fixture
def ahead(make: Make, send: Send, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has completed offsets 0 to 3, and the group's commit is 2: a process died before its last commit."""
    send(*"abcd")
    with make("orders") as first:
        poll_some(first, 2)
    stood = committed(kafka.bootstrap, "g", "orders")
    with make("orders") as second:
        poll_some(second, 2)
    monkeypatch.setattr(Client, "committed", lambda *_: {("orders", 0): stood})


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize(("offset", "set_back"), [(2, None), (3, None), (2, "known")])
def test_an_offset_of_the_program_counts_more_than_a_store_that_is_ahead(
    make: Make, send: Send, offset: int, set_back: Any
) -> None:
    """The program, too, may say that the messages since the commit are to be handled."""
    consumer = make(recovery=Recovery(set_back=set_back))
    consumer.subscribe(["orders"], on_assign=begin_at(offset))

    assert values(poll_quiet(consumer)) == ([] if set_back else list("abcd"[offset:]))
    send("a", "e")
    assert values(poll_quiet(consumer)) == ["e"]
    assert consumer.counters.verdicts["unverified"] == 0


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_repeated_recovery_keeps_the_history_of_the_store(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """The first attempt begins the store anew, and fails; behind the next one earlier messages are known."""
    real, calls = TailReader.bounds, []

    def bounds(reader: TailReader) -> tuple[int, int]:
        calls.append(reader)
        if len(calls) == failing:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "Failed to get watermark offsets"))
        return real(reader)

    monkeypatch.setattr(TailReader, "bounds", bounds)
    consumer = make()
    consumer.subscribe(["orders"], on_assign=begin_at(3))

    assert values(poll_quiet(consumer)) == ["d"]
    assert len(calls) > failing
    send("a", "b", "e")
    assert values(poll_quiet(consumer)) == ["e"]
    assert consumer.counters.verdicts["unverified"] == 0


@pytest.mark.parametrize("how", ["close", "commit", "unassign"])
def test_a_commit_that_was_never_answered_is_no_commit(
    make: Make, send: Send, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Whoever waits for the answer sends again the offset that an asynchronous commit only asked for."""
    send("a", "b", "c")
    consumer = make("orders")
    poll_some(consumer, 2)
    real = Client.commit
    lost: list[int] = []

    def losing(client: Client, offsets: list[TopicPartition], *, asynchronous: bool) -> Any:
        if asynchronous:
            lost.append(offsets[0].offset)
            return None
        return real(client, offsets, asynchronous=False)

    monkeypatch.setattr(Client, "commit", losing)
    consumer.commit()
    assert lost == [2]
    if how == "commit":
        answer = consumer.commit(asynchronous=False)
        assert answer is not None
        assert [tp.offset for tp in answer] == [2]
    else:
        getattr(consumer, how)()

    assert committed(kafka.bootstrap, "g", "orders").offset == 2


def test_a_recovery_that_takes_too_long_is_given_up(make: Make, send: Send) -> None:
    """The partition starts all the same: messages not read again are in doubt, delivered and counted."""
    send("a", "b", "c")
    with make("orders") as first:
        poll_some(first, 3)
    send("a", "d")
    consumer = make("orders", store=MemoryStore(), recovery=Recovery(timeout=0))

    assert values(poll_quiet(consumer)) == ["a", "d"]
    assert consumer.counters.verdicts["unverified"] == 2
    assert consumer.counters.events == {"recovery-timeout": 1}
    consumer.close()
    assert values(poll_quiet(make("orders"))) == []


def test_a_recovery_in_time_is_whole(make: Make, send: Send) -> None:
    """A timeout that is not reached changes nothing."""
    send("a", "b")
    with make("orders") as first:
        poll_some(first, 2)
    send("a", "d")
    consumer = make("orders", store=MemoryStore(), recovery=Recovery(timeout=60))

    assert values(poll_quiet(consumer)) == ["d"]
    assert "recovery-timeout" not in consumer.counters.events


def test_a_partition_without_a_leader_is_waited_for(
    make: Make, send: Send, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long there is none.

    The others deliver meanwhile, no error ends the loop, and it delivers when there is one.
    """
    monkeypatch.setattr(scheduler, "UNKNOWN_S", 0.2)
    send("a", topic="pairs", partition=0)
    send("b", topic="pairs", partition=1)
    kafka.set_leader("pairs", 1, -1)
    consumer = make("pairs")
    assert values(poll_some(consumer, 1)) == ["a"]
    until = time.monotonic() + 3
    while time.monotonic() < until:
        assert consumer.poll(0.1) is None
    kafka.set_leader("pairs", 1, 1)
    assert values(poll_some(consumer, 1)) == ["b"]


def test_a_partition_that_does_not_exist_is_an_error(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for for ever, and the line names it."""
    monkeypatch.setattr(scheduler, "UNKNOWN_S", 0.2)
    # A real broker has no word for it here: nothing is committed.
    monkeypatch.setattr(
        Client, "committed", lambda _, asked, __=None: {(tp.topic, tp.partition): tp for tp in asked}
    )
    consumer = make()
    consumer.assign([TopicPartition("orders", 7)])
    with pytest.raises(
        RecoveryError, match=r"orders\[7\] is unknown to the broker: .*; does the topic exist\?"
    ):
        poll_some(consumer, 1)
