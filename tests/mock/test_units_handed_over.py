"""Units that were completed out of order, at a hand-over to another disk.

Each comes to the next owner whole, or not at all. Records are written as in `tests.support.sending_units`.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import MemoryStore
from dedup_sdk._engine.partition import Partition
from tests.support.consuming import poll_quiet, poll_some, progress, values, wait_for
from tests.support.sending_units import SendUnits, unit_sender, units

if TYPE_CHECKING:
    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make


@pytest.fixture
def send(kafka: MockKafka) -> SendUnits:
    """Sends records as `tests.support.sending_units` writes them."""
    return unit_sender(kafka.bootstrap)


def interleaved(random: Random, count: int) -> list[str]:
    """So many units of one to four records, and records without one, in any order.

    Of some units only the last record has an ID.
    """
    pieces = []
    for number in range(count):
        size = random.randint(0, 4)
        names = [f"{number}-{place}" for place in range(size)]
        pieces.append([f"{name}/{number}:{size}" for name in names] if size else [f"s{number}"])
    log: list[str] = []
    while pieces:
        piece = random.choice(pieces)
        log.append(piece.pop(0))
        if not piece:
            pieces.remove(piece)
    return log


def unit_of(value: str) -> str:
    """The unit of a record."""
    return value.partition("/")[2].partition(":")[0] or value


def read(consumer: DedupConsumer, count: int) -> list[Any]:
    """Read the rest of the messages, so many messages a batch."""
    got: list[Any] = []
    silent = 0
    while silent < (10 if got else 200):
        batch = consumer.consume(count, 0.1)
        silent = 0 if batch else silent + 1
        got += batch
    return got


@pytest.mark.parametrize("batch", [1, 3, 7, 1000])
@pytest.mark.parametrize("unit_mode", ["all-or-nothing", "members"])
def test_a_hand_over_repeats_no_unit_that_is_over(
    make: Make, send: SendUnits, batch: int, unit_mode: str
) -> None:
    """Some units are not completed, some by half: the next owner gets these, and all of them."""
    random = Random(batch)
    log = interleaved(random, 40)
    names = sorted({unit_of(value) for value in log})
    open_ = {unit_of(log[0]), *random.sample(names, 6)}
    options: dict[str, Any] = {"completion": "explicit", "dedup": units(unit_mode=unit_mode)}
    send(*log)
    with make("orders", store=MemoryStore(), **options) as first:
        for message in poll_some(first, len(log)):
            [value] = values([message])
            # The first record of a unit is completed all the same: it is not over.
            if unit_of(value) not in open_ or (value.split("/")[0].endswith("-0") and ":1" not in value):
                first.complete(message)
    second = make("orders", store=MemoryStore(), **options)
    again = read(second, batch)
    assert sorted(values(again)) == sorted(value for value in log if unit_of(value) in open_)
    assert second.counters.verdicts["redelivered"] > 0
    for message in again:
        second.complete(message)
    assert progress(second) == (len(log), 0)
    send(*(value.split("/")[0] for value in log), "new")
    assert values(poll_quiet(second)) == ["new"]


def test_a_unit_of_which_the_text_says_one_half_comes_whole(
    make: Make, send: SendUnits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the text had no room for its last record, its first ones are not left out."""
    options: dict[str, Any] = {"completion": "explicit", "dedup": units()}
    send("stuck", "a/U", "b", "/U", "c", "d/U.")
    with make("orders", store=MemoryStore(), **options) as first:
        for message in poll_some(first, 6)[1:]:
            first.complete(message)
    tell = Partition.tell_completed
    monkeypatch.setattr(
        Partition, "tell_completed", lambda self, _, *rest, **more: tell(self, [(1, 4)], *rest, **more)
    )
    second = make("orders", store=MemoryStore(), **options)
    assert sorted(values(poll_quiet(second))) == sorted(["stuck", "a/U", "/U", "c", "d/U."])


def test_a_unit_that_failed_is_handed_over_by_its_records(make: Make, send: SendUnits) -> None:
    """Its messages were handled, one by one, above a message that is stuck.

    It does not come again when its time is up once more.
    """
    options: dict[str, Any] = {"completion": "explicit", "dedup": units(0.3)}
    send("stuck", "a/U", "b/U")
    with make("orders", store=MemoryStore(), **options) as first:
        for message in poll_some(first, 3)[1:]:
            first.complete(message)
    second = make("orders", store=MemoryStore(), **options)
    assert values(wait_for(second, lambda: second.counters.verdicts["redelivered"] >= 2, "both")) == ["stuck"]
    assert second.counters.verdicts["redelivered"] == 2
    assert values(poll_quiet(second)) == []
