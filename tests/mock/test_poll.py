from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import confluent_kafka
import pytest
from confluent_kafka import Message, TopicPartition

from dedup_sdk._kafka.deliver import maintenance
from tests.support import inside
from tests.support.consuming import PATIENCE_S, poll_quiet, poll_some, values

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


def test_the_loop_sees_each_logical_message_once(make: Make, send: Send) -> None:
    """Of records with the same ID only the first is handed out, in one batch and across batches."""
    send("a", "b", "a", "c", "b")
    consumer = make("orders")

    assert values(poll_some(consumer, 3)) == ["a", "b", "c"]
    send("c", "d", "a")
    assert values(poll_quiet(consumer)) == ["d"]
    assert consumer.counters.verdicts["duplicate"] == 4


def test_it_is_a_consumer(make: Make) -> None:
    """Whatever asks for a confluent_kafka.Consumer gets one."""
    assert isinstance(make(), confluent_kafka.Consumer)


def test_poll_returns_in_time_while_duplicates_keep_coming(make: Make, send: Send) -> None:
    """A topic that delivers nothing but duplicates does not hold poll beyond its timeout."""
    send("a")
    consumer = make("orders")
    poll_some(consumer, 1)
    enough, ended = threading.Event(), threading.Event()

    def resend() -> None:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and not enough.is_set():
            send(*["a"] * 500)
        ended.set()

    resending = threading.Thread(target=resend)
    resending.start()
    try:
        while not consumer.counters.verdicts["duplicate"]:
            assert consumer.poll(0.2) is None
        assert consumer.poll(0.2) is None
        assert not ended.is_set(), "poll waited until the duplicates ended"
    finally:
        enough.set()
        resending.join()


def test_error_events_pass_untouched_and_in_their_place(make: Make, send: Send) -> None:
    """An event that is no message comes as from the plain client, after the messages before it, and only once."""
    send("a", "a", "b")
    consumer = make("orders", config={"enable.partition.eof": True})

    got = poll_some(consumer, 3)
    send("a")
    got += poll_some(consumer, 1)

    assert values(got) == ["a", "b", "_PARTITION_EOF", "_PARTITION_EOF"]
    assert [event.offset() for event in got[2:]] == [3, 4]
    assert poll_quiet(consumer) == []


def test_an_error_event_is_never_completed_or_judged(make: Make, send: Send) -> None:
    """Completing, releasing or asking the verdict of an error event changes nothing."""
    send("a")
    consumer = make("orders", config={"enable.partition.eof": True})
    event = poll_some(consumer, 2)[1]

    assert consumer.verdict(event) is None
    consumer.complete(event)
    consumer.release(event)
    assert poll_quiet(consumer) == []
    assert consumer.counters.stale == 2


def test_what_was_handed_out_is_completed_by_asking_for_more(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while a batch is not through: slow handlers do not wait for its end to be remembered."""
    monkeypatch.setattr(maintenance, "MAINTENANCE_S", 0.0)
    send("a", "b", "c", "d")
    consumer = make("orders")

    poll_some(consumer, 3)

    assert inside.next_offset(consumer) == 2


def test_a_slow_handler_stays_in_the_group(make: Make, send: Send) -> None:
    """The group hears from a consumer that takes long over each message of a batch."""
    send(*map(str, range(8)))
    lost: list[list[TopicPartition]] = []
    consumer = make(config={"max.poll.interval.ms": 4000})
    consumer.subscribe(["orders"], on_lost=lambda _, partitions: lost.append(partitions))

    got: list[Message] = []
    until = time.monotonic() + PATIENCE_S
    while len(got) < 8 and time.monotonic() < until:
        message = consumer.poll(0.5)
        if message is not None:
            got.append(message)
            # Time is the subject: eight of these are longer than the group would wait for a poll.
            time.sleep(0.6)

    assert values(got) == list(map(str, range(8)))
    assert lost == []


def test_poll_waits_no_longer_for_a_first_assignment(make: Make, send: Send) -> None:
    """A poll without a limit finds the first message, also where nothing is committed on an interval."""
    send("a")
    consumer = make("orders", config={"enable.auto.commit": False})

    message = consumer.poll()

    assert message is not None
    assert message.value() == b"a"


def test_no_thread_is_started(make: Make, send: Send) -> None:
    """Everything happens on the thread that polls."""
    before = threading.active_count()
    send("a", "b")
    consumer = make("orders")
    poll_some(consumer, 2)

    assert threading.active_count() == before


def test_after_close_everything_says_so(make: Make) -> None:
    """A closed consumer answers as the plain one does; closing twice is harmless."""
    consumer = make("orders")
    consumer.close()
    consumer.close()

    for call in (
        lambda: consumer.poll(0), lambda: consumer.consume(1, 0), lambda: consumer.consume(0, 0), consumer.commit,
        lambda: consumer.subscribe(["orders"]), lambda: consumer.position([]), lambda: consumer.assign([]),
        lambda: consumer.seek(TopicPartition("orders", 0, 0)), lambda: consumer.pause([]), lambda: consumer.resume([]),
        consumer.unassign, consumer.unsubscribe, consumer.store_offsets,
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match="Consumer closed"):
            call()


def test_a_dead_cluster_is_waited_for(make: Make, send: Send, kafka: MockKafka) -> None:
    """Poll keeps to its timeout when no broker answers, and goes on when one does."""
    send("a")
    consumer = make("orders")
    poll_some(consumer, 1)
    kafka.set_broker_down()

    # Older clients give the partition back when the session is over, so that the consumer never comes to rest.
    assert [consumer.poll(0.3) for _ in range(6)] == [None] * 6
    kafka.set_broker_up()
    send("b")
    assert values(poll_some(consumer, 1)) == ["b"]
