"""A member in a process of its own that handles some messages, and leaves in order or is killed inside a handler.

    python -m tests.support.set_back_member '{"bootstrap": ..., "group": ..., ...}'

The fields are those of `Life`. What happens is printed, a line each, when it happens:

- ``handled 7``: the message at this offset was handled; it is completed after that.
- ``back 5``: messages from this offset on may come again. A seek or a callback asked for that, or a fault struck while
  this offset was the group's commit; 0 if the group took the partition away.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from confluent_kafka import KafkaException, TopicPartition

from dedup_sdk import DedupConsumer, Lookup, header
from dedup_sdk._core.reach import plan_start
from dedup_sdk._kafka.recover import history
from tests.chaos.alarms import Alarms, OverdueError, RefusedError, Rung

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

_SILENT_S = 1.0
_ANSWER_S = 30.0
_MOST_S: Final = 40.0
"""Seconds after which a life ends, whatever comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What a member does.

    ``store`` is its folder, ``count`` how many messages it handles at most. ``seed`` None: it iterates, and nothing
    else. Else chance has it poll and consume, complete by itself or by the next call, commit, seek back, and be
    interrupted by a signal that raises once. ``at``: where a callback has its partition begin, instead of the commit.

    ``rule`` breaks one: ``compare`` has a commit without a text compared with what the store remembers, ``old-era`` has
    a store that goes on without a commit vouch for its own era, and ``vanish`` has a member that should leave in order
    end at once.
    """

    bootstrap: str
    group: str
    topic: str
    store: str
    count: int
    end: Literal["leave", "kill"]
    commit_ms: int = 100
    seed: int | None = None
    at: int | None = None
    rule: str = ""

    @property
    def command(self) -> list[str]:
        """The command that lives it."""
        return [sys.executable, "-m", "tests.support.set_back_member", json.dumps(asdict(self))]


def _say(what: str, offset: Any) -> None:
    sys.stdout.write(f"{what} {offset}\n")
    sys.stdout.flush()


def _compare_with_the_store() -> None:
    def compare(stored: Any, **named: Any) -> Any:
        known = stored is not None and not named["vouched"]
        return plan_start(stored, **{**named, "era": stored.era if known else named["era"]})

    vars(history)["plan_start"] = compare


def resumption_in_the_old_era() -> Callable[..., Any]:
    """Return a broken `_resume_without_commit`: it vouches for what other hosts completed before a set-back."""
    resume = history._resume_without_commit

    def keep(assigned: Any, start: Any, partition: Any, loaded: Any) -> Any:
        resumed = resume(assigned, start, partition, loaded)
        partition.begin_with(loaded)
        assert resumed.metadata is not None
        return replace(resumed, metadata=replace(resumed.metadata, era=loaded.progress.era))

    return keep


def _go_on_in_the_old_era() -> None:
    vars(history)["_resume_without_commit"] = resumption_in_the_old_era()


class Member:
    """Lives a life."""

    def __init__(self, life: Life) -> None:
        self._life, self._left = life, life.count
        self._chance = random.Random(life.seed)
        self._alarms = Alarms(random.Random(life.seed))
        self._explicit = life.seed is not None and self._chance.random() < 0.5
        self._in_hand: list[Message] = []
        self._silent_since = time.monotonic()
        settings = {
            "bootstrap.servers": life.bootstrap, "group.id": life.group, "auto.offset.reset": "earliest",
            "session.timeout.ms": 2_000, "heartbeat.interval.ms": 200, "auto.commit.interval.ms": life.commit_ms,
        }  # fmt: skip
        self._consumer = DedupConsumer(
            settings, dedup=Lookup(id=header("dedup-id"), window="1d"), store=life.store, idle_timeout=_SILENT_S,
            completion="explicit" if self._explicit else "on-next-call",
        )  # fmt: skip

    def live(self) -> None:
        """Handle messages until there are enough, or none comes; then end."""
        with self._consumer as consumer:
            place = None if self._life.at is None else self._place
            consumer.subscribe(
                [self._life.topic], on_assign=place, on_revoke=self._give_up, on_lost=self._lose
            )
            if self._life.seed is None:
                for message in consumer:
                    self._handle(message)
                    if not self._left:
                        break
            else:
                until = time.monotonic() + _MOST_S
                while self._left and time.monotonic() < until and not self._is_silent():
                    self._act()
                self._complete_all()
            if self._life.rule == "vanish":
                os._exit(0)

    def _place(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        assert self._life.at is not None
        for partition in partitions:
            partition.offset = self._life.at
            _say("back", self._life.at)
        consumer.assign(partitions)

    def _give_up(self, *_: Any) -> None:
        self._in_hand.clear()

    def _lose(self, *_: Any) -> None:
        self._in_hand.clear()
        _say("back", 0)

    def _is_silent(self) -> bool:
        ready = [status.state for status in self._consumer.partition_statuses] == ["active"]
        if not ready:
            self._silent_since = time.monotonic()
        return time.monotonic() - self._silent_since > _SILENT_S

    # --- messages ----------------------------------------------------------------------------------------------------

    def _handle(self, message: Message) -> None:
        _say("handled", message.offset())
        self._left -= 1
        if not self._left and self._life.end == "kill":
            # Commits arrive; the store would note them with its next write, which never comes.
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)

    def _take(self, messages: list[Message]) -> None:
        for message in messages:
            self._silent_since = time.monotonic()
            if not self._left:
                # Nobody has handled it.
                self._consumer.release(message)
            elif not self._explicit:
                self._handle(message)
            elif self._chance.random() < 0.5:
                with self._consumer.once(message):
                    self._handle(message)
            else:
                self._in_hand.append(message)
        if self._chance.random() < 0.3:
            self._complete_all()

    def _complete_all(self) -> None:
        self._chance.shuffle(self._in_hand)
        while self._in_hand and self._left:
            message = self._in_hand.pop()
            self._handle(message)
            self._consumer.complete(message)

    # --- acts --------------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        act = self._chance.choices([self._poll, self._consume, self._commit, self._seek], [12, 4, 3, 1])[0]
        got: list[Message] = []
        rung, struck = self._alarms.rung, False
        try:
            try:
                if self._chance.random() < 0.1:
                    self._alarms.wind()
                act(got)
            finally:
                self._alarms.stop()
        except KafkaException:
            # Nothing to commit, or the partition has just gone.
            pass
        except (Rung, OverdueError, RefusedError):
            # Maybe of an alarm inside an earlier call, which struck in a callback of the client.
            struck = True
        except BaseException:
            if self._alarms.rung == rung:
                raise
        messages = [message for message in got if message.error() is None]
        if struck or self._alarms.rung != rung:
            self._go_on_after_a_fault(messages)
        else:
            self._take(messages)

    def _go_on_after_a_fault(self, messages: list[Message]) -> None:
        self._in_hand.clear()
        for message in messages[: self._left]:
            self._handle(message)
        [committed] = self._consumer.committed([TopicPartition(self._life.topic, 0)], timeout=_ANSWER_S)
        _say("back", max(0, committed.offset))

    def _poll(self, got: list[Message]) -> None:
        if (message := self._consumer.poll(0.2)) is not None:
            got.append(message)

    def _consume(self, got: list[Message]) -> None:
        got.extend(self._consumer.consume(self._chance.choice([2, 5, 100]), 0.1))

    def _commit(self, _: list[Message]) -> None:
        self._consumer.commit(asynchronous=bool(self._chance.randrange(2)))

    def _seek(self, _: list[Message]) -> None:
        [place] = self._consumer.position([TopicPartition(self._life.topic, 0)])
        if place.offset >= 0:
            target = max(0, place.offset - self._chance.choice([0, 0, 1, 5]))
            if target < place.offset:
                # What is in hand comes again, also below the target.
                self._in_hand.clear()
                _say("back", target)
            self._consumer.seek(TopicPartition(self._life.topic, 0, target))


def main() -> None:
    """Live the life of the argument; see above."""
    life = Life(**json.loads(sys.argv[1]))
    if life.rule == "compare":
        _compare_with_the_store()
    elif life.rule == "old-era":
        _go_on_in_the_old_era()
    Member(life).live()


if __name__ == "__main__":
    main()
