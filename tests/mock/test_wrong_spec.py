from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dedup_sdk import Record
from dedup_sdk._advice import missing_ids
from dedup_sdk.ids import function
from tests.support.consuming import lookup, numbers, poll_through, values

if TYPE_CHECKING:
    from tests.mock.conftest import Make, Send


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings of missing IDs."""
    return [each.getMessage() for each in caplog.records if " no ID" in each.getMessage()]


def boom(record: Record) -> str:
    """A function with an error."""
    raise KeyError(f"order-id of {record.topic}")


def test_a_misspelt_header_is_named(make: Make, send: Send, caplog: pytest.LogCaptureFixture) -> None:
    """Every record is delivered, and one warning names the headers that are there."""
    consumer = make("orders", dedup=lookup(id="header:Dedup-Id"))
    send(*numbers(0, 1_200))
    assert values(poll_through(consumer, "orders")) == numbers(0, 1_200)
    consumer.close()
    [line] = told(caplog)
    assert line.startswith("orders: 1000 of 1000 records have no ID by header:Dedup-Id")
    assert "the headers 'dedup-id'" in line


@pytest.mark.parametrize("end", ["close", "unsubscribe", "assign"])
def test_a_small_topic_is_warned_of_at_the_end(
    *, make: Make, send: Send, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    """When the consumer closes, or its partitions are revoked; once."""
    consumer = make("orders", dedup=lookup(id="header:Dedup-Id"))
    send(*numbers(0, 90))
    assert len(poll_through(consumer, "orders")) == 90
    assert told(caplog) == []
    if end != "close":
        consumer.unsubscribe() if end == "unsubscribe" else consumer.assign([])
        consumer.poll(0.2)
        assert len(told(caplog)) == 1
    consumer.close()
    [line] = told(caplog)
    assert line.startswith("orders: 90 of 90 records have no ID by header:Dedup-Id")


def test_a_slow_topic_is_warned_of_after_a_while(
    *, make: Make, send: Send, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though no other record comes."""
    monkeypatch.setattr(missing_ids, "WAIT_S", 0.3)
    consumer = make("orders", dedup=lookup(id="header:Dedup-Id"))
    send(*numbers(0, 30))
    assert len(poll_through(consumer, "orders")) == 30
    for _ in range(50):
        if told(caplog):
            break
        consumer.poll(0.1)
    [line] = told(caplog)
    assert line.startswith("orders: 30 of 30 records")


@pytest.mark.parametrize("where", ["id", "unit"])
def test_the_first_exception_of_a_function_is_told_at_once(
    *, make: Make, send: Send, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """Of whatever part of the strategy; a summary follows where records have no ID."""
    spec = function(boom, name="order-id", version="1")
    consumer = make("orders", dedup=lookup(id=spec) if where == "id" else lookup(unit=spec))
    send(*numbers(0, 5))
    assert len(poll_through(consumer, "orders")) == 5
    [line] = told(caplog)
    assert line.startswith("orders[0]@0 has no ID by ")
    assert "boom (test_wrong_spec.py:" in line
    assert "raised KeyError: 'order-id of orders'; correct the function" in line
    send(*numbers(5, 30))
    poll_through(consumer, "orders")
    consumer.close()
    assert [each.split(" records")[0] for each in told(caplog)[1:]] == ["orders: 30 of 30"] * (where == "id")
