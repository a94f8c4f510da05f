"""The warning for an ID spec that does not fit a topic."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Message

from dedup_sdk import Window
from dedup_sdk._kafka.missing_ids import RECORDS, MissingIds
from dedup_sdk.ids import Ids


def note(watch: MissingIds, topic: str, count: int, *, missing: int, headers: tuple[str, ...] = ()) -> None:
    """Have it see a batch of a topic of which the last ``missing`` records have no ID."""
    message = Message(headers=[(name, b"1") for name in headers]) if headers else Message()
    messages: list[Any] = [message] * count
    reasons = dict.fromkeys(range(count - missing, count), "absent")
    watch.note([topic] * count, messages, Ids([b"x" * 16] * count, reasons))


@pytest.fixture
def watch() -> MissingIds:
    """One that sees no topic yet; the topic "off" needs no IDs."""
    return MissingIds("header:Id", lambda topic: Window.off() if topic == "off" else Window(days=1))


@pytest.mark.parametrize(("missing", "warned"), [(900, False), (901, True)])
def test_more_than_nine_of_ten(
    watch: MissingIds, caplog: pytest.LogCaptureFixture, missing: int, *, warned: bool
) -> None:
    """Of the first 1,000, over several batches."""
    note(watch, "orders", 600, missing=600, headers=("id", "trace"))
    assert (watch.counting, caplog.records) == (True, [])
    note(watch, "orders", 400, missing=missing - 600)
    assert watch.counting is False
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warned
    if warned:
        assert caplog.records[0].getMessage() == (
            "orders: 901 of 1000 records have no ID by header:Id (absent: 901), so their duplicates are not "
            "recognised; these records have the headers 'id', 'trace': correct the ID spec, or the producer"
        )


def test_it_is_said_once_for_each_topic(watch: MissingIds, caplog: pytest.LogCaptureFixture) -> None:
    """Also where both come in one batch; a topic that remembers nothing needs no IDs."""
    for _ in range(3):
        for topic in ("orders", "payments", "off"):
            note(watch, topic, RECORDS, missing=RECORDS)
    said = [record.getMessage() for record in caplog.records]
    assert [line.split(":")[0] for line in said] == ["orders", "payments"]
    assert all("have no headers: correct" in line for line in said)


def test_only_records_since_the_first_one_without_an_id_count(
    watch: MissingIds, caplog: pytest.LogCaptureFixture
) -> None:
    """A producer that goes wrong later is noticed, too."""
    note(watch, "orders", 5, missing=0)
    note(watch, "orders", RECORDS, missing=RECORDS)
    assert len(caplog.records) == 1


def test_hostile_header_names_are_bounded(watch: MissingIds, caplog: pytest.LogCaptureFixture) -> None:
    """So many are named, each cut; else a topic could fill the memory, or the log."""
    messages: list[Any] = [
        Message(headers=[(f"{row}-{number}-" + "x" * 10_000, b"") for number in range(3)])
        for row in range(RECORDS)
    ]
    watch.note(["orders"] * RECORDS, messages, Ids([None] * RECORDS, dict.fromkeys(range(RECORDS), "absent")))
    [record] = caplog.records
    assert record.getMessage().count("-xxx") == 12
    assert ", ...: correct the ID spec" in record.getMessage()
    assert len(record.getMessage()) < 2_000
