"""An interruption while a transaction takes messages, in a program that goes on with the block."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import MemoryStore
from tests.support.consuming import values
from tests.support.interrupting import Interrupted, InterruptedAt

if TYPE_CHECKING:
    from tests.mock.conftest import Make, Send

SENT = ["0", "1", "2", "3"]


@pytest.mark.slow
def test_no_message_counts_as_got_that_the_application_did_not_get(make: Make, send: Send) -> None:
    """Wherever it strikes between the client and the body of the loop: the message comes."""
    send(*SENT)
    struck, missing = 0, dict[str, list[str]]()
    for place in range(1, 300, 3):
        consumer = make(store=MemoryStore(), config={"group.id": f"g-{place}"}, idle_timeout=0.3)
        consumer.assign([TopicPartition("orders", 0)])
        got, strike = list[str](), InterruptedAt(place)
        with consumer.transactions(max_messages=10, seconds=0.1) as transactions:
            with contextlib.suppress(Interrupted):
                for transaction in transactions:
                    for message in transaction:
                        got.extend(values([message]))
                        if len(got) == 1:
                            strike.__enter__()
                        elif len(got) == 2:
                            strike.__exit__(None, None, None)
            strike.__exit__(None, None, None)
            for transaction in transactions:
                got += values(transaction)
        if not strike.struck:
            break
        struck += 1
        if {*got} != {*SENT}:
            missing[strike.where] = got
        consumer.close()
    assert struck > 5
    assert missing == {}
