"""The whole consumer API in odd orders of calls.

Walks invented from seeds, and an oracle that knows only the handled records. Switches (environment):
    DEDUP_FUZZ_SEEDS    how many walks (20 by default, which take under a minute); thousands for a long run
    DEDUP_FUZZ_FIRST    the first seed

A walk that breaks a promise is walked again with fewer and fewer steps; the failure shows the few that are left,
and its seed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk._kafka.assign.assignment import Recovered
from dedup_sdk._kafka.deliver.delivery import Delivery
from dedup_sdk._kafka.deliver.in_hand import InHand
from dedup_sdk.testing import MockKafka
from tests.support.broken_promise import BrokenPromiseError
from tests.support.turns import in_turns
from tests.support.walking.player import Player
from tests.support.walking.shrinking import shrink
from tests.support.walking.walk import Step, Walk, invent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

SEEDS = int(os.environ.get("DEDUP_FUZZ_SEEDS", "20"))
FIRST = int(os.environ.get("DEDUP_FUZZ_FIRST", "0"))
SHARES = 4
"""Tests that the seeds are dealt to."""
CATCHING = 40
"""Walks among which one has to see that a promise is broken on purpose."""
_A_WALK_S = 20


def broken(walk: Walk, steps: Sequence[Step], folder: Path) -> str:
    """Return which promise these steps of a walk break, as one word; empty: none."""
    with MockKafka() as kafka:
        try:
            Player(kafka, walk, folder).play(steps)
        except BrokenPromiseError as error:
            return error.kind
        except Exception as error:  # noqa: BLE001 (whatever no call may raise)
            return type(error).__name__
    return ""


@pytest.mark.slow
@pytest.mark.timeout(120 + SEEDS * _A_WALK_S)
@pytest.mark.parametrize("share", range(SHARES))
def test_no_order_of_calls_breaks_a_promise(share: int, tmp_path: Path) -> None:
    """Nothing is lost, doubled without a fault, committed too far, stuck or raised that is not documented."""
    for seed in range(FIRST + share, FIRST + SEEDS, SHARES):
        walk = invent(seed)
        if kind := broken(walk, walk.steps, tmp_path):
            steps = shrink(
                walk.steps,
                lambda some, w=walk, k=kind: broken(w, some, tmp_path) == k,  # type: ignore[misc]
            )
            pytest.fail(f"{kind}, by seed {seed}:\n{replace(walk, steps=tuple(steps))}", pytrace=False)


# --- the oracle can fail
# -----------------------------------------------------------------------------------------------


def complete_when_handed_out(patch: pytest.MonkeyPatch) -> None:
    """Messages that the application has count as done."""
    take = Delivery.take

    def take_and_end(self: Delivery, count: int) -> list[Any]:
        out = take(self, count)
        for message in out:
            partition = None if message.error() else self.partition_of(message.topic(), message.partition())
            if partition is not None:
                partition.complete([message.offset()])
        return out

    patch.setattr(Delivery, "take", take_and_end)


def commit_past_a_gap(patch: pytest.MonkeyPatch) -> None:
    """The position is committed, done or not."""
    commit_of = Recovered.commit_of

    def position(self: Recovered, offset: int) -> TopicPartition:
        commit = commit_of(self, offset)
        if offset == self.partition.committable:
            commit.offset = self.partition.flight.position
        return commit

    patch.setattr(Recovered, "commit_of", position)


def ignore_releases(patch: pytest.MonkeyPatch) -> None:
    """Messages handed back count as done."""
    patch.setattr(InHand, "release", lambda self, message: self.complete([message]))


def hand_out_twice(patch: pytest.MonkeyPatch) -> None:
    """A message stays with the application, and comes again too."""
    take, given = Delivery.take, list[Any]()

    def take_twice(self: Delivery, count: int) -> list[Any]:
        out = take(self, count)
        again = [m for m in out if m.error() is None and m not in given]
        given.extend(again)
        self.put_back(again)
        return out

    patch.setattr(Delivery, "take", take_twice)


@pytest.mark.slow
@pytest.mark.timeout(CATCHING * _A_WALK_S)
@in_turns(
    ("twin", "kinds"),
    [
        (complete_when_handed_out, {"lost"}),
        (commit_past_a_gap, {"lost"}),
        (ignore_releases, {"lost"}),
        (hand_out_twice, {"doubled"}),
    ],
)
def test_a_promise_that_is_broken_on_purpose_is_seen(
    twin: Callable[[pytest.MonkeyPatch], None],
    kinds: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oracle can fail: among so many walks one shows it, and by its name."""
    twin(monkeypatch)
    walks = [walk for walk in map(invent, range(2 * CATCHING)) if walk.placing == "by hand"][:CATCHING]
    assert any(broken(walk, walk.steps, tmp_path) in kinds for walk in walks)


def test_what_is_left_of_a_failing_walk_is_what_it_needs() -> None:
    """Steps that have nothing to do with a failure are taken away, in whatever order they stand."""
    steps = [Step(name, number) for number, name in enumerate("abcdefghij")]
    left = shrink(steps, lambda some: {"b", "i"} <= {step.name for step in some})
    assert [step.name for step in left] == ["b", "i"]
