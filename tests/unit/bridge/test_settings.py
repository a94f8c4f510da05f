"""The settings that a bridge refuses where it is made, and those it sets."""

from __future__ import annotations

from typing import Any

import pytest

from dedup_sdk import ConfigurationError
from dedup_sdk.bridge import Bridge
from dedup_sdk.bridge._settings import source_settings, target_settings

ENDS: tuple[dict[str, Any], dict[str, Any]] = ({"bootstrap.servers": "a:1"}, {"bootstrap.servers": "b:1"})


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"enable.auto.commit": True}, "would be lost; leave it out"),
        ({"isolation.level": "read_uncommitted"}, "would copy aborted records"),
        ({"auto.offset.reset": "latest"}, "would skip records that were read and not copied"),
        ({"auto.offset.reset": "End"}, "would skip records that were read and not copied"),
        ({"group.id": " "}, "give a name that is not blank"),
        ({"sasl.password": "\ud800"}, "its value is not valid UTF-8"),
    ],
)
def test_a_source_that_would_lose_records_is_refused(setting: dict[str, Any], said: str) -> None:
    """In one line."""
    with pytest.raises(ConfigurationError, match=said):
        Bridge({**ENDS[0], **setting}, ENDS[1], topics="orders")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"acks": 1}, "acks=1 lets the brokers lose"),
        ({"request.required.acks": "0"}, "lets the brokers lose"),
        ({"enable.idempotence": "false"}, "enable.idempotence=false"),
        ({"partitioner": "random"}, "where no consumer knows its ID"),
        ({"on_delivery": print}, "reads the delivery reports itself"),
    ],
)
def test_a_target_that_would_lose_records_is_refused(setting: dict[str, Any], said: str) -> None:
    """In one line."""
    with pytest.raises(ConfigurationError, match=said):
        Bridge(ENDS[0], {**ENDS[1], **setting}, topics="orders")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topics": []}, "name at least one"),
        ({"topics": 7}, "name at least one"),
        ({"topics": ["a b"]}, "not a topic name"),
        ({"topics": ["orders", None]}, "not a topic name"),
        ({"topics": ["^("]}, "not a pattern"),
        ({"topics": [".."]}, "not a topic name"),
        ({"rename": "copy/{topic}"}, "give a topic's name"),
        ({"rename": ""}, "give a topic's name"),
        ({"rekey_by_id": True, "partitions": "same"}, "choose one"),
        ({"rekey_by_id": "no"}, "rekey_by_id='no': give True or False"),
        ({"use_duplicate_detection": 1}, "give True or False"),
        ({"partitions": "round"}, "choose key or same"),
        ({"transactions": True}, "choose auto, always or never"),
        ({"on_refused": "drop"}, "choose fail or skip"),
        ({"batch_records": 0}, "give how many"),
        ({"id": "key"}, "give header:NAME"),
        ({"id": "nonsense"}, "nonsense"),
    ],
)
def test_options_that_say_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    """Where the bridge is made, in one line."""
    made = {"topics": "orders", **options}
    with pytest.raises(ConfigurationError, match=said) as caught:
        Bridge(*ENDS, **made)
    assert len(str(caught.value).splitlines()) == 1


def test_what_is_set_by_us() -> None:
    """And the user's values go before it."""
    client = source_settings({"bootstrap.servers": "a:1"}, "g", reports_ends=False)
    assert client == {
        "bootstrap.servers": "a:1", "group.id": "g", "enable.auto.commit": False, "auto.offset.reset": "earliest",
        "partition.assignment.strategy": "cooperative-sticky", "topic.blacklist": "^__.*",
        "enable.partition.eof": False,
    }  # fmt: skip
    assert "partition.assignment.strategy" not in source_settings(
        {"group.protocol": "consumer"}, "g", reports_ends=False
    )
    assert (
        source_settings({"auto.offset.reset": "error"}, "g", reports_ends=True)["auto.offset.reset"]
        == "error"
    )
    target = target_settings(
        {"bootstrap.servers": "b:1", "transactional.id": "mine", "partitioner": "murmur2"}
    )
    assert target.client == {
        "bootstrap.servers": "b:1", "partitioner": "murmur2", "enable.idempotence": True,
        "transaction.timeout.ms": 15_000
    }  # fmt: skip
    assert (target.transactional_id, target.scatters_empty_keys) == ("mine", False)
    assert "hunter2" not in repr(target_settings({"sasl.password": "hunter2"}))
