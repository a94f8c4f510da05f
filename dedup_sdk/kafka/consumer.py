"""The drop-in consumer: a `confluent_kafka.Consumer` whose loop sees each logical message once."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast

from confluent_kafka import TopicPartition

from dedup_sdk.checks import choice, seconds, text
from dedup_sdk.engine.deduplicator import RECENT_MARKS, Deduplicator
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.kafka.callbacks import Guard
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.closing import close_client, leave_group
from dedup_sdk.kafka.collector import Collector
from dedup_sdk.kafka.end_watch import EndWatch
from dedup_sdk.kafka.forks import keep_from_children
from dedup_sdk.kafka.handout import HandOut
from dedup_sdk.kafka.idle import IdleClock
from dedup_sdk.kafka.intake import Doubt, Durability
from dedup_sdk.kafka.judging import Judge
from dedup_sdk.kafka.offsets import Offsets
from dedup_sdk.kafka.recovery import History, OnFullDisk, RecoverySettings
from dedup_sdk.kafka.running import BREATH_S
from dedup_sdk.kafka.session import Session
from dedup_sdk.kafka.settings import client_settings
from dedup_sdk.kafka.sharing import share, sharing_of
from dedup_sdk.kafka.status import status_of
from dedup_sdk.kafka.turns import Turns
from dedup_sdk.observe import Counters, Observer, PartitionStatus
from dedup_sdk.record import Verdict
from dedup_sdk.shared.protocol import ClaimStore
from dedup_sdk.shared.settings import Shared
from dedup_sdk.store.protocol import KeyStore
from dedup_sdk.store.rocks import RocksStore
from dedup_sdk.store.snapshot_source import Places, snapshot_places
from dedup_sdk.strategy import LastId, Lookup, Strategy

logger = logging.getLogger("dedup_sdk")

BATCH = 1_000
"""Messages that ``poll`` judges together; larger batches were slower (cache misses)."""

Completion = Literal["on-next-call", "explicit"]
Mode = Literal["dedup", "observe"]


class DedupConsumer(Offsets):
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
        config: what `confluent_kafka.Consumer` takes. With ``enable.auto.commit=false`` only `commit` commits messages, and only it
            (or `complete`) completes them: what was gathered and not committed comes again; hidden records directly behind are committed
            on ``auto.commit.interval.ms``. With
            ``enable.auto.offset.store=false`` only `store_offsets` and a `commit` that names messages or offsets do. Else
            completed messages are committed on ``auto.commit.interval.ms``, asynchronously.
        dedup: how duplicates are recognised.
        store: a folder for the key stores (private to the user; processes may share it), or a `KeyStore` (consumers may
            share it; none of them closes it).
        completion: ``on-next-call`` or ``explicit`` (for worker threads; completions in any order, from any thread).
        durability: when what is completed is in the store, and so outlives the process: ``batch`` (every 1,000 records or
            100 ms, and with each `complete`), ``record`` (each message before the next is handed out) or ``commit`` (when
            offsets are committed: the least writing, and a crash repeats what came since).
        mode: ``observe`` judges and counts, and hides nothing.
        snapshot: a folder made by ``dedup backfill``, one that holds several, a URL (``s3://...``, with ``dedup-sdk[remote]`` and
            fsspec's driver), or a list of these; where the local store is missing, the one that fits and leaves the least to be
            replayed is taken.
        shared: a memory that this consumer shares with others, e.g. `dedup_adapters.redis.RedisStore`, or `Shared` with how it is asked: the same ID in
            another partition, or at another consumer, is known then.
        history: for a group that committed before it used this package: ``none`` of that is believed, or
            ``assume-processed``: everything before its committed offset counts as handled.
        dead_letters: the topic that `run` sends the messages to whose handler failed for good (default: the group's name and
            ``.dead-letters``).
        on_full_disk: what happens while there is no room on the store's disk: ``pause`` (nothing new is delivered) or ``unverified``
            (messages go on, what is known of them is kept in memory, and is given up when it becomes too much). Either ends by itself
            when there is room.
        observers: called with every verdict.
        idle_timeout: seconds without a message after which iteration and `run` end, counted from the first assignment and
            without the time of recoveries; None: never.
        revoke_deadline: seconds in which partitions are handed over in a rebalance (write, commit, close); what does not fit
            is abandoned and comes again. None: a fifth of ``max.poll.interval.ms``.
        recovery_timeout: seconds after which a partition starts without the rest of its past: what hangs on it is delivered as
            unverified, and counted, until the window has filled. None: it waits.
        recent_marks: marks kept in memory before they go to sorted files.

    Raises `ConfigurationError` for settings that would break a promise, and what `confluent_kafka.Consumer` raises.
    Observers and rebalance callbacks run inside `poll`, `consume` and `close`, on the calling thread. After a fork the child has to make
    its own: there every call of this one raises `RuntimeError`, but `close`, which does nothing.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        /,
        *,
        dedup: Strategy,
        store: str | Path | KeyStore,
        completion: Completion = "on-next-call",
        durability: Durability = "batch",
        mode: Mode = "dedup",
        snapshot: Places | None = None,
        shared: Shared | ClaimStore | None = None,
        history: History = "none",
        dead_letters: str | None = None,
        on_full_disk: OnFullDisk = "pause",
        observers: Iterable[Observer] = (),
        idle_timeout: float | None = None,
        revoke_deadline: float | None = None,
        recovery_timeout: float | None = None,
        recent_marks: int = RECENT_MARKS,
        **client_arguments: Any,
    ) -> None:
        for name, value, choices in (
            ("completion", completion, ("on-next-call", "explicit")), ("mode", mode, ("dedup", "observe")),
            ("durability", durability, ("record", "batch", "commit")),
            ("history", history, ("none", "assume-processed")),
            ("on_full_disk", on_full_disk, ("pause", "unverified")),
        ):  # fmt: skip
            choice(name, value, choices)
        if not isinstance(dedup, Lookup | LastId):
            raise ConfigurationError(
                f"dedup={dedup!r}: give a strategy, e.g. Lookup(id=header('dedup-id'), window=Window(days=7))"
            )
        if isinstance(dedup, Lookup) and dedup.unit is not None and mode == "observe":
            raise ConfigurationError(
                "mode='observe' hides nothing, and a unit is withheld until it is whole: leave out unit, or choose mode='dedup'"
            )
        if dead_letters is not None:
            text("dead_letters", dead_letters)
        if dead_letters == "":
            raise ConfigurationError("dead_letters='' is no topic; name one, or leave it out for the default")
        settings = client_settings(config, client_arguments)
        if revoke_deadline is not None:
            settings = replace(settings, revoke_deadline_s=seconds("revoke_deadline", revoke_deadline))
        idle_timeout_s = None if idle_timeout is None else seconds("idle_timeout", idle_timeout)
        timeout_s = None if recovery_timeout is None else seconds("recovery_timeout", recovery_timeout)
        places = snapshot_places(snapshot)
        if places and isinstance(dedup, Lookup) and not dedup.persist:
            raise ConfigurationError(
                f"snapshot={snapshot!r} would never be taken: with persist=False a partition begins without IDs; leave snapshot out, or choose "
                "persist=True"
            )
        keys = _key_store(store)
        sharing = sharing_of(shared, dedup, observes=mode == "observe", session_s=settings.session_s)
        self._settings, self._guard = settings, Guard()
        super().__init__({**self._guard.around(settings.client), "on_commit": self._on_commit})
        self._engine = Deduplicator(
            dedup,
            keys,
            group=settings.group,
            isolation=settings.isolation,
            observers=observers,
            recent_marks=recent_marks,
            bears_full_disk=True,
            forgets_unwritten=on_full_disk == "unverified",
        )
        self._dead_letters = f"{settings.group}.dead-letters" if dead_letters is None else dead_letters
        share(self._engine, sharing, settings)
        self._client = Client(self, settings)
        chosen = RecoverySettings(
            snapshot=places,
            store_folder=keys.path if isinstance(keys, RocksStore) else None,
            history=history,
            on_full_disk=on_full_disk,
            timeout_s=timeout_s,
        )
        self._session = Session(self._engine, self._client, settings, chosen, self._guard)
        self._judge = Judge(self._engine, self._session, observing=mode == "observe")
        self._collector = Collector()
        self._hand = HandOut(self._partition_of)
        self._ready = self._hand.ready
        self._implicit = completion == "on-next-call" and settings.completes_on_next_call
        self._by_commit = completion == "on-next-call" and not settings.completes_on_next_call
        self._durability = durability
        self._idle_timeout_s = idle_timeout_s
        self._turns = Turns()
        self._lock = self._turns.lock
        self._put_off, self._seeks, self._fetched = set(), {}, []
        self._tidy_at = self._heard_at = 0.0
        self._gone, self._dropped = set(), set()
        self._assigning = self._crew = None
        self._pausing, self._by_callback = set(), set()
        self._torn = Doubt.NOTHING
        self._survived, self._dry, self._ends = -1, False, EndWatch(self._client)
        self._doubtful = self._stopped = self._closed = self._held_back = False
        keep_from_children(self)

    # --- messages ------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = -1) -> Any:
        """Return the next message that is no duplicate, an error event, or None after ``timeout`` seconds (-1: no limit).

        Returns within its timeout also when everything that came was a duplicate. Completes what was handed out before
        (``completion="on-next-call"``).
        """
        if self._ready and time.monotonic() < self._tidy_at:
            try:
                # Without the lock, which would cost more than all the rest; see `HandOut`.
                return self._ready.popleft()
            except IndexError:
                pass
            except BaseException:
                self._torn, self._tidy_at = Doubt.LANES, 0.0
                raise
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

    def __iter__(self) -> Iterator[Any]:
        """Yield messages until `stop`, or until ``idle_timeout`` seconds pass without one; raise fatal errors, log others."""
        idle = IdleClock(self._session, self._idle_timeout_s)
        try:
            while not self._stopped:
                message = self.poll(BREATH_S)
                if message is None:
                    if idle.is_up:
                        return
                    continue
                try:
                    error = message.error()
                except BaseException:
                    # Interrupted before the application has it.
                    self._torn, self._tidy_at = Doubt.LANES, 0.0
                    raise
                if error is None:
                    yield message
                    idle.heard()
                else:
                    self._heed(error)
        finally:
            self._stopped = False

    def stop(self) -> None:
        """End the iteration, or `run`, after the messages in hand, or the next one before it begins.

        May be called from a signal handler or another thread.
        """
        self._stopped = True
        crew = self._crew
        if crew is not None:
            crew.halt()

    # --- what is known -------------------------------------------------------------------------------------------

    def verdict(self, message: Any) -> Verdict | None:
        """Return the verdict of a message that was handed out, by its coordinates; None when it is not known any more."""
        if message.error() is not None:
            return None
        topic, number, offset = message.topic(), message.partition(), message.offset()
        with self._lock:
            for partition, chunk in self._hand.chunks():
                row = (
                    chunk.row_of(offset)
                    if (partition.topic, partition.partition) == (topic, number)
                    else None
                )
                if row is not None:
                    return chunk.verdict(row)
            held = self._partition_of(topic, number)
            place = held.lane.place(offset) if held is not None else None
            return None if place is None else place.chunk.verdict(place.row)

    @property
    def counters(self) -> Counters:
        """Totals by verdict since the consumer was made."""
        return self._engine.counters

    @property
    def partition_statuses(self) -> list[PartitionStatus]:
        """What each partition in hand is doing, and what stands in its way; from any thread, cheap enough for every few seconds."""
        with self._lock:
            return [status_of(assigned, self._engine) for assigned in self._session.assigned.values()]

    @property
    def effective_window_ms(self) -> int | None:
        """How far back marks are known, in ms, of the partition that knows least; None before one is ready, or without a window by time."""
        return self._engine.effective_window_ms

    # --- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release what the last call handed out, write and commit what is completed, leave; harmless when repeated.

        With ``enable.auto.commit=false`` only hidden records behind your commits are committed. Where the group's coordinator does not answer, the commit of partitions
        assigned by hand is waited for ``revoke_deadline`` at most, and so is the end of the client.
        """
        with self._turns.alone():
            if self._closed:
                return
            by_hand = bool(self._session.assigned) and not self._session.of_group
            self._guard.run(self._part)
        if self._session.of_group:
            self._guard.run(self._commit_in_group)
        try:
            with self._turns.inside_client():
                leave_group(
                    self,
                    self._settings.membership,
                    within_s=self._settings.revoke_deadline_s,
                    by_hand=by_hand,
                )
                with self._lock:
                    self._session.closing = True
                close_client(self, within_s=self._settings.revoke_deadline_s)
        finally:
            with self._lock:
                self._closed = True
                self._client.readers.close()
                self._client.questions.renew()
                # Not the store: it may be the user's, and other consumers may have partitions of it open.
                for topic, partition in list(self._engine.partitions):
                    self._guard.run(self._engine.close, topic, partition)
                if self._engine.claims is not None:
                    self._guard.run(self._engine.claims.close)
        self._guard.raise_kept()

    def _part(self) -> None:
        held = [TopicPartition(topic, partition) for topic, partition in self._session.assigned]
        if self._torn is Doubt.LANES or self._doubtful:
            self._lose(held)
        self._finish_asked()
        if self._by_commit:
            self._hand.withdraw_last()
        self._hand.release_all()
        self._fetched = []
        if by_hand := [tp for tp in held if (tp.topic, tp.partition) not in self._session.of_group]:
            self._give_back(by_hand)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; without an exception what was handed out is completed first."""
        if error is None:
            with self._lock:
                if not self._closed and self._implicit:
                    self._guard.run(self._complete_below, None)
            self.close()
            return
        try:
            self.close()
        except Exception:
            logger.exception("closing failed too, after %r", error)


def _key_store(store: object) -> KeyStore:
    if isinstance(store, str | Path):
        return RocksStore(store)
    if isinstance(store, type) or not callable(getattr(store, "open", None)):
        raise ConfigurationError(
            f"store={store!r}: give a folder, e.g. 'var/dedup', or a key store, e.g. MemoryStore()"
        )
    return cast("KeyStore", store)
