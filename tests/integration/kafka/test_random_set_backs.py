"""Resets and deletions of a group's offsets between random lives, on three hosts.

The lives end in order or by a kill; in between they complete messages in any way, seek, place their partition by a
callback, and are struck by a signal that raises once.
"""

from __future__ import annotations

import random
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.consuming import PATIENCE_S
from tests.support.set_back_member import Life

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.worlds import World

pytestmark = pytest.mark.slow
_ROUNDS = 8
_AGAIN_S = 0.2


@dataclass
class Judge:
    """What must be handled, and what may come again, by a list: the log's IDs, what was handled, where the group is.

    A message that was handled, and counts, may come again once

    - if it was not committed when a life was killed, or when a fault struck it;
    - if a seek, or a callback that places the partition, asked for it;
    - if the group's commits were deleted: a host without a store begins anew, another one where its store ends. What
      counted when that host's last life ended counts again.

    Where a tool has set the group, what lies from there on does not count any more: it must come again.
    """

    idents: list[str] = field(default_factory=list)
    ever: set[int] = field(default_factory=set)
    counts: set[int] = field(default_factory=set)
    """Handled, and not to be handled again since the group was set back."""
    passed: set[int] = field(default_factory=set)
    """Passed over by choice."""
    again: set[int] = field(default_factory=set)
    """Handled, and allowed to come again once."""
    doubled: list[int] = field(default_factory=list)
    known: dict[str, tuple[set[int], set[int]]] = field(default_factory=dict)
    """What counted, and what was passed over, when the last life on a disk ended."""
    is_without_commit: bool = False

    def begins(self, disk: str) -> None:
        """Note that a life begins on a disk: without a commit its store goes on, whatever other hosts know."""
        if self.is_without_commit:
            counted, passed = self.known.get(disk, (set(), set()))
            self.counts |= counted
            self.passed |= passed
            self.back(0)

    def ends(self, disk: str, *, is_committed: bool) -> None:
        """Note that a life on a disk has ended."""
        self.known[disk] = set(self.counts), set(self.passed)
        self.is_without_commit = not is_committed

    def handled(self, offset: int) -> None:
        """Note what a life has handled."""
        if offset in self.counts and offset not in self.again:
            self.doubled.append(offset)
        self.again.discard(offset)
        self.ever.add(offset)
        self.counts.add(offset)

    def back(self, offset: int) -> None:
        """Note that messages from an offset on may come again."""
        self.again |= {each for each in self.counts if each >= offset}

    def set_to(self, offset: int) -> None:
        """Note that a tool has set the group: nobody misses earlier records, all others must be handled again."""
        self.counts = {each for each in self.ever if each < offset}
        self.passed, self.is_without_commit = set(range(offset)), False

    def deleted(self) -> None:
        """Note that the group's offsets are gone: no host but those that took part in a move knows of that."""
        self.is_without_commit = True
        self.back(0)

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
    """Lives of one group in a world; ``rule`` breaks one (`tests.support.set_back_member.Life`)."""

    world: World
    rule: str = ""
    judge: Judge = field(default_factory=Judge)
    told: list[str] = field(default_factory=list)
    """What happened, for the report of a failure."""

    def __post_init__(self) -> None:
        """Connect."""
        self._admin = AdminClient({"bootstrap.servers": self.world.bootstrap, "log_level": 0})

    def send(self, *idents: str) -> None:
        """Send records."""
        self.told.append(f"sent {len(self.judge.idents)} to {len(self.judge.idents) + len(idents) - 1}")
        self.judge.idents += idents
        self.world.send(*idents)

    def live(self, disk: str, count: int, end: Literal["leave", "kill"], **more: Any) -> None:
        """Have a member handle at most so many messages on a host."""
        self.judge.begins(disk)
        life = Life(
            bootstrap=self.world.bootstrap, group=self.world.group, topic=self.world.topic,
            store=str(self.world.disk(disk)), count=count, end=end, rule=self.rule, **more,
        )  # fmt: skip
        ended = subprocess.run(
            life.command, check=False, capture_output=True, text=True, timeout=2 * PATIENCE_S
        )
        assert ended.returncode in (0, -9), ended.stderr
        for line in ended.stdout.splitlines():
            what, _, offset = line.partition(" ")
            (self.judge.handled if what == "handled" else self.judge.back)(int(offset))
        committed = self.world.committed().offset
        if ended.returncode:
            self.judge.back(max(0, committed))
        self.judge.ends(disk, is_committed=committed >= 0)
        happened = " ".join(ended.stdout.replace("handled ", "").split("\n"))
        self.told.append(f"{disk}, {more}, status {ended.returncode}: {happened}, committed {committed}")

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
        self.told.append(f"set to {offset}")
        self.judge.set_to(offset)

    def delete(self) -> None:
        """Delete the group, and its offsets with it."""

        def delete() -> None:
            [answer] = self._admin.delete_consumer_groups([self.world.group]).values()
            answer.result()

        self._once_empty(delete)
        self.told.append("deleted")
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

    def place_to_begin(self, back: int) -> int:
        """An offset a little before the group's commit, where a callback may have a partition begin."""
        return max(0, self.world.committed().offset - back)

    def finish(self) -> None:
        """Handle all that is left."""
        self.live("one", 10_000, "leave")
        self.live("two", 10_000, "leave")
        self.live("three", 10_000, "leave")


def test_nothing_is_lost_or_doubled_wherever_the_group_is_set(world: World, fresh_seed: int) -> None:
    """Whichever host knows what, however messages are completed, and however the lives ended."""
    rng, lives = random.Random(fresh_seed), Lives(world)
    for number in range(_ROUNDS):
        lives.send(*(rng.choice([f"{number}-{each}", rng.choice("abcdef")]) for each in range(12)))
        lives.live(
            rng.choice(["one", "two", "three"]), rng.randrange(1, 20), rng.choice(["kill", "leave"]),
            commit_ms=rng.choice([50, 60_000]), seed=rng.randrange(1_000_000),
            at=lives.place_to_begin(rng.choice([0, 1, 5])) if rng.random() < 0.2 else None,
        )  # fmt: skip
        what = rng.choice(["set", "set", "delete", "nothing", "nothing"])
        if what == "set":
            lives.set_to(rng.randrange(len(lives.judge.idents) + 1))
        elif what == "delete":
            lives.delete()
    lives.finish()
    assert (lives.judge.lost(), lives.judge.doubled) == ([], []), "\n".join(lives.told)


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
    assert lives.judge.doubled == []


@pytest.mark.parametrize("rule", ["", "old-era"])
def test_a_store_that_goes_on_in_an_old_era_is_caught(world: World, rule: str) -> None:
    """Commits are deleted after a set-back that the next host's store knows nothing of."""
    lives = Lives(world, rule)
    lives.send(*(str(each) for each in range(10)))
    lives.live("one", 10, "leave")
    lives.send(*(str(each) for each in range(10, 30)))
    lives.live("two", 20, "leave")
    lives.set_to(20)
    lives.live("three", 3, "leave")
    lives.delete()
    lives.live("one", 15, "leave")
    lives.live("two", 100, "leave")
    assert (lives.judge.lost() == []) == (not rule)
    assert lives.judge.doubled == []


@pytest.mark.parametrize("rule", ["", "vanish"])
def test_a_member_that_leaves_without_a_commit_is_caught(world: World, rule: str) -> None:
    """The next host handles again what no fault, no seek and no tool asked for."""
    lives = Lives(world, rule)
    lives.send(*(str(each) for each in range(10)))
    lives.live("one", 100, "leave", commit_ms=60_000)
    lives.live("two", 100, "leave")
    assert lives.judge.lost() == []
    assert (lives.judge.doubled == []) == (not rule)
