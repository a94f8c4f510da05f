from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk._commit_text import CommitMetadata
from dedup_sdk._kafka.deliver import judge
from tests.support import inside
from tests.support.consuming import (
    PATIENCE_S,
    committed,
    committed_metadata,
    poll_quiet,
    poll_some,
    values,
    wait_for,
)

if TYPE_CHECKING:
    from dedup_sdk import DedupConsumer, MemoryStore
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

BY_USER = {"enable.auto.commit": False}


def offset_of(kafka: MockKafka) -> int:
    """The offset that group "g" has committed of orders[0]."""
    return committed(kafka.bootstrap, "g", "orders").offset


def test_the_beginning_is_committed_at_once(make: Make, send: Send, kafka: MockKafka) -> None:
    """A new group says where its history begins before it handles anything, so that any machine knows."""
    send("a")
    consumer = make("orders")
    poll_some(consumer, 1)

    metadata = committed_metadata(kafka.bootstrap, "g", "orders")
    assert metadata is not None
    assert (offset_of(kafka), metadata.low, metadata.complete) == (0, 0, True)


def test_completed_messages_are_committed_on_an_interval(make: Make, send: Send, kafka: MockKafka) -> None:
    """Without any call: messages asked past, and duplicates behind it, with metadata."""
    send("a", "b", "a", "b")
    consumer = make("orders", config={"auto.commit.interval.ms": 50})
    poll_some(consumer, 2)

    wait_for(consumer, lambda: offset_of(kafka) == 4, "a commit on the interval")
    assert committed_metadata(kafka.bootstrap, "g", "orders") is not None


def test_commit_of_all_completes_what_is_in_hand(make: Make, send: Send, kafka: MockKafka) -> None:
    """commit() says that everything handed out is handled; not messages judged ahead and not handed out."""
    send("a", "b", "c", "d")
    consumer = make("orders", config=BY_USER)
    poll_some(consumer, 2)

    answer = consumer.commit(asynchronous=False)

    assert answer is not None
    assert [(tp.topic, tp.partition, tp.offset, tp.error) for tp in answer] == [("orders", 0, 2, None)]
    assert offset_of(kafka) == 2
    metadata = committed_metadata(kafka.bootstrap, "g", "orders")
    assert metadata is not None
    assert metadata.low == 0


def test_commit_of_a_message_completes_up_to_it(make: Make, send: Send, kafka: MockKafka) -> None:
    """Those handed out after the message stay in flight, and come again."""
    send("a", "b", "c", "d")
    consumer = make("orders", config=BY_USER)
    batch = consumer.consume(3, PATIENCE_S)

    consumer.commit(message=batch[1], asynchronous=False)
    assert offset_of(kafka) == 2
    consumer.close()
    assert values(poll_quiet(make("orders"))) == ["c", "d"]


def test_commit_of_offsets_completes_below_them(make: Make, send: Send, kafka: MockKafka) -> None:
    """Offsets are "the next one"; one beyond the messages handed out goes no further than those."""
    send("a", "b", "c", "d")
    consumer = make("orders", config=BY_USER)
    consumer.consume(3, PATIENCE_S)

    consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    assert offset_of(kafka) == 1
    consumer.commit(offsets=[TopicPartition("orders", 0, 1000)], asynchronous=False)
    assert offset_of(kafka) == 3


@pytest.mark.parametrize("named", [False, True])
def test_a_commit_completes_what_came_behind_a_released_message(
    make: Make, send: Send, *, named: bool
) -> None:
    """The commit stops at the released one, but messages handled behind it are remembered."""
    send("a", "b", "c")
    config = {"enable.auto.commit": False}
    consumer = make("orders", config=config)
    first, _, last = poll_some(consumer, 3)
    consumer.release(first)
    consumer.commit(last if named else None)
    consumer.close()

    again = make("orders", config=config)
    assert values(poll_quiet(again)) == ["a"]
    assert again.counters.verdicts["redelivered"] == 2


def test_an_asynchronous_commit_returns_none_and_calls_back(make: Make, send: Send, kafka: MockKafka) -> None:
    """Like the plain client's, which is the default; the callback of the configuration is called with the answer."""
    answers: list[tuple[KafkaError | None, list[TopicPartition]]] = []
    send("a", "b")
    consumer = make("orders", config={**BY_USER, "on_commit": lambda *answer: answers.append(answer)})
    poll_some(consumer, 1)

    assert consumer.commit() is None
    wait_for(consumer, lambda: bool(answers), "on_commit")
    assert offset_of(kafka) == 1
    assert [(error, [tp.offset for tp in partitions]) for error, partitions in answers] == [(None, [1])]


def test_the_last_of_many_asynchronous_commits_is_not_left_behind(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """A loop that commits each message and closes at once has committed all of them."""
    send("a", "b", "c", "d", "e")
    consumer = make("orders", config=BY_USER)
    for message in poll_some(consumer, 5):
        consumer.commit(message=message)
    consumer.close()
    assert offset_of(kafka) == 5


def test_nothing_to_commit_is_an_error_only_for_who_waits(make: Make, send: Send) -> None:
    """Synchronous: _NO_OFFSET, as the plain client says; asynchronous: None."""
    send("a")
    consumer = make("orders", config=BY_USER)
    poll_some(consumer, 1)
    consumer.commit(asynchronous=False)

    with pytest.raises(KafkaException) as caught:
        consumer.commit(asynchronous=False)
    assert caught.value.args[0].code() == KafkaError._NO_OFFSET
    assert consumer.commit() is None


def test_commit_takes_a_message_or_offsets(make: Make, send: Send) -> None:
    """Both at once are refused, as the plain client does; store_offsets needs one of them."""
    send("a")
    consumer = make("orders", config=BY_USER)
    message = poll_some(consumer, 1)[0]

    with pytest.raises(ValueError, match="mutually exclusive"):
        consumer.commit(message=message, offsets=[TopicPartition("orders", 0, 1)])
    with pytest.raises(ValueError, match="either message or offsets"):
        consumer.store_offsets()


def test_a_commit_never_goes_back(make: Make, send: Send, kafka: MockKafka) -> None:
    """A late commit of an earlier message leaves the committed offset.

    A group that went back would see all of it again.
    """
    send("a", "b", "c")
    consumer = make("orders", config=BY_USER)
    first, _, last = poll_some(consumer, 3)
    consumer.commit(message=last, asynchronous=False)

    consumer.commit(message=first, asynchronous=False)

    assert offset_of(kafka) == 3


def test_no_commit_passes_an_unfinished_message(make: Make, send: Send, kafka: MockKafka) -> None:
    """With explicit completion a commit, of whatever form, ends before the first message that is not completed."""
    send("a", "b", "c")
    consumer = make("orders", config=BY_USER, completion="explicit")
    first, second, third = poll_some(consumer, 3)
    consumer.complete(first)
    consumer.complete(third)

    for how in ({}, {"message": third}, {"offsets": [TopicPartition("orders", 0, 3)]}):
        consumer.commit(**how, asynchronous=False)
        assert offset_of(kafka) == 1
    consumer.complete(second)
    consumer.commit(asynchronous=False)
    assert offset_of(kafka) == 3


def test_stored_offsets_go_with_the_next_commit(make: Make, send: Send, kafka: MockKafka) -> None:
    """store_offsets completes messages handed out up to that one; the commit on the interval takes it along."""
    send("a", "b", "c")
    consumer = make("orders")
    batch = consumer.consume(3, PATIENCE_S)
    consumer.store_offsets(message=batch[0])
    consumer.store_offsets(offsets=[TopicPartition("orders", 0, 2)])
    consumer.close()

    assert offset_of(kafka) == 2
    assert values(poll_quiet(make("orders"))) == ["c"]


def test_where_only_the_user_commits_nobody_else_does(make: Make, send: Send, kafka: MockKafka) -> None:
    """enable.auto.commit=false: neither an interval, nor a revoke, nor close moves the committed offset."""
    send("a", "b", "c")
    consumer = make("orders", config={**BY_USER, "auto.commit.interval.ms": 10})
    poll_some(consumer, 2)
    poll_quiet(consumer)
    consumer.close()

    assert offset_of(kafka) == 0


@pytest.mark.parametrize("code", [KafkaError.REBALANCE_IN_PROGRESS, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_a_refused_commit_is_raised_and_repeated(make: Make, send: Send, kafka: MockKafka, code: int) -> None:
    """A synchronous commit that the broker refuses says so; its offset is not taken for committed."""
    send("a", "b")
    consumer = make("orders", config=BY_USER)
    poll_some(consumer, 1)
    kafka.push_errors("OffsetCommit", code)

    with pytest.raises(KafkaException) as caught:
        consumer.commit(asynchronous=False)
    assert caught.value.args[0].code() == code
    consumer.commit(asynchronous=False)
    assert offset_of(kafka) == 1


def test_a_refused_commit_on_the_interval_is_repeated(make: Make, send: Send, kafka: MockKafka) -> None:
    """Polling goes on without an exception, and the next interval makes up for it."""
    send("a", "b")
    consumer = make("orders", config={"auto.commit.interval.ms": 50})
    poll_some(consumer, 1)
    kafka.push_errors("OffsetCommit", KafkaError.REBALANCE_IN_PROGRESS, 2)

    got = wait_for(consumer, lambda: offset_of(kafka) == 2, "a repeated commit")
    assert values(got) == ["b"]


def test_nothing_is_delivered_before_the_group_knows_where_it_begins(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """A refused first commit is asked for again.

    A crash before it would make the group look new, and double everything.
    """
    send("a", "b")
    kafka.push_errors("OffsetCommit", KafkaError.REBALANCE_IN_PROGRESS, 1_000)
    consumer = make("orders", config={"auto.commit.interval.ms": 60_000})

    waiting = [("beginning",)]
    early = wait_for(
        consumer, lambda: [each.hindrances for each in consumer.partition_statuses] == waiting, "it waits"
    )
    early += [m for m in (consumer.poll(0.05) for _ in range(10)) if m is not None]
    assert early == []
    kafka.clear_errors("OffsetCommit")
    assert values(poll_some(consumer, 1)) == ["a"]
    metadata = committed_metadata(kafka.bootstrap, "g", "orders")
    assert metadata is not None
    assert metadata == CommitMetadata(low=0, complete=True, era=metadata.era)
    assert metadata.era
    assert offset_of(kafka) == 0


def test_a_crash_after_the_first_message_doubles_nothing_that_the_disk_knows(
    make: Make, send: Send, memory: MemoryStore
) -> None:
    """The next owner of the disk finds a group that it knows, though nothing was committed since the beginning."""
    send("a", "b", "c")
    dying = make("orders", config={"auto.commit.interval.ms": 60_000}, completion="explicit")
    for message in poll_some(dying, 2):
        dying.complete(message)
    crash(dying)

    again = make("orders", store=memory)
    assert values(poll_quiet(again)) == ["c"]
    assert again.counters.verdicts["redelivered"] == 2


def crash(consumer: DedupConsumer) -> None:
    """Leave as a killed process does: nothing is written or committed."""
    inside.lose_all(consumer)
    consumer.close()


def test_a_refused_commit_at_the_end_repeats_only_what_the_store_does_not_know(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """Close goes on when the broker refuses; the same store recognises completed messages."""
    send("a", "b", "c")
    consumer = make("orders")
    poll_some(consumer, 2)
    kafka.push_errors("OffsetCommit", KafkaError.UNKNOWN_MEMBER_ID, 1)
    consumer.close()

    assert offset_of(kafka) == 0
    again = make("orders")
    assert values(poll_quiet(again)) == ["b", "c"]


def test_a_commit_inside_on_revoke_works(make: Make, send: Send, kafka: MockKafka) -> None:
    """The common pattern: the user's callback commits synchronously while the partition is still ours."""
    send("a", "b")
    consumer = make(config=BY_USER)
    answers: list[Any] = []
    consumer.subscribe(["orders"], on_revoke=lambda c, _: answers.append(c.commit(asynchronous=False)))
    poll_some(consumer, 2)
    consumer.close()

    assert [[tp.offset for tp in answer] for answer in answers] == [[1]]
    assert offset_of(kafka) == 1


def test_what_was_gathered_and_not_committed_comes_again(make: Make, send: Send, kafka: MockKafka) -> None:
    """With enable.auto.commit=false a loop that buffers, writes and then commits loses nothing if it dies before."""
    send("a", "b", "c", "d")
    dying = make("orders", config=BY_USER)
    assert values(poll_some(dying, 3)) == ["a", "b", "c"]
    dying.close()

    again = make("orders", config=BY_USER)
    buffered = poll_some(again, 4)
    assert values(buffered) == ["a", "b", "c", "d"]
    again.commit(buffered[1], asynchronous=False)
    assert offset_of(kafka) == 2
    again.commit(asynchronous=False)
    assert offset_of(kafka) == 4
    again.close()

    assert values(poll_quiet(make("orders", config=BY_USER))) == []


def test_a_commit_in_a_callback_counts_while_there_is_enough_to_hand_out(
    make: Make, send: Send, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow handler's poll listens to the group too: a commit in on_revoke then completes the messages handed out."""
    monkeypatch.setattr(judge, "MOST_ALONE", 0)
    send("a", "b", "c", "d")
    consumer = make("orders", config=BY_USER)
    poll_some(consumer, 2)
    fetcher = inside.fetcher_of(consumer)
    real = fetcher.listen

    def listen(wait_s: float) -> None:
        inside.run_as_callback(consumer, lambda: consumer.commit(asynchronous=False))
        real(wait_s)

    monkeypatch.setattr(fetcher, "listen", listen)
    inside.let_time_pass(consumer)

    assert values(poll_some(consumer, 1)) == ["c"]
    assert offset_of(kafka) == 2
