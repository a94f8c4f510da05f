"""Which topic a name stands for, as the broker says, or does not."""

from __future__ import annotations

import weakref
from concurrent.futures import Future
from gc import collect
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Uuid

from dedup_sdk._kafka.client import client as client_module
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.client.client_errors import is_retriable
from dedup_sdk._kafka.client.settings import client_settings
from dedup_sdk.errors import RecoveryError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Described:
    """A broker's description of a topic."""

    def __init__(self, topic_id: Any = "its ID") -> None:
        self.topic_id = topic_id


class Admin:
    """An admin client whose questions the test answers."""

    asked: list[dict[str, Future[Any]]]
    living: list[weakref.ref[Admin]]
    made = 0

    def __init__(self, _: Any) -> None:
        type(self).made += 1
        self.living.append(weakref.ref(self))

    def describe_topics(self, topics: Any, **_others: Any) -> dict[str, Future[Any]]:
        """Take a question about topics."""
        self.asked.append({name: Future() for name in topics.topic_names})
        return self.asked[-1]


class Topics:
    """Stands in for the collection, which does not tell its names."""

    def __init__(self, topic_names: list[str]) -> None:
        self.topic_names = topic_names


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of a cluster that tells topic IDs, and takes half a moment for it."""
    monkeypatch.setattr(Admin, "asked", [], raising=False)
    monkeypatch.setattr(Admin, "living", [], raising=False)
    monkeypatch.setattr(Admin, "made", 0)
    monkeypatch.setattr(client_module, "AdminClient", Admin)
    monkeypatch.setattr(client_module, "TopicCollection", Topics)
    monkeypatch.setattr(Client, "cluster_id", lambda _: "real")
    consumer = Consumer({"group.id": "g"})
    client = Client(consumer, client_settings({"group.id": "g"}))
    client.readers.timeout_s = 0.01
    yield client
    consumer.close()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError._TIMED_OUT, KafkaException),
        (KafkaError._TRANSPORT, KafkaException),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaException),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, RecoveryError),
    ],
)
def test_a_broker_that_does_not_say_is_asked_again(
    client: Client, code: int, expected: type[Exception]
) -> None:
    """Silence, or a broker that has not heard of the topic, has it asked anew over new connections.

    A refusal is an error.
    """
    client.topics.describe(["orders"])
    Admin.asked[0]["orders"].set_exception(KafkaException(KafkaError(code)))
    assert client.topics.is_described("orders")
    with pytest.raises(expected):
        client.topics.id_of("orders")
    client.topics.describe(["orders"])
    assert (len(Admin.asked), Admin.made) == (2, 2)
    Admin.asked[1]["orders"].set_result(Described())
    assert client.topics.id_of("orders") == "its ID"


@pytest.mark.parametrize("told", [Uuid(0, 0), None])
def test_an_id_of_zeros_is_none(client: Client, told: Any) -> None:
    """So the client shows the answers of brokers without topic IDs.

    Kept as one it would make another topic of each when they get them.
    """
    client.topics.describe(["orders"])
    Admin.asked[0]["orders"].set_result(Described(told))
    assert client.topics.id_of("orders") == ""


def test_a_question_goes_on_while_others_are_asked_anew(client: Client) -> None:
    """Its client is kept for it.

    One that nobody refers to would answer that it is destroyed, which looks like a refusal.
    """
    client.topics.describe(["orders", "other"])
    asked_by = Admin.living.pop()
    client.requests.renew()
    collect()
    assert asked_by() is not None
    for future in Admin.asked[0].values():
        future.set_result(Described())
    assert [client.topics.id_of(name) for name in ("orders", "other")] == ["its ID"] * 2
    collect()
    assert asked_by() is None


def test_all_topics_are_asked_about_in_one_request(client: Client) -> None:
    """However many topics an assignment has, it costs one client and one request.

    So it is until topics may have been made anew.
    """
    names = [f"t{number}" for number in range(60)]
    client.topics.describe(names)
    client.topics.describe(names)
    [asked] = Admin.asked
    assert sorted(asked) == sorted(names)
    assert not client.topics.is_described("t7")
    for future in asked.values():
        future.set_result(Described())
    assert [client.topics.id_of(name) for name in names] == ["its ID"] * 60
    client.topics.forget()
    client.topics.describe(names)
    assert (len(Admin.asked), Admin.made) == (2, 1)


def test_an_answer_that_is_not_there_yet_is_not_waited_for(client: Client) -> None:
    """Whoever needs it all the same waits no longer than a question may take. The same question is answered later."""
    with pytest.raises(KafkaException) as raised:
        client.topics.id_of("orders")
    assert is_retriable(raised.value)
    Admin.asked[0]["orders"].set_result(Described())
    assert client.topics.id_of("orders") == "its ID"
    assert len(Admin.asked) == 1
