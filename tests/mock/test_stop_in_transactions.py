"""`stop` while the broker of the transactions takes connections and answers nothing: the end is not far."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Timer
from typing import TYPE_CHECKING

import pytest

from dedup_sdk._transactions import producer
from dedup_sdk.errors import TransactionError
from dedup_sdk.testing import MockKafka
from tests.support.consuming import values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import Message

    from dedup_sdk import DedupConsumer
    from dedup_sdk._transactions.settings import Produce
    from tests.mock.conftest import Make, Send

HUNG_MS = 600_000
SOON_S = 30.0
"""Half of what a step of a transaction waits for a broker when nobody has called `stop`."""


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockKafka]:
    """The cluster that the producer writes to; its calls are short here."""
    monkeypatch.setattr(producer, "CALL_S", 0.5)
    with MockKafka() as kafka:
        kafka.create_topic("bills")
        yield kafka
        kafka.set_rtt(0)


def in_a_block(consumer: DedupConsumer, outputs: MockKafka, handle: Callable[[Message], None]) -> None:
    """Copy in a block."""
    with consumer.transactions({"bootstrap.servers": outputs.bootstrap}, seconds=0.1) as transactions:
        for transaction in transactions:
            for message in transaction:
                transaction.produce("bills", message.value())
                handle(message)


def in_a_run(consumer: DedupConsumer, outputs: MockKafka, handle: Callable[[Message], None]) -> None:
    """Copy in `run`."""

    def copy(message: Message, produce: Produce) -> None:
        produce("bills", message.value())
        handle(message)

    transactions = consumer.transactions({"bootstrap.servers": outputs.bootstrap}, seconds=0.1)
    consumer.run(copy, transactions=transactions)


@pytest.mark.parametrize("copy", [in_a_block, in_a_run])
@pytest.mark.parametrize("when", ["begins", "commits"])
def test_a_stop_waits_no_minute_for_a_silent_broker(
    make: Make, send: Send, outputs: MockKafka, copy: Callable[..., None], when: str
) -> None:
    """All steps behind it share half of `revoke_deadline`; the message comes again with the next consumer."""
    send("a")
    consumer = make("orders", revoke_deadline=1.0)

    def stop(_: object = None) -> None:
        outputs.set_rtt(HUNG_MS)
        consumer.stop()

    if when == "begins":
        stop()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(copy, consumer, outputs, stop)
        error = ended.exception(SOON_S)
    assert error is None or isinstance(error, TransactionError)
    consumer.close()
    again = make("orders", idle_timeout=1.0)
    assert values(again) == ["a"]


def test_a_handler_that_runs_on_behind_a_stop_ends_in_a_transaction(
    make: Make, send: Send, outputs: MockKafka
) -> None:
    """The time limit of the transaction before is over by then: each has its own."""
    send("a", "b")
    # It takes the offsets, too.
    outputs.create_topic("orders")
    consumer = make("orders", revoke_deadline=6.0)

    def handle(message: Message) -> None:
        if message.value() == b"a":
            # So far away that the transaction of this message commits while the stop comes.
            outputs.set_rtt(260)
            Timer(0.35, consumer.stop).start()
        else:
            time.sleep(4)

    transactions = consumer.transactions({"bootstrap.servers": outputs.bootstrap}, seconds=0.1)

    def copy(message: Message, produce: Produce) -> None:
        produce("bills", message.value())
        handle(message)

    consumer.run(copy, transactions=transactions, workers=2)
    consumer.close()
    assert values(make("orders", idle_timeout=1.0)) == []
