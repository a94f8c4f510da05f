from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Message, Producer
from faststream import AckPolicy, BaseMiddleware
from faststream.confluent import KafkaBroker, KafkaMessage
from faststream.exceptions import SkipMessage

from dedup_adapters.faststream import deduplicate
from dedup_sdk import MemoryStore
from tests.mock.conftest import QUICK_CLIENT, SHARED_GROUP
from tests.support.consuming import PATIENCE_S, committed, lookup

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Send

# REJECT_ON_ERROR is ACK by another name here, and FastStream warns of that.
POLICIES = [AckPolicy.ACK_FIRST, AckPolicy.ACK, AckPolicy.NACK_ON_ERROR]

# The mock cluster cannot make topics.
_CONFIG: Any = {"log_level": 0, "allow.auto.create.topics": False}
_QUICK: Any = {
    "session_timeout_ms": QUICK_CLIENT["session.timeout.ms"],
    "heartbeat_interval_ms": QUICK_CLIENT["heartbeat.interval.ms"],
}


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

    def broker(self, *outer: Any, inner: Any = (), **options: Any) -> KafkaBroker:
        """A new broker, with the user's middlewares outside and inside of those of `deduplicate`."""
        broker = deduplicate(
            KafkaBroker(self.kafka.bootstrap, config=_CONFIG, middlewares=outer, **options),
            dedup=lookup(),
            store=self._memory,
        )
        for each in inner:
            broker.add_middleware(each)
        return broker

    @asynccontextmanager
    async def open(
        self,
        policy: AckPolicy,
        handle: Callable[..., Any] | None = None,
        broker: KafkaBroker | None = None,
        filter: Callable[[Any], bool] = lambda _: True,  # noqa: A002 (FastStream's name)
        **options: Any,
    ) -> AsyncIterator[KafkaBroker]:
        """A broker with one subscriber, started."""
        broker = broker or self.broker()
        settings = {
            "group_id": "g", "auto_offset_reset": "earliest", "ack_policy": policy, **_QUICK, **options,
        }  # fmt: skip

        async def note(message: str) -> None:
            self.note(message)

        broker.subscriber("orders", **settings)(handle or note, filter=filter)
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


def in_order(got: Iterable[str], workers: int) -> list[str]:
    """What handlers got, sorted where several of them ran side by side: any may be the first."""
    return list(got) if workers == 1 else sorted(got)


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
            await shop.until(lambda: len(shop.got) >= 2)

    asyncio.run(main())
    assert shop.got == ["x", "x"]


class Fails:
    """Where a program of the user's may fail besides its handler; "b" fails once, at one of these places."""

    def __init__(self, place: str, error: Callable[[], BaseException] = ConnectionError) -> None:
        self.place, self._error, self.left = place, error, 1

    def here(self, place: str, raw: Any) -> None:
        """Fail, if it is here, and the first time."""
        values = [each.value() for each in (raw if isinstance(raw, tuple) else (raw,))]
        if self.left and place == self.place and b"b" in values:
            self.left -= 1
            raise self._error()

    def middleware(self, side: str) -> type[BaseMiddleware]:
        """A middleware that may fail."""
        fails = self

        class Middleware(BaseMiddleware):
            async def on_receive(self) -> None:
                fails.here(f"{side} on_receive", self.msg)

            async def consume_scope(self, call_next: Any, msg: Any) -> Any:
                fails.here(f"{side} consume_scope", msg.raw_message)
                return await call_next(msg)

        return Middleware

    async def parse(self, msg: Any, original: Any) -> Any:
        """A parser that may fail."""
        self.here("parser", msg)
        return await original(msg)

    def filter(self, message: Any) -> bool:
        """A filter that may fail."""
        self.here("filter", message.raw_message)
        return True

    def broker(self, shop: Shop) -> KafkaBroker:
        """A broker with all of these but the filter."""
        return shop.broker(self.middleware("outer"), inner=[self.middleware("inner")], parser=self.parse)


PLACES = [
    "outer on_receive",
    "outer consume_scope",
    "inner on_receive",
    "inner consume_scope",
    "filter",
    "parser",
]


@pytest.mark.parametrize("place", PLACES)
def test_what_fails_beside_the_handler_is_refused_for_another_try(shop: Shop, send: Send, place: str) -> None:
    """With `NACK_ON_ERROR` a middleware, a filter or a parser that fails once loses nothing."""
    send("a", "b", "c")
    fails = Fails(place)

    async def main() -> None:
        async with shop.open(AckPolicy.NACK_ON_ERROR, broker=fails.broker(shop), filter=fails.filter):
            await shop.until(lambda: {"a", "b", "c"} <= set(shop.got))
            await asyncio.sleep(0.3)

    asyncio.run(main())
    assert Counter(shop.got) == Counter("abc")
    assert not fails.left
    assert shop.offset() == 3


@pytest.mark.parametrize("place", ["outer on_receive", "inner consume_scope", "filter", "parser"])
def test_what_fails_beside_the_handler_stays_open_if_only_the_program_acknowledges(
    shop: Shop, send: Send, place: str
) -> None:
    """It comes again after a restart, as what a handler leaves open."""
    send("a", "b", "c")
    fails = Fails(place)

    async def handle(body: str, message: KafkaMessage) -> None:
        shop.note(body)
        await message.ack()

    async def main(last: str) -> int:
        async with shop.open(AckPolicy.MANUAL, handle, fails.broker(shop), fails.filter):
            await shop.until(lambda: last in shop.got)
            await asyncio.sleep(0.3)
        return shop.offset()

    assert asyncio.run(main("c")) == 1
    assert asyncio.run(main("b")) == 3
    assert shop.got == ["a", "c", "b"]


@pytest.mark.parametrize("place", ["outer on_receive", "inner consume_scope", "filter", "parser"])
def test_a_failure_beside_the_handler_is_acknowledged_if_the_policy_does_so(
    shop: Shop, send: Send, place: str
) -> None:
    """With `ACK` the commit waits for none, and it does not come again."""
    send("a", "b", "c")
    fails = Fails(place)

    async def main() -> None:
        async with shop.open(AckPolicy.ACK, broker=fails.broker(shop), filter=fails.filter):
            await shop.until(lambda: "c" in shop.got)
            await asyncio.sleep(0.3)

    asyncio.run(main())
    assert shop.got == ["a", "c"]
    assert shop.offset() == 3


@pytest.mark.parametrize("place", ["outer on_receive", "parser"])
def test_a_cancellation_beside_the_handler_loses_nothing(shop: Shop, send: Send, place: str) -> None:
    """It ends the subscriber, as in FastStream; the next broker handles the message."""
    send("a", "b")
    fails = Fails(place, asyncio.CancelledError)

    async def first() -> None:
        async with shop.open(AckPolicy.ACK_FIRST, broker=fails.broker(shop)):
            await shop.until(lambda: not fails.left)
            await asyncio.sleep(0.3)

    async def second() -> None:
        async with shop.open(AckPolicy.ACK_FIRST):
            await shop.until(lambda: "b" in shop.got)

    asyncio.run(first())
    asyncio.run(second())
    assert shop.got == ["a", "b"]


@pytest.mark.parametrize(
    ("policy", "workers"),
    [(AckPolicy.ACK_FIRST, 1), (AckPolicy.ACK_FIRST, 2), (AckPolicy.NACK_ON_ERROR, 1)],
)
@pytest.mark.parametrize("is_own", [False, True])
def test_a_subscriber_that_a_cancellation_ended_leaves_the_group(
    shop: Shop, send: Send, policy: AckPolicy, workers: int, is_own: Any
) -> None:
    """FastStream asks no more after it, whether the handler cancels itself or something that it awaits."""

    async def handle(body: str) -> None:
        shop.note(body)
        if body == "b" and shop.got.count("b") == 1:
            task = asyncio.current_task() if is_own else asyncio.create_task(asyncio.sleep(PATIENCE_S))
            assert task is not None
            task.cancel()
            await (asyncio.sleep(PATIENCE_S) if is_own else task)

    async def main() -> None:
        # Two members at a time.
        options: Any = {"max_workers": workers, "session_timeout_ms": SHARED_GROUP["session.timeout.ms"]}
        async with (
            shop.open(policy, handle, **options),
            shop.open(policy, handle, shop.broker(), **options),
        ):
            send("a", "b")
            await shop.until(lambda: "b" in shop.got)
            send("c")
            await shop.until(lambda: "c" in shop.got)
            await asyncio.sleep(0.3)

    asyncio.run(main())
    assert in_order(dict.fromkeys(shop.got), workers) == ["a", "b", "c"]
    # With more workers a message counts as handled once the next one is asked for, which happens at once.
    assert workers > 1 or shop.got.count("b") == 2
    assert shop.offset() == 3


@pytest.mark.parametrize("policy", [AckPolicy.ACK_FIRST, AckPolicy.ACK])
def test_a_middleware_may_end_a_handler_that_takes_too_long(
    shop: Shop, send: Send, policy: AckPolicy
) -> None:
    """The message ends by the error that FastStream sees: it is no cancelled one."""
    send("a", "b", "c")

    class Limit(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            async with asyncio.timeout(0.1):
                return await call_next(msg)

    async def handle(body: str) -> None:
        shop.note(body)
        if body == "b":
            await asyncio.sleep(3600)

    async def main() -> None:
        async with shop.open(policy, handle, shop.broker(Limit)):
            await shop.until(lambda: "c" in shop.got)
            await asyncio.sleep(0.5)

    asyncio.run(main())
    assert shop.got == ["a", "b", "c"]
    assert shop.offset() == 3


@pytest.mark.parametrize("policy", [AckPolicy.ACK, AckPolicy.NACK_ON_ERROR, AckPolicy.MANUAL])
def test_a_message_that_is_skipped_is_over(shop: Shop, send: Send, policy: AckPolicy) -> None:
    """FastStream acknowledges none of these, and the commit does not wait for them."""
    send("a", "b", "c")

    async def handle(body: str, message: KafkaMessage) -> None:
        shop.note(body)
        if body == "b":
            raise SkipMessage
        await message.ack()

    async def main() -> None:
        async with shop.open(policy, handle):
            await shop.until(lambda: "c" in shop.got)
            await asyncio.sleep(0.3)

    asyncio.run(main())
    assert shop.got == ["a", "b", "c"]
    assert shop.offset() == 3


def test_a_message_that_is_refused_and_skipped_comes_again(shop: Shop, send: Send) -> None:
    """What is said first counts."""
    send("a", "b", "c")

    async def handle(body: str, message: KafkaMessage) -> None:
        shop.note(body)
        if body == "b" and shop.got.count("b") == 1:
            await message.nack()
            raise SkipMessage
        await message.ack()

    async def main() -> None:
        async with shop.open(AckPolicy.MANUAL, handle):
            await shop.until(lambda: shop.got.count("b") >= 2 and "c" in shop.got)
            await asyncio.sleep(0.3)

    asyncio.run(main())
    assert Counter(shop.got) == Counter("abbc")
    assert shop.offset() == 3


@pytest.mark.parametrize(
    ("policy", "offset"), [(AckPolicy.ACK, 3), (AckPolicy.NACK_ON_ERROR, 1), (AckPolicy.MANUAL, 3)]
)
def test_a_message_for_no_handler_ends_by_the_policy(
    shop: Shop, send: Send, policy: AckPolicy, offset: int
) -> None:
    """For FastStream that is an error; with `MANUAL` nobody could acknowledge the message, and it is passed over."""
    send("a", "b", "c")
    seen: list[Any] = []

    def is_wanted(message: Any) -> bool:
        seen.append(message.raw_message.value())
        return bool(seen[-1] != b"b")

    async def handle(body: str, message: KafkaMessage) -> None:
        shop.note(body)
        await message.ack()

    repeats = policy is AckPolicy.NACK_ON_ERROR

    async def main() -> None:
        async with shop.open(policy, handle, filter=is_wanted):
            # One that is refused comes again before the next one.
            await shop.until(lambda: seen.count(b"b") > 2 if repeats else "c" in shop.got)
            await asyncio.sleep(0.3)

    asyncio.run(main())
    assert shop.got == (["a"] if repeats else ["a", "c"])
    assert shop.offset() == offset


def send_unreadable(kafka: MockKafka, value: str) -> None:
    """Send a message with a header that FastStream cannot read."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    producer.produce("orders", value, headers={"dedup-id": value, "note": b"\xff\xfe"})
    assert producer.flush(PATIENCE_S) == 0


@pytest.mark.parametrize("policy", [*POLICIES, AckPolicy.MANUAL])
def test_what_cannot_be_parsed_is_passed_over(
    shop: Shop, kafka: MockKafka, send: Send, policy: AckPolicy
) -> None:
    """As FastStream does it; the commit goes on."""
    send_unreadable(kafka, "bad")
    send("a")

    async def handle(body: str, message: KafkaMessage) -> None:
        shop.note(body)
        await message.ack()

    async def main() -> None:
        async with shop.open(policy, handle):
            await shop.until(lambda: "a" in shop.got)
            await asyncio.sleep(0.3)

    asyncio.run(main())
    assert shop.got == ["a"]
    assert shop.offset() == 2


@pytest.mark.parametrize("policy", [AckPolicy.ACK, AckPolicy.NACK_ON_ERROR, AckPolicy.MANUAL])
def test_of_a_batch_only_what_cannot_be_parsed_is_passed_over(
    shop: Shop, kafka: MockKafka, send: Send, policy: AckPolicy
) -> None:
    """The others of the batch come again, without that one."""
    send("a")
    send_unreadable(kafka, "bad")
    send("b")

    async def handle(messages: list[str], message: KafkaMessage) -> None:
        shop.got += messages
        await message.ack()

    async def main() -> None:
        async with shop.open(policy, handle, batch=True, max_records=3, polling_interval=2):
            await shop.until(lambda: {"a", "b"} <= set(shop.got))
            await asyncio.sleep(0.3)

    asyncio.run(main())
    assert Counter(shop.got) == Counter("ab")
    assert shop.offset() == 3


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_completes_what_counts_as_handled(shop: Shop, send: Send, workers: int) -> None:
    """With `ACK_FIRST` the handler that a stop waits for is the last one, and does not run again."""
    send("a", "b")
    ends = asyncio.Event()

    async def handle(body: str) -> None:
        shop.note(body)
        if body == "b":
            await ends.wait()

    async def main() -> None:
        async with shop.open(AckPolicy.ACK_FIRST, handle, max_workers=workers):
            await shop.until(lambda: {"a", "b"} <= set(shop.got))
            asyncio.get_running_loop().call_later(0.5, ends.set)

    asyncio.run(main())
    assert in_order(shop.got, workers) == ["a", "b"]
    assert shop.offset() == 2


@pytest.mark.parametrize("policy", [AckPolicy.ACK_FIRST, AckPolicy.NACK_ON_ERROR])
def test_a_stop_that_does_not_wait_for_a_handler_loses_nothing(
    shop: Shop, send: Send, policy: AckPolicy
) -> None:
    """FastStream cancels the handler and closes the consumer at once."""
    send("a", "b")
    ended: list[str] = []

    async def handle(body: str, message: KafkaMessage) -> None:
        shop.note(body)
        if body == "b" and shop.got.count("b") == 1:
            await asyncio.sleep(3600)
        ended.append(body)
        await message.ack()

    async def main(seen: list[str]) -> None:
        async with shop.open(policy, handle, shop.broker(graceful_timeout=0.1)):
            await shop.until(lambda: "b" in seen)
            await asyncio.sleep(0.1)

    asyncio.run(main(shop.got))
    asyncio.run(main(ended))
    assert ended == ["a", "b"]


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


async def _take(policy: AckPolicy, broker: KafkaBroker, count: int) -> list[str]:
    """Take messages without a handler, and acknowledge each; "" for a call that raises."""
    subscriber = broker.subscriber(
        "orders", group_id="g", auto_offset_reset="earliest", ack_policy=policy, **_QUICK
    )
    await broker.start()
    taken: list[str] = []
    try:
        for _ in range(count):
            try:
                message = await subscriber.get_one(timeout=PATIENCE_S)
            except (asyncio.CancelledError, UnicodeDecodeError):
                taken.append("")
                continue
            assert message is not None
            assert isinstance(message.raw_message, Message)
            taken.append((message.raw_message.value() or b"").decode())
            await message.ack()
        return taken
    finally:
        await broker.stop()


def test_a_message_counts_as_handled_when_it_is_taken(shop: Shop, send: Send) -> None:
    """With `ACK_FIRST`, also the last one before a stop: the next program takes the next message."""
    send("a", "b")
    assert asyncio.run(_take(AckPolicy.ACK_FIRST, shop.broker(), 1)) == ["a"]
    assert asyncio.run(_take(AckPolicy.ACK_FIRST, shop.broker(), 1)) == ["b"]
    assert shop.offset() == 2


@pytest.mark.parametrize("policy", [AckPolicy.ACK_FIRST, AckPolicy.ACK])
@pytest.mark.parametrize("place", [place for place in PLACES if place != "filter"])
def test_a_message_that_a_cancelled_call_did_not_return_comes_again(
    shop: Shop, send: Send, policy: AckPolicy, place: str
) -> None:
    """Whatever of the program the call was in; handlers alone have filters."""
    send("b", "c")
    broker = Fails(place, asyncio.CancelledError).broker(shop)
    first, *others = asyncio.run(_take(policy, broker, 3))
    assert (first, sorted(others)) == ("", ["b", "c"])
    assert shop.offset() == 2


@pytest.mark.parametrize("policy", [AckPolicy.ACK_FIRST, AckPolicy.NACK_ON_ERROR])
def test_taking_passes_over_what_cannot_be_parsed(
    shop: Shop, kafka: MockKafka, send: Send, policy: AckPolicy
) -> None:
    """The call raises, the commit goes on."""
    send_unreadable(kafka, "bad")
    send("a")
    assert asyncio.run(_take(policy, shop.broker(), 2)) == ["", "a"]
    assert shop.offset() == 2


def test_an_acknowledgement_is_for_its_own_message(shop: Shop, send: Send) -> None:
    """Not for the one that was taken last: that comes again."""
    send("a", "b")

    async def take(count: int) -> list[KafkaMessage]:
        broker = shop.broker()
        subscriber = broker.subscriber(
            "orders", group_id="g", auto_offset_reset="earliest", ack_policy=AckPolicy.MANUAL, **_QUICK
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
