"""Units that another host has judged before: who reads them again hides nothing that nobody has handled.

The worlds of these cases are in `tests/property/test_units_read_again.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import MemoryStore, Recovery
from dedup_sdk._kafka.client.client import Client
from tests.support.consuming import committed_metadata, poll_quiet, poll_some, values, wait_for
from tests.support.sending_units import SendUnits, unit_sender, units

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make


@pytest.fixture
def send(kafka: MockKafka) -> SendUnits:
    """Sends records as `tests.support.sending_units` writes them."""
    return unit_sender(kafka.bootstrap)


def test_a_unit_that_was_rejected_above_the_commit(make: Make, send: SendUnits) -> None:
    """The next host has no time to read back, and lacks x, for which the unit was rejected: s was never handled."""
    options: dict[str, Any] = {"completion": "explicit", "dedup": units()}
    send("x", "stuck", "x/V", "s/V.")
    with make("orders", store=MemoryStore(), **options) as first:
        for message in poll_some(first, 2)[:1]:
            first.complete(message)
        wait_for(first, lambda: first.counters.verdicts["duplicate"] >= 2, "the unit")
    second = make("orders", store=MemoryStore(), recovery=Recovery(timeout=0.0001), **options)
    assert values(wait_for(second, lambda: second.counters.verdicts["redelivered"] >= 2, "it")) == ["stuck"]
    send("s")
    assert values(poll_quiet(second)) == ["s"]


def test_a_unit_that_failed_above_the_commit(make: Make, send: SendUnits) -> None:
    """For whoever reads it whole it was accepted, and a later one, which was accepted, rejected.

    The host that reads on has a store of before, and knows everything else.
    """
    options: dict[str, Any] = {"completion": "explicit", "dedup": units(0.3)}
    known = MemoryStore()
    send("p")
    with make("orders", store=known, **options) as first:
        first.complete(poll_some(first, 1)[0])
    send("stuck", "a/U")
    with make("orders", store=MemoryStore(), **options) as second:
        second.complete(poll_some(second, 2)[1])
        send("b/U.", "a/V", "c/V.", "c/W", "s/W.")
        for message in poll_some(second, 3):
            second.complete(message)
        wait_for(second, lambda: second.counters.verdicts["duplicate"] >= 2, "W")
    third = make("orders", store=known, **options)
    assert values(wait_for(third, lambda: third.counters.verdicts["redelivered"] >= 4, "them")) == ["stuck"]
    send("s")
    assert values(poll_quiet(third)) == ["s"]


def test_the_group_s_offsets_are_gone_after_a_unit_failed(
    make: Make, send: SendUnits, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only the text of the lost commit said that the log does not tell how the units ended."""
    send("a/U")
    with make("orders", dedup=units(0.3), store=tmp_path) as first:
        poll_some(first, 1)
        send("b/U.", "a/V", "c/V.", "c/W", "s/W.")
        assert values(poll_quiet(first)) == ["b/U.", "a/V", "c/V."]
    with monkeypatch.context() as patch:
        patch.setattr(Client, "committed", lambda *_: {("orders", 0): TopicPartition("orders", 0, -1001)})
        with make("orders", dedup=units(0.3), store=tmp_path) as again:
            send("z")
            assert values(poll_quiet(again)) == ["z"]
            again.commit(asynchronous=False)
    told = committed_metadata(kafka.bootstrap, "g", "orders")
    assert told is not None
    assert (told.low, told.complete) == (6, False)
    elsewhere = make("orders", dedup=units(0.3), store=MemoryStore())
    send("s")
    assert values(poll_quiet(elsewhere)) == ["s"]
