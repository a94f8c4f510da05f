"""A machine that takes over what another one did, and a log that has lost the place where the group stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.consuming import poll_quiet, values
from tests.support.stored import stored_marks, stored_progress

if TYPE_CHECKING:
    from tests.support.worlds import World


def test_another_machine_gives_the_same_verdicts(world: World) -> None:
    """It reads the tail of the log again, IDs only, and then holds the marks that the first machine holds."""
    world.send("a", "b", "a", "c", "b", "d")
    assert world.handle(4) == ["a", "b", "c", "d"]
    world.send("a", "d", "e", "c")

    with world.consumer("two") as consumer:
        assert values(poll_quiet(consumer)) == ["e"]
        assert consumer._session.assigned[world.topic, 0].replayed == 6
        assert consumer.counters.verdicts["unverified"] == 0
        assert consumer.counters.verdicts["duplicate"] == 3
    world.rest("one")
    assert stored_marks(world.disk("two")) == stored_marks(world.disk("one"))
    one, two = stored_progress(world.disk("one")), stored_progress(world.disk("two"))
    assert one is not None
    assert two is not None
    assert (one.low, one.high, one.since_ms) == (two.low, two.high, two.since_ms)


@pytest.mark.parametrize(("reset", "expected"), [("earliest", ["d", "e", "a"]), ("latest", [])])
def test_an_offset_that_is_gone_follows_the_policy(world: World, reset: str, expected: list[str]) -> None:
    """Retention has overtaken the group: it goes on where the policy says, and its history begins there."""
    world.send("a", "b", "c", "d", "e", "a")
    world.handle(1, "one")
    world.delete_before(3)

    with world.consumer("two", config={"auto.offset.reset": reset}) as consumer:
        assert values(poll_quiet(consumer)) == expected
        world.send("d", "f")
        assert values(poll_quiet(consumer)) == (["f"] if reset == "earliest" else ["d", "f"])
    metadata = world.metadata()
    assert metadata is not None
    assert metadata.low == (3 if reset == "earliest" else 6)


def test_an_offset_that_is_gone_with_the_store_at_hand(world: World) -> None:
    """The marks of what was handled stay: they were handled, though the log is gone."""
    world.send("a", "b", "c", "d", "e", "a")
    world.handle(1, "one")
    world.delete_before(3)

    assert world.rest("one") == ["d", "e"]
