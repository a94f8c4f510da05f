"""A message in two hands at once: released by its own handler, or named twice.

It comes and ends once, and takes no other along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.consuming import PATIENCE_S, committed, run_all, values

if TYPE_CHECKING:
    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


def fail_once(consumer: DedupConsumer) -> None:
    """Have `run` end with the first message, whose handler fails inside `once`."""

    def handle(message: Any) -> None:
        with consumer.once(message):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        consumer.run(handle, max_in_flight=1)


def test_a_message_that_its_handler_released_comes_once(make: Make, send: Send) -> None:
    """Not once for the release and once for the run that ended."""
    send(*"abc")
    consumer = make("orders")
    fail_once(consumer)
    given: list[str] = []
    while len(given) < 3:
        # A call may return with fewer: messages of before the release are none, and not waited for again.
        given += values(consumer.consume(3 - len(given), PATIENCE_S))
    assert sorted(given) == ["a", "b", "c"]
    assert consumer.poll(0.5) is None


def test_a_message_that_its_handler_released_takes_no_other_along(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """The commit covers the messages given out."""
    send(*"abc")
    consumer = make("orders")
    fail_once(consumer)
    given: list[str] = []
    while "b" not in given:
        given += values(consumer.consume(1 if given else 2, PATIENCE_S))
    consumer.commit(asynchronous=False)
    assert committed(kafka.bootstrap, "g", "orders").offset <= len(set(given))


def test_a_message_that_its_handler_released_is_tried_again_once(make: Make, send: Send) -> None:
    """Its end is the handler's return or error: the release is counted, and changes nothing."""
    send(*"abc")
    consumer = make("orders")
    calls: list[str] = []
    done: list[str] = []

    def handle(message: Any) -> None:
        with consumer.once(message):
            calls.append(message.value().decode())
            if calls.count("a") == 1 and calls[-1] == "a":
                raise ValueError("no")
            done.append(calls[-1])

    run_all(consumer, handle, on_error="retry", wait_initial=0.2)
    assert sorted(done) == ["a", "b", "c"]
    assert consumer.counters.stale >= 1
