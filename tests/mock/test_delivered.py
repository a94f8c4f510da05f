from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.consuming import PATIENCE_S, poll_some, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

    from dedup_sdk import MemoryStore
    from tests.mock.conftest import Make, Send

IDS = [str(number) for number in range(40)]


def test_delivered_messages_add_up_over_lives(make: Make, send: Send) -> None:
    """A message that waits for the next call when a consumer ends is judged twice, and counts as delivered once."""
    send(*IDS, "0", "1")
    got: list[str] = []
    counters = []
    for calls in (7, 5, 28):
        with make("orders") as consumer:
            got += values(poll_some(consumer, calls))
            counters.append(consumer.counters.as_dict())

    assert sorted(got) == sorted(IDS)
    assert [each["delivered"] for each in counters] == [7, 5, 28]
    assert sum(each["fresh"] for each in counters) > len(IDS)


def test_events_are_no_delivered_messages(make: Make, send: Send) -> None:
    """The client's events come among the messages, and are not counted."""
    send("a", "b", "a")
    consumer = make("orders", config={"enable.partition.eof": True})
    came: list[Message] = []
    while not any(message.error() for message in came):
        came += consumer.consume(10, 0.5)
    send("c", "d")
    while len(came) < 6:
        if (message := consumer.poll(PATIENCE_S)) is not None:
            came.append(message)

    assert [message.value() for message in came if message.error() is None] == [b"a", b"b", b"c", b"d"]
    assert consumer.counters.delivered == 4


def test_run_counts_the_messages_whose_handler_was_called(
    make: Make, send: Send, memory: MemoryStore
) -> None:
    """Messages that wait for a worker when a run is stopped are not delivered; a second call does not count."""
    send(*IDS)
    handled: list[str] = []
    failed: list[str] = []
    delivered = []
    for most in (3, len(IDS)):
        consumer = make("orders", store=memory, idle_timeout=1)

        def handle(message: Message, most: int = most, stop: Callable[[], None] = consumer.stop) -> None:
            [value] = values([message])
            if value == "1" and not failed:
                failed.append(value)
                raise ValueError("again")
            handled.append(value)
            if len(handled) == most:
                stop()

        consumer.run(handle, on_error="retry", wait_initial=0.01)
        delivered.append(consumer.counters.delivered)
        assert consumer.counters.retried == (most == 3)
        consumer.close()

    assert sorted(handled) == sorted(IDS)
    assert delivered == [3, len(IDS) - 3]
