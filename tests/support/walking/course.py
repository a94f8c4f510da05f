"""The course of a walk: a topic, the consumers of a group, their stores.

And the plain run that reads the rest in the end.
"""

from __future__ import annotations

import itertools
import shutil
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from dedup_sdk import MemoryStore
from tests.support import inside
from tests.support.broken_promise import BrokenPromiseError
from tests.support.walking.member import Member
from tests.support.walking.oracle import Oracle

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk.testing import MockKafka
    from tests.support.walking.walk import Walk

DRAINED_S = 20.0
"""Seconds after which a message is not coming any more."""
_FLUSH_S = 30.0
_RUNS = 5
_NUMBERS = itertools.count()


class Course:
    """A walk's topic and group on a mock cluster, and who is in it."""

    def __init__(self, kafka: MockKafka, walk: Walk, folder: Path) -> None:
        self.kafka, self.walk, self.folder = kafka, walk, folder
        number = next(_NUMBERS)
        self.topic, self.group = f"walk-{number}", f"walkers-{number}"
        kafka.create_topic(self.topic, partitions=len(walk.log))
        kafka.create_topic(f"{self.group}.dead-letters")
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0, "log_level": 0})
        self.oracle = Oracle(
            walk.window,
            {n: [] for n in range(len(walk.log))},
            by_user=walk.who_completes in ("by commit", "both"),
        )
        for partition, log in enumerate(walk.log):
            for entry in log:
                self._send(partition, entry)
        self._flush()
        self._stores = 0
        self.other: Member | None = None
        self.old: list[Any] = []
        """Messages of consumers that are gone."""
        self.store = self._make_store()
        self.member = self._make(self.store)
        self._place(self.member)

    def _send(self, partition: int, entry: Any) -> None:
        headers = {} if entry.name is None else {"dedup-id": entry.name}
        key = None if entry.name is None else entry.name.encode()
        self._producer.produce(
            self.topic, b"-", key, headers=headers, partition=partition, timestamp=entry.timestamp_ms
        )
        self.oracle.log[partition].append(entry)

    def _flush(self) -> None:
        assert self._producer.flush(_FLUSH_S) == 0

    def _make_store(self) -> MemoryStore | Path:
        self._stores += 1
        return self.folder / f"{self.topic}-{self._stores}" if self.walk.rocks else MemoryStore()

    def _make(self, store: MemoryStore | Path, walk: Walk | None = None) -> Member:
        where = self.kafka.bootstrap, self.topic, self.group
        return Member(walk or self.walk, self.oracle, where, store, next(_NUMBERS))

    def _place(self, member: Member) -> None:
        if member.walk.placing == "by hand":
            member.place_at(dict.fromkeys(self.oracle.log))
        else:
            member.subscribe()

    def finish(self) -> None:
        """Close the open consumers, and see the findings of a plain run."""
        self.member.place = 0
        self._end(self.member)
        self._clear_errors()
        self._end_other()
        self._drain()

    def _clear_errors(self) -> None:
        for request in ("OffsetCommit", "Heartbeat"):
            self.kafka.clear_errors(request)

    def abandon(self) -> None:
        """Leave nothing behind, however the walk ended."""
        self._clear_errors()
        for member in filter(None, (self.member, self.other)):
            if not inside.lock_of(member.consumer).closed:
                member.wary = True
                inside.lose_all(member.consumer)
                member.consumer.close()
        for number in range(1, self._stores + 1):
            shutil.rmtree(self.folder / f"{self.topic}-{number}", ignore_errors=True)

    def _drain(self) -> None:
        plain = replace(
            self.walk,
            who_completes="next",
            explicit=False,
            slow_commits=False,
            on_assign="nothing",
            on_revoke="nothing",
        )
        if any(step.name == "subscribe" for step in self.walk.steps) and plain.placing == "by hand":
            # The mock cluster takes commits of a group that ever had members from members only.
            plain = replace(plain, placing="eager")
        stuck: list[int] = []
        for _ in range(_RUNS):
            self.oracle.shaken = False
            member = self.member = self._make(self.store, plain)
            self._place(member)
            self._read_to_the_end(member)
            reader = self._make(MemoryStore(), plain)
            with closing(reader.consumer):
                self._look_at_committed(reader)
            stuck = [n for n, log in self.oracle.log.items() if self.oracle.committed.get(n, -1) < len(log)]
            if not stuck:
                break
            # The refusals of the walk may have met this run's commits.
            self.kafka.clear_errors("OffsetCommit")
        for number, log in self.oracle.log.items():
            if missing := self.oracle.missing(number, len(log)):
                raise BrokenPromiseError("lost", f"of {number} never came: {missing}")
        if stuck:
            raise BrokenPromiseError("stuck", f"of {stuck} is committed: {self.oracle.committed}")

    def _read_to_the_end(self, member: Member) -> None:
        until = time.monotonic() + DRAINED_S
        # A waiting message comes when the one before it has ended.
        while not member.is_idle or member.poll(0.02) or not member.is_idle:
            member.poll(0.02)
            if time.monotonic() > until:
                raise BrokenPromiseError("hang", f"it stands at {member.consumer.partition_statuses}")
        self._end(member, block=True)

    def _look_at_committed(self, member: Member) -> None:
        how, answer = member.call(
            member.consumer.committed, member.at(dict.fromkeys(self.oracle.log, -1001)), 5
        )
        for tp in answer if how == "ok" else []:
            if tp.error is None:
                self.oracle.check_committed(tp.partition, tp.offset)

    def _end(self, member: Member, *, block: bool = False) -> None:
        """Close, as often as it takes."""
        if block and member.implicit:
            self.oracle.end_given(member.owner, None)
        self.oracle.doubt(member.owner)
        how, _ = member.call(
            *((member.consumer.__exit__, None, None, None) if block else (member.consumer.close,))
        )
        if how == "interrupted":
            member.call(member.consumer.close)
        if self.oracle.shaken:
            self.oracle.fault()
        self.oracle.forget(member.owner, list(self.oracle.log))
        self.old += member.history

    def _die(self, member: Member) -> None:
        """Lose unwritten marks, as a killed process leaves it."""
        member.place, member.wary = 0, True
        inside.lose_all(member.consumer)
        member.consumer.close()
        self.oracle.fault()
        self.oracle.forget(member.owner, self.oracle.log)
        self.old += member.history

    def _begin(self) -> None:
        self.oracle.shaken = False
        self.member = self._make(self.store)
        self._place(self.member)

    def _end_other(self) -> None:
        if self.other is not None:
            self._end(self.other)
            self.other = None
