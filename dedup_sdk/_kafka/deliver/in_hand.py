"""The messages that the application has: each ends by a call that names it, or by a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from threading import RLock
from typing import Any, Final, NamedTuple

from confluent_kafka import Message, TopicPartition

from dedup_sdk._core.flight import RecordRef
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._engine.partition import Partition
from dedup_sdk._kafka.assign.commits import Coordinates
from dedup_sdk._kafka.client.fields import coordinates, headers_of
from dedup_sdk._kafka.client.guards import Steps
from dedup_sdk._kafka.deliver.batch import grouped
from dedup_sdk._kafka.deliver.completion import ByWorkers
from dedup_sdk._kafka.deliver.handover import Handlers, Handover
from dedup_sdk._kafka.deliver.write_policy import WritePolicy
from dedup_sdk._record import Verdict
from dedup_sdk.errors import TransactionError

_offset: Final[Callable[[Any], Any]] = Message.offset
_LONG_RUN: Final = 32
"""With so many messages of a chunk in a row it costs less to look for the next ones in a row than to group them."""


class _Completed(NamedTuple):
    """The partitions in which messages were completed, by `id`, and the records that are to be delivered next."""

    partitions: dict[int, Partition]
    freed: list[RecordRef]

    def note(self, partition: Partition, freed: Iterable[RecordRef]) -> None:
        """Add a partition, and what is to be delivered of it."""
        self.partitions[id(partition)] = partition
        self.freed.extend(freed)


class InHand:
    """Completes and releases messages, and tells how each stands. From any thread."""

    def __init__(
        self,
        engine: Deduplicator,
        handover: Handover,
        writes: WritePolicy,
        steps: Steps,
        *,
        observing: bool,
    ) -> None:
        self._engine, self._handover, self._writes, self._steps = engine, handover, writes, steps
        self._session, self._delivery = handover.session, handover.delivery
        self._mutex: Final[RLock] = steps.lock.lock
        self._configured = self._delivery.policy
        self._observing = observing
        self._read_digest = engine.keys.digest_reader()

    # --- messages that are named ---------------------------------------------------------------------------------

    def complete(
        self, messages: Iterable[Any], *, dead_lettered: bool = False, quietly: bool = False
    ) -> None:
        """Complete messages, and write each partition's marks.

        ``dead_lettered``: count them as dead-lettered. ``quietly``: leave out those that are not in flight, which count
        as stale else.
        """
        with self._mutex, self._steps.guarded(defers_store_errors=True):
            left, done = list(messages), _Completed({}, [])
            self._delivery.batch.free_later(left)
            # Those that a policy would complete are ended one by one: their batch must not end them again.
            in_runs = not (dead_lettered or self._delivery.policy.completes_unnamed)
            if in_runs:
                # As they come: to group them by partition costs as much as to complete them.
                left = self._complete_runs(left, done, least=_LONG_RUN)
            records = [message for message in left if message.error() is None]
            if not quietly:
                self._engine.counters.stale += len(left) - len(records)
            for of, ended in grouped(records).items():
                partition, each = self._delivery.partition_of(*of), sorted(ended, key=_offset)
                if in_runs:
                    each = self._complete_runs(each, done, least=1)
                if quietly:
                    each = [message for message in each if self._delivery.in_flight(message) is not None]
                offsets = [message.offset() for message in each if self._taken_out(message) is not None]
                if partition is not None:
                    done.note(partition, partition.complete(offsets, dead_lettered=dead_lettered))
            self._writes.write(done.partitions.values())
            if done.freed:
                self._delivery.offer(done.freed)
                self._steps.interruption.request_maintenance()

    def _complete_runs(self, messages: list[Any], done: _Completed, *, least: int) -> list[Any]:
        """Complete the first messages as long as ``least`` of them, or more, lie in one chunk; return the others."""
        while messages and messages[0].error() is None:
            if (partition := self._delivery.partition_of(*coordinates(messages[0]))) is None:
                break
            count, freed = partition.complete_items(messages)
            done.note(partition, freed)
            messages = messages[count:]
            if count < least:
                break
        return messages

    def release(self, message: Any) -> None:
        """Release a message: it is delivered again before new ones."""
        with self._mutex, self._steps.guarded():
            if message.error() is None and message in self._delivery.waiting:
                self._engine.counters.stale += 1
                return
            partition = self._taken_out(message)
            if partition is not None:
                self._delivery.offer(partition.release([message.offset()]))
                self._steps.interruption.request_maintenance()

    def take_out(self, message: Any) -> None:
        """Exclude a message from its policy: it ends by `complete` or `release`."""
        with self._mutex, self._steps.guarded():
            self._taken_out(message)

    def release_quietly(self, message: Any) -> list[Any]:
        """Release a message without queueing it; return it, or nothing if it is not in flight. With the lock."""
        partition = self._taken_out(message)
        records = [] if partition is None else partition.release([message.offset()])
        return [chunk.items[row] for chunk, row in records]

    def _taken_out(self, message: Any) -> Partition | None:
        """Exclude a message from its policy, and return its partition.

        None, and counted as stale, for an event, and for a partition that is not assigned any more.
        """
        partition = None
        if message.error() is None and self._session.is_current(message):
            self._delivery.take_out(message)
            partition = self._delivery.partition_of(message.topic(), message.partition())
        self._engine.counters.stale += partition is None
        return partition

    # --- how a message stands ------------------------------------------------------------------------------------

    def holds(self, message: Any) -> bool:
        """See `DedupConsumer.holds`."""
        in_step = self._steps.lock.is_mine()
        with self._mutex:
            gone = self._steps.lock.closed or message.error() is not None
            found = None if gone else self.in_flight(message)
            if found is None:
                return False
            partition, record = found
            gatekeeper = self._engine.gatekeeper
            if in_step or gatekeeper is None or gatekeeper.holds(partition, record):
                return True
            self._delivery.take_out(message)
            self._steps.interruption.request_maintenance()
            return False

    def in_flight(self, message: Any) -> tuple[Partition, RecordRef] | None:
        """Return the partition and the record of a message in flight, None if it is not. With the lock."""
        partition = self._delivery.partition_of(message.topic(), message.partition())
        record = self._delivery.in_flight(message)
        return None if partition is None or record is None else (partition, record)

    @property
    def doubts(self) -> object:
        """A value that is equal as long as each message in flight stays in flight, but for ends.

        None after an interruption: all partitions are about to be opened again. From the polling thread.
        """
        gatekeeper = self._engine.gatekeeper
        has_leases = gatekeeper is None or gatekeeper.is_sure
        return None if self._steps.interruption.happened else (self._delivery.forgettings, has_leases)

    def is_delivered(self, message: Any) -> bool:
        """Whether a message that a call returned is to be handled still. With the lock.

        Not if its partition was revoked or moved since. In mode ``observe`` also a completed one is, which is shown
        all the same.
        """
        if self._observing:
            return self._delivery.partition_of(message.topic(), message.partition()) is not None
        return self.in_flight(message) is not None

    def verdict(self, message: Any) -> Verdict | None:
        """See `DedupConsumer.verdict`."""
        if message.error() is not None:
            return None
        with self._mutex:
            record = self._delivery.batch.place(message)
            partition = self._delivery.partition_of(message.topic(), message.partition())
            if record is None and partition is not None:
                record = partition.flight.place(message.offset())
            return None if record is None else record.chunk.verdict(record.row)

    def output_id(self, message: Any) -> str | None:
        """Return the ID of a message as text that shows nothing of it; None without one, and perhaps after it ended."""
        # Without the lock and the look-up, where the ID is a header: a loop asks for each record that it produces.
        if self._read_digest is not None and (headers := headers_of(message)[0]):
            read = self._read_digest(headers)
            if read is not None:
                return read.hex()
        with self._mutex:
            found = self.in_flight(message)
            if found is None:
                return None
            partition, (chunk, row) = found
            digest = partition.keys.name_of(chunk.digests[row])
            return None if digest is None else digest.hex()

    # --- offsets that are named ----------------------------------------------------------------------------------

    def complete_below(self, below: Mapping[Coordinates, int] | None) -> None:
        """Complete delivered messages below these offsets; None: all that a commit completes without naming them."""
        if not self._steps.interruption.happened:
            ends: Mapping[Coordinates, int | None]
            ends = dict.fromkeys(self._session.assigned) if below is None else below
            self._writes.write(self._delivery.policy.commit(ends, named=below is not None))

    def store_offsets(self, below: dict[Coordinates, int]) -> None:
        """Complete delivered messages below these offsets, as `DedupConsumer.store_offsets` does."""
        with self._mutex, self._steps.guarded():
            if not self._steps.interruption.happened:
                completed = self._delivery.policy.commit(below, named=True)
                if not self._writes.defers:
                    self._writes.write(completed)

    def complete_given(self) -> None:
        """Complete what a call for more would complete."""
        if not self._steps.interruption.happened:
            self._writes.write(self._delivery.policy.ask_for_more())

    # --- transactions --------------------------------------------------------------------------------------------

    def transaction_offsets(self, messages: Iterable[Any]) -> list[TopicPartition] | None:
        """See `DedupConsumer.transaction_offsets`; None while a commit has no answer yet."""
        named = list(messages)
        gone: Any = None
        if self._engine.gatekeeper is not None:
            # Another consumer may have an ID by now whose lease is over.
            gone = next((message for message in named if not self.holds(message)), None)
        with self._mutex, self._steps.guarded():
            by_partition = grouped(named)
            for each in by_partition.values():
                # Not by its truth: an empty message is false.
                gone = next(self._delivery.not_in_hand(each), None) if gone is None else gone
            ended = {of: list(map(_offset, each)) for of, each in by_partition.items()}
            commits = self._session.commits
            is_second = commits.has_other_transaction(ended)
            has_room = len(self.can_end(named)) == len(named)
            is_refused = gone is not None or is_second or not has_room
            offsets = [] if is_refused else commits.in_transaction(ended)
        if is_second:
            raise TransactionError(
                "the transaction before has not ended, as far as this consumer knows: call transaction_committed() or "
                "transaction_aborted() first; if nobody can tell which of them, close the consumer"
            )
        if gone is not None:
            raise TransactionError(
                f"{gone.topic()}[{gone.partition()}]@{gone.offset()} is in your hands no more: its partition was "
                "revoked, or moved, or the message was completed or released, or its lease in the shared memory is "
                "over; abort the transaction, and call transaction_aborted(messages)"
            )
        if is_refused:
            raise TransactionError(
                "the text of the group's offsets has no room for these messages: too many earlier ones are not "
                "completed; abort the transaction, and end the earlier ones first"
            )
        return offsets

    def can_end(self, messages: Iterable[Any]) -> list[Any]:
        """Return those of these messages that can end in one transaction: the text of its offsets must name each."""
        able: list[Any] = []
        with self._mutex:
            for of, each in grouped(messages).items():
                offsets = set(self._session.commits.can_end(of, list(map(_offset, each))))
                able += [message for message in each if message.offset() in offsets]
        return able

    def transaction_committed(self, messages: Iterable[Any], offsets: Iterable[TopicPartition]) -> None:
        """See `DedupConsumer.transaction_committed`."""
        with self._mutex, self._steps.guarded():
            self.complete(messages, quietly=True)
            self._session.commits.transaction_ended(offsets)

    def transaction_aborted(self, messages: Iterable[Any]) -> None:
        """See `DedupConsumer.transaction_aborted`."""
        if self._steps.lock.closed:
            return
        with self._mutex, self._steps.guarded():
            self._session.commits.transaction_ended()
            again: list[RecordRef] = []
            # By identity: who names a message twice gets it once.
            for message in {id(each): each for each in messages}.values():
                if self._delivery.in_flight(message) is not None and message not in self._delivery.waiting:
                    partition = self._taken_out(message)
                    if partition is not None:
                        again += partition.release([message.offset()])
            # Of an earlier transaction some may be queued still.
            self._delivery.offer_first(again)
            self._steps.interruption.request_maintenance()

    def take_out_all(self, messages: Iterable[Any]) -> None:
        """Exclude messages from their policy; those gone are left out."""
        with self._mutex:
            for message in messages:
                if self._delivery.in_flight(message) is not None:
                    self._delivery.take_out(message)

    def open_again(self) -> None:
        """Have the next call for messages open all partitions again: each message that is not completed comes again."""
        self._steps.interruption.note()

    # --- worker sessions -----------------------------------------------------------------------------------------

    def exclusive(self) -> RLock:
        """Return the consumer's lock: while a thread holds it, no other one changes what is in flight."""
        return self._mutex

    def ending(self) -> AbstractContextManager[None]:
        """Return a context for ending messages in `exclusive`; see `Steps.guarded`."""
        return self._steps.guarded(defers_store_errors=True)

    def begin_explicit(self, listener: Handlers | None) -> None:
        """Have messages end by `complete` only, until `end_explicit`.

        Messages of earlier calls are completed, if asking for more does so. ``listener`` is notified when partitions
        are revoked or lost; None: nobody is.
        """
        self._steps.do_noted()
        with self._mutex:
            # A step: without the call for messages that it stands for, nobody else notes its interruption.
            self._steps.run(self.complete_given)
            self._delivery.use(ByWorkers(self._delivery))
            self._handover.attach(listener)

    def end_explicit(self) -> None:
        """Have messages end as ``completion`` says again. Harmless when repeated."""
        with self._mutex:
            self._delivery.use(self._configured)
            self._handover.attach(None)

    def deliver_again(self, messages: Iterable[Any]) -> None:
        """Queue delivered messages before all others, by offset: also behind those of their partitions that wait."""
        again = list(messages)
        with self._mutex:
            self._delivery.put_back(again)
            # Two that are released one after the other come in the order of the log, be their turns one or two.
            self._delivery.waiting.order(set(map(coordinates, again)))
            self._steps.interruption.request_maintenance()
