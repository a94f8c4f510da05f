"""A consumer on a walk: each call of it is told to the oracle as the documentation has it."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, TopicPartition

from dedup_sdk import DedupError
from tests.support.broken_promise import BrokenPromiseError
from tests.support.consuming import lookup, make_consumer
from tests.support.interrupting import Interrupted, InterruptedAt
from tests.support.walking.oracle import Oracle
from tests.support.walking.walk import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dedup_sdk import MemoryStore
    from tests.support.walking.walk import Walk

LONG_S = 15.0
"""Seconds that no call may take."""
STOP_S = 3.0
"""Seconds after which a loop of the consumer's own is stopped."""
PATIENCE_S = 0.25
"""Seconds in which a step waits for a message."""
QUICK = {
    "session.timeout.ms": 2000, "heartbeat.interval.ms": 100, "fetch.wait.max.ms": 20, "socket.timeout.ms": 4000,
}  # fmt: skip
"""The mock cluster leaves a request of a rebalance unanswered now and then."""


class BoomError(Exception):
    """The error of the application."""


EXPECTED = (KafkaException, DedupError, BoomError)
"""The errors that a call may raise where its arguments are of the right type."""


class Member:
    """One consumer, and the acts of its application."""

    def __init__(
        self, walk: Walk, oracle: Oracle, where: tuple[str, str, str], store: MemoryStore | Path, owner: int
    ) -> None:
        self.walk, self.oracle, self.store, self.owner = walk, oracle, store, owner
        bootstrap, self.topic, group = where
        self.implicit = not walk.explicit and walk.who_completes == "next"
        self.history: list[Any] = []
        self.calls = 0
        self.place = 0
        """Where the next call is interrupted; 0: nowhere."""
        self.wary = False
        """Whether the callbacks do nothing any more: the process is dead."""
        self.broken: BrokenPromiseError | None = None
        self.lock = threading.Lock()
        config = {
            **QUICK,
            **SETTINGS[walk.who_completes],
            "auto.commit.interval.ms": 3_600_000 if walk.slow_commits else 20,
        }
        if walk.placing == "cooperative":
            config["partition.assignment.strategy"] = "cooperative-sticky"
        self.consumer = make_consumer(
            bootstrap,
            group,
            store,
            config,
            dedup=lookup(window=walk.window),
            completion="explicit" if walk.explicit else "on-next-call",
            durability=walk.durability,
            idle_timeout=0.15,
            revoke_deadline=1.0,
        )

    # --- calls ---------------------------------------------------------------------------------------------------

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[str, Any]:
        """Call; return ``ok`` and the result, ``refused`` and the error, or ``interrupted`` and where."""
        began, place = time.monotonic(), self.place
        self.place = 0
        try:
            with InterruptedAt(place) if place else contextlib.nullcontext():
                result = function(*arguments, **named)
        except Interrupted as error:
            self.oracle.fault()
            return "interrupted", error
        except EXPECTED as error:
            return "refused", error
        finally:
            if self.broken is not None:
                raise self.broken
            if time.monotonic() - began > LONG_S:
                raise BrokenPromiseError("hang", f"{function} took {time.monotonic() - began:.0f} s")
        return "ok", result

    def call_loop(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[str, Any]:
        """Call a loop that ends when nothing comes, and have it stopped where the group never lets it begin."""
        alarm = threading.Timer(STOP_S, self.consumer.stop)
        alarm.start()
        try:
            return self.call(function, *arguments, **named)
        finally:
            alarm.cancel()
            alarm.join()

    def asked(self) -> None:
        """Asking for more completes the messages handed out."""
        if self.implicit:
            self.oracle.end_given(self.owner, None)
        self.calls += 1

    def take(self, messages: list[Any]) -> list[Any]:
        """Take the messages that a call returned."""
        got = [m for m in messages if m is not None and m.error() is None]
        for message in got:
            self.oracle.hand(self.owner, message, self.calls)
        self.history += got
        return got

    def poll(self, timeout: float) -> list[Any]:
        """Poll once."""
        self.asked()
        how, message = self.call(self.consumer.poll, timeout)
        return self.take([message]) if how == "ok" else []

    def poll_patiently(self) -> list[Any]:
        """Poll until something comes, or nothing is to come."""
        until = time.monotonic() + PATIENCE_S
        while not (got := self.poll(0.02)) and time.monotonic() < until and not self.is_idle:
            pass
        return got

    @property
    def is_idle(self) -> bool:
        """Whether everything that there is was handed out."""
        ours = self.consumer.position(self.at(dict.fromkeys(self.numbers, 0)))
        return bool(ours) and all(at.offset >= len(self.oracle.log[at.partition]) for at in ours)

    def consume(self, count: int) -> list[Any]:
        """Consume once."""
        self.asked()
        how, messages = self.call(self.consumer.consume, count, 0.15)
        return self.take(messages) if how == "ok" else []

    # --- messages in hand ----------------------------------------------------------------------------------------

    @property
    def in_hand(self) -> list[Any]:
        """The messages that are this application's, in the order in which they came."""
        held = [
            each
            for given in self.oracle.given.values()
            for each in given.values()
            if each.owner == self.owner and not each.released
        ]
        return [each.message for each in sorted(held, key=lambda each: each.call)]

    def _surely_has(self, message: Any) -> bool:
        given = self.oracle.given[message.partition()].get(message.offset())
        return given is not None and given.message is message and not (given.released or given.doubtful)

    def complete(self, message: Any) -> None:
        """Complete a message: one in hand counts, one of another consumer does not."""
        number, offset = message.partition(), message.offset()
        mine = self._surely_has(message)
        before = self.consumer.counters.stale
        how, _ = self.call(self.consumer.complete, message)
        counted = self.consumer.counters.stale == before
        if mine and not counted and how == "ok":
            raise BrokenPromiseError(
                "stale", f"{number}@{offset} was in hand, and its completion counted as stale"
            )
        if mine or (counted and any(message is each for each in self.history)):
            self.oracle.end(number, offset, surely=mine and how == "ok")

    def release(self, message: Any) -> None:
        """Hand a message back."""
        number, offset = message.partition(), message.offset()
        before = self.consumer.counters.stale
        self.call(self.consumer.release, message)
        if self.consumer.counters.stale == before:
            # Also one that a later poll has completed, as long as that did not come to be written.
            self.oracle.give_back(number, offset)

    def once(self, message: Any, *, fails: bool) -> None:
        """Handle a message in a block of its own."""
        mine = self._surely_has(message)

        def handle() -> None:
            with self.consumer.once(message):
                if fails:
                    raise BoomError

        how, _ = self.call(handle)
        number, offset = message.partition(), message.offset()
        if fails:
            self.oracle.give_back(number, offset)
        else:
            self.oracle.end(number, offset, surely=mine and how == "ok")

    def commit(self, message: Any = None, below: dict[int, int] | None = None, *, waits: bool) -> None:
        """Commit all, a message, or offsets."""
        named = {} if below is None else {"offsets": self.at(below)}
        if message is not None:
            named, below = {"message": message}, {message.partition(): message.offset() + 1}
        everything = self.walk.who_completes in ("next", "by commit")
        if not self.walk.explicit and (below is not None or everything):
            self.oracle.end_given(self.owner, below)
        how, answer = self.call(self.consumer.commit, asynchronous=not waits, **named)
        for tp in answer or [] if how == "ok" else []:
            if tp.error is None:
                self.oracle.check_committed(tp.partition, tp.offset)

    def store_offsets(self, message: Any = None, below: dict[int, int] | None = None) -> None:
        """Say by an offset which messages are done."""
        named = {"message": message} if below is None else {"offsets": self.at(below)}
        if below is None:
            below = {message.partition(): message.offset() + 1}
        if not self.walk.explicit:
            self.oracle.end_given(self.owner, below)
        self.call(self.consumer.store_offsets, **named)

    def at(self, offsets: dict[int, int]) -> list[TopicPartition]:
        """Return places of the topic."""
        return [TopicPartition(self.topic, number, offset) for number, offset in offsets.items()]

    # --- where it is read ----------------------------------------------------------------------------------------

    @property
    def numbers(self) -> list[int]:
        """The partitions that are assigned."""
        return sorted(tp.partition for tp in self.consumer.assignment() if tp.topic == self.topic)

    def seek(self, number: int, target: int, shown: int | None = None) -> None:
        """Read on from elsewhere; ``shown``: how the target is called, where it has a name."""
        if number in self.numbers and self.implicit:
            self.oracle.end_given(self.owner, {number: target})
        how, _ = self.call(
            self.consumer.seek, TopicPartition(self.topic, number, target if shown is None else shown)
        )
        if how == "ok":
            self.oracle.forget(self.owner, [number])
        if how != "refused":
            self.oracle.jump(number, target, surely=how == "ok")

    def place_at(self, offsets: dict[int, int | None], name: str = "assign") -> None:
        """Assign partitions; with an offset that is a jump.

        All that is in hand comes again, but where some are added.
        """
        going = list(self.oracle.log) if name == "assign" else []
        places = [
            TopicPartition(self.topic, n) if o is None else TopicPartition(self.topic, n, o)
            for n, o in offsets.items()
        ]
        how, _ = self.call(getattr(self.consumer, name), places)
        if how == "ok":
            self.oracle.forget(self.owner, going)
        for number, target in offsets.items():
            if target is not None and how != "refused":
                self.oracle.jump(number, target)
        if how == "refused" and name == "assign":
            self.oracle.fault()

    def subscribe(self) -> None:
        """Have the group say which partitions are read."""
        self.call(
            self.consumer.subscribe,
            [self.topic],
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
        )

    def _assigned(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        if self.wary:
            return
        eager = self.walk.placing != "cooperative"
        self.oracle.forget(self.owner, self.oracle.log if eager else [tp.partition for tp in partitions])
        if self.walk.on_assign in ("assign", "jump"):
            if self.walk.on_assign == "jump":
                for tp in partitions:
                    tp.offset = (tp.partition + self.calls) % 4
                    self.oracle.jump(tp.partition, tp.offset)
            (consumer.assign if eager else consumer.incremental_assign)(partitions)
        if self.walk.on_assign == "raise":
            raise BoomError

    def _revoked(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        if self.wary:
            return
        way = self.walk.on_revoke
        place, self.place = self.place, 0
        try:
            if way in ("commit", "commit later"):
                self.commit(waits=way == "commit")
            elif way == "complete":
                for message in self.in_hand:
                    self.complete(message)
        except BrokenPromiseError as error:
            self.broken = error
        self.place = place
        eager = self.walk.placing != "cooperative"
        self.oracle.forget(self.owner, self.oracle.log if eager else [tp.partition for tp in partitions])
        del consumer
        if way == "raise":
            raise BoomError

    def _lost(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        del consumer, partitions
        self.oracle.fault()
        self.oracle.forget(self.owner, self.oracle.log)

    # --- its own loop --------------------------------------------------------------------------------------------

    def _handed_to_a_worker(self, message: Any, call: int) -> None:
        """A handler has a message: the first time, or once more."""
        given = self.oracle.given[message.partition()].get(message.offset())
        if given is not None and given.message is message and given.call == call and not given.released:
            return
        try:
            self.oracle.hand(self.owner, message, call)
        except BrokenPromiseError as error:
            self.broken = self.broken or error

    def run(self, a: int, b: int) -> None:
        """Have a handler called that fails now and then."""
        on_error, workers = ("raise", "retry", "dead-letter")[a % 3], a // 3 % 4
        left, tries = b % 6, dict[tuple[int, int], int]()
        if workers and self.implicit:
            self.oracle.end_given(self.owner, None)
        self.calls += 1
        call = self.calls

        def handle(message: Any) -> None:
            nonlocal left
            at = message.partition(), message.offset()
            with self.lock:
                self._handed_to_a_worker(message, call)
                self.history.append(message)
                tries[at] = tries.get(at, 0) + 1
                left -= 1
                if left < 0:
                    self.consumer.stop()
                if (at[1] * 7 + b) % 4 == 0 and (b % 5 > 2 or tries[at] < 2):
                    if on_error == "dead-letter" and tries[at] == 2:
                        self.oracle.end(*at, surely=False)
                    raise BoomError
                self.oracle.end(*at)

        self.call_loop(
            self.consumer.run,
            handle,
            on_error=on_error,
            workers=workers,
            order=("key", "none")[a // 12 % 2],
            attempts=1 if on_error == "raise" else 2,
            wait_initial=0.001,
            wait_max=0.002,
        )
        for number, given in self.oracle.given.items():
            for offset, each in given.items():
                if each.owner == self.owner and each.call == call:
                    self.oracle.give_back(number, offset)
