"""A group whose units were judged by another rule than today's.

Records it then rejected, and nobody handled, are not taken for handled.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import Lookup, MemoryStore, Window
from dedup_sdk._commit_text import parse_metadata
from tests.support.consuming import committed, committed_metadata, lookup, poll_quiet, poll_some, values
from tests.support.sending_units import SendUnits, unit_sender, units

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk._commit_text import CommitMetadata
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make

REJECTED = ["a", "b", "c", "x/U", "a/U."]
"""U holds a duplicate, so that x is hidden, and not handled."""


@pytest.fixture
def send(kafka: MockKafka) -> SendUnits:
    """Sends records as `tests.support.sending_units` writes them."""
    return unit_sender(kafka.bootstrap)


def live(make: Make, send: SendUnits, dedup: Lookup, **settings: Any) -> None:
    """Have a group judge `REJECTED`, and leave."""
    send(*REJECTED)
    with make("orders", dedup=dedup, **settings) as consumer:
        assert values(poll_quiet(consumer)) == ["a", "b", "c"]
        consumer.commit(asynchronous=False)


def told_by(kafka: MockKafka) -> CommitMetadata:
    """The text of the group's commit."""
    metadata = committed_metadata(kafka.bootstrap, "g", "orders")
    assert metadata is not None
    return metadata


def judged_by(kafka: MockKafka) -> str:
    """The rule that the group's commit names."""
    now = committed(kafka.bootstrap, "g", "orders")
    told = parse_metadata(now.metadata, committed=now.offset)
    assert told is not None
    return told.rule


@pytest.mark.parametrize(
    "now",
    [
        lookup(),
        units(unit_mode="members"),
        units(window=Window(count=2)),
    ],
    ids=["no-units", "members", "a-shorter-window"],
)
def test_another_rule_and_a_lost_store(
    make: Make, send: SendUnits, kafka: MockKafka, caplog: pytest.LogCaptureFixture, now: Lookup
) -> None:
    """By that rule U would have been accepted: its x is delivered all the same, unverified, and the commit says why."""
    live(make, send, units(), store=MemoryStore())
    before = told_by(kafka)
    assert (before.low, before.complete) == (0, True)
    rule = judged_by(kafka)
    elsewhere = make("orders", dedup=now, store=MemoryStore())
    with caplog.at_level(logging.WARNING, "dedup_sdk"):
        send("x")
        assert values(poll_some(elsewhere, 1)) == ["x"]
    assert elsewhere.counters.verdicts["unverified"] == 1
    assert "used another rule" in caplog.text
    elsewhere.commit(asynchronous=False)
    told = told_by(kafka)
    assert (told.low, told.complete) == (5, False)
    assert judged_by(kafka) != rule


def test_units_where_there_were_none(make: Make, send: SendUnits) -> None:
    """The marks of single records are not those of units: nothing is made up of them."""
    with make("orders", store=MemoryStore()) as consumer:
        send("a", "b")
        assert values(poll_some(consumer, 2)) == ["a", "b"]
    elsewhere = make("orders", dedup=units(), store=MemoryStore())
    send("a")
    assert values(poll_some(elsewhere, 1)) == ["a"]
    assert elsewhere.counters.verdicts["unverified"] == 1


def test_another_window_over_the_same_store(
    make: Make, send: SendUnits, kafka: MockKafka, tmp_path: Path
) -> None:
    """Records that were lived through are known, and stay so.

    Who has lost them afterwards does not fold records judged by the other window.
    """
    live(make, send, units(), store=tmp_path)
    shorter = units(window=Window(days=1))
    with make("orders", dedup=shorter, store=tmp_path) as consumer:
        send("a", "x", "d")
        assert values(poll_quiet(consumer)) == ["x", "d"]
        assert consumer.counters.verdicts["unverified"] == 0
        consumer.commit(asynchronous=False)
    told = told_by(kafka)
    assert (told.low, told.complete) == (5, False)
    elsewhere = make("orders", dedup=shorter, store=MemoryStore())
    send("x", "d", "b")
    assert values(poll_quiet(elsewhere)) == ["b"]
    assert elsewhere.counters.verdicts["unverified"] == 1


def test_members_may_have_another_window(make: Make, send: SendUnits) -> None:
    """Whatever they were told, each was handled: the topic makes up for a lost store as without units."""
    send(*REJECTED)
    with make("orders", dedup=units(unit_mode="members"), store=MemoryStore()) as consumer:
        assert values(poll_quiet(consumer)) == ["a", "b", "c", "x/U"]
    shorter = units(unit_mode="members", window=Window(days=1))
    elsewhere = make("orders", dedup=shorter, store=MemoryStore())
    send("x", "d")
    assert values(poll_quiet(elsewhere)) == ["d"]
    assert elsewhere.counters.verdicts["unverified"] == 0
