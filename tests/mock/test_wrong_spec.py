from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.consuming import lookup, numbers, poll_through, values

if TYPE_CHECKING:
    import pytest

    from tests.mock.conftest import Make, Send


def test_a_misspelt_header_is_named(make: Make, send: Send, caplog: pytest.LogCaptureFixture) -> None:
    """Every record is delivered, and one warning names the headers that are there."""
    consumer = make("orders", dedup=lookup(id="header:Dedup-Id"))
    send(*numbers(0, 1_200))
    assert values(poll_through(consumer, "orders")) == numbers(0, 1_200)
    said = [record.getMessage() for record in caplog.records if "have no ID" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("orders: 1000 of 1000 records have no ID by header:Dedup-Id")
    assert "the headers 'dedup-id'" in said[0]
