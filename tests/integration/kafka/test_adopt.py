"""A group that existed before: a plain loop has handled and committed its messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer

from dedup_sdk._cli.app import run
from tests.support.consuming import PATIENCE_S, lookup, poll_some, values

if TYPE_CHECKING:
    from tests.support.worlds import World

IDS = [f"order-{number}" for number in range(1_000)]
LINE = "without this package"


def adopt(world: World, *arguments: str) -> int:
    """Run the command for the world's group and topic; return its exit status."""
    return run(
        ["adopt", "--bootstrap", world.bootstrap, "--group", world.group, "--topic", world.topic,
         "--id", "header:dedup-id", "--window", "1d", *arguments]
    )  # fmt: skip


@pytest.fixture
def plain(world: World) -> World:
    """A world whose group has handled and committed 1,000 messages by a plain loop; then all are sent again."""
    world.send(*IDS)
    consumer = Consumer(
        {
            "bootstrap.servers": world.bootstrap, "group.id": world.group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "log_level": 0,
        }
    )  # fmt: skip
    consumer.subscribe([world.topic])
    assert values(poll_some(consumer, len(IDS))) == IDS
    consumer.commit(asynchronous=False)
    consumer.close()
    assert world.committed().offset == len(IDS)
    world.send(*IDS, "last")
    return world


def test_adopted_messages_are_not_handled_again(
    plain: World, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """No setting is needed in the code, and no warning comes."""
    assert adopt(plain, "--json") == 0
    (told,) = json.loads(capfd.readouterr().out)["partitions"]
    assert (told["low"], told["committed"], told["offsets"], told["text"]) == (0, 1_000, 1_000, "none")
    assert not plain.committed().metadata
    assert adopt(plain, "--execute") == 0
    assert plain.committed().offset == len(IDS)
    assert plain.handle(1, dedup=lookup(window="1d")) == ["last"]
    assert LINE not in caplog.text


def test_without_it_all_are_handled_and_one_line_says_so(
    plain: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names the command, which still helps: after the first start, too."""
    assert plain.handle(len(IDS) + 1, dedup=lookup(window="1d")) == [*IDS, "last"]
    lines = [each.getMessage() for each in caplog.records if LINE in each.getMessage()]
    assert len(lines) == 1
    assert "dedup adopt" in lines[0]


def test_it_helps_after_the_first_start(world: World) -> None:
    """The first start has begun the group's history at the foreign commit; adoption lets it begin earlier."""
    world.send("a", "b")
    world.commit_plainly(2)
    world.send("c")
    assert world.handle(1) == ["c"]
    assert adopt(world, "--execute") == 0
    world.send("a", "b", "c", "d")
    assert world.handle(1) == ["d"]


def test_a_group_with_members_is_left_alone(plain: World, capfd: pytest.CaptureFixture[str]) -> None:
    """They would commit over it; so they would over a rewind."""
    with plain.consumer() as consumer:
        assert len(poll_some(consumer, 1, patience_s=PATIENCE_S)) >= 1
        assert adopt(plain, "--execute") == 1
        assert "has 1 member" in capfd.readouterr().err


def test_another_rule_is_left_alone(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    """Messages that it hid were never handled."""
    world.send("a")
    assert world.handle(1) == ["a"]
    before = world.committed()
    assert adopt(world, "--window", "100n", "--execute", "--json") == 0
    (told,) = json.loads(capfd.readouterr().out)["partitions"]
    assert (told["changes"], "another rule" in told["note"]) == (False, True)
    assert world.committed().metadata == before.metadata
    assert "--to-current" in told["note"]


def test_a_mistyped_group_is_told(plain: World, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing would be adopted, and the note says why."""
    mistyped = plain.group[:-1] + plain.group[-1] * 2
    assert adopt(plain, "--group", mistyped, "--json") == 0
    (told,) = json.loads(capfd.readouterr().out)["partitions"]
    # Other tests have groups of names like it on the same broker.
    assert told["note"].startswith(f"the cluster knows no group '{mistyped}'; did you mean '{plain.group}'")


def test_the_way_back_from_a_wrong_id(plain: World, capfd: pytest.CaptureFixture[str]) -> None:
    """The same offset without a text, as other tools commit it, can be adopted again."""
    assert adopt(plain, "--id", "header:wrong", "--execute") == 0
    capfd.readouterr()
    assert adopt(plain, "--json") == 0
    (told,) = json.loads(capfd.readouterr().out)["partitions"]
    assert not told["changes"]
    plain.commit_plainly(len(IDS))
    assert adopt(plain, "--execute") == 0
    assert plain.handle(1, dedup=lookup(window="1d")) == ["last"]
