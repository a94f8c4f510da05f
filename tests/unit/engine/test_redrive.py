"""Records that come again with the redrive header of a dead letter."""

from __future__ import annotations

import pytest

from dedup_sdk import Deduplicator, LastId, Lookup, MemoryStore, Record, Window, header, orders
from dedup_sdk._strategy import Strategy
from dedup_sdk.ids import key
from dedup_sdk.ids._redrive import REDRIVE_HEADER, redrive_value
from tests.support.records import kinds

DAY = Window(days=1)
STRATEGIES: dict[str, Strategy] = {
    "header": Lookup(id=header("dedup-id"), window=DAY),
    "key": Lookup(id=key(), window=DAY),
    "count": Lookup(id=key(), window=Window(count=10)),
    "units": Lookup(id=header("dedup-id"), window=DAY, unit=header("dedup-unit")),
    "last": LastId(id=header("dedup-id"), order=orders.integer(), window=DAY),
    "sources": LastId(id=header("dedup-id"), order=orders.integer(), source=header("source"), window=DAY),
    "second": LastId(id=header("seq"), order=orders.integer(), otherwise=Lookup(id=key(), window=DAY), window=DAY),
}  # fmt: skip


def record(offset: int, number: int, *more: tuple[str, bytes]) -> Record:
    """A record whose ID is a number, in every way that a strategy reads it."""
    text = b"%d" % number
    headers = [("dedup-id", text), ("seq", text), ("source", b"s"), *more]
    return Record("t", 0, offset, 1_000 + offset, key=text, headers=headers)


def again(offset: int, failed: Record, number: int) -> Record:
    """A record as it comes back from the dead-letter topic."""
    value = redrive_value("g", failed.topic, failed.partition, failed.offset, failed.timestamp_ms)
    return record(offset, number, (REDRIVE_HEADER, value))


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("reopened", [False, True])
def test_what_comes_back_is_handled_once_more_by_its_group(name: str, *, reopened: bool) -> None:
    """However often it comes; a plain resend of it is a duplicate, and so is a dead letter for another group."""
    store = MemoryStore()
    engine = Deduplicator(STRATEGIES[name], store, group="g")
    other = Deduplicator(STRATEGIES[name], group="other")
    log = [record(0, 5), record(1, 6)]
    for each in (engine, other):
        assert kinds(each.admit(log)) == ["fresh"] * 2
        each.complete(log[:1])
    engine.dead_letter(log[1:])
    other.complete(log[1:])
    assert engine.counters.dead_lettered == 1
    if reopened:
        engine.shut()
        engine = Deduplicator(STRATEGIES[name], store, group="g")
    more = [record(2, 6), again(3, log[1], 6), again(4, log[1], 6)]
    assert kinds(engine.admit(more)) == ["duplicate", "fresh", "parked"]
    assert kinds(engine.complete(more[1:2])) == ["duplicate"]
    assert kinds(engine.admit([again(5, log[1], 6), record(6, 6)])) == ["duplicate"] * 2
    assert kinds(other.admit(more)) == ["duplicate"] * 3


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_fails_again_comes_back_again(name: str) -> None:
    """The new dead letter names the record that failed last."""
    engine = Deduplicator(STRATEGIES[name], group="g")
    failed = [record(0, 5)]
    engine.admit(failed)
    engine.dead_letter(failed)
    for offset in (1, 2, 3):
        failed.append(again(offset, failed[-1], 5))
        assert kinds(engine.admit(failed[-1:])) == ["fresh"]
        engine.dead_letter(failed[-1:])
    late = [again(4 + at, each, 5) for at, each in enumerate(failed[:-1])]
    assert kinds(engine.admit(late)) == ["duplicate"] * 3


@pytest.mark.parametrize("name", ["header", "units"])
def test_what_has_no_id_has_none_when_it_comes_back(name: str) -> None:
    """It is delivered as any such record, each time."""
    engine = Deduplicator(STRATEGIES[name], group="g")
    value = redrive_value("g", "t", 0, 0, 0)
    records = [Record("t", 0, offset, headers=[(REDRIVE_HEADER, value)]) for offset in range(2)]
    assert kinds(engine.admit(records)) == ["unkeyed"] * 2
