"""The table of the messages that are out: each one between its verdict and its end.

A message is out as part of the batch that was judged last (`dedup_sdk._kafka.deliver.batch.Batch`, one entry with a
cursor), or by itself: it was held back and its turn has come, it was released, or its partition is paused. By itself it
waits (`dedup_sdk._kafka.deliver.waiting.Waiting`), or is *given*.

Who ends a delivered message is written in its record. `OFFERED`: whatever ends its batch. `SINGLE`: it ends by itself,
so that the end of a batch, or a commit of all delivered messages, as in the usual ``on_revoke``, never completes a
message that waits in the queue. A message that the application has excluded from its policy is in no entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from dedup_sdk._core.flight import OFFERED, SINGLE, RecordRef
from dedup_sdk._engine.partition import Partition
from dedup_sdk._kafka.assign.commits import Coordinates
from dedup_sdk._kafka.client.fields import coordinates
from dedup_sdk._kafka.deliver.batch import Batch, grouped
from dedup_sdk._kafka.deliver.classifier import Classified, PartitionBatch, guarded
from dedup_sdk._kafka.deliver.waiting import Key, Waiting, key_of
from dedup_sdk._observe import Counters, of_partition


class CompletionPolicy(Protocol):
    """Decides which delivered messages an event completes that nobody named one by one.

    Each method returns the partitions in which it completed any. See `dedup_sdk._kafka.deliver.completion`.
    """

    completes_unnamed: ClassVar[bool]
    """Whether it completes any message at all."""
    completes_on_next_call: ClassVar[bool]
    """Whether a call for more does."""
    counts: ClassVar[bool]
    """Whether messages count as delivered when a call returns them."""

    def ask_for_more(self) -> Iterable[Partition]:
        """The application asks for messages."""

    def commit(self, ends: Mapping[Coordinates, int | None], *, named: bool) -> Iterable[Partition]:
        """The application commits, or stores, what lies below these offsets (None: all of a partition).

        ``named``: it named them; else they are all partitions.
        """

    def move(self) -> Iterable[Partition]:
        """The application moves, or gives up, partitions while it has the messages of the last call."""

    def skip(self, ends: Mapping[Coordinates, int]) -> Iterable[Partition]:
        """The application moves partitions to these offsets, and may have messages below them."""

    def close(self) -> None:
        """The consumer closes while the application has the messages of the last call."""


class Delivery:
    """The messages between judging and completion.

    ``partition_of`` returns a partition that delivers, by topic and number. Everything needs the consumer's lock, but
    for the first of ``batch.ready``; see there.
    """

    policy: CompletionPolicy

    def __init__(self, partition_of: Callable[[str, int], Partition | None], counters: Counters) -> None:
        self.partition_of = partition_of
        self.counters = counters
        self.batch = Batch(counters)
        self.waiting = Waiting()
        self._given: dict[Key, Any] = {}
        """Messages that were given by themselves, and that the policy may complete; a message that waits is not here.

        One table, which says alone who is given: behind an interruption no two tables can differ."""
        self._last: Sequence[Any] = ()
        """The messages of the last `take`."""
        self.event: Any = None
        """The last event of the client that was given."""
        self.returning = [False]
        """Whether a call has taken messages, and has not returned them. A list: calls for messages set the entry.

        Nobody else completes these messages, nor any behind them: a signal may strike that call still, and the
        application would never get them. An exception may leave it set: the next call for messages clears it."""
        self.forgettings = 0
        """How often messages were forgotten: whoever keeps delivered ones looks which of them still count."""

    def use(self, policy: CompletionPolicy) -> None:
        """Complete messages by this policy from here on."""
        self.batch.count()
        self.policy, self.batch.counts = policy, policy.counts

    @property
    def on_the_way(self) -> dict[Coordinates, int]:
        """The first offset of each partition that a call has taken and not returned: see `returning`."""
        taken = self.last_given if self.returning[0] else ()
        messages = grouped(message for message in taken if message.error() is None)
        return {of: min(message.offset() for message in each) for of, each in messages.items()}

    # --- taking --------------------------------------------------------------------------------------------------

    def fill(self, judged: Classified) -> None:
        """Make a judged batch the current one; the one before is finished."""
        self._last = ()
        self.batch.fill(judged)

    def deliver_one(self, message: Any, judged: PartitionBatch) -> list[Any]:
        """Deliver a message that was judged by itself: it is the current batch. Only where `is_over` holds."""
        self.batch.fill_given(message, judged)
        self._last = (message,)
        if self.batch.counts:
            judged.partition.own_counters.delivered += 1
        return [message]

    @property
    def is_over(self) -> bool:
        """Whether no message is queued, and each delivered one is finished."""
        return not (self.batch.messages or self._given or self.waiting.queue)

    def take(self, count: int) -> list[Any]:
        """Deliver at most ``count`` messages: those of the queue first."""
        out = list[Any]()
        while self.waiting.queue and len(out) < count:
            message = self.waiting.take()
            if message.error() is not None:
                self.event = message
                out.append(message)
            elif self._give(message):
                out.append(message)
        if out or self.batch.ready:
            out += self.batch.take(count - len(out))
            self._last = tuple(out)
        return out

    def _give(self, message: Any) -> bool:
        """Note that a message of the queue is given; False if a late thread completed it after it was released."""
        if self._unfinished(message) is None:
            return False
        if self.policy.completes_unnamed:
            self._given[key_of(message)] = message
        if self.batch.counts:
            of_partition(self.counters, *coordinates(message)).delivered += 1
        return True

    # --- queueing ------------------------------------------------------------------------------------------------

    def offer(self, records: Iterable[RecordRef]) -> None:
        """Queue messages outside their batch: promoted or released ones."""
        for chunk, row in records:
            self._put(chunk.items[row])

    def put_back(self, messages: Sequence[Any]) -> None:
        """Queue delivered messages again, before all others, in this order; each ends by itself. Queued ones stay."""
        for message in reversed(messages):
            if message not in self.waiting and self.take_out(message):
                self._put(message, first=True)

    def offer_first(self, records: Sequence[RecordRef]) -> None:
        """Queue released messages in this order before all others, which were behind them when they were delivered."""
        for chunk, row in reversed(records):
            self._put(chunk.items[row], first=True)

    def redeliver(self, given: Sequence[tuple[Any, RecordRef]]) -> None:
        """Queue messages that were given, and may not have arrived; each counts as released, with one more attempt."""
        for message, _ in given:
            of_partition(self.counters, *coordinates(message)).released += 1
        self.put_back([message for message, _ in given])
        for _, (chunk, row) in given:
            chunk.offer_again(row)

    def _put(self, message: Any, *, first: bool = False) -> None:
        if message not in self.waiting:
            self._given.pop(key_of(message), None)
            self.waiting.put(message, first=first)

    def set_aside(self, partitions: set[Coordinates]) -> None:
        """Set the messages of these partitions aside, until `Waiting.bring_back`; each ends by itself from then on."""
        self.waiting.set_aside(partitions)
        for message in self.batch.withdraw(lambda each: coordinates(each) in partitions):
            self.take_out(message)
            self.waiting.put(message)

    def take_back(self, chosen: Callable[[Partition, RecordRef], bool]) -> list[tuple[Partition, RecordRef]]:
        """Take the messages that wait to be delivered, and for which ``chosen`` is true, out of the table."""
        taken: list[tuple[Partition, RecordRef]] = []

        def is_chosen(message: Any) -> bool:
            record = self._unfinished(message)
            partition = None if record is None else self.partition_of(*coordinates(message))
            if record is None or partition is None or not chosen(partition, record):
                return False
            taken.append((partition, record))
            return True

        self.batch.withdraw(is_chosen)
        self.waiting.remove(is_chosen)
        return taken

    # --- what waits ----------------------------------------------------------------------------------------------

    def first_waiting(self, topic: str, partition: int) -> int | None:
        """Return the lowest offset of a partition that waits to be delivered, None if nothing does."""
        ready = self.batch.first_ready(topic, partition)
        alone = self.waiting.offsets(topic, partition)
        return min(alone if ready is None else {ready, *alone}, default=None)

    def delivered_to(self, topic: str, partition: int, withdrawn: Collection[int]) -> int | None:
        """Return the offset after the last message of a partition that the application got; None before it delivers.

        A released message, which waits to come again, lies before it; so do hidden ones before the first that waits,
        as in `Positions.position`. ``withdrawn``: messages that no handler got.
        """
        opened = self.partition_of(topic, partition)
        if opened is None:
            return None
        first = self.batch.first_ready(topic, partition)
        waiting = self.waiting.offsets(topic, partition) | set(withdrawn)
        end = opened.flight.position if first is None else first
        return max(opened.flight.delivered_until(end, waiting), min({end, *waiting})) if waiting else end

    def in_flight(self, message: Any) -> RecordRef | None:
        """Return the record of a message in flight; None if it ended, or another message has its offset now."""
        record = self._unfinished(message)
        return record if record is not None and record.chunk.items[record.row] is message else None

    def not_in_hand(self, messages: Sequence[Any]) -> Iterator[Any]:
        """Yield those of one partition's messages that the application has no more: ended ones, and ones that wait."""
        partition = self.partition_of(*coordinates(messages[0]))
        left = messages
        # By runs: to look each message up would take ten times as long.
        while left and partition is not None and (run := partition.offered_run(left)):
            left = left[len(run.rows) :]
        yield from (each for each in left if self.in_flight(each) is None or each in self.waiting)

    def _unfinished(self, message: Any) -> RecordRef | None:
        partition = self.partition_of(message.topic(), message.partition())
        record = (
            partition.flight.place(message.offset()) if partition is not None and partition.started else None
        )
        return None if record is None or record.chunk.states[record.row] not in (OFFERED, SINGLE) else record

    # --- completing ----------------------------------------------------------------------------------------------

    def complete_given(self, given: int | None = None) -> Iterable[Partition]:
        """Complete all delivered messages, a batch that was delivered whole by its chunks; return their partitions.

        Messages that waited for them are queued. ``given``: only so many of the batch.
        """
        touched: dict[int, Partition] = {}
        if self._given:
            alone, self._given = self._given, {}
            self._complete(alone.values(), touched, (OFFERED, SINGLE))
        batch = self.batch
        if batch.ready or (given is not None and given < len(batch.messages)):
            self._complete(batch.end_given(given), touched, (OFFERED,))
        elif batch.messages or batch.chunks:
            for partition, chunk in batch.finish():
                touched[id(partition)] = partition
                if freed := guarded(partition, partition.complete_chunk, chunk):
                    self.offer(freed)
        return touched.values()

    def complete_but_last(self) -> Iterable[Partition]:
        """Complete the messages that were delivered before the last call; return their partitions."""
        touched: dict[int, Partition] = {}
        batch = self.batch
        # Once: meanwhile `poll` may take one more, which nobody has handled.
        count = batch.given
        last = set(map(id, self._last_given(count)))
        given = batch.messages[batch.ended : count]
        self._complete([m for m in given if id(m) not in last], touched, (OFFERED,))
        alone = [message for message in self._given.values() if id(message) not in last]
        self._complete(alone, touched, (OFFERED, SINGLE))
        return touched.values()

    def complete_below(self, ends: Mapping[Coordinates, int | None]) -> Iterable[Partition]:
        """Complete the delivered messages of partitions, of all batches, below offsets (None: all).

        Messages that wait by themselves lie in none of these batches: those behind them are completed.
        """
        completed = []
        # First: a message that `poll` takes meanwhile is beyond these, or on the way behind them.
        ready = {of: self.batch.first_ready(*of) for of in ends}
        on_the_way = self.on_the_way
        for of, end in ends.items():
            partition = self.partition_of(*of)
            if partition is None:
                continue
            if of in on_the_way:
                end = on_the_way[of] if end is None else min(end, on_the_way[of])  # noqa: PLW2901
            first = ready[of]
            stop = partition.flight.position if first is None else first
            stop = stop if end is None else min(stop, end)
            # Each of these was given, also one that lies behind messages of the batch that were not.
            alone = [message for message in self._given.values() if coordinates(message) == of]
            due = [message for message in alone if end is None or message.offset() < end]
            for message in due:
                self._given.pop(key_of(message), None)
            self._complete(due, {}, (OFFERED, SINGLE))
            offered = partition.flight.offered_below(stop)
            self.offer(partition.complete(offered, states=(OFFERED,), quietly=True))
            completed.append(partition)
        return completed

    def _complete(
        self, messages: Iterable[Any], touched: dict[int, Partition], states: tuple[int, ...]
    ) -> None:
        for of, ended in grouped(messages).items():
            partition = self.partition_of(*of)
            if partition is not None:
                touched[id(partition)] = partition
                offsets = [message.offset() for message in ended]
                self.offer(guarded(partition, partition.complete, offsets, states=states, quietly=True))

    def let_go(self) -> None:
        """Complete nothing: the messages that the application got end by its own calls."""
        if not self.batch.ready:
            # The batch knows what was polled since the last `take`.
            self._last = self._last_given(self.batch.given)
            self.batch.drop()
        else:
            self.batch.end_given()

    def take_out(self, message: Any) -> bool:
        """Exclude a delivered message from its policy; False if it is not in flight."""
        record = self._unfinished(message)
        self._given.pop(key_of(message), None)
        if record is None:
            return False
        record.chunk.offer_individually(record.row)
        return True

    def take_out_last(self) -> None:
        """Exclude the messages of the last call from their policy: they may be unhandled."""
        for message in self.last_given:
            if message.error() is None:
                self.take_out(message)

    @property
    def last_given(self) -> Sequence[Any]:
        """The messages of the last call, and events of the client."""
        return self._last_given(self.batch.given)

    def _last_given(self, given: int) -> Sequence[Any]:
        """Return the messages of the last call, when so many were given."""
        return self._last if given == self.batch.taken else self.batch.messages[given - 1 : given]

    # --- forgetting ----------------------------------------------------------------------------------------------

    def release(self, leaving: set[Coordinates]) -> None:
        """Forget the delivered and queued messages of these partitions: they come again, to the next owner."""
        for message in self.batch.withdraw(lambda each: coordinates(each) in leaving):
            # The application never saw it: no later commit of all delivered messages may complete it.
            self.take_out(message)
        self.purge(leaving)

    def release_all(self, paused: Collection[Coordinates] = ()) -> None:
        """Forget all delivered and queued messages, and the client's events: the messages come again.

        ``paused``: the partitions that the application pauses. An interruption may have left others set aside.
        """
        for message in self.batch.withdraw(lambda _: True):
            # As in `release`.
            self.take_out(message)
        self.forgettings += 1
        self.batch.drop()
        self.waiting.clear(paused)
        self._given, self._last = {}, ()
        self.batch.free(idle=True)

    def purge(self, gone: Collection[Coordinates]) -> None:
        """Forget the messages of partitions that are not assigned any more."""
        self.forgettings += 1
        self.batch.forget(gone)
        self.waiting.forget(gone)
        self._given = {key: each for key, each in self._given.items() if coordinates(each) not in gone}
