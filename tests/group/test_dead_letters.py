"""Dead letters that are sent back with their headers are handled once more by the group that failed, by nobody else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import LastId, Window, header, orders
from dedup_sdk.ids import value
from tests.group.conftest import MOCK, on
from tests.support.consuming import iterate_all, lookup, poll_quiet, run_all, values
from tests.support.dead_letters import dead_letters, fail_for, forward

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.worlds import World

STRATEGIES = {
    "lookup": lookup(),
    "value": lookup(id=value()),
    "units": lookup(unit=header("dedup-unit")),
    "last": LastId(id=header("dedup-id"), order=orders.integer(), window=Window(days=7)),
    "sources": LastId(
        id=header("dedup-id"), order=orders.integer(), source=header("dedup-id"), window=Window(days=7)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "strategy", "disk"),
    [
        *(on(MOCK, strategy, disk) for strategy in STRATEGIES for disk in ("same", "empty")),
        on("real", "lookup", "same"),
        on("real", "sources", "empty"),
    ],
    indirect=["world"],
)
def test_what_is_sent_back_is_handled_once(world: World, strategy: str, disk: str) -> None:
    """By its group only, also where its store is made anew from the topic each time.

    A resend of its producer is a duplicate of its dead letter.
    """
    letter_topic = world.create_topic(f"{world.group}.dead-letters")
    options: dict[str, Any] = {"dedup": STRATEGIES[strategy]}
    disks = iter(("one",) * 9 if disk == "same" else [f"empty-{number}" for number in range(9)])

    def check(handled: Sequence[str], duplicates: int, *, mine: bool = True) -> None:
        more: dict[str, Any] = {} if mine else {"group": f"{world.group}-other"}
        with world.consumer(next(disks) if mine else "other", **options, **more) as consumer:
            assert values(poll_quiet(consumer)) == handled
            # On an empty disk records below the committed offset are folded, and not judged.
            assert consumer.counters.verdicts["duplicate"] == duplicates

    world.send("1", "2", "3", "1")
    with world.consumer("one", **options) as consumer:
        run_all(consumer, fail_for("2"), on_error="dead-letter", attempts=2, wait_initial=0.01, workers=2)
        assert (consumer.counters.dead_lettered, consumer.counters.verdicts["duplicate"]) == (1, 1)
    assert world.committed().offset == 4
    with world.consumer("other", **options, group=f"{world.group}-other") as other:
        assert values(iterate_all(other)) == ["1", "2", "3"]
    [letter] = dead_letters(world.bootstrap, letter_topic)
    assert letter.value() == b"2"
    world.send("2", "3")
    check([], 2)

    forward(world.bootstrap, [letter], world.topic)
    check(["2"], 0)
    forward(world.bootstrap, [letter], world.topic)
    check([], 1)
    check([], 4, mine=False)
    assert world.committed().offset == 8
