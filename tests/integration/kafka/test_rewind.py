from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk._cli.app import run
from tests.support.consuming import PATIENCE_S, poll_some

if TYPE_CHECKING:
    from tests.support.worlds import World


def rewind(world: World, *arguments: str) -> int:
    """Run the command for the world's group and topic; return its exit status."""
    return run(
        ["rewind", "--bootstrap", world.bootstrap, "--group", world.group, "--topic", world.topic, *arguments]
    )


@pytest.fixture
def past(world: World) -> World:
    """A world whose group has handled a, b, c, d on machine "one"; a and c were sent twice."""
    world.send("a", "b", "a", "c", "d", "c")
    assert world.rest() == ["a", "b", "c", "d"]
    return world


@pytest.mark.parametrize("disk", ["one", "two"])
def test_what_was_rewound_is_handled_again_as_the_first_time(past: World, disk: str) -> None:
    """On the machine with the store and on one without.

    The same messages, duplicates hidden, earlier ones known.
    """
    assert rewind(past, "--to-offset", "2", "--execute") == 0
    assert past.rest(disk) == ["c", "d"]


def test_without_execute_nothing_changes(past: World, capfd: pytest.CaptureFixture[str]) -> None:
    """A dry run prints where each partition would go, and the group stands where it stood."""
    before = past.committed()
    capfd.readouterr()
    assert rewind(past, "--by", "-100", "--json") == 0
    output = capfd.readouterr()
    (told,) = json.loads(output.out)["partitions"]
    assert (told["committed"], told["offset"], told["note"]) == (6, 0, "the log begins there")
    assert "nothing was changed" in output.err
    after = past.committed()
    assert (after.offset, after.metadata) == (before.offset, before.metadata)


def test_a_group_with_members_is_left_alone(past: World, capfd: pytest.CaptureFixture[str]) -> None:
    """They would commit over it: exit status 1, one line, and the offsets stay."""
    with past.consumer() as consumer:
        past.send("e")
        assert len(poll_some(consumer, 1)) == 1
        assert rewind(past, "--to-earliest", "--execute") == 1
        said = capfd.readouterr().err
        assert "has 1 member" in said
        # A client of an earlier test may still complain of its broker.
        assert [line for line in said.splitlines() if not line.startswith("%")] == said.splitlines()[-1:]
    assert past.committed().offset == 7


def test_a_moment_is_an_offset(world: World) -> None:
    """``--to-datetime`` goes to the first record at or after it; partitions that are not named stay."""
    world.send("a")
    time.sleep(0.05)
    moment = datetime.now(UTC).isoformat()
    time.sleep(0.05)
    world.send("b")
    assert world.rest() == ["a", "b"]
    assert rewind(world, "--to-datetime", moment, "--partition", "0", "--execute") == 0
    assert world.committed().offset == 1
    assert world.rest() == ["b"]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ([], 2),
        (["--to-offset", "1", "--by", "-1"], 2),
        (["--to-datetime", "yesterday"], 2),
        (["--client-config", "sasl.password:secret", "--to-earliest"], 2),
        (["--partition", "9", "--to-earliest"], 1),
        (["--topic", "nowhere", "--to-earliest"], 1),
    ],
)
def test_what_cannot_be_done_is_one_line(
    past: World, capfd: pytest.CaptureFixture[str], arguments: list[Any], status: int
) -> None:
    """Wrong usage ends with 2, names unknown to the cluster with 1; no traceback, no secret."""
    began = time.monotonic()
    capfd.readouterr()
    assert rewind(past, *arguments) == status
    said = capfd.readouterr().err
    assert "secret" not in said
    # A client of an earlier test may still complain of its broker.
    [line] = [line for line in said.splitlines() if not line.startswith("%")]
    assert line.startswith("dedup: ")
    assert time.monotonic() - began < PATIENCE_S


@pytest.mark.parametrize("target", [["--by", "-1"], ["--to-earliest", "--json"]])
def test_a_mistyped_group_is_told(past: World, capfd: pytest.CaptureFixture[str], target: list[str]) -> None:
    """No such group exists, and one with a name like it does."""
    mistyped = past.group[:-1] + past.group[-1] * 2
    capfd.readouterr()
    rewind(past, "--group", mistyped, *target)
    said = "".join(capfd.readouterr())
    assert f"the cluster knows no group '{mistyped}'; did you mean '{past.group}'" in said
