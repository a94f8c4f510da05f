"""The drop-in consumer: a `confluent_kafka.Consumer` whose loop sees each logical message once."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Any, Literal, Self

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from dedup_sdk.engine.deduplicator import RECENT_MARKS, Deduplicator
from dedup_sdk.engine.partition import Partition
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.kafka.callbacks import Guard
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.handout import HandOut
from dedup_sdk.kafka.judging import Judge, collector_paused
from dedup_sdk.kafka.placement import Placement
from dedup_sdk.kafka.recovery import History, RecoverySettings
from dedup_sdk.kafka.session import Session
from dedup_sdk.kafka.settings import client_settings
from dedup_sdk.lane.plan import OnRewind
from dedup_sdk.observe import Counters, Observer
from dedup_sdk.record import Verdict
from dedup_sdk.store.protocol import KeyStore
from dedup_sdk.store.rocks import RocksStore
from dedup_sdk.strategy import Lookup

logger = logging.getLogger("dedup_sdk")

BATCH = 1_000
"""Messages that ``poll`` judges together; larger batches were slower (cache misses)."""
TIDY_S = 0.1
"""Seconds that implicit completion may wait before it is written, and between two looks at the group."""
_BREATH_S = 0.2
_ONE_DAY_S = 86_400.0

Completion = Literal["on-next-call", "explicit"]
Mode = Literal["dedup", "observe"]


class DedupConsumer(Placement):
    """A `confluent_kafka.Consumer` that hides duplicates.

    in flight
        a message that the application has and that is not completed.
    completed
        handled: remembered, and never delivered again while the window lasts. Asking for more (`poll`, `consume`,
        iteration) completes what was handed out before; with ``completion="explicit"`` only `complete` does.
    released
        handed back, to be delivered again. Leaving the ``with`` block by an exception releases what is in flight;
        `close` does too, because it cannot know whether the last message was handled.

    Args:
        config: what `confluent_kafka.Consumer` takes. ``enable.auto.commit`` unset: completed messages are committed on
            ``auto.commit.interval.ms``, asynchronously; false: only `commit` commits.
        dedup: how duplicates are recognised.
        store: a folder for the key stores (private to the user; processes may share it), or a `KeyStore`.
        completion: ``on-next-call`` or ``explicit`` (for worker threads; completions in any order, from any thread).
        mode: ``observe`` judges and counts, and hides nothing.
        snapshot: a folder made by ``dedup backfill``; taken where the local store is missing and the snapshot fits.
        on_rewind: what happens when the group's offsets were set back: ``reprocess`` or ``suppress`` what was completed.
        history: for a group that committed before it used this package: ``none`` of that is believed, or
            ``assume-processed``: everything before its committed offset counts as handled.
        observers: called with every verdict.
        idle_timeout: seconds without a message after which iteration ends; None: never.
        recent_marks: marks kept in memory before they go to sorted files.

    Raises `ConfigurationError` for settings that would break a promise, and what `confluent_kafka.Consumer` raises.
    Observers and rebalance callbacks run inside `poll`, `consume` and `close`, on the calling thread.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        /,
        *,
        dedup: Lookup,
        store: str | Path | KeyStore,
        completion: Completion = "on-next-call",
        mode: Mode = "dedup",
        snapshot: str | Path | None = None,
        on_rewind: OnRewind = "reprocess",
        history: History = "none",
        observers: Iterable[Observer] = (),
        idle_timeout: float | None = None,
        recent_marks: int = RECENT_MARKS,
        **client_arguments: Any,
    ) -> None:
        for name, value, choices in (
            ("completion", completion, ("on-next-call", "explicit")), ("mode", mode, ("dedup", "observe")),
            ("on_rewind", on_rewind, ("reprocess", "suppress")), ("history", history, ("none", "assume-processed")),
        ):  # fmt: skip
            if value not in choices:
                raise ConfigurationError(f"{name}={value!r}: choose {' or '.join(choices)}")
        if not isinstance(dedup, Lookup):
            raise ConfigurationError(f"dedup={dedup!r}: give a strategy, e.g. Lookup(id=header('dedup-id'), window=Window(days=7))")
        settings = client_settings(config)
        keys = RocksStore(store) if isinstance(store, str | Path) else store
        self._settings = settings
        self._guard = Guard()
        super().__init__({**settings.client, "on_commit": self._on_commit}, **client_arguments)
        self._engine = Deduplicator(
            dedup, keys, group=settings.group, isolation=settings.isolation, observers=observers, recent_marks=recent_marks
        )
        chosen = RecoverySettings(
            snapshot=None if snapshot is None else str(snapshot), on_rewind=on_rewind, history=history
        )
        self._session = Session(self._engine, Client(self, settings), settings, chosen)
        self._judge = Judge(self._engine, self._session, observing=mode == "observe")
        self._hand = HandOut(self._partition_of, observing=mode == "observe")
        self._ready = self._hand.ready
        self._implicit = completion == "on-next-call"
        self._idle_timeout_s = idle_timeout
        self._lock = RLock()
        self._tidy_at = self._heard_at = 0.0
        self._fetched = []
        self._assigning = None
        self._stopped = False
        self._closed = False

    # --- messages ------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = -1) -> Any:
        """Return the next message that is no duplicate, an error event, or None after ``timeout`` seconds (-1: no limit).

        Returns within its timeout also when everything that came was a duplicate. Completes what was handed out before
        (``completion="on-next-call"``).
        """
        if self._ready and time.monotonic() < self._tidy_at:
            return self._ready.popleft()
        got = self._next(1, timeout, BATCH)
        return got[0] if got else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        """Return up to ``num_messages`` messages that are no duplicates; fewer (or none) after ``timeout`` seconds.

        Like the plain client it waits until so many have come or the time is up; it does not wait a second time for
        those that were duplicates if something is left to hand out. Error events are among the messages, in their place.
        """
        if num_messages < 1:
            return list(super().consume(num_messages, timeout))
        return self._next(num_messages, timeout, num_messages)

    def _next(self, count: int, timeout: float | None, at_most: int) -> list[Any]:
        self._check_open()
        until = time.monotonic() + (_ONE_DAY_S if timeout is None or timeout < 0 else timeout)
        while True:
            with self._lock:
                self._tidy()
                self._guard.raise_kept()
                got = self._hand.take(count)
            left_s = until - time.monotonic()
            if not got:
                self._fetch_and_judge(at_most, left_s, whole=count > 1)
                with self._lock:
                    self._guard.raise_kept()
                    got = self._hand.take(count)
            if got or left_s <= 0:
                return got

    def _tidy(self) -> None:
        """Complete what the application had, write it, and look after recovery, commits and the group."""
        if self._implicit:
            for partition in self._hand.finish():
                partition.persist()
        else:
            self._hand.leave()
        self._engine.trim()
        self._session.work()
        now = time.monotonic()
        if self._ready and now > self._heard_at + TIDY_S:
            # The group must hear from us also while there is enough to hand out: slow handlers.
            self._heard_at = now
            message = super().poll(0)
            if message is not None:
                self._fetched.append(message)
        self._tidy_at = now + TIDY_S

    def _fetch_and_judge(self, at_most: int, left_s: float, *, whole: bool) -> None:
        """Judge what is there at once, or what comes within the time that is left."""
        self._heard_at = time.monotonic()
        with collector_paused():
            if len(self._fetched) < at_most:
                self._fetched += super().consume(at_most - len(self._fetched), 0)
            if len(self._fetched) >= (at_most if whole else 1) or left_s <= 0:
                self._judge_fetched()
                return
        pause_s = 0.0 if self._session.recovering else max(0.0, min(left_s, self._session.until_commit_s))
        if whole:
            self._fetched += super().consume(at_most - len(self._fetched), pause_s)
        else:
            first = super().poll(pause_s)
            if first is not None:
                self._fetched = [first, *super().consume(at_most - 1, 0)] if at_most > 1 else [first]
        with collector_paused():
            self._judge_fetched()

    def _judge_fetched(self) -> None:
        """Judge what was fetched; events of the client go to the application untouched, in their place."""
        with self._lock:
            self._judge_batch()

    def _judge_batch(self) -> None:
        batch = self._fetched
        if not batch:
            return
        errors = list(map(Message.error, batch))
        first = next((row for row, error in enumerate(errors) if error is not None), len(batch))
        if first == 0:
            self._fetched = batch[1:]
            if not self._session.absorbs(batch[0]):
                self._hand.apart.append(batch[0])
            return
        judged = self._judge.judge(batch[:first])
        self._hand.fill(judged)
        self._fetched = judged.rest + batch[first:]
        if judged.error is not None:
            self._guard.keep(judged.error)

    def __iter__(self) -> Iterator[Any]:
        """Yield messages until `stop`, or until ``idle_timeout`` seconds pass without one; raise fatal errors, log others."""
        self._stopped = False
        heard = time.monotonic()
        while not self._stopped:
            message = self.poll(_BREATH_S)
            if message is None:
                idle_s = time.monotonic() - heard
                if self._idle_timeout_s is not None and idle_s > self._idle_timeout_s and not self._session.recovering:
                    return
                continue
            error = message.error()
            if error is None:
                yield message
                heard = time.monotonic()
            elif error.fatal():
                raise KafkaException(error)
            else:
                logger.warning("%s", error.str())

    def stop(self) -> None:
        """End the iteration after the message in hand; may be called from a signal handler or another thread."""
        self._stopped = True

    # --- completion ----------------------------------------------------------------------------------------------

    def complete(self, message: Any) -> None:
        """Remember a message as done; it is in the store when this returns. From any thread."""
        with self._lock:
            partition = self._taken_out(message)
            if partition is not None:
                self._hand.offer(partition, partition.complete([message.offset()]))
                partition.persist()

    def release(self, message: Any) -> None:
        """Hand a message back: it is delivered again before new ones, while its twins stay parked. From any thread."""
        with self._lock:
            partition = self._taken_out(message)
            if partition is not None:
                self._hand.offer_again(partition.release([message.offset()]))

    def _taken_out(self, message: Any) -> Partition | None:
        """Take a message out of implicit completion; None (and counted) when its partition is not ours any more."""
        self._check_open()
        self._hand.take_out(message)
        partition = self._partition_of(message.topic(), message.partition())
        self._engine.counters.stale += partition is None
        return partition

    @contextlib.contextmanager
    def once(self, message: Any) -> Iterator[Any]:
        """Complete a message at the end of the block; release it when the block raises, and let the exception go on."""
        with self._lock:
            self._taken_out(message)
        try:
            yield message
        except BaseException:
            self.release(message)
            raise
        self.complete(message)

    def verdict(self, message: Any) -> Verdict | None:
        """Return the verdict of a message that was handed out, by its coordinates; None when it is not known any more."""
        topic, number, offset = message.topic(), message.partition(), message.offset()
        with self._lock:
            for partition, chunk in self._hand.chunks():
                row = chunk.row_of(offset) if (partition.topic, partition.partition) == (topic, number) else None
                if row is not None:
                    return chunk.verdict(row)
            held = self._partition_of(topic, number)
            place = held.lane.place(offset) if held is not None else None
            return None if place is None else place.chunk.verdict(place.row)

    @property
    def counters(self) -> Counters:
        """Totals by verdict since the consumer was made."""
        return self._engine.counters

    # --- offsets -------------------------------------------------------------------------------------------------

    def commit(  # type: ignore[override]  # the stub's overloads cannot be repeated on one implementation
        self,
        message: Any = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,  # noqa: FBT001, FBT002 (the plain client's signature)
    ) -> list[TopicPartition] | None:
        """Commit what is completed, with metadata; never past an unfinished message.

        Completes what was handed out first: of the message's partition up to it, or below the given offsets, or all of
        it; with ``completion="explicit"`` nothing. Raises `KafkaException` (``_NO_OFFSET``) when there is nothing to commit.
        """
        with self._lock:
            self._check_open()
            below = None
            if message is not None:
                below = {(message.topic(), message.partition()): message.offset() + 1}
            elif offsets is not None:
                below = {(tp.topic, tp.partition): tp.offset for tp in offsets}
            self._complete_below(below)
            ready = self._session.commits(below)
            if not ready:
                raise KafkaException(KafkaError(KafkaError._NO_OFFSET))  # noqa: SLF001 (that is its public name)
            return self._session.commit_exactly(ready, asynchronous=asynchronous)

    def _complete_below(self, below: dict[tuple[str, int], int] | None) -> None:
        if not self._implicit:
            return
        if below is None:
            touched = self._hand.finish()
        else:
            touched = [p for (topic, number), end in below.items() for p in self._hand.finish_up_to(topic, number, end - 1)]
        for partition in touched:
            partition.persist()

    def store_offsets(self, message: Any = None, offsets: list[TopicPartition] | None = None) -> None:
        """Complete what was handed out up to a message or below offsets; the next commit takes it along."""
        with self._lock:
            self._check_open()
            if message is not None:
                self._complete_below({(message.topic(), message.partition()): message.offset() + 1})
            if offsets is not None:
                self._complete_below({(tp.topic, tp.partition): tp.offset for tp in offsets})

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._session.committed(error, partitions)
        if self._settings.on_commit is not None:
            self._guard.run(self._settings.on_commit, error, partitions)

    # --- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release what the last call handed out, write and commit what is completed, leave; harmless when repeated."""
        with self._lock:
            if self._closed:
                return
            if self._implicit:
                for partition in self._hand.finish_but_last():
                    partition.persist()
            self._hand.release_all()
            self._fetched = []
            if self._session.manual:
                self._give_all_back()
        try:
            super().close()
        finally:
            self._closed = True
            self._engine.shut()
        self._guard.raise_kept()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; without an exception what was handed out is completed first."""
        with self._lock:
            if kind is None and self._implicit and not self._closed:
                for partition in self._hand.finish():
                    partition.persist()
        self.close()
