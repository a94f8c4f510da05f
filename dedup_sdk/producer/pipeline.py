"""From `produce()` into the outbox, and from there to the client: in this order, by one thread.

    produce() ─ queue ─▶ one transaction ─ ready ─▶ client ─ report ─▶ removed with a later transaction

Nothing is handed to the client before the transaction that holds it has returned. What is in the outbox is handed over in the order of its
IDs, so that what an earlier process left goes first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from dedup_sdk.errors import OutboxError, OutboxFullError
from dedup_sdk.producer.counters import OutboxCounters
from dedup_sdk.producer.failures import fate
from dedup_sdk.producer.handing import ClientSide
from dedup_sdk.producer.line import Lines
from dedup_sdk.producer.outbox import Outbox, Step, Stored
from dedup_sdk.producer.queued import Batch, Mark, Queued
from dedup_sdk.producer.settings import OnDelivery

log = logging.getLogger("dedup_sdk")

OnRefused = Callable[[KafkaError, Any], object]
_MOST_BATCH: Final = 5_000
_MOST_READY: Final = 20_000
_MOST_TAKEN: Final = 10_000
"""Messages of a shared outbox that are under way at a time: what is new there is found by leaving these out."""
_READ_ROWS: Final = 1_000
_REMOVE_AT: Final = 1_000
_REMOVE_S: Final = 0.1
_LOOK_S: Final = 0.5
_AGAIN_S: Final = 1.0
_IDLE_S: Final = 0.5
_FULL_S: Final = 0.02


class Pipeline:
    """Writes, sends and removes in a thread of its own; reports are taken by the threads that poll the client.

    Args:
        outbox: open.
        client: where messages go.
        on_refused: is asked about messages that the broker will not take; true: they need not be kept.
    """

    def __init__(self, outbox: Outbox, client: ClientSide, on_refused: OnRefused | None) -> None:
        self._outbox, self._client, self._on_refused = outbox, client, on_refused
        self.counters = OutboxCounters()
        self.queue: deque[Queued | Mark] = deque()
        self._lock = threading.Lock()
        self.counters.recovered = outbox.count()
        # Of a shared one those count that were taken: others may add more at any time.
        self.open = 0 if outbox.shared else self.counters.recovered
        """Messages that are neither delivered nor refused."""
        self.failed: OutboxError | None = None
        """Why nothing is done any more."""
        self.fatal: KafkaError | None = None
        """Why the client can send nothing any more."""
        self._batch = Batch()
        self._trouble: OutboxFullError | None = None
        self._write_again = self._remove_by = self._look_at = 0.0
        self._ready: deque[Stored] = deque()
        self._after = 0
        """The last ID that is, or was, ready."""
        self._behind = not outbox.shared
        """Whether the outbox has messages beyond it that are not ready."""
        self._taken: set[int] = set()
        self._callbacks: dict[int, OnDelivery] = {}
        self._confirmed: deque[int] = deque()
        self._refused: deque[tuple[int, str]] = deque()
        self._again: deque[tuple[float, int]] = deque()
        """When messages are due again; all wait for the same time, so that the first is due first."""
        self._lines = Lines()
        self._no_longer: deque[tuple[int, KafkaError]] = deque()
        """Messages that the broker refused, whose report is still to be made."""
        self._own_reports: deque[tuple[int, KafkaError, Any]] = deque()
        self._wake = threading.Event()
        self._asleep = self._ending = self._full = self._unread = False
        self._thread = threading.Thread(target=self._work, name="dedup-outbox", daemon=True)
        self._thread.start()

    def put(self, queued: Queued) -> None:
        """Take a message."""
        with self._lock:
            self.open += 1
            self.queue.append(queued)
        if self._asleep:
            self._wake.set()

    def mark(self) -> Mark:
        """Return a mark behind everything that was put until now."""
        mark = Mark()
        self.queue.append(mark)
        self._wake.set()
        return mark

    def await_mark(self, mark: Mark, timeout_s: float | None) -> bool:
        """Wait until a mark has ended; false: the time was not enough."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not mark.done.wait(
            _IDLE_S if until is None else max(0.0, min(_IDLE_S, until - time.monotonic()))
        ):
            if not self._thread.is_alive():
                mark.end(self._why_ended())
            elif until is not None and time.monotonic() >= until:
                return False
        return True

    def end(self) -> None:
        """End the thread when what is queued is written, or cannot be, and give the outbox back."""
        self._ending = True
        self._wake.set()
        self._thread.join()

    @property
    def unwritten(self) -> int:
        """Behind `end`: how many messages never came into the outbox."""
        return len(self._batch.queued)

    def give_up_unwritten(self) -> None:
        """Behind `end`: tell the callbacks of what never came into the outbox, and raise why it did not."""
        unwritten, self._batch.queued = self._batch.queued, []
        error = KafkaError(KafkaError._PURGE_QUEUE)  # noqa: SLF001 (its public name)
        for message, callback in unwritten:
            self._settle()
            if callback is not None:
                callback(error, self._client.refused(message, error))
        if self.failed is not None:
            raise self.failed
        if unwritten:
            raise OutboxFullError(
                f"{len(unwritten)} messages could not be written to the outbox, and are neither kept nor sent ({self._trouble}); send them "
                "again, with the keys that their delivery callbacks were given"
            ) from self._trouble

    # --- reports: threads that poll ------------------------------------------------------------------------------------

    def take_own_reports(self) -> int:
        """Report what is refused; return how many messages that were."""
        taken = 0
        while self._own_reports:
            number, error, message = self._own_reports.popleft()
            try:
                self._refuse(number, error, message)
            finally:
                self._call_back(number, error, message)
            taken += 1
        return taken

    def report(self, number: int, error: KafkaError | None, message: Any) -> None:
        """Take the client's word on a message."""
        if error is None:
            self._confirmed.append(number)
            self.counters.confirmed += 1
            self._settle()
            self._call_back(number, None, message)
            return
        match fate(error):
            case "again":
                self.counters.retried += 1
                self._again.append((time.monotonic() + _AGAIN_S, number))
            case "refused":
                # The client's reports are without headers, so that the message is read again from the outbox.
                self._no_longer.append((number, error))
                self._wake.set()
            case "over":
                self.fatal = error
                self._call_back(number, error, message)
            case "left":
                self._call_back(number, error, message)

    def _call_back(self, number: int, error: KafkaError | None, message: Any) -> None:
        callback = self._callbacks.pop(number, None)
        if callback is not None:
            callback(error, message)

    def _settle(self) -> None:
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
                    "outbox: a message for topic %s is refused (%s); it stays in the outbox, and is tried again at the next start",
                    message.topic(), text,
                )  # fmt: skip
            self.counters.refused += 1
            self._settle()

    # --- the thread ----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not (self._ending and self._is_written()):
                self._write()
                self._feed_patiently()
                self._send()
                self._rest()
        except OutboxError as error:
            self.failed = error
        except Exception as error:
            log.exception("outbox: an unexpected error; nothing more is persisted or sent")
            self.failed = OutboxError(f"the outbox's thread ended ({error!r}); make another producer")
        finally:
            self._end()

    def _end(self) -> None:
        if self.failed is not None:
            log.error("outbox: %s", self.failed)
        try:
            self._outbox.close()
        except OutboxError as error:
            self.failed = self.failed or error
        self._batch.end_marks(self._why_ended())
        while self.queue:
            item = self.queue.popleft()
            if isinstance(item, Mark):
                item.end(self._why_ended())
            else:
                self._batch.queued.append(item)

    def _why_ended(self) -> OutboxError:
        return self.failed or OutboxError("the producer is closed; make another one")

    def _is_written(self) -> bool:
        """Whether an ending thread may go: nothing is owed to the outbox, or it cannot be written."""
        owed = self.queue or self._confirmed or self._refused or self._batch
        return not owed or self._trouble is not None

    def _write(self) -> None:
        """Bring what is queued, and what is delivered, into the outbox."""
        batch = self._batch
        batch.take(self.queue, self._confirmed, self._refused)
        now = time.monotonic()
        due = len(batch.removed) >= _REMOVE_AT or now >= self._remove_by or self._ending
        if not (batch.queued or batch.refused or (batch.removed and due)):
            self._batch.end_marks(None)
            return
        if now < self._write_again and not self._ending:
            return
        step = Step([each.message for each in batch.queued], batch.removed, batch.refused)
        try:
            numbers = self._outbox.apply(step)
        except OutboxFullError as error:
            if self._trouble is None:
                log.warning("outbox: %s", error)
            self._trouble, self._write_again = error, now + _AGAIN_S
            self._batch.end_marks(error)
            return
        if self._trouble is not None:
            log.info("outbox: written again")
        self._trouble, self._remove_by = None, now + _REMOVE_S
        self.counters.persisted += len(numbers)
        self._taken.difference_update(batch.removed)
        self._taken.difference_update(number for number, _ in batch.refused)
        self._stored(batch.queued, numbers)
        batch.queued, batch.removed, batch.refused = [], [], []
        self._batch.end_marks(None)

    def _stored(self, queued: Sequence[Queued], numbers: Sequence[int]) -> None:
        """Make ready what is on disk now; what finds no room in memory is read again later."""
        for each, number in zip(queued, numbers, strict=True):
            if each.callback is not None:
                self._callbacks[number] = each.callback
        if self._outbox.shared:
            room = max(0, _MOST_TAKEN - len(self._taken))
            self._taken.update(numbers[:room])
        elif self._behind:
            return
        else:
            room = max(0, _MOST_READY - len(self._ready))
            self._behind = room < len(numbers)
        self._ready.extend(
            Stored(number, each.message) for number, each in zip(numbers[:room], queued, strict=False)
        )
        if room and numbers:
            self._after = self._ready[-1].id

    def _feed_patiently(self) -> None:
        """Do `_feed`, and wait where the outbox cannot be read for now."""
        try:
            self._feed()
        except OutboxFullError as error:
            if not self._unread:
                log.warning("outbox: %s", error)
            self._unread = True
        else:
            self._unread = False

    def _feed(self) -> None:
        """Make ready what is due again, or waits in the outbox."""
        self._tell_refused()
        now = time.monotonic()
        # Nothing is taken from where it waits before it is read.
        due = [number for when, number in list(islice(self._again, _READ_ROWS)) if when <= now]
        if due:
            rows = self._outbox.read(sorted(due))
            if len(rows) < len(due):
                self._lines.drop(set(due) - {row.id for row in rows})
            self._ready.extendleft(reversed(rows))
            for _ in due:
                self._again.popleft()
        if self._ready:
            return
        if self._behind:
            rows = self._outbox.after(self._after, _READ_ROWS)
            self._behind = len(rows) == _READ_ROWS
            self._after = rows[-1].id if rows else self._after
            self._ready.extend(rows)
        elif self._outbox.shared and now >= self._look_at and len(self._taken) < _MOST_TAKEN:
            rows = self._outbox.fresh(sorted(self._taken), _READ_ROWS)
            self._look_at = now if len(rows) == _READ_ROWS else now + _LOOK_S
            self._take(rows)

    def _take(self, rows: Sequence[Stored]) -> None:
        """Take what others added."""
        self._taken.update(row.id for row in rows)
        self._ready.extend(rows)
        with self._lock:
            self.open += len(rows)

    def _send(self) -> None:
        """Hand over what is ready, as far as the client takes it."""
        self._full = False
        for _ in range(min(len(self._ready), _MOST_BATCH)):
            if self.fatal is not None:
                self._ready.clear()
                return
            stored = self._ready[0]
            if stored.unreadable:
                self._pass_over(stored)
            elif not self._hand_over(stored):
                self._full = True
                return
            self._ready.popleft()

    def _hand_over(self, stored: Stored) -> bool:
        """Give a message to the client; false: it has no room."""
        number, message, _ = stored
        given = False
        if self._lines.has_turn(message.topic, number):
            try:
                given = self._client.give(message, partial(self.report, number))
            except BufferError:
                return False
            except KafkaException as error:
                self._lines.leave(message.topic, number)
                self.report(number, error.args[0], None)
                return True
        if given:
            self._lines.leave(message.topic, number)
            self.counters.sent += 1
        else:
            self._lines.join(message.topic, number)
            self._again.append((time.monotonic() + _AGAIN_S, number))
        return True

    def _tell_refused(self) -> None:
        """Make the reports of what the broker refused, with all of the message, for the thread that polls next."""
        told = list(self._no_longer)
        errors = dict(told)
        rows = self._outbox.read(sorted(errors)) if errors else []
        for _ in told:
            self._no_longer.popleft()
        for number, message, _ in rows:
            self._own_reports.append((number, errors[number], self._client.refused(message, errors[number])))

    def _pass_over(self, stored: Stored) -> None:
        log.error(
            "outbox: row %s is no message (%s); it stays in the outbox, and is not sent",
            stored.id,
            stored.unreadable,
        )
        self._lines.drop({stored.id})
        self.counters.unreadable += 1
        self._refused.append((stored.id, f"unreadable: {stored.unreadable}"))
        self._settle()

    def _rest(self) -> None:
        """Wait until there is something to do."""
        self._wake.clear()
        self._asleep = True
        if self._trouble is not None or self._unread:
            pause_s = _AGAIN_S
        elif self.queue or self._no_longer or (self._ready and not self._full):
            pause_s = 0.0
        elif self._full:
            pause_s = _FULL_S
        elif self._behind:
            pause_s = 0.0
        elif self._batch.removed or self._confirmed or self._refused:
            pause_s = _REMOVE_S
        else:
            pause_s = _IDLE_S
        if self._again:
            pause_s = min(pause_s, max(0.0, self._again[0][0] - time.monotonic()))
        if pause_s and not self._ending:
            self._wake.wait(pause_s)
        self._asleep = False
