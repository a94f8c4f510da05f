"""Members that seek at random while partitions come and go in order: nothing comes again that no seek asked for."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, TopicPartition

from tests.group.conftest import on
from tests.support.consuming import numbers, poll_quiet, wait_for

if TYPE_CHECKING:
    from dedup_sdk import DedupConsumer
    from tests.support.worlds import World

MESSAGES, SEEKS, MEMBERS, PARTITIONS = 400, 20, 3, 2


class Judge:
    """Counts deliveries by partition and offset; a seek that has brought a message allows some once more."""

    def __init__(self) -> None:
        self.came: dict[int, Counter[int]] = defaultdict(Counter)
        self.more: list[tuple[int, int]] = []
        """Deliveries that no seek asked for."""
        self.seeks = 0
        self._allowed: dict[int, Counter[int]] = defaultdict(Counter)
        self._pending: dict[int, int] = {}
        self._in_hand: dict[DedupConsumer, tuple[int, int]] = {}

    def sought(self, member: DedupConsumer, partition: int, target: int) -> None:
        """A member seeks back; what it has in hand from there on is given up."""
        self.seeks += 1
        of_partition, in_hand = self._in_hand.get(member, (-1, -1))
        if of_partition == partition and in_hand >= target:
            self._allowed[partition][in_hand] += 1
        self._pending[partition] = target

    def gone(self, _: Any, partitions: list[TopicPartition]) -> None:
        """Partitions go in order; a seek that brought nothing asked for nothing."""
        for tp in partitions:
            self._pending.pop(tp.partition, None)

    def note(self, member: DedupConsumer, message: Any) -> None:
        """A member gets a message."""
        partition, offset = message.partition(), message.offset()
        came, allowed = self.came[partition], self._allowed[partition]
        target = self._pending.pop(partition, None)
        if target is not None:
            allowed.update(range(target, max(came, default=-1) + 1))
        came[offset] += 1
        if came[offset] > 1 + allowed[offset]:
            self.more.append((partition, offset))
        self._in_hand[member] = partition, offset


class Group:
    """Members of one group; each has a disk of its own."""

    def __init__(self, world: World, protocol: dict[str, Any], seed: int) -> None:
        self.random, self.judge = random.Random(seed), Judge()
        self._world, self._protocol, self._seed = world, protocol, seed
        self._members: list[DedupConsumer] = []
        self._made = 0

    def join(self) -> None:
        """Have one more member join."""
        self._made += 1
        member = self._world.idle_consumer(f"{self._seed}-{self._made}", config=self._protocol)
        member.subscribe([self._world.topic], on_revoke=self.judge.gone)
        self._members.append(member)

    def leave(self) -> None:
        """Have one member leave in order: what it has in hand is handled."""
        member = self._members.pop(self.random.randrange(len(self._members)))
        with member:
            pass

    def live(self) -> None:
        """Poll, seek, and let members come and go; then handle all there is."""
        self.join()
        while self.judge.seeks < SEEKS:
            if self.random.random() < 0.02:
                few = len(self._members) == 1
                many = len(self._members) == MEMBERS
                self.join() if few or (not many and self.random.random() < 0.5) else self.leave()
            self._turn()
        while len(self._members) > 1:
            self.leave()
        [last] = self._members
        rest = wait_for(
            last, lambda: len(last.assignment()) == PARTITIONS, "the partitions of those that left"
        )
        for message in rest + poll_quiet(last):
            self.judge.note(last, message)

    def _turn(self) -> None:
        for member in self._members:
            for _ in range(self.random.choice([0, 1, 5, 20])):
                message = member.poll(0.01)
                if message is not None and message.error() is None:
                    self.judge.note(member, message)
            if self.random.random() < 0.1:
                self._seek(member)

    def _seek(self, member: DedupConsumer) -> None:
        for tp in member.assignment():
            [place] = member.position([tp])
            if place.offset < 0:
                continue
            back = self.random.choice([0, 0, 1, self.random.randrange(place.offset + 1)])
            tp.offset = max(0, place.offset - back)
            try:
                member.seek(tp)
            except KafkaException:
                # It has just gone.
                continue
            if not back:
                # No move asks for nothing.
                self.judge.seeks += 1
                continue
            self.judge.sought(member, tp.partition, tp.offset)
            for _ in range(self.random.randrange(2)):
                message = member.poll(0)
                if message is not None and message.error() is None:
                    self.judge.note(member, message)


@pytest.mark.parametrize(("pair_world", "protocol"), [on("real", "cooperative")], indirect=True)
def test_seeks_double_only_what_they_ask_for(
    pair_world: World, protocol: dict[str, Any], fresh_seed: int
) -> None:
    """Random seeks to the own place and back, in a plain rebalance: nothing is lost, and nothing else comes again."""
    for partition in range(PARTITIONS):
        pair_world.send(*numbers(0, MESSAGES), partition=partition)
    group = Group(pair_world, protocol, fresh_seed)
    group.live()

    assert group.judge.more == []
    for partition in range(PARTITIONS):
        assert sorted(group.judge.came[partition]) == [*range(MESSAGES)]
