"""Resets and deletions of a group's offsets between lives that end in order or by a kill, on two hosts."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.consuming import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.worlds import World

pytestmark = pytest.mark.slow
_ROUNDS = 8
_AGAIN_S = 0.2


@dataclass
class Judge:
    """What must be handled, by a list: the log's IDs, what was handled, and where a tool has set the group."""

    idents: list[str] = field(default_factory=list)
    ever: set[int] = field(default_factory=set)
    counts: set[int] = field(default_factory=set)
    """Handled, and not to be handled again since the group was set back."""
    passed: set[int] = field(default_factory=set)
    """Passed over by choice."""
    ever_passed: set[int] = field(default_factory=set)

    def handled(self, offsets: list[int]) -> None:
        """Note what a life has handled."""
        self.ever.update(offsets)
        self.counts.update(offsets)

    def set_to(self, offset: int) -> None:
        """Note that a tool has set the group: nobody misses earlier records, all others must be handled again."""
        self.counts = {each for each in self.ever if each < offset}
        self.passed = set(range(offset))
        self.ever_passed |= self.passed

    def deleted(self) -> None:
        """Note that the group's offsets are gone: nobody knows of a move any more."""
        self.counts, self.passed = set(self.ever), set(self.ever_passed)

    def lost(self) -> list[int]:
        """Return the offsets of records that nobody handled, though no earlier record of their ID was."""
        known: set[str] = set()
        lost = []
        for offset, ident in enumerate(self.idents):
            if offset in self.counts:
                known.add(ident)
            elif ident not in known and offset not in self.passed:
                lost.append(offset)
        return lost


@dataclass
class Lives:
    """Lives of one group in a world; ``rule`` breaks one (`tests.support.set_back_member`)."""

    world: World
    rule: str = ""
    judge: Judge = field(default_factory=Judge)

    def __post_init__(self) -> None:
        """Connect."""
        self._admin = AdminClient({"bootstrap.servers": self.world.bootstrap, "log_level": 0})

    def send(self, *idents: str) -> None:
        """Send records."""
        self.judge.idents += idents
        self.world.send(*idents)

    def live(self, disk: str, count: int, end: str, commit_ms: int = 100) -> None:
        """Have a member handle at most so many messages on a host."""
        arguments = [
            self.world.bootstrap, self.world.group, self.world.topic, str(self.world.disk(disk)),
            str(count), end, str(commit_ms), *([self.rule] if self.rule else []),
        ]  # fmt: skip
        ended = subprocess.run(
            [sys.executable, "-m", "tests.support.set_back_member", *arguments],
            check=False, capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        assert ended.returncode in (0, -9), ended.stderr
        self.judge.handled([int(line) for line in ended.stdout.split()])

    def set_to(self, offset: int) -> None:
        """Set the group as a plain tool does, once the group has noticed that its members are gone."""
        place = [TopicPartition(self.world.topic, 0, offset)]
        asked = [ConsumerGroupTopicPartitions(self.world.group, place)]

        def alter() -> None:
            [answer] = self._admin.alter_consumer_group_offsets(asked).values()
            for each in answer.result().topic_partitions:
                if each.error is not None:
                    raise KafkaException(each.error)

        self._once_empty(alter)
        self.judge.set_to(offset)

    def delete(self) -> None:
        """Delete the group, and its offsets with it."""

        def delete() -> None:
            [answer] = self._admin.delete_consumer_groups([self.world.group]).values()
            answer.result()

        self._once_empty(delete)
        self.judge.deleted()

    def _once_empty(self, ask: Callable[[], None]) -> None:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                ask()
            except KafkaException:
                assert time.monotonic() < until
                time.sleep(_AGAIN_S)
            else:
                return

    def finish(self) -> list[int]:
        """Handle all that is left; return what was lost."""
        self.live("one", 10_000, "leave")
        self.live("two", 10_000, "leave")
        return self.judge.lost()


def test_nothing_is_lost_wherever_the_group_is_set(world: World, fresh_seed: int) -> None:
    """Whichever host knows what, and however the lives ended."""
    rng, lives = random.Random(fresh_seed), Lives(world)
    for number in range(_ROUNDS):
        lives.send(*(rng.choice([f"{number}-{each}", rng.choice("abcdef")]) for each in range(12)))
        lives.live(
            rng.choice(["one", "two"]), rng.randrange(1, 20), rng.choice(["kill", "leave"]),
            rng.choice([50, 60_000]),
        )  # fmt: skip
        what = rng.choice(["set", "set", "set", "delete", "nothing"])
        if what == "set":
            lives.set_to(rng.randrange(len(lives.judge.idents) + 1))
        elif what == "delete":
            lives.delete()
    assert lives.finish() == []


@pytest.mark.parametrize("rule", ["", "compare"])
def test_a_broken_rule_is_caught(world: World, rule: str) -> None:
    """A set-back between two hosts: a store that compares the offset with what it remembers loses records."""
    lives = Lives(world, rule)
    lives.send(*(str(each) for each in range(10)))
    lives.live("one", 10, "leave")
    lives.send(*(str(each) for each in range(10, 30)))
    lives.live("two", 20, "leave")
    lives.set_to(15)
    lives.live("one", 5, "leave")
    lives.live("two", 100, "leave")
    assert (lives.judge.lost() == []) == (not rule)
