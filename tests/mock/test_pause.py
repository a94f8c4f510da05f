from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Any

from confluent_kafka import TopicPartition

from tests.support import inside
from tests.support.consuming import PATIENCE_S, numbers, poll_quiet, poll_some, progress, values

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from dedup_sdk import DedupConsumer
    from tests.mock.conftest import Make, Send

ORDERS = [TopicPartition("orders", 0)]


def test_a_paused_partition_delivers_nothing(make: Make, send: Send) -> None:
    """Not even messages judged ahead; after resume everything comes, in order, and only once."""
    send(*"abcdef", "b")
    consumer = make("orders")
    first = poll_some(consumer, 2)

    consumer.pause(ORDERS)
    assert poll_quiet(consumer) == []
    send("g", "c")
    assert poll_quiet(consumer) == []
    consumer.resume(ORDERS)
    rest = poll_some(consumer, 5)
    assert poll_quiet(consumer) == []

    assert values(first + rest) == list("abcdefg")
    assert progress(consumer) == (9, 0)


def test_what_was_fetched_and_not_judged_comes_after_resume(make: Make, send: Send) -> None:
    """A pause in the middle of a batch that is being gathered costs no message."""
    send("a", "b")
    consumer = make("orders", config={"enable.partition.eof": True})
    poll_some(consumer, 3)
    fetcher = inside.fetcher_of(consumer)
    fetcher.rest([])
    send("c", "d")
    while not fetcher.messages:
        fetcher.listen(0.1)
    consumer.pause(ORDERS)
    assert [m for m in poll_quiet(consumer) if m.error() is None] == []
    consumer.resume(ORDERS)

    assert values(poll_some(consumer, 2)) == ["c", "d"]


def test_a_pause_of_one_partition_leaves_the_others(make: Make, send: Send) -> None:
    """Messages judged ahead of a paused partition are kept back, those of others are handed out."""
    send(*"abc", topic="pairs", partition=0)
    send(*"xyz", topic="pairs", partition=1)
    consumer = make("pairs")
    got = poll_some(consumer, 1)
    paused = got[0].partition()
    consumer.pause([TopicPartition("pairs", paused)])

    others = poll_quiet(consumer)
    assert {message.partition() for message in others} == {1 - paused}
    assert len(others) == 3
    consumer.resume([TopicPartition("pairs", paused)])
    assert len(poll_some(consumer, 2)) == 2


def test_a_pause_during_recovery_stays(make: Make, send: Send) -> None:
    """A recovery that ends does not undo the user's pause; nor does the user's resume end the recovery."""
    send("a", "b")
    consumer = make("orders")
    while not consumer.partition_statuses:
        inside.fetcher_of(consumer).listen(0.05)
    assert consumer.partition_statuses[0].state == "recovering"
    consumer.pause(ORDERS)
    assert poll_quiet(consumer) == []
    consumer.resume(ORDERS)

    assert values(poll_some(consumer, 2)) == ["a", "b"]


def test_a_pause_inside_on_assign_stays(make: Make, send: Send) -> None:
    """The common pattern "assign, then pause" in the callback works as with the plain client."""
    send("a", "b")
    consumer = make()

    def assign_and_pause(same: Any, partitions: list[TopicPartition]) -> None:
        same.assign(partitions)
        same.pause(partitions)

    consumer.subscribe(["orders"], on_assign=assign_and_pause)
    assert poll_quiet(consumer) == []
    consumer.resume(ORDERS)
    assert values(poll_some(consumer, 2)) == ["a", "b"]


def test_a_released_message_of_a_paused_partition_waits(make: Make, send: Send) -> None:
    """Also a message handed back belongs to the partition: it comes with the resume."""
    send("a", "b")
    consumer = make("orders")
    first = poll_some(consumer, 1)[0]
    consumer.pause(ORDERS)
    consumer.release(first)
    assert poll_quiet(consumer) == []
    assert consumer.position([TopicPartition("orders", 0)])[0].offset == 0
    consumer.resume(ORDERS)

    assert sorted(values(poll_some(consumer, 2))) == ["a", "b"]
    poll_quiet(consumer)
    assert progress(consumer) == (2, 0)


def test_leaving_while_paused_releases_what_was_kept_back(make: Make, send: Send) -> None:
    """Messages that the application never saw come to the next consumer."""
    send(*"abcd")
    consumer = make("orders")
    consumer.consume(1, PATIENCE_S)
    poll_some(consumer, 1)
    consumer.pause(ORDERS)
    consumer.close()

    assert values(poll_quiet(make("orders")))[-2:] == ["c", "d"]


def test_a_seek_while_paused_counts_after_resume(make: Make, send: Send) -> None:
    """A seek forgets the messages kept back; resume delivers from the target."""
    send(*"abcd")
    consumer = make("orders")
    poll_some(consumer, 1)
    consumer.pause(ORDERS)
    consumer.seek(TopicPartition("orders", 0, 3))
    assert poll_quiet(consumer) == []
    consumer.resume(ORDERS)

    assert values(poll_some(consumer, 1)) == ["d"]


def test_another_thread_may_pause_look_and_complete_while_one_polls(make: Make, send: Send) -> None:
    """Each message comes once, whatever each is in the middle of; nothing is raised in either thread."""
    sent = [[f"{partition}-{number}" for number in range(1000)] for partition in (0, 1)]
    for partition, ids in enumerate(sent):
        send(*ids, topic="pairs", partition=partition)
    consumer = make("pairs")
    first = TopicPartition("pairs", 0)
    got = poll_some(consumer, 1)

    def meddle() -> None:
        for _ in range(300):
            consumer.pause([first])
            consumer.position([first, TopicPartition("pairs", 1)])
            consumer.resume([first])
            consumer.commit()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            meddling = pool.submit(meddle)
            while len(got) < 2000:
                got += poll_some(consumer, 1)
            meddling.result()
    finally:
        sys.setswitchinterval(before)

    assert sorted(values(got)) == sorted(chain.from_iterable(sent))
    consumer.commit()
    assert [progress(consumer, "pairs", partition) for partition in (0, 1)] == [(1000, 0)] * 2


def test_the_last_word_counts_when_the_client_hears_of_a_pause_late(make: Make, send: Send) -> None:
    """A pause and a resumption that were put off do not undo the pause that came after them."""
    send(*numbers(0, 20))
    consumer = make("orders")
    poll_some(consumer, 3)
    with inside.busy_client(consumer):
        consumer.pause(ORDERS)
        consumer.resume(ORDERS)
    consumer.pause(ORDERS)
    send(*numbers(20, 40))
    assert values(poll_quiet(consumer)) == []

    consumer.resume(ORDERS)
    assert values(poll_some(consumer, 37)) == numbers(3, 40)


def test_a_pause_that_was_put_off_does_not_outlive_the_resumption(make: Make, send: Send) -> None:
    """A resumed partition delivers, whenever the client hears of the calls before."""
    send(*numbers(0, 20))
    consumer = make("orders")
    poll_some(consumer, 3)
    with inside.busy_client(consumer):
        consumer.pause(ORDERS)
    consumer.resume(ORDERS)
    send(*numbers(20, 40))

    assert values(poll_some(consumer, 37)) == numbers(3, 40)


def fetch_with(
    consumer: DedupConsumer, patch: pytest.MonkeyPatch, in_the_middle: Callable[[], object]
) -> None:
    """Fetch a message without judging it, and do something between the client's return and the end of the fetch."""
    lock, came = inside.lock_of(consumer), list[Any]()
    call_client = lock.call_client

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        came.extend(call_client(function, *arguments))
        if came:
            patched.undo()
            in_the_middle()
        return came

    with patch.context() as patched:
        patched.setattr(lock, "call_client", call)
        while not came:
            inside.fetcher_of(consumer).fetch(1, 0.2)


def test_what_a_pause_drops_in_the_middle_of_a_fetch_comes_again(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing behind it is taken before it: the messages between would be lost."""
    send(*numbers(0, 20))
    consumer = make("orders")
    poll_some(consumer, 20)
    send(*numbers(20, 40))

    def pause_and_resume() -> None:
        with inside.busy_client(consumer):
            consumer.pause(ORDERS)
            consumer.resume(ORDERS)

    fetch_with(consumer, monkeypatch, pause_and_resume)
    consumer.pause(ORDERS)
    assert values(poll_quiet(consumer)) == []

    consumer.resume(ORDERS)
    assert values(poll_some(consumer, 20)) == numbers(20, 40)


def test_nothing_is_kept_of_a_partition_before_it_is_read_again(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the client fetches behind dropped messages, be it that it did not hear of the pause in time."""
    send(*numbers(0, 20))
    consumer = make("orders")
    poll_some(consumer, 20)
    send(*numbers(20, 40))
    fetcher = inside.fetcher_of(consumer)
    fetch_with(consumer, monkeypatch, lambda: fetcher.read_again([("orders", 0)]))

    assert fetcher.messages == []
    assert values(poll_some(consumer, 20)) == numbers(20, 40)
