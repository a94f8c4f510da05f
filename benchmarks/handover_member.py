"""A member of a group, in a process of its own, that says when it delivers from all that it was assigned."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import Consumer

from dedup_sdk import DedupConsumer, Lookup, Window, header

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path
    from types import TracebackType

    from confluent_kafka import TopicPartition

STRATEGY = Lookup(id=header("dedup-id"), window=Window(days=7))
PATIENCE_S = 60.0
_POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivering:
    """A member has had a record of each of ``count`` partitions since it was assigned them.

    ``began_at``, ``ready_at``: of its subscription and of now, monotonic seconds, which all processes share.
    ``given_s``: the poll in which it gave away its partitions, from its callback on (0: it had none).
    ``taken_s``: from its callback to now. ``cpu_s``: processor time of the process in both.
    """

    count: int
    began_at: float
    ready_at: float
    given_s: float
    taken_s: float
    cpu_s: float


class Member:
    """The process, seen from outside: a plain consumer, or with ``store`` one of ours."""

    def __init__(self, config: dict[str, Any], topic: str, store: Path | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, config, topic, store), daemon=True)
        self._process.start()
        theirs.close()
        self._receive(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Have it leave the group."""
        self._pipe.close()
        self._process.join(PATIENCE_S)

    def subscribe(self) -> None:
        """Let it join."""
        self._pipe.send("subscribe")

    def wait(self, count: int) -> Delivering:
        """Return when it delivers from so many partitions; raises TimeoutError, or ConnectionError when it has died."""
        until = time.monotonic() + PATIENCE_S
        while True:
            delivering: Delivering = self._receive(until - time.monotonic())
            if delivering.count == count:
                return delivering

    def _receive(self, within_s: float) -> Any:
        if not self._pipe.poll(max(within_s, 0.0)):
            raise TimeoutError(f"a member was not ready within {PATIENCE_S:.0f} s: try again")
        try:
            return self._pipe.recv()
        except EOFError:
            raise ConnectionError("a member died; what it says about that is above") from None


class _Watch:
    """The partitions of its assignment that a member has heard from."""

    def __init__(self) -> None:
        self.began_at = time.monotonic()
        self._missing: set[int] = set()
        self._count = 0
        self._assigned_at = self._revoked_at = self._given_s = 0.0
        self._cpu_from_s = self._given_cpu_s = 0.0

    def assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._missing = {tp.partition for tp in partitions}
        self._count, self._assigned_at, self._cpu_from_s = (
            len(partitions),
            time.monotonic(),
            time.process_time(),
        )

    def revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            self._revoked_at, self._cpu_from_s = time.monotonic(), time.process_time()

    def look(self, message: Any) -> Delivering | None:
        """Take note of a poll that ended, and of its message; say when that was the last partition."""
        now = time.monotonic()
        if self._revoked_at:
            self._given_s, self._revoked_at = now - self._revoked_at, 0.0
            self._given_cpu_s = time.process_time() - self._cpu_from_s
        if message is None or message.error() is not None or message.partition() not in self._missing:
            return None
        self._missing.remove(message.partition())
        if self._missing:
            return None
        return Delivering(
            count=self._count, began_at=self.began_at, ready_at=now, given_s=self._given_s,
            taken_s=now - self._assigned_at, cpu_s=self._given_cpu_s + time.process_time() - self._cpu_from_s,
        )  # fmt: skip


def _run(pipe: Connection, config: dict[str, Any], topic: str, store: Path | None) -> None:
    consumer = Consumer(config) if store is None else DedupConsumer(config, dedup=STRATEGY, store=store)
    pipe.send("ready")
    pipe.recv()
    watch = _Watch()
    consumer.subscribe([topic], on_assign=watch.assigned, on_revoke=watch.revoked)
    while not pipe.poll():
        delivering = watch.look(consumer.poll(_POLL_S))
        if delivering is not None:
            pipe.send(delivering)
    consumer.close()
