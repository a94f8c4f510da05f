"""Callbacks of the client that call the consumer while it closes: they run on another thread than `close`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException

from tests.support.consuming import poll_some

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk import DedupConsumer
    from tests.mock.conftest import Make, Send

CALLS: dict[str, Callable[[DedupConsumer], object]] = {
    "memberid": lambda consumer: consumer.memberid(),
    "commit": lambda consumer: consumer.commit(asynchronous=False),
    "health": lambda consumer: consumer.health(),
}
FAR_BELOW_THE_DEADLINE_S = 30.0


@pytest.mark.parametrize("call", CALLS)
def test_close_does_not_wait_for_a_callback_that_waits_for_it(make: Make, send: Send, call: str) -> None:
    """The default deadline, of 60 seconds, is not used up."""
    made: list[DedupConsumer] = []
    called: list[str] = []

    def told(_: str) -> None:
        if made:
            called.append(call)
            try:
                CALLS[call](made[-1])
            except (KafkaException, RuntimeError):
                return

    for number in range(8):
        send(f"{call} {number}")
        made.append(
            make("orders", config={"statistics.interval.ms": 10, "stats_cb": told}, revoke_deadline=60)
        )
        poll_some(made[-1], 1)
        began = time.monotonic()
        made[-1].close()
        assert time.monotonic() - began < FAR_BELOW_THE_DEADLINE_S
    assert called
