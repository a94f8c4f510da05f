from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from tests.support.consuming import PATIENCE_S, committed, poll_quiet, poll_some, values

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


class HandlerError(Exception):
    """The error of a handler."""


def test_an_exception_releases_what_was_in_hand_and_keeps_what_was_asked_past(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """The message whose handler failed comes again, those before it do not."""
    send("a", "b", "c", "d")

    def handle_until_c() -> None:
        with make("orders") as consumer:
            for message in consumer:
                if message.value() == b"c":
                    raise HandlerError

    with pytest.raises(HandlerError):
        handle_until_c()

    assert committed(kafka.bootstrap, "g", "orders").offset == 2
    assert values(poll_some(make("orders"), 2)) == ["c", "d"]


def test_an_exception_releases_the_whole_batch_in_hand(make: Make, send: Send) -> None:
    """Of a batch nobody knows how far the handler came, so that all of it comes again."""
    send(*"abcdef")

    def handle_a_batch() -> None:
        with make("orders") as consumer:
            consumer.consume(2, PATIENCE_S)
            consumer.consume(3, PATIENCE_S)
            raise HandlerError

    with pytest.raises(HandlerError):
        handle_a_batch()

    assert values(poll_some(make("orders"), 4)) == ["c", "d", "e", "f"]


def test_leaving_in_order_completes_what_was_in_hand(make: Make, send: Send, kafka: MockKafka) -> None:
    """A block that ends by itself has handled its messages."""
    send("a", "b", "c")
    with make("orders") as consumer:
        poll_some(consumer, 2)

    assert committed(kafka.bootstrap, "g", "orders").offset == 2
    assert values(poll_quiet(make("orders"))) == ["c"]


def test_close_releases_the_last_hand_out_only(make: Make, send: Send, kafka: MockKafka) -> None:
    """Close cannot know whether the last message was handled; those before it were asked past."""
    send("a", "b", "c")
    consumer = make("orders")
    poll_some(consumer, 2)
    consumer.close()

    assert committed(kafka.bootstrap, "g", "orders").offset == 1
    assert values(poll_quiet(make("orders"))) == ["b", "c"]


def test_close_keeps_a_parked_message_that_was_asked_past(make: Make, send: Send) -> None:
    """Also a message that came outside its batch counts as asked past: here one that was released once."""
    send("a", "b", "c")
    consumer = make("orders")
    first = poll_some(consumer, 1)[0]
    consumer.release(first)
    assert values(poll_some(consumer, 2)) == ["a", "b"]
    consumer.close()

    assert values(poll_quiet(make("orders"))) == ["b", "c"]


def test_a_handed_out_list_belongs_to_the_application(make: Make, send: Send) -> None:
    """Emptying the list that consume returned does not make its messages count as handled."""
    send("a", "b")
    consumer = make("orders")
    consumer.consume(2, PATIENCE_S).clear()
    consumer.close()

    assert values(poll_quiet(make("orders"))) == ["a", "b"]


def test_with_explicit_completion_only_what_was_completed_is_kept(make: Make, send: Send) -> None:
    """Leaving in order completes nothing that the application did not."""
    send("a", "b", "c")
    with make("orders", completion="explicit") as consumer:
        messages = poll_some(consumer, 3)
        consumer.complete(messages[1])

    assert values(poll_quiet(make("orders"))) == ["a", "c"]


def test_a_failing_close_does_not_hide_the_exception_that_led_to_it(
    make: Make, send: Send, caplog: pytest.LogCaptureFixture
) -> None:
    """The handler's exception leaves the block; an error of close goes to the log."""
    send("a")

    def fail() -> None:
        raise ValueError("revoked")

    def handle() -> None:
        consumer = make()
        consumer.subscribe(["orders"], on_revoke=lambda *_: fail())
        with consumer:
            poll_some(consumer, 1)
            raise HandlerError

    with caplog.at_level(logging.ERROR, "dedup_sdk"), pytest.raises(HandlerError):
        handle()
    assert "closing failed too" in caplog.text


def test_close_raises_what_the_last_callback_raised(make: Make, send: Send) -> None:
    """Nothing a callback raises is swallowed, and the consumer is closed nevertheless."""
    send("a")
    consumer = make()

    def fail(*_: object) -> None:
        raise ValueError("revoked")

    consumer.subscribe(["orders"], on_revoke=fail)
    poll_some(consumer, 1)

    with pytest.raises(ValueError, match="revoked"):
        consumer.close()
    with pytest.raises(RuntimeError, match="Consumer closed"):
        consumer.poll(0)
