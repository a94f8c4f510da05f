"""What the group has committed when a consumer that sought ends in good order."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from dedup_sdk import MemoryStore
from dedup_sdk._kafka.client.client import Client
from tests.support import inside, interrupting
from tests.support.consuming import (
    active,
    commit_plainly,
    committed,
    numbers,
    poll_quiet,
    poll_some,
    values,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

BEGUN = [pytest.param(0, id="nothing committed"), pytest.param(20, id="20 committed")]
POLLS = [pytest.param(0, id="no poll"), pytest.param(1, id="one poll")]
PLACES = [pytest.param(True, id="same store"), pytest.param(False, id="elsewhere")]


def orders(offset: int) -> TopicPartition:
    """A place in orders[0]."""
    return TopicPartition("orders", 0, offset)


def handled(consumer: Any, count: int, *, begun: int = 0) -> None:
    """Have messages handled, and completed; the first ``begun`` are committed."""
    if begun:
        for message in poll_some(consumer, begun):
            consumer.complete(message)
        consumer.commit(asynchronous=False)
    for message in poll_some(consumer, count - begun):
        consumer.complete(message)


@pytest.mark.parametrize("begun", BEGUN)
@pytest.mark.parametrize("polls", POLLS)
@pytest.mark.parametrize("same", PLACES)
@pytest.mark.parametrize("target", [10, 50, 80])
def test_an_end_after_a_seek_repeats_nothing(
    make: Make, send: Send, kafka: MockKafka, *, begun: int, polls: int, same: bool, target: int
) -> None:
    """Nothing was read at the target: the group stands where it was, on this machine and on another."""
    send(*numbers(0, 80))
    consumer = make("orders")
    handled(consumer, 80, begun=begun)
    consumer.seek(orders(target))
    read = [message for message in [consumer.poll(0) for _ in range(polls)] if message is not None]
    consumer.close()
    # A client that was quick has read the target; then the seek came true.
    stands = target if read else 80

    assert committed(kafka.bootstrap, "g", "orders").offset == stands
    send("new")
    following = make("orders") if same else make("orders", store=MemoryStore())
    assert values(poll_quiet(following)) == [*numbers(stands, 80), "new"]


def seek_twice(consumer: DedupConsumer) -> None:
    """Back, and further back."""
    consumer.seek(orders(50))
    consumer.seek(orders(10))


def seek_back_and_forth(consumer: DedupConsumer) -> None:
    """Back, and to the own position."""
    consumer.seek(orders(50))
    consumer.seek(orders(80))


def seek_later(consumer: DedupConsumer) -> None:
    """Another thread seeks while a callback runs: it is done by the next call for messages."""
    with inside.busy_client(consumer, in_callback=True):
        consumer.seek(orders(50))
    inside.let_time_pass(consumer)
    assert consumer.poll(0) is None


def seek_and_be_interrupted(consumer: DedupConsumer) -> None:
    """Every partition is opened again, from where the seek put it."""
    consumer.seek(orders(50))
    inside.interrupt(consumer)
    assert consumer.poll(0) is None


def seek_and_commit(consumer: DedupConsumer) -> None:
    """A commit of all that is completed."""
    consumer.seek(orders(50))
    with suppress(KafkaException):
        consumer.commit(asynchronous=False)


@pytest.mark.parametrize(
    "way", [seek_twice, seek_back_and_forth, seek_later, seek_and_be_interrupted, seek_and_commit]
)
def test_no_way_to_seek_repeats_anything(
    make: Make, send: Send, kafka: MockKafka, way: Callable[[DedupConsumer], None]
) -> None:
    """Nothing is read behind the seek, and the consumer ends."""
    send(*numbers(0, 80))
    consumer = make("orders")
    handled(consumer, 80)
    way(consumer)
    consumer.close()

    assert committed(kafka.bootstrap, "g", "orders").offset == 80
    assert poll_quiet(make("orders", store=MemoryStore())) == []


@pytest.mark.parametrize("place", ["Positions._seek", "Starts.resolve", "Session.move"])
def test_a_seek_beside_a_callback_outlives_a_signal(make: Make, send: Send, place: str) -> None:
    """The thread that called it was told that all is well: a signal in the call that does it drops nothing."""
    send(*numbers(0, 80))
    consumer = make("orders")
    handled(consumer, 80)
    with inside.busy_client(consumer, in_callback=True):
        consumer.seek(orders(50))
    inside.let_time_pass(consumer)
    interrupting.strike_at(place)
    with pytest.raises(interrupting.Interrupted):
        consumer.poll(0)
    assert values(poll_some(consumer, 30)) == numbers(50, 80)


@pytest.mark.parametrize("committed_before", [False, True])
def test_what_is_read_behind_a_seek_back_sets_the_group_back(
    make: Make, send: Send, kafka: MockKafka, *, committed_before: bool
) -> None:
    """The wish of the seek outlives an end in the middle: what was handled again is known, the rest comes."""
    send(*numbers(0, 80))
    consumer = make("orders")
    handled(consumer, 80)
    if committed_before:
        consumer.commit(asynchronous=False)
    consumer.seek(orders(50))
    in_hand = poll_some(consumer, 4)[-1]
    consumer.close()

    assert values([in_hand]) == ["53"]
    assert committed(kafka.bootstrap, "g", "orders").offset == 53
    assert values(poll_quiet(make("orders"))) == numbers(53, 80)


def test_the_message_in_hand_behind_a_seek_back_comes_again(make: Make, send: Send) -> None:
    """Its handler may have failed: the first one, too, that the seek brought."""
    send(*numbers(0, 80))
    consumer = make("orders")
    handled(consumer, 80)
    consumer.commit(asynchronous=False)
    consumer.seek(orders(50))
    assert values(poll_some(consumer, 1)) == ["50"]
    consumer.close()

    assert values(poll_quiet(make("orders"))) == numbers(50, 80)


def test_a_seek_forward_commits_what_was_handled(make: Make, send: Send) -> None:
    """Elsewhere nothing comes again; what the seek was to skip comes, if the consumer ends before it has moved."""
    send(*numbers(0, 80))
    consumer = make("orders")
    handled(consumer, 40)
    consumer.seek(orders(60))
    consumer.close()

    assert values(poll_quiet(make("orders", store=MemoryStore()))) == numbers(40, 80)


def test_a_seek_in_a_callback_of_a_revocation(make: Make, send: Send, kafka: MockKafka) -> None:
    """The next owner begins where this one has handled all."""
    send(*numbers(0, 80))
    consumer, gone = make(), []

    def seek_back(same: Any, partitions: Any) -> None:
        gone.append(partitions)
        same.seek(orders(50))

    consumer.subscribe(["orders"], on_revoke=seek_back)
    handled(consumer, 80)
    kafka.push_errors("Heartbeat", KafkaError.REBALANCE_IN_PROGRESS, 1)
    got = wait_for(consumer, lambda: bool(gone), "the revocation")

    assert committed(kafka.bootstrap, "g", "orders").offset == 80
    assert got + poll_quiet(consumer) == []


def test_a_seek_in_a_handler_keeps_what_has_ended(make: Make, send: Send, kafka: MockKafka) -> None:
    """`run` completes handlers that have returned, also where it is a handler that seeks."""
    send(*numbers(0, 80))
    consumer = make("orders", idle_timeout=2)
    got: list[str] = []

    def handle(message: Any) -> None:
        got.append(message.value().decode())
        if message.offset() == 79:
            consumer.seek(orders(79))
            consumer.stop()

    consumer.run(handle)
    consumer.close()
    assert got == numbers(0, 80)
    assert committed(kafka.bootstrap, "g", "orders").offset == 79


STORED = {"enable.auto.offset.store": False}
BY_USER = {"enable.auto.commit": False}


@pytest.mark.parametrize(("config", "stands"), [(STORED, 80), (BY_USER, 0)], ids=["stored", "by the user"])
def test_a_seek_commits_what_the_consumer_commits(
    make: Make, send: Send, kafka: MockKafka, config: dict[str, Any], stands: int
) -> None:
    """Stored offsets it does, and nothing where only the application commits."""
    send(*numbers(0, 80))
    consumer = make("orders", config=config)
    for message in poll_some(consumer, 80):
        consumer.store_offsets(message)
    consumer.seek(orders(50))
    consumer.close()

    assert max(0, committed(kafka.bootstrap, "g", "orders").offset) == stands


def test_a_commit_of_the_users_offset_takes_the_place_of_a_seeks(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """Who names an offset after a seek back gets it."""
    send(*numbers(0, 80))
    consumer = make("orders")
    handled(consumer, 80)
    consumer.seek(orders(50))
    while "recovering" in {status.state for status in consumer.partition_statuses}:
        inside.recover(consumer)
    consumer.commit(offsets=[orders(50)], asynchronous=False)
    consumer.close()

    assert committed(kafka.bootstrap, "g", "orders").offset == 50


def test_what_was_completed_out_of_order_outlives_a_seek_back(make: Make, send: Send) -> None:
    """The next owner's store knows the group from before the seek: what was handled since is not for it again."""
    send(*numbers(0, 10))
    before = MemoryStore()
    with make("orders", store=before) as consumer:
        handled(consumer, 10)
    with make("orders", store=MemoryStore(), completion="explicit") as consumer:
        poll_quiet(consumer)
        consumer.seek(orders(2))
        for message in poll_some(consumer, 8):
            if message.offset() in {3, 4, 7}:
                consumer.complete(message)

    assert values(poll_quiet(make("orders", store=before))) == ["2", "5", "6", "8", "9"]


def test_a_seek_to_the_own_place_is_no_move(make: Make, send: Send) -> None:
    """As in the plain client: nothing comes again, and what is in flight can be completed."""
    send(*numbers(0, 6))
    with make("orders", completion="explicit") as consumer:
        messages = poll_some(consumer, 6)
        consumer.complete(messages[2])
        consumer.seek(orders(6))
        send("new")
        assert values(poll_some(consumer, 1)) == ["new"]
        consumer.complete(messages[0])
        consumer.complete(messages[3])
        assert consumer.counters.as_dict().get("stale", 0) == 0

    assert values(poll_quiet(make("orders", store=MemoryStore()))) == ["1", "4", "5", "new"]


def test_what_was_completed_out_of_order_outlives_a_seek_to_the_last_message(make: Make, send: Send) -> None:
    """The group learns what was completed since its last commit, although the offset is the same."""
    send(*numbers(0, 10))
    with make("orders", completion="explicit") as consumer:
        first, *messages = poll_some(consumer, 10)
        consumer.complete(first)
        consumer.complete(messages[2])
        consumer.commit(asynchronous=False)
        consumer.complete(messages[4])
        # An unanswered commit is no reason to forget.
        with suppress(KafkaException):
            consumer.commit(asynchronous=True)
        consumer.complete(messages[6])
        consumer.seek(orders(9))
        assert values(poll_some(consumer, 1)) == ["1"]

    assert values(poll_quiet(make("orders", store=MemoryStore()))) == ["1", "2", "4", "6", "8", "9"]


def read_with_gaps(consumer: DedupConsumer) -> None:
    """Get ten messages; 0 to 3, 5 and 7 are completed, the others are in flight."""
    for message in poll_some(consumer, 10):
        if message.offset() in {0, 1, 2, 3, 5, 7}:
            consumer.complete(message)


@pytest.mark.parametrize("config", [{}, BY_USER], ids=["auto", "by the user"])
def test_a_seek_between_what_is_completed_and_what_was_read_loses_nothing(
    make: Make, send: Send, config: dict[str, Any]
) -> None:
    """All from the target on comes again, and below it what was in flight."""
    send(*numbers(0, 10))
    consumer = make("orders", completion="explicit", config=config)
    read_with_gaps(consumer)
    consumer.seek(orders(7))

    assert values(poll_quiet(consumer)) == ["4", "6", "7", "8", "9"]
    assert consumer.counters.verdicts["unverified"] == 0


def test_two_seeks_in_a_row_count_as_the_last(make: Make, send: Send) -> None:
    """The first has brought nothing, so that the second begins where that one began."""
    send(*numbers(0, 10))
    consumer = make("orders", completion="explicit")
    read_with_gaps(consumer)
    consumer.seek(orders(5))
    consumer.seek(orders(8))

    assert values(poll_quiet(consumer)) == ["4", "6", "8", "9"]


def test_an_owner_after_a_seek_between_repeats_what_it_asked_for(make: Make, send: Send) -> None:
    """Elsewhere, too, what is completed below the target stays so."""
    send(*numbers(0, 10))
    with make("orders", completion="explicit") as consumer:
        read_with_gaps(consumer)
        consumer.seek(orders(7))
        consumer.complete(poll_some(consumer, 1)[0])

    assert values(poll_quiet(make("orders", store=MemoryStore()))) == ["6", "7", "8", "9"]


def test_a_seek_behind_a_released_message_gives_it_up_only_with_what_was_not_read(
    make: Make, send: Send
) -> None:
    """The place that was reached is not that of a message which waits to come again."""
    send(*numbers(0, 10))
    consumer = make("orders", completion="explicit")
    messages = poll_some(consumer, 8)
    consumer.release(messages[2])
    consumer.complete(messages[0])
    consumer.seek(orders(5))

    assert values(poll_quiet(consumer)) == numbers(1, 10)


@pytest.mark.parametrize("paused", [False, True])
def test_a_seek_to_a_hidden_record_behind_the_last_message_goes_back(
    make: Make, send: Send, kafka: MockKafka, *, paused: bool
) -> None:
    """It lies before the position, also while the messages behind it wait for the end of a pause."""
    send("0", "1", "1", "1", *numbers(4, 20))
    consumer = make("orders", completion="explicit")
    assert values(poll_some(consumer, 2)) == ["0", "1"]
    assert consumer.position([orders(0)])[0].offset == 4
    if paused:
        consumer.pause([orders(0)])
    consumer.seek(orders(3))
    consumer.resume([orders(0)])

    assert values(poll_quiet(consumer)) == ["0", "1", *numbers(4, 20)]
    consumer.close()
    assert max(0, committed(kafka.bootstrap, "g", "orders").offset) == 0


def test_a_seek_forward_over_held_messages_skips_them(make: Make, send: Send) -> None:
    """Messages that were fetched, and wait for the end of a pause, were not reached."""
    send(*numbers(0, 10))
    consumer = make("orders")
    assert values(poll_some(consumer, 2)) == ["0", "1"]
    consumer.pause([orders(0)])
    assert poll_quiet(consumer) == []
    consumer.seek(orders(7))
    consumer.resume([orders(0)])

    assert values(poll_quiet(consumer)) == ["7", "8", "9"]


def test_stored_offsets_do_not_pass_what_a_seek_leaves_in_flight(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """A program that stores offsets has handled nothing yet: nothing is committed, and all comes again."""
    send(*numbers(0, 10))
    consumer = make("orders", config=STORED)
    poll_some(consumer, 10)
    consumer.seek(orders(6))
    assert values(poll_quiet(consumer)) == numbers(0, 10)
    consumer.close()

    assert max(0, committed(kafka.bootstrap, "g", "orders").offset) == 0


class SlowCoordinator:
    """Does not say which offsets the group has committed, until it is not silent any more."""

    is_silent = True


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> SlowCoordinator:
    """The coordinator of all groups, silent."""
    slow, real = SlowCoordinator(), Client.committed

    def ask(client: Client, *arguments: Any) -> Any:
        if slow.is_silent:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return real(client, *arguments)

    monkeypatch.setattr(Client, "committed", ask)
    return slow


def test_a_seek_before_the_offsets_are_known_begins_as_a_new_group_does(
    make: Make, send: Send, kafka: MockKafka, coordinator: SlowCoordinator
) -> None:
    """The coordinator is slow: no message comes before the group has a commit, and all before it counts as unread."""
    send(*numbers(0, 10))
    consumer = make(config={"enable.auto.commit": False})
    consumer.assign([orders(OFFSET_INVALID)])
    consumer.seek(orders(2))
    consumer.seek(orders(4))
    coordinator.is_silent = False
    [message] = poll_some(consumer, 1)
    verdict = consumer.verdict(message)
    assert (message.offset(), verdict and verdict.kind) == (4, "fresh")
    assert committed(kafka.bootstrap, "g", "orders").offset == 4


@pytest.mark.parametrize("target", [2, 7])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_seek_alone_moves_no_group_that_the_plain_client_has_committed(
    make: Make, send: Send, kafka: MockKafka, *, target: int, at_once: bool
) -> None:
    """The text of that commit is void; what the seek skips, or asks for, is for the next owner to decide as well."""
    send(*numbers(0, 10))
    commit_plainly(kafka.bootstrap, "g", "orders", 5)
    consumer = make(config={"enable.auto.commit": False})
    consumer.assign([orders(OFFSET_INVALID)])
    if not at_once:
        wait_for(consumer, lambda: bool(active(consumer)), "the recovery")
    consumer.seek(orders(target))
    assert [message.offset() for message in poll_some(consumer, 1)] == [target]
    consumer.close()
    assert committed(kafka.bootstrap, "g", "orders").offset == 5


@pytest.mark.parametrize(
    "place", ["Session.move", "Session._begin_again", "Client.pause", "RecoveryLoop.step"]
)
def test_a_seek_that_waits_for_the_offsets_outlives_an_interruption(
    make: Make, send: Send, coordinator: SlowCoordinator, place: str
) -> None:
    """The call has returned: the partition is moved, however late."""
    send(*numbers(0, 10))
    consumer = make()
    consumer.assign([orders(OFFSET_INVALID)])
    consumer.seek(orders(4))
    inside.interrupt(consumer)
    consumer.poll(0)
    coordinator.is_silent = False
    interrupting.strike_at(place)
    try:
        with suppress(interrupting.Interrupted):
            assert poll_some(consumer, 1)[0].offset() == 4
    finally:
        sys.setprofile(None)
    assert poll_some(consumer, 1)[0].offset() in (4, 5)
