"""Each difference from the plain client that docs/differences.md lists, seen in both clients."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from dedup_sdk import ConfigurationError, DedupConsumer, Lookup, MemoryStore
from tests.mock.conftest import QUICK_CLIENT
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Send

PAGE = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (?!you write)([^|]+) \|[^|]+\|[^|]+\|[^|]+\|$", PAGE, re.MULTILINE)


class Client:
    """One of the two clients, and its cluster; the topic "orders" has the messages a, b and c."""

    def __init__(self, kafka: MockKafka, kind: type[Any]) -> None:
        self._kafka = kafka
        self.kind = kind
        self._store = MemoryStore()

    def options(self) -> dict[str, Any]:
        """The arguments of the constructor beyond the configuration."""
        return (
            {"dedup": Lookup(id="header:dedup-id", window="7d"), "store": self._store} if self.is_ours else {}
        )

    @property
    def is_ours(self) -> bool:
        """Whether this client hides duplicates."""
        return self.kind is DedupConsumer

    def consumer(self, **config: Any) -> Any:
        """Return a consumer of this client's own group."""
        settings = {
            "bootstrap.servers": self._kafka.bootstrap,
            "group.id": self.kind.__name__,
            "auto.offset.reset": "earliest",
            **QUICK_CLIENT,
            **config,
        }
        return self.kind(settings, **self.options())

    def reading(self, **config: Any) -> Any:
        """Return a consumer that is assigned the topic's partition."""
        consumer = self.consumer(**config)
        consumer.assign([TopicPartition("orders", 0)])
        return consumer

    def committed(self) -> TopicPartition:
        """Return what the group has committed."""
        with Consumer({"bootstrap.servers": self._kafka.bootstrap, "group.id": self.kind.__name__}) as reader:
            [found] = reader.committed([TopicPartition("orders", 0)], timeout=30)
        return found


def next_of(consumer: Consumer) -> Message:
    """Return the next message."""
    for _ in range(30):
        message = consumer.poll(1)
        if message is not None:
            return message
    raise AssertionError("no message came")


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns: the code of the client's error, or the class of another one."""
    try:
        return call()
    except KafkaException as error:
        return error.args[0].code()
    except Exception as error:  # noqa: BLE001 (errors are what is compared)
        return type(error)


def without_configuration(client: Client) -> Any:
    """No settings at all."""
    return outcome(lambda: client.kind(None, **client.options()))


def storing_before_it_is_handled(client: Client) -> Any:
    """A setting that commits messages too early."""
    made = outcome(lambda: client.consumer(**{"enable.auto.offset.store": True}))
    return made if isinstance(made, type) else made.close()


def without_its_constructor(client: Client) -> Any:
    """A call of a subclass that never calls the constructor."""
    subclass = type("Subclass", (client.kind,), {"__init__": object.__init__})
    return outcome(subclass().poll)


def closing(client: Client) -> Any:
    """Whether `close` commits the message in hand."""
    consumer = client.reading()
    next_of(consumer)
    consumer.close()
    return client.committed().offset > 0


def early_seek(client: Client) -> Any:
    """A seek before the partition is read; the first message then."""
    with client.reading() as consumer:
        refused = outcome(lambda: consumer.seek(TopicPartition("orders", 0, 2)))
        return refused, next_of(consumer).value()


def commit_of_one(client: Client) -> Any:
    """The group's offset after a commit of the second message, while ours has released the first."""
    with client.reading(**{"enable.auto.commit": False}) as consumer:
        first, second = next_of(consumer), next_of(consumer)
        if client.is_ours:
            consumer.release(first)
        outcome(lambda: consumer.commit(second, asynchronous=False))
        return client.committed().offset


def commit_backwards(client: Client) -> Any:
    """The group's offset after the commits of 2 and 1."""
    with client.reading(**{"enable.auto.commit": False}) as consumer:
        next_of(consumer)
        consumer.commit(next_of(consumer), asynchronous=False)
        outcome(lambda: consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False))
        return client.committed().offset


def commit_with_metadata(client: Client) -> Any:
    """Whether the group has the metadata of a commit."""
    with client.reading(**{"enable.auto.commit": False}) as consumer:
        next_of(consumer)
        consumer.commit(offsets=[TopicPartition("orders", 0, 1, "mine")], asynchronous=False)
        return client.committed().metadata == "mine"


def commit_elsewhere(client: Client) -> Any:
    """The commit of a partition that is not assigned."""
    with client.consumer(**{"enable.auto.commit": False}) as consumer:
        offsets = [TopicPartition("orders", 0, 1)]
        answer = outcome(lambda: consumer.commit(offsets=offsets, asynchronous=False))
        return answer if isinstance(answer, int) else answer[0].offset


def store_elsewhere(client: Client) -> Any:
    """The stored offset of a partition that is not assigned."""
    with client.reading(**{"enable.auto.offset.store": False}) as consumer:
        next_of(consumer)
        return outcome(lambda: consumer.store_offsets(offsets=[TopicPartition("pairs", 0, 1)]))


def store_in_each_mode(client: Client) -> Any:
    """A stored offset where nobody set ``enable.auto.offset.store=false``."""
    with client.reading() as consumer:
        message = next_of(consumer)
        return outcome(lambda: consumer.store_offsets(message))


def store_of_no_record(client: Client) -> Any:
    """A message that was never in a log."""
    with client.reading(**{"enable.auto.offset.store": False}) as consumer:
        next_of(consumer)
        return outcome(lambda: consumer.store_offsets(Message(topic="orders", partition=0)))


STATE, UNKNOWN = KafkaError._STATE, KafkaError._UNKNOWN_PARTITION
INVALID, NO_OFFSET = KafkaError._INVALID_ARG, KafkaError._NO_OFFSET
CHECKS: dict[str, tuple[Callable[[Client], Any], Any, Any]] = {
    "no configuration": (without_configuration, TypeError, ConfigurationError),
    "`enable.auto.offset.store=true`": (storing_before_it_is_handled, None, ConfigurationError),
    "a subclass": (without_its_constructor, RuntimeError, AttributeError),
    "`close()` with": (closing, True, False),
    "`seek()` right after": (early_seek, (STATE, b"a"), (None, b"c")),
    "`commit(message)`": (commit_of_one, 2, 0),
    "an offset below": (commit_backwards, 1, 2),
    "`commit(offsets=[...])`": (commit_with_metadata, True, False),
    "the same, of a partition": (commit_elsewhere, 1, NO_OFFSET),
    "`store_offsets()` of such": (store_elsewhere, UNKNOWN, None),
    "`store_offsets()` without": (store_in_each_mode, INVALID, None),
    "`store_offsets()` of a message": (store_of_no_record, None, INVALID),
}
"""The beginning of a row, its check, and what the check finds in the plain client and in ours."""
ELSEWHERE = {
    "`poll(seconds)`",  # tests/mock/test_leaving.py
    "`with consumer:`",  # both commit: tests/mock/test_completion.py shows that ours also completes
    "rebalance callbacks",  # which call it is depends on the client's queue
    "`close()` in a signal handler",  # the same: tests/mock/test_calls_of_signal_handlers.py
    "`poll()` or `close()` in a callback",  # the plain client ends the process: tests/mock/test_calls_in_callbacks.py
}


def test_every_row_of_the_page_is_checked() -> None:
    """Each row begins as one of the checks, and each check has its row."""
    begins = [*CHECKS, *ELSEWHERE]
    assert len(ROWS) == len(begins)
    assert [row for row in ROWS if not row.startswith(tuple(begins))] == []


@pytest.mark.parametrize("begins", CHECKS)
def test_the_clients_differ_as_the_page_says(begins: str, kafka: MockKafka, send: Send) -> None:
    """The plain client does the one, ours the other."""
    send("a", "b", "c")
    check, plain, ours = CHECKS[begins]
    assert check(Client(kafka, Consumer)) == plain
    assert check(Client(kafka, DedupConsumer)) == ours
