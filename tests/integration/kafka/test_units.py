"""Units on a real broker, through a kill in the middle of handling one, on the same disk and on another."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from dedup_sdk import Unit, header
from dedup_sdk._kafka.deliver.fetcher import Fetcher
from tests.support.consuming import PATIENCE_S, lookup, poll_quiet, values
from tests.support.killed_member import completed_before_a_kill

if TYPE_CHECKING:
    from tests.support.worlds import World


def send(world: World, *records: tuple[str, str, str]) -> None:
    """Send records: value, ID and unit, with an end mark where that ends in a dot."""
    producer = Producer({"bootstrap.servers": world.bootstrap, "linger.ms": 0, "log_level": 0})
    for value, ident, unit in records:
        headers: list[tuple[str, str | bytes | None]] = [("dedup-id", ident)]
        headers += [("dedup-unit", unit.rstrip("."))] if unit else []
        headers += [("dedup-unit-end", b"")] if unit.endswith(".") else []
        producer.produce(world.topic, value, headers=headers, partition=0)
    assert producer.flush(PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("disk", "commits", "again"),
    [
        ("same", "no", ["v1", "v2", "v3"]),
        ("lost", "yes", ["v1", "v2", "v3"]),
    ],
)
def test_a_kill_in_the_middle_of_a_unit(world: World, disk: str, commits: str, again: list[str]) -> None:
    """Messages that are over stay so, also rejected ones, on another disk those told by the last commit.

    The unit comes again, whole.
    """
    send(
        world,
        ("a", "a", ""), ("u1", "x", "U"), ("u2", "y", "U."), ("r1", "new", "R"), ("r2", "a", "R."),
        ("v1", "p", "V"), ("b", "b", ""), ("v2", "q", "V"), ("w1", "r", "W"), ("c", "c", ""), ("v3", "s", "V."),
    )  # fmt: skip
    # It handles a, U, b, c and V but for v2, while W is not whole.
    strategy = "Lookup(id=header('dedup-id'), window=Window(days=7), unit=header('dedup-unit'))"
    got = completed_before_a_kill(world, strategy, 8, commits=commits, failing="v2")
    assert sorted(got) == ["a", "b", "c", "u1", "u2", "v1", "v2", "v3"]
    assert world.committed().offset == (5 if commits == "yes" else 0)

    send(
        world,
        ("n", "new", ""),
        ("x", "x", ""),
        ("t1", "y", "T"),
        ("t2", "z", "T."),
        ("z", "z", ""),
        ("w2", "t", "W."),
    )
    dedup = lookup(unit=header("dedup-unit"))
    with world.consumer(disk, dedup=dedup) as consumer:
        got = values(poll_quiet(consumer))
        assert consumer.counters.verdicts["unverified"] == 0
    assert sorted(got) == sorted([*again, "w1", "w2", "n", "z"])
    assert world.committed().offset == 17


@pytest.mark.parametrize("open_behind", [False, True], ids=["marker", "open-transaction"])
def test_a_unit_is_late_beside_a_partition_that_never_falls_silent(
    pair_world: World, monkeypatch: pytest.MonkeyPatch, *, open_behind: bool
) -> None:
    """Though behind it lie records never handed over.

    The marker of its transaction, and a transaction that is open.
    """
    world = pair_world
    producer = Producer({
        "bootstrap.servers": world.bootstrap, "transactional.id": world.topic, "linger.ms": 0, "log_level": 0
    })  # fmt: skip
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    headers: dict[str, str | bytes | None] = {"dedup-id": "x", "dedup-unit": "U"}
    producer.produce(world.topic, "x/U", headers=headers, partition=0)
    producer.commit_transaction(PATIENCE_S)
    if open_behind:
        producer.begin_transaction()
        producer.produce(world.topic, "undecided", headers={"dedup-id": "u"}, partition=0)
        assert producer.flush(PATIENCE_S) == 0
    # As long as another partition has always more ready.
    monkeypatch.setattr(Fetcher, "ran_dry", property(lambda _: False, lambda *_: None), raising=False)
    world.send("first", partition=1)
    with world.consumer(dedup=lookup(unit=Unit(timeout=1.0))) as consumer:
        until, got = time.monotonic() + PATIENCE_S, list[str]()
        while "x/U" not in got and time.monotonic() < until:
            message = consumer.poll(0.1)
            got += [] if message is None else values([message])
            world.send(f"n{len(got)}", partition=1)
        assert "x/U" in got
        assert consumer.counters.reasons == {"unverified.unit-unfinished": 1}
    if open_behind:
        producer.abort_transaction(PATIENCE_S)
