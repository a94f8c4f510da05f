from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Message, Producer
from faststream import AckPolicy
from faststream.confluent import KafkaBroker, KafkaMessage

from dedup_adapters.faststream import deduplicate
from dedup_sdk import MemoryStore
from tests.mock.conftest import SHARED_GROUP
from tests.support.consuming import PATIENCE_S, committed, lookup

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Send

# REJECT_ON_ERROR is ACK by another name here, and FastStream warns of that.
POLICIES = [AckPolicy.ACK_FIRST, AckPolicy.ACK, AckPolicy.NACK_ON_ERROR]

# The mock cluster cannot make topics.
_CONFIG: Any = {"log_level": 0, "allow.auto.create.topics": False}


class Shop:
    """Brokers of one group over one memory, and what their handlers got."""

    def __init__(self, kafka: MockKafka, memory: MemoryStore) -> None:
        self.kafka, self._memory = kafka, memory
        self.got: list[str] = []
        self.fails: Counter[str] = Counter()
        """How often the handler of a value is still to fail."""

    def note(self, value: str) -> None:
        """Handle a value, which may fail."""
        self.got.append(value)
        if self.fails[value]:
            self.fails[value] -= 1
            raise ValueError("poison")

    def broker(self) -> KafkaBroker:
        """A new broker."""
        return deduplicate(
            KafkaBroker(self.kafka.bootstrap, config=_CONFIG), dedup=lookup(), store=self._memory
        )

    @asynccontextmanager
    async def open(
        self, policy: AckPolicy, handle: Callable[..., Any] | None = None, **options: Any
    ) -> AsyncIterator[KafkaBroker]:
        """A broker with one subscriber, started."""
        broker = self.broker()
        settings = {
            "group_id": "g", "auto_offset_reset": "earliest", "ack_policy": policy,
            "session_timeout_ms": int(SHARED_GROUP["session.timeout.ms"]),
            "heartbeat_interval_ms": int(SHARED_GROUP["heartbeat.interval.ms"]), **options,
        }  # fmt: skip

        async def note(message: str) -> None:
            self.note(message)

        broker.subscriber("orders", **settings)(handle or note)
        async with asyncio.timeout(PATIENCE_S):
            await broker.start()
            try:
                yield broker
            finally:
                await broker.stop()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until this is true."""
        while not condition():  # noqa: ASYNC110 (handlers set no event)
            await asyncio.sleep(0.01)

    def offset(self) -> int:
        """The group's commit."""
        return committed(self.kafka.bootstrap, "g", "orders").offset


@pytest.fixture
def shop(kafka: MockKafka, memory: MemoryStore) -> Shop:
    """A shop without a broker."""
    return Shop(kafka, memory)


@pytest.mark.parametrize("policy", POLICIES)
def test_each_logical_message_is_handled_once(shop: Shop, send: Send, policy: AckPolicy) -> None:
    """Also after a restart, and by a second broker object."""
    send("a", "b", "a", "c", "b")

    async def main(*more: str) -> None:
        expected = len(shop.got) + 1
        send(*more)
        async with shop.open(policy):
            await shop.until(lambda: len(shop.got) >= expected and shop.got[-1] == more[-1])
            await asyncio.sleep(0.3)

    asyncio.run(main("d"))
    assert shop.got == ["a", "b", "c", "d"]
    asyncio.run(main("a", "d", "e"))
    assert shop.got == ["a", "b", "c", "d", "e"]
    assert shop.offset() == 9


@pytest.mark.parametrize(
    ("policy", "expected", "options"),
    [
        (AckPolicy.ACK_FIRST, 1, {}),
        (AckPolicy.ACK_FIRST, 1, {"max_workers": 3}),
        (AckPolicy.ACK, 1, {}),
        (AckPolicy.NACK_ON_ERROR, 3, {}),
    ],
)
def test_a_policy_keeps_its_meaning(
    shop: Shop, send: Send, policy: AckPolicy, expected: int, options: dict[str, Any]
) -> None:
    """Only what is refused for another try comes again, and the commit waits for none that is rejected."""
    send("a", "b", "c")
    shop.fails["b"] = 2

    async def main() -> None:
        async with shop.open(policy, **options):
            await shop.until(lambda: {"a", "b", "c"} <= set(shop.got) and shop.got.count("b") >= expected)
            await asyncio.sleep(0.5)

    asyncio.run(main())
    assert Counter(shop.got) == {"a": 1, "b": expected, "c": 1}
    assert shop.offset() == 3


def test_with_the_manual_policy_the_handler_says_it(shop: Shop, send: Send) -> None:
    """What it leaves open comes again after a restart, what it refuses at once."""
    send("a", "b", "c")
    refused: list[str] = []

    async def handle(body: str, message: KafkaMessage) -> None:
        shop.note(body)
        if body == "b" and not refused:
            refused.append(body)
            await message.nack()
        elif body != "c" or shop.got.count("c") > 1:
            await message.ack()

    async def main(count: int) -> None:
        async with shop.open(AckPolicy.MANUAL, handle):
            await shop.until(lambda: len(shop.got) >= count)
            await asyncio.sleep(0.3)

    asyncio.run(main(4))
    assert Counter(shop.got) == {"a": 1, "b": 2, "c": 1}
    assert shop.offset() == 2
    asyncio.run(main(5))
    assert shop.got[4:] == ["c"]
    assert shop.offset() == 3


@pytest.mark.parametrize("policy", [*POLICIES, AckPolicy.MANUAL])
def test_a_handler_that_is_cancelled_loses_nothing(shop: Shop, send: Send, policy: AckPolicy) -> None:
    """The broker is stopped in the middle of a handler; the next one handles the message."""
    send("a", "b")
    ended: list[str] = []

    async def handle(body: str, message: KafkaMessage) -> None:
        shop.note(body)
        if body == "b" and shop.got.count("b") == 1:
            await asyncio.sleep(3600)
        ended.append(body)
        await message.ack()

    async def first() -> None:
        broker: KafkaBroker
        async with shop.open(policy, handle) as broker:
            await shop.until(lambda: "b" in shop.got)
            tasks = [task for each in broker.subscribers for task in each.tasks]  # type: ignore[attr-defined]
            for task in tasks:
                task.cancel()

    async def second() -> None:
        async with shop.open(policy, handle):
            await shop.until(lambda: "b" in ended)

    asyncio.run(first())
    asyncio.run(second())
    assert ended == ["a", "b"]


def test_a_batch_ends_as_one(shop: Shop, send: Send) -> None:
    """A batch that is refused comes again from its first message on."""
    send(*"abcdef")
    refused: list[str] = []

    async def handle(messages: list[str]) -> None:
        shop.got += messages
        if "c" in messages and not refused:
            refused.extend(messages)
            raise ValueError("poison")

    async def main() -> None:
        async with shop.open(AckPolicy.NACK_ON_ERROR, handle, batch=True, max_records=3):
            await shop.until(lambda: set(shop.got) == set("abcdef") and len(shop.got) == 6 + len(refused))
            await asyncio.sleep(0.3)

    asyncio.run(main())
    assert Counter(shop.got) == Counter("abcdef") + Counter(refused)
    assert shop.offset() == 6


def test_a_message_without_an_id_passes(shop: Shop, kafka: MockKafka) -> None:
    """As often as it comes."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for value in ("x", "x"):
        producer.produce("orders", value)
    assert producer.flush(PATIENCE_S) == 0

    async def main() -> None:
        async with shop.open(AckPolicy.ACK):
            await shop.until(lambda: len(shop.got) == 2)

    asyncio.run(main())
    assert shop.got == ["x", "x"]


def test_what_cannot_be_parsed_is_passed_over(shop: Shop, kafka: MockKafka, send: Send) -> None:
    """As FastStream does it; the commit goes on."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    producer.produce("orders", "bad", headers={"dedup-id": "bad", "note": b"\xff\xfe"})
    assert producer.flush(PATIENCE_S) == 0
    send("a")

    async def main() -> None:
        async with shop.open(AckPolicy.NACK_ON_ERROR):
            await shop.until(lambda: "a" in shop.got)
            await asyncio.sleep(0.3)

    asyncio.run(main())
    assert shop.got == ["a"]
    assert shop.offset() == 2


def test_messages_are_taken_one_by_one(shop: Shop, send: Send) -> None:
    """By `get_one`, without a handler."""
    send("a", "a", "b")

    async def main() -> list[str]:
        broker = shop.broker()
        subscriber = broker.subscriber(
            "orders", group_id="g", auto_offset_reset="earliest", ack_policy=AckPolicy.ACK
        )
        await broker.start()
        try:
            got = []
            for _ in range(2):
                message = await subscriber.get_one(timeout=PATIENCE_S)
                assert message is not None
                assert isinstance(message.raw_message, Message)
                got.append((message.raw_message.value() or b"").decode())
                await message.ack()
            return got
        finally:
            await broker.stop()

    assert asyncio.run(main()) == ["a", "b"]
    assert shop.offset() == 3


def test_an_acknowledgement_is_for_its_own_message(shop: Shop, send: Send) -> None:
    """Not for the one that was taken last: that comes again."""
    send("a", "b")

    async def take(count: int) -> list[KafkaMessage]:
        broker = shop.broker()
        subscriber = broker.subscriber(
            "orders", group_id="g", auto_offset_reset="earliest", ack_policy=AckPolicy.MANUAL
        )
        await broker.start()
        try:
            taken = [await subscriber.get_one(timeout=PATIENCE_S) for _ in range(count)]
            messages = [message for message in taken if message is not None]
            await messages[0].ack()
            return messages
        finally:
            await broker.stop()

    asyncio.run(take(2))
    assert shop.offset() == 1
    (again,) = asyncio.run(take(1))
    assert again.raw_message.value() == b"b"  # type: ignore[union-attr]


def test_what_is_no_broker_is_refused(shop: Shop) -> None:
    """Another framework's broker, and one that is deduplicated already."""
    with pytest.raises(TypeError, match=r"give a faststream\.confluent\.KafkaBroker"):
        deduplicate("localhost:9092", dedup=lookup(), store=MemoryStore())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="already"):
        deduplicate(shop.broker(), dedup=lookup(), store=MemoryStore())
