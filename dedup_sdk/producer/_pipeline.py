"""One thread that moves messages from `produce()` into the outbox, and from there to the client.

    produce() ─ queue ─▶ one transaction ─ ready ─▶ client ─ report ─▶ removed by a later transaction

No message is given to the client before the transaction that contains it is committed. Messages in the
outbox are sent in the order of their IDs, so that those of an earlier process go first. While the partition
of a message is unknown, all later messages of its topic wait, so that none overtakes it.

A written message is sent from memory if there is room; otherwise it is read from the outbox later, in the
order of IDs. So a broker that is away costs disk space and not memory, and the order is kept.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from dedup_sdk._masking import counted, error_shown
from dedup_sdk.errors import OutboxError, OutboxFullError
from dedup_sdk.producer._client_adapter import ClientAdapter, outcome_of
from dedup_sdk.producer._outbox import Outbox, OutboxCounters, Step, Stored
from dedup_sdk.producer._outgoing import Outgoing
from dedup_sdk.producer._settings import OnDelivery

_MOST_IN_TRANSACTION: Final = 5_000


class Barrier:
    """A position in the queue; released when every message before it is on disk."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: OutboxError | None = None

    def release(self, error: OutboxError | None = None) -> None:
        """Wake the threads that wait for it."""
        self.error = error
        self.done.set()


class Queued(NamedTuple):
    """A message that is not on disk yet."""

    message: Outgoing
    callback: OnDelivery | None


@dataclass(slots=True)
class NextTransaction:
    """The messages and changes of the next transaction."""

    queued: list[Queued] = field(default_factory=list)
    barriers: list[Barrier] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.queued or self.removed or self.refused)

    def take(
        self, queue: deque[Queued | Barrier], removed: deque[int], refused: deque[tuple[int, str]]
    ) -> None:
        """Take messages and changes from the queues, up to the first barrier."""
        while queue and len(self.queued) < _MOST_IN_TRANSACTION:
            item = queue.popleft()
            if isinstance(item, Barrier):
                self.barriers.append(item)
                break
            self.queued.append(item)
        while removed and len(self.removed) < _MOST_IN_TRANSACTION:
            self.removed.append(removed.popleft())
        while refused:
            self.refused.append(refused.popleft())

    def release_barriers(self, error: OutboxError | None) -> None:
        """Release the barriers that wait for this transaction."""
        for barrier in self.barriers:
            barrier.release(error)
        self.barriers = []


class PendingByTopic:
    """The messages of each topic that wait because a partition is unknown, by number, ascending.

    For one thread.
    """

    def __init__(self) -> None:
        self._topics: dict[str, deque[int]] = {}

    def is_first(self, topic: str, number: int) -> bool:
        """Whether no other message of the topic waits before this one."""
        numbers = self._topics.get(topic)
        return numbers is None or number <= numbers[0]

    def add(self, topic: str, number: int) -> None:
        """Add a waiting message.

        A number between the first and the last is not added: it waits for the first anyway.
        """
        numbers = self._topics.setdefault(topic, deque())
        if not numbers or number > numbers[-1]:
            numbers.append(number)
        elif number < numbers[0]:
            numbers.appendleft(number)

    def remove(self, topic: str, number: int) -> None:
        """Remove a message that was given to the client, or refused."""
        numbers = self._topics.get(topic)
        if numbers is not None and numbers[0] == number:
            numbers.popleft()
            if not numbers:
                del self._topics[topic]

    def discard(self, gone: Collection[int]) -> None:
        """Remove messages that are no longer in the outbox."""
        for topic, numbers in list(self._topics.items()):
            left = deque(number for number in numbers if number not in gone)
            self._topics[topic] = left
            if not left:
                del self._topics[topic]


log = logging.getLogger("dedup_sdk")

OnRefused = Callable[[KafkaError, Any], object]
_MOST_BATCH: Final = 5_000
MOST_READY: Final = 20_000
"""The most messages in memory that the client has no room for; the others wait in the outbox."""
_MOST_TAKEN: Final = 10_000
"""The most messages of a shared outbox in progress; new ones are found by excluding these."""
READ_ROWS: Final = 1_000
"""The most rows that are read from the outbox at once."""
_REMOVE_AT: Final = 1_000
_REMOVE_S: Final = 0.1
_LOOK_S: Final = 0.5
_AGAIN_S: Final = 1.0
_IDLE_S: Final = 0.5
_FULL_S: Final = 0.02


class Pipeline:
    """Writes, sends and removes messages in its own thread.

    Threads that poll the client pass it the delivery reports.

    Args:
        outbox: open.
        client: sends the messages.
        on_refused: called for each message that the broker refuses; true: remove it from the outbox.
    """

    def __init__(self, outbox: Outbox, client: ClientAdapter, on_refused: OnRefused | None) -> None:
        self._outbox, self._client, self._on_refused = outbox, client, on_refused
        self.counters = OutboxCounters()
        self.queue: deque[Queued | Barrier] = deque()
        self._lock = threading.Lock()
        self.counters.recovered = outbox.count()
        # Of a shared outbox only taken messages count: other processes may add more at any time.
        self.open = 0 if outbox.shared else self.counters.recovered
        """The number of messages that are neither delivered nor refused."""
        self.failed: OutboxError | None = None
        """The error that ended the thread."""
        self.fatal: KafkaError | None = None
        """The fatal error of the client, which can send nothing more."""
        self._next = NextTransaction()
        self._write_error: OutboxFullError | None = None
        self._write_again = self._remove_by = self._look_at = 0.0
        self._ready: deque[Stored] = deque()
        self._last_ready = 0
        """The highest ID that is, or was, ready."""
        self._has_more = not outbox.shared
        """Whether the outbox has messages beyond that ID."""
        self._under_way: set[int] = set()
        self._callbacks: dict[int, OnDelivery] = {}
        self._confirmed: deque[int] = deque()
        self._refused: deque[tuple[int, str]] = deque()
        self._retries: deque[tuple[float, int]] = deque()
        """Due times of resends; all wait equally long, so that the first is due first."""
        self._pending = PendingByTopic()
        self._refused_by_broker: deque[tuple[int, KafkaError]] = deque()
        """Messages that the broker refused, to be read from the outbox for their report."""
        self._refusals: deque[tuple[int, KafkaError, Any]] = deque()
        self._wake = threading.Event()
        self._asleep = self._ending = self._full = self._read_failed = False
        self._thread = threading.Thread(target=self._work, name="dedup-outbox", daemon=True)
        self._thread.start()

    def put(self, queued: Queued) -> None:
        """Queue a message."""
        with self._lock:
            self.open += 1
            self.queue.append(queued)
        if self._asleep:
            self._wake.set()

    def barrier(self) -> Barrier:
        """Queue a barrier behind every message that was put before, and return it."""
        barrier = Barrier()
        self.queue.append(barrier)
        self._wake.set()
        return barrier

    def await_barrier(self, barrier: Barrier, timeout_s: float | None) -> bool:
        """Wait until a barrier is released; false where ``timeout_s`` passed first."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not barrier.done.wait(
            _IDLE_S if until is None else max(0.0, min(_IDLE_S, until - time.monotonic()))
        ):
            if not self._thread.is_alive():
                barrier.release(self._end_error())
            elif until is not None and time.monotonic() >= until:
                return False
        return True

    def end(self) -> None:
        """Write the queue, as far as the outbox can be written, end the thread, and close the outbox."""
        self._ending = True
        self._wake.set()
        self._thread.join()

    @property
    def unwritten(self) -> int:
        """After `end`: how many messages were never written to the outbox."""
        return len(self._next.queued)

    def report_unwritten(self) -> None:
        """After `end`: call the callbacks of messages that were never written to the outbox, and raise the reason."""
        unwritten, self._next.queued = self._next.queued, []
        error = KafkaError(KafkaError._PURGE_QUEUE)  # noqa: SLF001 (its public name)
        for message, callback in unwritten:
            self._count_ended()
            if callback is not None:
                callback(error, self._client.refused(message, error))
        if self.failed is not None:
            raise self.failed
        if unwritten:
            raise OutboxFullError(
                f"the outbox could not take {counted(len(unwritten), 'message')}, neither kept nor sent "
                f"({self._write_error}): produce again what failed, with the keys that the delivery callbacks got"
            ) from self._write_error

    # --- reports: threads that poll
    # ------------------------------------------------------------------------------------

    def report_refusals(self) -> int:
        """Report refused messages, and return how many."""
        taken = 0
        while self._refusals:
            number, error, message = self._refusals.popleft()
            try:
                self._refuse(number, error, message)
            finally:
                self._call_back(number, error, message)
            taken += 1
        return taken

    def report(self, number: int, error: KafkaError | None, message: Any) -> None:
        """Take the delivery report of a message."""
        if error is None:
            self._confirmed.append(number)
            self.counters.confirmed += 1
            self._count_ended()
            self._call_back(number, None, message)
            return
        match outcome_of(error):
            case "retry":
                self.counters.retried += 1
                self._retries.append((time.monotonic() + _AGAIN_S, number))
            case "refused":
                # Reports of the client have no headers, so that the message is read from the outbox.
                self._refused_by_broker.append((number, error))
                self._wake.set()
            case "fatal":
                self.fatal = error
                self._call_back(number, error, message)
            case "kept":
                self._call_back(number, error, message)

    def _call_back(self, number: int, error: KafkaError | None, message: Any) -> None:
        callback = self._callbacks.pop(number, None)
        if callback is not None:
            callback(error, message)

    def _count_ended(self) -> None:
        with self._lock:
            self.open -= 1
        if self._full:
            self._wake.set()

    def _refuse(self, number: int, error: KafkaError, message: Any) -> None:
        text = f"{error.name()}: {error.str()}"
        taken: object = False
        try:
            taken = self._on_refused is not None and self._on_refused(error, message)
        finally:
            if taken:
                self._confirmed.append(number)
            else:
                self._refused.append((number, text))
                log.warning(
                    "outbox: a message for topic %s is refused (%s); it stays in the outbox, and is sent again at "
                    "the next start",
                    message.topic(), text,
                    extra={"event": "outbox-message-refused"},
                )  # fmt: skip
            self.counters.refused += 1
            self._count_ended()

    # --- the thread
    # ----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not (self._ending and self._is_written()):
                self._write()
                self._feed_or_wait()
                self._send()
                self._wait()
        except OutboxError as error:
            self.failed = error
        except Exception as error:
            log.exception(
                "outbox: unexpected error; nothing more is persisted or sent, make another producer",
                extra={"event": "outbox-ended"},
            )
            self.failed = OutboxError(
                f"the outbox's thread ended ({error_shown(error)}); make another producer"
            )
        finally:
            self._end()

    def _end(self) -> None:
        if self.failed is not None:
            log.error("outbox: %s", self.failed, extra={"event": "outbox-not-writable"})
        try:
            self._outbox.close()
        except OutboxError as error:
            self.failed = self.failed or error
        self._next.release_barriers(self._end_error())
        while self.queue:
            item = self.queue.popleft()
            if isinstance(item, Barrier):
                item.release(self._end_error())
            else:
                self._next.queued.append(item)

    def _end_error(self) -> OutboxError:
        return self.failed or OutboxError("the producer is closed; make another one")

    def _is_written(self) -> bool:
        """Whether an ending thread may stop: nothing is left to write, or the outbox cannot be written."""
        left = self.queue or self._confirmed or self._refused or self._next
        return not left or self._write_error is not None

    def _write(self) -> None:
        """Write queued messages to the outbox, and remove delivered ones."""
        batch = self._next
        batch.take(self.queue, self._confirmed, self._refused)
        now = time.monotonic()
        due = len(batch.removed) >= _REMOVE_AT or now >= self._remove_by or self._ending
        if not (batch.queued or batch.refused or (batch.removed and due)):
            self._next.release_barriers(None)
            return
        if now < self._write_again and not self._ending:
            return
        step = Step([each.message for each in batch.queued], batch.removed, batch.refused)
        try:
            numbers = self._outbox.apply(step)
        except OutboxFullError as error:
            if self._write_error is None:
                log.warning("outbox: %s", error, extra={"event": "outbox-not-writable"})
            self._write_error, self._write_again = error, now + _AGAIN_S
            self._next.release_barriers(error)
            return
        if self._write_error is not None:
            log.info("outbox: writing works again", extra={"event": "outbox-writable-again"})
        self._write_error, self._remove_by = None, now + _REMOVE_S
        self.counters.persisted += len(numbers)
        self._under_way.difference_update(batch.removed)
        self._under_way.difference_update(number for number, _ in batch.refused)
        self._stored(batch.queued, numbers)
        batch.queued, batch.removed, batch.refused = [], [], []
        self._next.release_barriers(None)

    def _stored(self, queued: Sequence[Queued], numbers: Sequence[int]) -> None:
        """Make written messages ready to be sent; those beyond the limits in memory are read again later."""
        for each, number in zip(queued, numbers, strict=True):
            if each.callback is not None:
                self._callbacks[number] = each.callback
        if self._outbox.shared:
            room = max(0, _MOST_TAKEN - len(self._under_way))
            self._under_way.update(numbers[:room])
        elif self._has_more:
            return
        else:
            room = max(0, MOST_READY - len(self._ready))
            self._has_more = room < len(numbers)
        self._ready.extend(
            Stored(number, each.message) for number, each in zip(numbers[:room], queued, strict=False)
        )
        if room and numbers:
            self._last_ready = self._ready[-1].id

    def _feed_or_wait(self) -> None:
        """Do `_feed`; where the outbox cannot be read for now, log it once and try again later."""
        try:
            self._feed()
        except OutboxFullError as error:
            if not self._read_failed:
                log.warning("outbox: %s", error, extra={"event": "outbox-not-writable"})
            self._read_failed = True
        else:
            self._read_failed = False

    def _feed(self) -> None:
        """Make messages ready: those that are due again, else the next ones of the outbox."""
        self._report_refused()
        now = time.monotonic()
        # A number stays in its queue until its row is read.
        due = [number for when, number in list(islice(self._retries, READ_ROWS)) if when <= now]
        if due:
            rows = self._outbox.read(sorted(due))
            if len(rows) < len(due):
                self._pending.discard(set(due) - {row.id for row in rows})
            self._ready.extendleft(reversed(rows))
            for _ in due:
                self._retries.popleft()
        if self._ready:
            return
        if self._has_more:
            rows = self._outbox.after(self._last_ready, READ_ROWS)
            self._has_more = len(rows) == READ_ROWS
            self._last_ready = rows[-1].id if rows else self._last_ready
            self._ready.extend(rows)
        elif self._outbox.shared and now >= self._look_at and len(self._under_way) < _MOST_TAKEN:
            rows = self._outbox.fresh(sorted(self._under_way), READ_ROWS)
            self._look_at = now if len(rows) == READ_ROWS else now + _LOOK_S
            self._take(rows)

    def _take(self, rows: Sequence[Stored]) -> None:
        """Add messages of other processes."""
        self._under_way.update(row.id for row in rows)
        self._ready.extend(rows)
        with self._lock:
            self.open += len(rows)

    def _send(self) -> None:
        """Give ready messages to the client, as far as it has room."""
        self._full = False
        for _ in range(min(len(self._ready), _MOST_BATCH)):
            if self.fatal is not None:
                self._ready.clear()
                return
            stored = self._ready[0]
            if stored.unreadable:
                self._skip_unreadable(stored)
            elif not self._hand_over(stored):
                self._full = True
                return
            self._ready.popleft()

    def _hand_over(self, stored: Stored) -> bool:
        """Give a message to the client; false where it has no room."""
        number, message, _ = stored
        given = False
        if self._pending.is_first(message.topic, number):
            try:
                given = self._client.give(message, partial(self.report, number))
            except BufferError:
                return False
            except KafkaException as error:
                self._pending.remove(message.topic, number)
                self.report(number, error.args[0], None)
                return True
        if given:
            self._pending.remove(message.topic, number)
            self.counters.sent += 1
        else:
            self._pending.add(message.topic, number)
            self._retries.append((time.monotonic() + _AGAIN_S, number))
        return True

    def _report_refused(self) -> None:
        """Make the reports of refused messages, headers included, for the thread that polls next."""
        told = list(self._refused_by_broker)
        errors = dict(told)
        rows = self._outbox.read(sorted(errors)) if errors else []
        for _ in told:
            self._refused_by_broker.popleft()
        for number, message, _ in rows:
            self._refusals.append((number, errors[number], self._client.refused(message, errors[number])))

    def _skip_unreadable(self, stored: Stored) -> None:
        log.error(
            "outbox: row %s is not a message (%s); it stays in the outbox, and is not sent",
            stored.id,
            stored.unreadable,
            extra={"event": "outbox-row-unreadable"},
        )
        self._pending.discard({stored.id})
        self.counters.unreadable += 1
        self._refused.append((stored.id, f"unreadable: {stored.unreadable}"))
        self._count_ended()

    def _wait(self) -> None:
        """Wait until there is work."""
        self._wake.clear()
        self._asleep = True
        if self._write_error is not None or self._read_failed:
            pause_s = _AGAIN_S
        elif self.queue or self._refused_by_broker or (self._ready and not self._full):
            pause_s = 0.0
        elif self._full:
            pause_s = _FULL_S
        elif self._has_more:
            pause_s = 0.0
        elif self._next.removed or self._confirmed or self._refused:
            pause_s = _REMOVE_S
        else:
            pause_s = _IDLE_S
        if self._retries:
            pause_s = min(pause_s, max(0.0, self._retries[0][0] - time.monotonic()))
        if pause_s and not self._ending:
            self._wake.wait(pause_s)
        self._asleep = False
