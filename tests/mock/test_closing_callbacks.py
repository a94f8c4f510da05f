"""Callbacks of the client that call the consumer while it closes: they run on another thread than `close`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException

from tests.support.consuming import PATIENCE_S, poll_some

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


def test_a_close_by_the_function_that_makes_tokens_is_refused(make: Make) -> None:
    """That function runs on a thread of the client, which `close` would wait for."""
    made: list[DedupConsumer] = []
    refused: list[str] = []

    def token(_: str) -> tuple[str, float]:
        try:
            if made:
                made[-1].close()
        except RuntimeError as error:
            refused.append(str(error))
        return "token", time.time() + 1

    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "OAUTHBEARER", "oauth_cb": token}
    made.append(make(config=sasl))
    made[-1].subscribe(["orders"])
    until = time.monotonic() + PATIENCE_S
    while not refused and time.monotonic() < until:
        made[-1].poll(0.1)
    assert "call stop() there" in refused[0]
