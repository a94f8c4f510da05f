"""A store that turns out to be damaged, at the start or in the middle of the work."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

import pytest

from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.rocks import RocksStore, list_quarantined
from dedup_sdk.errors import RecoveryError, StoreError
from tests.support.consuming import committed, poll_quiet, poll_some, values
from tests.support.damage import damage_file, flip_marks

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

IDS = [f"id{number}" for number in range(2_000)]


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_a_damaged_store_is_set_aside_and_made_again_from_the_topic(
    make: Make, send: Send, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Messages handled before are not handled again, the log reports the damage once, and the evidence is kept."""
    send(*IDS)
    first = make("orders", store=tmp_path, recent_marks=500)
    assert values(poll_some(first, len(IDS))) == IDS
    poll_quiet(first)
    first.close()
    (entry,) = list_partitions(tmp_path)
    damage_file(max(entry.path.glob(name), key=lambda path: path.stat().st_size), "cut", random.Random(1))

    with caplog.at_level(logging.ERROR):
        second = make("orders", store=tmp_path)
        send(*IDS, "new")
        assert values(poll_quiet(second)) == ["new"]

    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    (kept,) = list_quarantined(entry.path)
    assert line.startswith(
        f"orders[0]: its damaged store is kept as {kept}, and recovery begins with an empty one"
    )
    assert second.counters.as_dict() | {"stores_set_aside": 1, "unverified": 0} == second.counters.as_dict()


@pytest.mark.parametrize("completion", ["on-next-call", "explicit"])
def test_damage_in_the_middle_of_the_work_costs_nothing(
    make: Make, send: Send, kafka: MockKafka, tmp_path: Path, completion: str
) -> None:
    """A sorted file that changes under a running consumer is set aside.

    The loop goes on, and sees each message once.
    """
    send(*IDS)
    consumer = make(
        "orders", store=RocksStore(tmp_path, block_cache_bytes=1), recent_marks=500, completion=completion
    )
    seen = []
    for message in poll_some(consumer, len(IDS)):
        seen.append(message.value().decode())
        if completion == "explicit":
            consumer.complete(message)
    poll_quiet(consumer)
    flip_marks(tmp_path)

    send(*IDS, "new")
    for message in poll_quiet(consumer, 1.0):
        seen.append(message.value().decode())
        consumer.complete(message)

    assert seen == [*IDS, "new"]
    assert consumer.counters.stores_set_aside == 1
    assert consumer.counters.verdicts["duplicate"] == len(IDS)
    consumer.close()
    assert committed(kafka.bootstrap, "g", "orders").offset == 2 * len(IDS) + 1


def test_a_store_that_is_damaged_again_at_once_ends_in_its_error(
    make: Make, send: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where setting aside is of no avail the consumer does not go round in circles.

    The error reaches the application.
    """
    send(*IDS)
    consumer = make("orders", store=RocksStore(tmp_path, block_cache_bytes=1), recent_marks=500)
    poll_some(consumer, len(IDS))
    poll_quiet(consumer)
    flip_marks(tmp_path)

    def refuse(*_: object) -> str:
        raise StoreError("it cannot be moved")

    monkeypatch.setattr(RocksStore, "set_aside", refuse)
    send(*IDS)
    with pytest.raises(RecoveryError, match="it cannot be moved"):
        poll_quiet(consumer, 2.0)
