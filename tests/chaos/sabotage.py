"""Broken twins: in this process only, one protection of the package is taken away.

Each is the way of a naive consumer. The oracle has to notice; a check that cannot fail proves nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from confluent_kafka import KafkaException, TopicPartition

from dedup_sdk import DedupConsumer
from dedup_sdk._core.reach import StartPlan
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._engine.partition import Partition, Writer
from dedup_sdk._kafka.assign import commits, start
from dedup_sdk._kafka.assign.start import Starts
from dedup_sdk._kafka.client import reader
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.deliver.handover import Handover
from dedup_sdk._kafka.recover import history, log_check, recovery
from dedup_sdk._kafka.recover.attempt import Attempt
from dedup_sdk._kafka.recover.session import Session
from dedup_sdk._kafka.recover.store import Opened
from dedup_sdk._store.rocks import RocksPartition
from dedup_sdk._transactions.committer import Committer
from dedup_sdk._units.memory import UnitMemory
from dedup_sdk.bridge import Bridge
from dedup_sdk.errors import SnapshotError, StoreUnavailableError, TransactionError
from dedup_sdk.ids import _spec as spec
from dedup_sdk.ids._columns import Column
from dedup_sdk.shared import ClaimKind, ClaimStore
from tests.support.outbox_worker import send_before_persist

if TYPE_CHECKING:
    from dedup_adapters.sql import Inbox

# Databases and Redis take longer to import than all the rest: only scenarios that have them, and processes that break
# such an adapter, import them.
_BETWEEN_S: Final = 0.1
"""How long two steps that should be one may take, as on a slow machine: long enough that a kill falls between them."""


def _replace(owner: object, name: str, make: Callable[[Any], Any]) -> None:
    """Put the result of ``make`` for an attribute in its place; one that is not there any more is an error."""
    setattr(owner, name, make(getattr(owner, name)))


def _mark_before_complete() -> None:
    """Messages handed out count as done, and are committed: those in hand at a kill are lost."""

    def make(poll: Any) -> Any:
        def eager(self: DedupConsumer, timeout: float = -1) -> Any:
            message = poll(self, timeout)
            if message is not None and message.error() is None:
                self.complete(message)
                with suppress(KafkaException):
                    self.commit(message=message, asynchronous=False)
            return message

        return eager

    _replace(DedupConsumer, "poll", make)


def _commit_past_a_gap() -> None:
    """The position is committed, whatever is unfinished before it, as a plain client does by default."""

    def make(prefix: Any) -> Any:
        def position(assigned: Any) -> TopicPartition | None:
            ready: TopicPartition | None = prefix(assigned)
            if ready is not None and assigned.engine_partition is not None:
                ready.offset = assigned.engine_partition.flight.position
            return ready

        return position

    _replace(commits, "_completed_prefix", make)


def _skip_tail_replay() -> None:
    """A store that is behind, or new, is taken for complete."""

    def make(_: Any) -> Any:
        def nothing(_at: Any, held: Any, plan: Any, *_others: Any) -> Generator[None, None, None]:
            held.fold([], np.empty(0, np.int64), [], plan.replay_to)
            yield

        return nothing

    _replace(recovery, "replay", make)


def _ignore_lost() -> None:
    """A member that was thrown out goes on with its messages."""
    _replace(Handover, "lose", lambda _: lambda _self, _partitions: None)


def _revoke_without_commit() -> None:
    """Partitions that go in order are let go as if they were lost."""

    def lose(self: Session, partitions: Iterable[TopicPartition], until: float | None = None) -> None:
        del until
        self.lose(partitions)

    _replace(Session, "give_back", lambda _: lose)


def _start_at_the_end() -> None:
    """A partition without a committed offset is read from its end on."""
    _replace(
        Client, "edge", lambda _: lambda self, topic, partition, _reset: self.bounds(topic, partition)[1]
    )


def _replay_uncommitted() -> None:
    """The replay also takes aborted records for seen."""

    def make(settings: Any) -> Any:
        return lambda chosen: {**settings(chosen), "isolation.level": "read_uncommitted"}

    _replace(reader, "reader_settings", make)


def _believe_the_future() -> None:
    """One record from the future makes all others look old."""
    _replace(Partition, "now_ms", lambda _: lambda _self: 2**52)


def _shorten_ids() -> None:
    """IDs are told apart by their first bytes, and a missing one is one too."""

    def make(digest_columns: Any) -> Any:
        def shortened(columns: list[Column]) -> Any:
            return digest_columns([Column([(v or b"")[:16] for v in column.values]) for column in columns])

        return shortened

    _replace(spec, "digest_columns", make)


def _low_never_rises() -> None:
    """Messages jumped over count as processed."""

    def make(plan: Any) -> Any:
        def planned(stored: Any, *, low: int, **others: Any) -> Any:
            return plan(stored, low=0 if stored is None else min(low, stored.low), **others)

        return planned

    _replace(history, "plan_start", make)


def _believe_any_text() -> None:
    """The text beside a commit is believed, whatever offset it was written for."""

    def make(parse: Any) -> Any:
        def believed(text: str | None, *, committed: int) -> Any:
            moved = re.sub(r"\bat=\d+", f"at={committed}", text or "").partition(" done=")[0]
            return parse(moved, committed=committed)

        return believed

    _replace(start, "parse_metadata", make)


def _believe_another_rule() -> None:
    """Messages that a group processed by another ID spec count as processed by this one."""

    def make(without: Any) -> Any:
        def believed(assigned: Any, start: Any, *others: Any) -> Any:
            # The rule itself is noted there.
            without(assigned, start, *others)
            return start

        return believed

    _replace(history, "_discard_other_rule", make)


def _believe_the_old_log() -> None:
    """Every log, and every record in it, counts as the one that was completed."""

    def same(*_: Any, **_named: Any) -> Generator[None, None, bool]:
        yield from ()
        return False

    _replace(log_check, "_is_other_log", lambda _: same)
    _replace(Partition, "another_log", lambda _: lambda *_: None)


def _overlook_the_redrive() -> None:
    """A dead letter that is sent back is a duplicate of the message that failed."""
    _replace(spec, "redriven_keys", lambda _: lambda *_: {})


def _go_on_where_it_was() -> None:
    """A member goes on where it left a partition itself, or at its beginning, as if nobody had had it meanwhile."""
    left: dict[tuple[str, int], int] = {}

    def noting(end: Any) -> Any:
        def ended(self: Session, assigned: Any, **named: Any) -> None:
            if assigned.engine_partition is not None and assigned.engine_partition.started:
                left[assigned.topic, assigned.partition] = assigned.engine_partition.flight.high
            end(self, assigned, **named)

        return ended

    def returning(start: Any) -> Any:
        def started(self: Starts, wanted: TopicPartition, committed: TopicPartition) -> Any:
            if committed.offset >= 0:
                committed.offset = left.get((wanted.topic, wanted.partition), 0)
            return start(self, wanted, committed)

        return started

    _replace(Session, "_close", noting)
    _replace(Starts, "start", returning)


def _forget_while_reopening() -> None:
    """A partition is let go before its successor is there, and what the client has is not asked for."""

    def make(_: Any) -> Any:
        def apart(self: Session, before: Any, after: Any, *, write: bool = False) -> None:
            if before is not None:
                self._close_or_warn(before, write=write)
                time.sleep(_BETWEEN_S)
            self.assigned[after.coordinates] = after

        return apart

    _replace(Session, "_succeed", make)
    _replace(Session, "reconcile", lambda _: lambda _self, _actual: None)


def _empty_after_damage() -> None:
    """The empty store that takes the place of a damaged one is taken for complete."""
    damaged: set[Partition] = set()

    def noting(open_store: Any) -> Any:
        def opened(at: Attempt) -> Generator[Any, None, Opened]:
            store: Opened = yield from open_store(at)
            if store.was_damaged:
                damaged.add(store.partition)
            return store

        return opened

    def make(replay: Any) -> Any:
        def replayed(at: Attempt, partition: Partition, plan: StartPlan, *others: Any) -> Any:
            if partition not in damaged:
                return replay(at, partition, plan, *others)
            partition.fold([], np.empty(0, np.int64), [], plan.replay_to)
            return iter(())

        return replayed

    _replace(recovery, "open_store", noting)
    _replace(recovery, "replay", make)


def _forget_recent(writer: Writer) -> None:
    writer._state.memory.take_recent(writer._state.memory.reach.stream_time_ms, writer.store.find)
    writer.unwritten_steps = []


def _forget_what_was_refused() -> None:
    """A write that a full disk refused counts as done, so that its marks leave memory."""

    def make(choke: Any) -> Any:
        def believed(self: Writer, error: Any) -> None:
            choke(self, error)
            _forget_recent(self)

        return believed

    _replace(Writer, "_note_disk_full", make)


def _believe_a_failed_write() -> None:
    """A step that the disk refused counts as written."""

    def make(append: Any) -> Any:
        def believed(self: RocksPartition, *step: Any) -> None:
            with suppress(StoreUnavailableError):
                append(self, *step)

        return believed

    _replace(RocksPartition, "append", make)


def _trim_without_room() -> None:
    """Marks leave memory as always while there is no room to write them to."""

    def make(trim: Any) -> Any:
        def trimmed(self: Deduplicator) -> None:
            trim(self)
            for partition in self.partitions.values():
                if partition.writer.disk_full and partition.memory.recent_count > self._recent_marks:
                    _forget_recent(partition.writer)

        return trimmed

    _replace(Deduplicator, "trim", make)


def _install_unchecked() -> None:
    """A snapshot's manifest is believed, whatever became of its files."""

    def make(install: Any) -> Any:
        def believed(self: Partition, snapshot: str, plan: Any, *without: Any, **how: Any) -> Iterator[None]:
            try:
                yield from install(self, snapshot, plan, *without, **how)
            except SnapshotError:
                self.start(replace(plan, keep=False))

        return believed

    _replace(Partition, "install_steps", make)


def _keep_the_id_apart() -> None:
    """The ID is stored, and the offset moved, in a transaction before that of the work."""
    from dedup_adapters.sql import Inbox

    def make(once: Any) -> Any:
        @contextmanager
        def apart(self: Inbox, _connection: Any, message: Any) -> Iterator[bool]:
            with self._engine.begin() as own, once(self, own, message) as first:
                pass
            time.sleep(_BETWEEN_S)
            yield first

        return apart

    _replace(Inbox, "once", make)


def _offsets_before_the_copy() -> None:
    """A bridge commits its group's offsets when it has read, and copies then."""

    def make(copy: Any) -> Any:
        def eager(self: Bridge, source: Any, target: Any, batch: Any) -> Any:
            # Only the group is told: the bridge would not copy its own copies again.
            source._uncommitted |= {(m.topic(), m.partition()): m.offset() + 1 for m in batch}
            source._commit()
            time.sleep(3 * _BETWEEN_S)
            return copy(self, source, target, batch)

        return eager

    _replace(Bridge, "_copy", make)


def _remember_what_was_rejected() -> None:
    """Of a unit that is rejected all IDs count as handled, those that were new in it, too."""

    def make(reject: Any) -> Any:
        def all_of_it(self: UnitMemory, unit: Any, duplicates: Any) -> None:
            reject(self, unit, {**dict.fromkeys(unit.digests, next(iter(duplicates.values()))), **duplicates})

        return all_of_it

    _replace(UnitMemory, "_reject", make)


def _mark_at_claim() -> None:
    """A claimed ID counts as completed, as with a plain SET NX."""
    from dedup_adapters.redis import RedisStore
    from dedup_adapters.sql import SharedStore

    def make(claim: Any) -> Any:
        def eager(self: ClaimStore, ids: Any, owner: str, lease_ms: int, **about: Any) -> Any:
            answers = claim(self, ids, owner, lease_ms, **about)
            rows = [row for row, answer in enumerate(answers) if answer.kind is ClaimKind.FRESH]
            self.complete(
                [ids[row] for row in rows],
                [answers[row].token for row in rows],
                owner,
                timestamps_ms=[about["timestamps_ms"][row] for row in rows],
                window_ms=about["window_ms"],
            )
            return answers

        return eager

    for store in (RedisStore, SharedStore):
        _replace(store, "claim", make)


def _mark_before_the_transaction() -> None:
    """Messages count as handled before their transaction is committed: those of one that is not are lost."""

    def make(send_offsets: Any) -> Any:
        def eager(self: Committer, messages: Any, until: float) -> Any:
            offsets = send_offsets(self, messages, until)
            self._consumer.transaction_committed(messages, offsets)
            time.sleep(_BETWEEN_S)
            return offsets

        return eager

    _replace(Committer, "_send_offsets", make)


def _offsets_outside_the_transaction() -> None:
    """The group's offsets are committed later, by the consumer."""

    def make(_: Any) -> Any:
        return lambda _self, _messages, _until: []

    def settle(_: Any) -> Any:
        def as_a_crash(_self: Committer) -> bool:
            raise TransactionError("nobody can tell")

        return as_a_crash

    def slowly(note: Any) -> Any:
        def late(self: Committer) -> None:
            time.sleep(_BETWEEN_S)
            note(self)

        return late

    _replace(Committer, "_send_offsets", make)
    _replace(Committer, "_settle", settle)
    _replace(Committer, "_note_committed", slowly)


def _late_group_metadata() -> None:
    """The group's metadata are taken when the offsets are sent, which names those messages that are in hand then."""

    def make(send_offsets: Any) -> Any:
        def late(self: Committer, messages: Any, until: float) -> Any:
            self._consumer.consume(0)
            self._member = self._member_now()
            return send_offsets(self, [each for each in messages if self._consumer.holds(each)], until)

        return late

    _replace(Committer, "_send_offsets", make)


BROKEN: Final[dict[str, Callable[[], None]]] = {
    "mark-before-complete": _mark_before_complete,
    "commit-past-a-gap": _commit_past_a_gap,
    "skip-tail-replay": _skip_tail_replay,
    "ignore-lost": _ignore_lost,
    "revoke-without-commit": _revoke_without_commit,
    "start-at-the-end": _start_at_the_end,
    "replay-uncommitted": _replay_uncommitted,
    "believe-the-future": _believe_the_future,
    "shorten-ids": _shorten_ids,
    "low-never-rises": _low_never_rises,
    "believe-any-text": _believe_any_text,
    "believe-another-rule": _believe_another_rule,
    "believe-the-old-log": _believe_the_old_log,
    "overlook-the-redrive": _overlook_the_redrive,
    "go-on-where-it-was": _go_on_where_it_was,
    "forget-while-reopening": _forget_while_reopening,
    "empty-after-damage": _empty_after_damage,
    "forget-what-was-refused": _forget_what_was_refused,
    "believe-a-failed-write": _believe_a_failed_write,
    "trim-without-room": _trim_without_room,
    "install-unchecked": _install_unchecked,
    "remember-what-was-rejected": _remember_what_was_rejected,
    "send-before-persist": send_before_persist,
    "mark-at-claim": _mark_at_claim,
    "id-apart": _keep_the_id_apart,
    "offsets-before-the-copy": _offsets_before_the_copy,
    "mark-before-the-transaction": _mark_before_the_transaction,
    "offsets-outside-the-transaction": _offsets_outside_the_transaction,
    "late-group-metadata": _late_group_metadata,
}
"""Every way to break a worker, by name."""


def sabotage(name: str) -> None:
    """Take one protection away; an empty name takes none."""
    if name:
        BROKEN[name]()
