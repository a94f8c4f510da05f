"""The way of a message: fetched by the client, judged in batches, delivered, completed.

    fetch ─▶ judge ─▶ deliver ─▶ complete
    `Fetcher`  `BatchClassifier`  `Delivery`  `Partition.complete`

    A message that was fetched with at most 11 others takes a shorter way if its ID is unknown, and nothing else
    decides (`BatchClassifier.judge_one`).

maintenance
    the work on a timer: write completed records, recover partitions, commit, flush. It is due every `MAINTENANCE_S`,
    after `MAINTENANCE_RECORDS` records, and as soon as an event needs it.

The garbage collector is paused while a batch is fetched and judged, never while the loop waits. It would visit a
thousand live messages and their headers twice a batch, a tenth of the whole cost. It is resumed as the very last step
before the application gets its messages: by then the messages of the batch before are freed.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import compress, repeat
from operator import is_not
from threading import RLock, get_ident, main_thread
from typing import Any, Final, Literal, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from dedup_sdk._core.flight import OFFERED, SINGLE, RecordRef
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._engine.gates import Gatekeeper
from dedup_sdk._engine.partition import Partition
from dedup_sdk._interruptions import is_interruption
from dedup_sdk._kafka.assign.commits import Coordinates
from dedup_sdk._kafka.assign.log_end import LogEnds
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.client.client_errors import is_retriable
from dedup_sdk._kafka.client.fields import headers_of
from dedup_sdk._kafka.client.guards import (
    CallbackErrors,
    ClientLock,
    Interruption,
    depth_in,
    is_called_by_pool,
    is_inside,
)
from dedup_sdk._kafka.deliver.assignment_api import AssignmentApi, Handlers
from dedup_sdk._kafka.deliver.delivery import BatchClassifier, CompletedBy, Delivery, Fetcher
from dedup_sdk._kafka.recover.session import Session
from dedup_sdk._observe import of_partition
from dedup_sdk._record import Verdict
from dedup_sdk.errors import StoreCorruptError, StoreError, StoreUnavailableError, TransactionError

T = TypeVar("T")
logger = logging.getLogger("dedup_sdk")

MAINTENANCE_S = 0.1
"""Seconds between two runs of maintenance: implicit completions are written at least this often."""
MAINTENANCE_RECORDS = 1_000
"""The most records that are judged, or completed, between two runs of maintenance."""
MOST_UNWRITTEN = 20_000
"""The most completed records of a partition in memory with ``durability="commit"``; above it they are written."""
JOINING_S = 60.0
"""Seconds that a group may take for its first assignment before `IdleClock` counts them as silence."""
_RECOVERING_S = 0.02
_AT_ONCE_S = 0.0002
"""A message that the client returns within that time was there already, and others may be behind it."""
MOST_ALONE = 12
"""So many fetched messages are judged one by one; more cost less if they are judged together."""
_ONE_DAY_S = 86_400.0
MOST_FETCHED = 1_000
"""The most messages that are fetched while none may be delivered."""
_NESTED: Final = (
    "poll() or consume() was called by an observer, or by a signal handler, during such a call of the same thread; ask "
    "for messages in your loop only"
)
_IN_CALLBACK: Final = (
    "poll() or consume() was called in a callback, where the client would end the process; ask for messages in your "
    "loop only"
)
_TWO_POLLERS: Final = (
    "another thread is in poll() or consume() of this consumer: one thread asks for messages; let it hand them to "
    'others (completion="explicit"), or use run()'
)

_IN_POOL: Final = (
    "poll() or consume() was called by a thread pool (asyncio.to_thread, run_in_executor): a cancelled task drops the "
    "message that the call returns, and your next call would complete it, so that it would be lost; use "
    'DedupConsumer(..., completion="explicit") and complete(message), or run() in a thread of its own'
)

_offset: Final[Callable[[Any], Any]] = Message.offset

Durability = Literal["record", "batch", "commit"]


class Collector:
    """Pauses the garbage collector if it is enabled, and enables it again if it was paused here (``paused``).

    A ``gc.disable()`` by another thread in the few milliseconds between has no effect.
    """

    def __init__(self) -> None:
        self.paused = False

    def pause(self) -> None:
        """Pause garbage collection until `resume`."""
        if gc.isenabled():
            # In this order, here and below: an interruption between the two must not leave it disabled for good.
            self.paused = True
            gc.disable()

    def resume(self) -> None:
        """Enable garbage collection again, if it was before."""
        if self.paused:
            gc.enable()
            self.paused = False


class FetchLoop:
    """Fetches, judges and delivers messages; completes and releases them."""

    def __init__(
        self,
        *,
        engine: Deduplicator,
        session: Session,
        client: Client,
        callback_errors: CallbackErrors,
        lock: ClientLock,
        interruption: Interruption,
        fetcher: Fetcher,
        classifier: BatchClassifier,
        delivery: Delivery,
        assignment: AssignmentApi,
        durability: Durability,
        only_stored: bool,
    ) -> None:
        self._engine, self._session, self._client = engine, session, client
        self._read_digest = engine.keys.digest_reader()
        self._callback_errors, self._lock, self._interruption = callback_errors, lock, interruption
        self._mutex: RLock = lock.lock
        self._fetcher, self._classifier, self._delivery = fetcher, classifier, delivery
        self._assignment = assignment
        self._durability, self._only_stored = durability, only_stored
        self._collector = Collector()
        self._log_ends = LogEnds(client)
        self.heard_at = 0.0
        """When (monotonic seconds) the client was last asked for messages, or served; 0: never."""
        self._unwritten: dict[int, Partition] = {}
        """Partitions with completed records that are not in the store yet, by `id`."""
        self._since_maintenance = 0
        """Records since the last maintenance."""
        self._survived = -1
        """How many stores had been set aside at the last `StoreCorruptError`, -1 before the first."""
        self._recover_at = 0.0
        """When (monotonic seconds) recoveries go on if no message is ready meanwhile."""
        self._holds_back = False
        self.poller: int | None = None
        """The thread inside `messages`."""
        self._main_thread = main_thread().ident
        self._refused = False
        """Whether another thread was refused since that thread entered."""

    # --- a call for messages -------------------------------------------------------------------------------------

    def messages(self, count: int, timeout: float | None, at_most: int) -> list[Any]:
        """Return up to ``count`` messages after ``timeout`` seconds at most (None, -1: no limit).

        ``at_most``: the most messages that are judged together. Raises `RuntimeError` after `DedupConsumer.close`,
        while another thread is in this method (see `_redeliver`), and in a thread pool.
        """
        until = time.monotonic() + (_ONE_DAY_S if timeout is None or timeout < 0 else timeout)
        me, got, lock = get_ident(), list[Any](), self._lock
        in_step = lock.is_mine()
        with self._mutex:
            busy = in_step or self.poller or lock.client_thread or lock.closer or self._holds_back
            if busy or lock.closed or lock.ends or me != self._main_thread or not self._assignment.asked:
                self._refuse_or_warn(me, in_step=in_step)
            self.poller, self._refused = me, False
        try:
            try:
                while True:
                    # In the last round all fetched messages are judged, be they fewer than asked for.
                    last = time.monotonic() >= until
                    try:
                        got = self._round(count, until, at_most)
                        if not got and self._callback_errors.kept is not None:
                            self._callback_errors.raise_kept(StoreError)
                    except StoreError as error:
                        got = self._after_store_error(error)
                    if got or last or self._callback_errors.kept is not None:
                        break
            finally:
                with self._mutex:
                    # Together: once this thread is no poller any more, nobody is refused for it.
                    if self._refused:
                        self._redeliver(got)
                    self.poller = None
                if self._collector.paused:
                    self._collector.resume()
        except BaseException:
            self._interruption.note()
            # The ``finally`` itself may have been interrupted.
            self._collector.resume()
            raise
        if not got and self._callback_errors.kept is not None:
            # No interruption by itself: whoever kept it has noted one if a partition is half changed.
            self._callback_errors.raise_kept()
        return got

    def _refuse(self, thread: int, *, in_step: bool) -> None:
        """Refuse a call that fetches: after `close`, in a callback, inside another one, and beside another thread."""
        self._lock.check_open()
        if self._callback_errors.runs_here():
            raise RuntimeError(_IN_CALLBACK)
        if in_step or depth_in((FetchLoop.messages, FetchLoop.heartbeat), self) > 1:
            raise RuntimeError(_NESTED)
        if self.poller not in (None, thread):
            raise RuntimeError(_TWO_POLLERS)

    def _refuse_or_warn(self, thread: int, *, in_step: bool) -> None:
        """Refuse a call for messages, also of a thread pool; warn if no message can come.

        A thread pool is looked for where another thread asks than before: it called `DedupConsumer.poll`, or `consume`.
        """
        if self.poller not in (None, thread):
            self._refused = True
        self._refuse(thread, in_step=in_step)
        if self._delivery.completed_by is not CompletedBy.NOTHING and is_called_by_pool():
            raise RuntimeError(_IN_POOL)
        if not self._assignment.asked:
            self._assignment.warn_not_asked()
        self._fetch_again()

    def _redeliver(self, got: list[Any]) -> None:
        """Have messages delivered once more that are about to be returned: another thread was refused meanwhile.

        The application may wait for this thread no longer, as with a cancelled `asyncio.to_thread`. If the next call
        completed messages that nobody got, they would be lost. Each message is doubted once, so that a program with
        two pollers gets on.
        """
        if self._delivery.completed_by is not CompletedBy.NOTHING:
            places = ((message, self._delivery.in_flight(message)) for message in got)
            again = [
                (message, place)
                for message, place in places
                if place and place.chunk.states[place.row] == OFFERED
            ]
            if again:
                logger.warning(
                    "another thread called poll() or consume() meanwhile, and was refused: %d message(s) come once "
                    "more, because the caller may wait for them no longer",
                    len(again),
                    extra={"event": "second-poller"},
                )
                for message, _ in again:
                    of_partition(self._engine.counters, message.topic(), message.partition()).released += 1
                self._delivery.put_back([message for message, _ in again])
                for _, place in again:
                    place.chunk.offer_again(place.row)
                self._interruption.request_maintenance()

    def _after_store_error(self, error: StoreError) -> list[Any]:
        """Return no messages after an error of a store: the next round opens all partitions again. Or raise the error.

        Recovery waits for a store that cannot be written now, and sets a damaged one aside. If the last damage set no
        store aside, it would come again for ever, and is raised.
        """
        self._interruption.note()
        if isinstance(error, StoreUnavailableError):
            return []
        if isinstance(error, StoreCorruptError):
            before, self._survived = self._survived, self._engine.counters.stores_set_aside
            if before != self._survived:
                return []
        raise error

    def _round(self, count: int, until: float, at_most: int) -> list[Any]:
        """Complete delivered messages; do maintenance if it is due; deliver ready messages, or fetch a batch."""
        delivery, interruption = self._delivery, self._interruption
        if interruption.noted:
            self.do_noted()
        with self._mutex:
            if (interruption.happened or self._lock.client_thread) and not self._settle(until):
                return []
            try:
                if touched := delivery.finish():
                    if self._durability == "batch":
                        self._unwritten.update(touched)
                    else:
                        self._write(touched.values())
                now, due = time.monotonic(), interruption.maintenance_at
                if (
                    now >= (due if delivery.ready else min(due, self._recover_at))
                    or self._since_maintenance >= MAINTENANCE_RECORDS
                ):
                    self._maintain()
                silent = bool(delivery.ready) and now > self.heard_at + MAINTENANCE_S
                if (delivery.ready or delivery.individual) and not silent and (got := self._hand_over(count)):
                    return got
            except BaseException:
                interruption.note()
                raise
        if silent and (got := self._listen_and_hand_over(count)):
            return got
        return [] if self._callback_errors.kept is not None else self._fetch_and_judge(count, until, at_most)

    def _fetch_and_judge(self, count: int, until: float, at_most: int) -> list[Any]:
        """Fetch the messages that are there, or that come in time; judge and deliver them."""
        fetcher, delivery = self._fetcher, self._delivery
        # A gate that waits for records must know when there are none; with it, or a recovery, all must be seen now.
        exact = self._session.hurried or self._engine.waits_for_time
        alone = count == 1 and not exact
        now = time.monotonic()
        judges = (
            alone and 0 < len(fetcher.messages) <= MOST_ALONE and now <= self.heard_at + MAINTENANCE_S
        ) or self._fetch(count, until, at_most, now, exact=exact)
        with self._mutex:
            if self._lock.client_thread is not None and not self._lock.waits_for_client(until):
                return []
            try:
                if judges and fetcher.messages:
                    if alone and (got := self._judge_one()):
                        return got
                    self._judge_first(fetcher.messages)
                if self._engine.waits_for_time:
                    # Not before: a record that came in time is judged first, however long the application took.
                    self._tick_gates()
                return self._hand_over(count) if delivery.ready or delivery.individual else []
            except BaseException:
                self._interruption.note()
                raise

    def _fetch(self, count: int, until: float, at_most: int, now: float, *, exact: bool) -> bool:
        """Fetch the messages that are there, or that come in time; return whether they are to be judged now."""
        fetcher = self._fetcher
        # Messages come one at a time: wait for the next one at once.
        sparse = fetcher.ran_dry and count == 1 and not (exact or fetcher.messages)
        if not sparse or now >= until:
            if not (fetcher.ran_dry or self._collector.paused):
                # A whole batch may be ready. For a few messages the pause is not worth its price.
                self._collector.pause()
            fetcher.fetch(at_most, 0)
            now = time.monotonic()
        self.heard_at = now
        enough = at_most if count > 1 else 1
        if len(fetcher.messages) >= enough or now >= until or self._session.hurried:
            return True
        return self._wait_for(enough, until - now, at_most, exact=exact)

    def _judge_one(self) -> list[Any]:
        """Judge and deliver the first of few fetched messages by itself; none if it is to be judged with others."""
        messages, delivery = self._fetcher.messages, self._delivery
        few = len(messages) <= MOST_ALONE and self._callback_errors.kept is None
        if not (few and delivery.is_over) or self._interruption.happened:
            return []
        judged = self._classifier.judge_one(messages[0])
        if judged is None:
            return []
        self._since_maintenance += 1
        self._fetcher.rest(messages[1:])
        return delivery.deliver_one(messages[0], judged)

    def _settle(self, until: float) -> bool:
        """After an interruption, also of another thread, reopen the partitions.

        False if another thread is inside the client until then (monotonic seconds): no step may begin.
        """
        if not self._lock.waits_for_client(until):
            return False
        if self._interruption.happened:
            self.reopen()
        return True

    def look_if_free(self, *looks: Callable[[], None]) -> None:
        """Count the delivered messages, then look; not while a thread has the lock, which counts in its next step."""

        def step() -> None:
            for each in (self._delivery.count, *looks):
                each()

        self._lock.run_if_free(step)

    def _listen_and_hand_over(self, count: int) -> list[Any]:
        """Serve the client, then deliver: with slow handlers a batch lasts long, and the group must hear from it."""
        self.heard_at = time.monotonic()
        self._fetcher.listen(0)
        with self._mutex:
            handed: list[Any] = self._interruption.run_step(self._hand_over, count)
            return handed

    def _wait_for(self, enough: int, left_s: float, at_most: int, *, exact: bool) -> bool:
        """Fetch messages in the time that is left, or until maintenance is due; return whether there are ``enough``.

        Behind one message that was waited for, no others are expected, unless ``exact``.
        """
        fetcher = self._fetcher
        if self._collector.paused:
            self._collector.resume()
        now = self.heard_at
        wait_s = max(0.0, min(left_s, self._interruption.maintenance_at - now, self._recover_at - now))
        if enough > 1:
            fetcher.fetch(at_most, wait_s)
        else:
            fetcher.listen(wait_s)
            if not exact and time.monotonic() - now > _AT_ONCE_S:
                return bool(fetcher.messages)
        self._collector.pause()
        if enough == 1:
            fetcher.fetch(at_most, 0)
        return len(fetcher.messages) >= enough

    def _hand_over(self, count: int) -> list[Any]:
        if self._callback_errors.kept is not None:
            return []
        gatekeeper = self._engine.gatekeeper
        if gatekeeper is not None and not gatekeeper.is_sure:
            self._ask(gatekeeper)
        got = self._delivery.take(count)
        if self._delivery.individual:
            # The next call must come here again: individual messages are delivered before the ready ones.
            self._interruption.request_maintenance()
        return got

    def reopen(self) -> None:
        """After an interruption: open every partition again, from its store and its completed offsets."""
        with self._mutex:
            if self._interruption.happened:
                self._unwritten.clear()
                self._assignment.reopen_all()

    # --- judging -------------------------------------------------------------------------------------------------

    def _judge_first(self, batch: list[Any]) -> None:
        """Judge the messages before the client's first event; if the event is first, handle it instead."""
        is_event = map(is_not, map(Message.error, batch), repeat(None))
        first = next(compress(range(len(batch)), is_event), len(batch))
        if first == 0:
            self._take_event(batch)
            return
        judged = self._classifier.classify(batch[:first] if first < len(batch) else batch)
        if isinstance(judged.error, StoreError):
            raise judged.error
        self._since_maintenance += first
        if self._since_maintenance > MAINTENANCE_RECORDS and self._unwritten:
            # So a crash repeats no more records than that.
            self._write_completed()
        self._delivery.fill(judged)
        for partition in self._engine.partitions.values():
            if partition.due:
                self._offer_due()
                break
        self._fetcher.rest(judged.rest + batch[first:])
        if judged.doubted:
            self._assignment.forget(judged.doubted)
        if judged.error is not None:
            self._callback_errors.keep(judged.error)

    def _take_event(self, batch: list[Any]) -> None:
        """Handle the event in front, or queue it for the application; keep it if a broker does not answer now."""
        event = batch[0]
        try:
            absorbed = self._session.handle_offset_reset(event)
        except KafkaException as error:
            if not is_retriable(error):
                raise
            logger.warning(
                "%s[%d]: %s; asking again",
                event.topic(),
                event.partition(),
                error,
                extra={"event": "broker-asked-again"},
            )
            self._session.answer_later(event)
            absorbed = True
        self._fetcher.rest(batch[1:])
        if not absorbed:
            self._delivery.offer_event(event)
        else:
            self._assignment.forget_if_it_recovers((event.topic(), event.partition()))
        if event.error().code() == KafkaError._FATAL:  # noqa: SLF001 (that is its public name)
            # The group has removed this member, and the client calls no callback. The next owner may need the stores.
            self._assignment.lose([TopicPartition(*coordinates) for coordinates in self._session.assigned])

    def _offer_due(self) -> None:
        """Queue messages of earlier batches that gates let through since."""
        for partition in self._engine.partitions.values():
            if partition.due:
                self._delivery.offer(
                    place for place in partition.take_due() if place.chunk.states[place.row] == SINGLE
                )
                self._interruption.request_maintenance()

    def _tick_gates(self) -> None:
        """Tell gates that wait for records the time, and whether their partition is read to its end."""
        fetcher = self._fetcher
        fetcher.pass_holes()
        for assigned in self._session.assigned.values():
            partition = assigned.engine_partition
            if partition is not None and partition.waits:
                self._log_ends.tick(assigned, partition, partition.flight.position, dry=fetcher.ran_dry)
        self._offer_due()

    # --- maintenance ---------------------------------------------------------------------------------------------

    def _maintain(self) -> None:
        """Write completed records; then recovery, commits, and flushes."""
        # Records of a batch that is still in hand are written later, together with those that come meanwhile.
        self._since_maintenance = self._delivery.in_hand
        self._write_completed()
        self._engine.trim()
        self._delivery.free(idle=self._fetcher.ran_dry)
        self._classifier.warn_of_missing_ids()
        if self._engine.gatekeeper is not None:
            self._ask(self._engine.gatekeeper)
        if self._assignment.noted_seeks:
            self._assignment.do_noted_seeks()
        session = self._session
        recovers = session.recovering
        if recovers:
            # A step of a recovery allocates thousands of messages, too.
            self._collector.pause()
            self._fetcher.note_stops()
        for coordinates in session.work(before_commits=self._fetcher.pass_holes):
            self._assignment.forget_if_it_recovers(coordinates)
        if session.reading.moved:
            self._fetcher.drop_moved()
        if session.put_off and (events := session.due_events()):
            self._fetcher.put_first(events)
        if session.waking:
            session.wake()
        if session.fetch_watch.due_at <= self.heard_at:
            self._watch_fetches()
        self._client.serve()
        now = time.monotonic()
        if now >= session.board.due_at:
            session.board.publish(now)
        self._recover_at = now + (0.0 if session.hurried else _RECOVERING_S if recovers else MAINTENANCE_S)
        self._interruption.schedule_maintenance(min(now + MAINTENANCE_S, session.next_commit_at))

    def _watch_fetches(self) -> None:
        """Look for partitions that the client does not fetch; only those count of which all messages are judged."""
        is_judged = self._fetcher.ran_dry and not (self._fetcher.messages or self._delivery.ready)
        positions = {
            coordinates: assigned.engine_partition.flight.position
            for coordinates, assigned in self._session.assigned.items()
            if is_judged and assigned.is_fetched and assigned.engine_partition is not None
        }
        others = list(self._session.assigned)[:1] or self._assignment.first_topic
        self._session.fetch_watch.look(positions, others)
        if not self._session.has_assignment:
            self._session.note_membership()

    def _ask(self, gatekeeper: Gatekeeper) -> None:
        """Have the gatekeeper renew its hold, and queue the messages that it lets through now."""
        gatekeeper.keep(self._delivery.take_back)
        gatekeeper.retry([partition for partition in self._engine.partitions.values() if partition.started])
        self._offer_due()

    def _write_completed(self) -> None:
        """Write the records that a call for messages, or `store_offsets`, has completed."""
        if self._unwritten:
            unwritten, self._unwritten = self._unwritten, {}
            self._write(unwritten.values())
        if self._delivery.completed_by is CompletedBy.COMMIT:
            open_ = self._engine.partitions.values()
            self._write(partition for partition in open_ if partition.started and partition.flight.unwritten)

    def _write(self, partitions: Iterable[Partition]) -> None:
        """Write completed records, unless ``durability="commit"`` leaves them to the next commit."""
        for partition in partitions:
            if self._durability != "commit" or partition.flight.unwritten >= MOST_UNWRITTEN:
                partition.persist()

    # --- calls in the middle of a step ---------------------------------------------------------------------------

    def do_or_note(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T | None:
        """Make a change that the application asks for; in the middle of a step, make it before the next one.

        A signal's handler, an observer and a destructor call on this thread, between any two lines of a step that has
        the lock, or of a call of the client. What they ask for must not see, or change, what is half done, and no call
        of the client may begin inside another one. Their call returns None, as if the signal had come a little later.
        While the consumer closes, there is no next step: the call is ignored, and logged.
        """
        if self.is_midway:
            if self._lock.may_change(call.__name__.strip("_")):
                self._interruption.note_call(partial(call, *arguments, **named))
            return None
        self.do_noted()
        return call(*arguments, **named)

    @property
    def is_midway(self) -> bool:
        """Whether this thread is in a step, or in the client but for a callback, and calls in between."""
        lock = self._lock
        return lock.is_mine() or (
            # The stack, too: an exception of a signal may have left the mark.
            lock.client_thread == get_ident()
            and is_inside(ClientLock.call_client, lock)
            and not self._callback_errors.runs_here()
        )

    @property
    def is_in_call(self) -> bool:
        """Whether this thread is in a step, in a call for messages, or in the client, and calls in between."""
        lock = self._lock
        return (
            lock.is_mine()
            or depth_in((FetchLoop.messages, FetchLoop.heartbeat), self) > 0
            or is_inside(ClientLock.call_client, lock)
        )

    def do_noted(self) -> None:
        """Do the noted calls, which are older than the call that asks; a call for messages raises their errors.

        An interruption is raised at once: it struck the call that asks. The noted call may be lost by it, e.g. one that
        released a message.
        """
        while True:
            try:
                call = self._interruption.take_noted()
                if call is None:
                    return
                call()
            except BaseException as error:
                if is_interruption(error):
                    self._interruption.note()
                    raise
                self._callback_errors.keep(error)

    # --- messages one by one -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def guarded_step(self, *, defers_store_errors: bool = False) -> Iterator[None]:
        """Have an exception inside count as an interruption (see `dedup_sdk._kafka.client.guards`); with the lock.

        ``defers_store_errors``: a damaged store, or a full disk, is not raised: the next call for messages handles it.
        """
        self._lock.check_open()
        try:
            yield
        except BaseException as error:
            if isinstance(error, KafkaException) and not is_interruption(error):
                raise
            self._interruption.note()
            if not (defers_store_errors and isinstance(error, StoreCorruptError | StoreUnavailableError)):
                raise

    def complete(self, messages: Iterable[Any], *, dead_lettered: bool = False) -> None:
        """Complete messages, and write each partition's marks; ``dead_lettered``: count them as dead-lettered."""
        with self._mutex, self.guarded_step(defers_store_errors=True):
            by_partition: dict[Coordinates, list[Any]] = {}
            for message in messages:
                if message.error() is None:
                    by_partition.setdefault((message.topic(), message.partition()), []).append(message)
                else:
                    self._engine.counters.stale += 1
            for coordinates, ended in by_partition.items():
                partition, each, freed = self._delivery.partition_of(*coordinates), ended, []
                self._delivery.free_later(ended)
                # Those that asking for more would complete are ended one by one: their batch must not end them again.
                in_runs = not dead_lettered and self._delivery.completed_by is CompletedBy.NOTHING
                while partition is not None and in_runs and each:
                    count, more = partition.complete_items(each)
                    freed += more
                    each = each[count:]
                    in_runs = count > 0
                offsets = [message.offset() for message in each if self._taken_out(message) is not None]
                if partition is None:
                    continue
                freed += partition.complete(offsets, dead_lettered=dead_lettered)
                self._write([partition])
                if freed:
                    self._delivery.offer(freed)
                    self._interruption.request_maintenance()

    def release(self, message: Any) -> None:
        """Release a message: it is delivered again before new ones."""
        with self._mutex, self.guarded_step():
            if message.error() is None and self._delivery.waits(message):
                self._engine.counters.stale += 1
                return
            partition = self._taken_out(message)
            if partition is not None:
                self._delivery.offer(partition.release([message.offset()]))
                self._interruption.request_maintenance()

    def take_out(self, message: Any) -> None:
        """Exclude a message from implicit completion: it ends by `complete` or `release`."""
        with self._mutex, self.guarded_step():
            self._taken_out(message)

    def release_quietly(self, message: Any) -> list[Any]:
        """Release a message without queueing it; return it, or nothing if it is not in flight. With the lock."""
        partition = self._taken_out(message)
        places = [] if partition is None else partition.release([message.offset()])
        return [place.chunk.items[place.row] for place in places]

    def holds(self, message: Any) -> bool:
        """See `DedupConsumer.holds`."""
        in_step = self._lock.is_mine()
        with self._mutex:
            found = None if self._lock.closed or message.error() is not None else self.in_flight(message)
            if found is None:
                return False
            partition, place = found
            gatekeeper = self._engine.gatekeeper
            if in_step or gatekeeper is None or gatekeeper.holds(partition, place):
                return True
            self._delivery.take_out(message)
            self._interruption.request_maintenance()
            return False

    def in_flight(self, message: Any) -> tuple[Partition, RecordRef] | None:
        """Return the partition and the record of a message in flight, None if it is not. With the lock."""
        partition = self._delivery.partition_of(message.topic(), message.partition())
        place = self._delivery.in_flight(message)
        return None if partition is None or place is None else (partition, place)

    @property
    def doubts(self) -> object:
        """A value that is equal as long as each message in flight stays in flight, but for ends and leases.

        None after an interruption: all partitions are about to be opened again. From the polling thread.
        """
        return None if self._interruption.happened else self._delivery.forgettings

    def is_delivered(self, message: Any) -> bool:
        """Whether a message that `messages` returned is to be handled still. With the lock.

        Not if its partition was revoked or moved since. In mode ``observe`` also a completed one is, which is shown
        all the same.
        """
        if self._classifier.observing:
            return self._delivery.partition_of(message.topic(), message.partition()) is not None
        return self.in_flight(message) is not None

    def _taken_out(self, message: Any) -> Partition | None:
        """Exclude a message from implicit completion, and return its partition.

        None, and counted as stale, for an event, and for a partition that is not assigned any more.
        """
        partition = None
        if message.error() is None and self._session.is_current(message):
            self._delivery.take_out(message)
            partition = self._delivery.partition_of(message.topic(), message.partition())
        self._engine.counters.stale += partition is None
        return partition

    def complete_below(self, below: dict[Coordinates, int] | None, *, write: bool = True) -> None:
        """Complete delivered messages below these offsets; None: all that a commit completes without naming them."""
        if self._interruption.happened:
            return
        delivery = self._delivery
        if delivery.completed_by is CompletedBy.COMMIT:
            if below is None and self._only_stored:
                return
            for coordinates in list(self._session.assigned if below is None else below):
                partition = delivery.partition_of(*coordinates)
                if partition is not None:
                    delivery.finish_below(partition, None if below is None else below[coordinates])
                    if write:
                        partition.persist()
        elif below is not None:
            for (topic, number), end in below.items():
                self._write(delivery.finish_up_to(topic, number, end - 1))
        elif delivery.completed_by is CompletedBy.NEXT_CALL:
            self._write(delivery.finish().values())

    def store_offsets(self, below: dict[Coordinates, int]) -> None:
        """Complete delivered messages below these offsets, as `DedupConsumer.store_offsets` does."""
        with self._mutex, self.guarded_step():
            by_commit = self._delivery.completed_by is CompletedBy.COMMIT
            self.complete_below(below, write=self._durability == "record" or not by_commit)

    # --- transactions --------------------------------------------------------------------------------------------

    def transaction_offsets(self, messages: Iterable[Any]) -> list[TopicPartition] | None:
        """See `DedupConsumer.transaction_offsets`; None while a commit has no answer yet."""
        named = list(messages)
        gone: Any = None
        if self._engine.gatekeeper is not None:
            # Another consumer may have an ID by now whose lease is over.
            gone = next((message for message in named if not self.holds(message)), None)
        with self._mutex, self.guarded_step():
            ended: dict[Coordinates, list[int]] = {}
            for message in named:
                if self._delivery.in_flight(message) is None or self._delivery.waits(message):
                    gone = message
                ended.setdefault((message.topic(), message.partition()), []).append(message.offset())
            commits = self._session.commits
            is_second = commits.has_other_transaction(ended)
            offsets = [] if gone or is_second else commits.in_transaction(ended)
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
        return offsets

    def transaction_committed(self, messages: Iterable[Any], offsets: Iterable[TopicPartition]) -> None:
        """See `DedupConsumer.transaction_committed`."""
        with self._mutex, self.guarded_step():
            self.complete([message for message in messages if self._delivery.in_flight(message) is not None])
            self._session.commits.transaction_ended(offsets)

    def transaction_aborted(self, messages: Iterable[Any]) -> None:
        """See `DedupConsumer.transaction_aborted`."""
        if self._lock.closed:
            return
        with self._mutex, self.guarded_step():
            self._session.commits.transaction_ended()
            for message in messages:
                if self._delivery.in_flight(message) is not None and not self._delivery.waits(message):
                    partition = self._taken_out(message)
                    if partition is not None:
                        self._delivery.offer(partition.release([message.offset()]))
            self._interruption.request_maintenance()

    def take_out_all(self, messages: Iterable[Any]) -> None:
        """Exclude messages from implicit completion; those gone are left out."""
        with self._mutex:
            for message in messages:
                if self._delivery.in_flight(message) is not None:
                    self._delivery.take_out(message)

    def open_again(self) -> None:
        """Have the next call for messages open all partitions again: each message that is not completed comes again."""
        self._interruption.note()

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

    def verdict(self, message: Any) -> Verdict | None:
        """See `DedupConsumer.verdict`."""
        if message.error() is not None:
            return None
        with self._mutex:
            place = self._delivery.place(message)
            partition = self._delivery.partition_of(message.topic(), message.partition())
            if place is None and partition is not None:
                place = partition.flight.place(message.offset())
            return None if place is None else place.chunk.verdict(place.row)

    # --- worker sessions -----------------------------------------------------------------------------------------

    def exclusive(self) -> RLock:
        """Return the consumer's lock: while a thread holds it, no other one changes what is in flight."""
        return self._mutex

    def begin_explicit(self, listener: Handlers | None) -> None:
        """Have messages end by `complete` only, until `end_explicit`.

        Messages of earlier calls are completed, if asking for more does so. ``listener`` is notified when partitions
        are revoked or lost; None: nobody is.
        """
        self.do_noted()
        with self._mutex:
            if self._delivery.completed_by is CompletedBy.NEXT_CALL:
                self.complete_below(None)
            self._delivery.begin_explicit()
            self._assignment.attach(listener)

    def end_explicit(self) -> None:
        """Have messages end as ``completion`` says again. Harmless when repeated."""
        with self._mutex:
            self._delivery.end_explicit()
            self._assignment.attach(None)

    def deliver_again(self, messages: Iterable[Any]) -> None:
        """Queue delivered messages, by offset, before all others; the client may fetch again."""
        with self._mutex:
            self._fetch_again()
            self._delivery.put_back(sorted(messages, key=_offset))
            self._interruption.request_maintenance()

    # --- while no message is asked for ---------------------------------------------------------------------------

    def heartbeat(self) -> None:
        """Do maintenance and serve the client, without delivering a message; exceptions of callbacks stay kept.

        Refused where a call for messages is: the client returns messages here, too, which wait for the next call.
        """
        me, in_step = get_ident(), self._lock.is_mine()
        try:
            with self._mutex:
                self._refuse(me, in_step=in_step)
                self.poller, self._refused = me, False
            self.do_noted()
            try:
                self._interruption.run_step(self._look_after)
            except StoreError as error:
                self._after_store_error(error)
        finally:
            with self._mutex:
                if self.poller == me and depth_in((FetchLoop.messages, FetchLoop.heartbeat), self) == 1:
                    self.poller = None
            # Maintenance pauses the collector while partitions recover.
            self._collector.resume()

    def _look_after(self) -> None:
        with self._mutex:
            if not self._settle(time.monotonic() + MAINTENANCE_S):
                return
            if self._delivery.completed_by is not CompletedBy.NEXT_CALL:
                # Else this would complete messages that the application still has.
                self._unwritten.update(self._delivery.finish())
            self._maintain()
            if self._delivery.individual:
                # As in `_hand_over`: else `poll` would take the next ready message before them.
                self._interruption.request_maintenance()
            if len(self._fetcher.messages) >= MOST_FETCHED or self._holds_back:
                self._holds_back = True
                self._assignment.hold_back(hold=True)
        self.heard_at = time.monotonic()
        self._fetcher.listen(0)

    def _fetch_again(self) -> None:
        """Have the client fetch again if `heartbeat` had to pause it."""
        if self._holds_back:
            with self._mutex:
                if self._lock.waits_for_client(time.monotonic() + MAINTENANCE_S):
                    self._holds_back = False
                    self._assignment.hold_back(hold=False)


class Waits(Protocol):
    """Tells whether a message can come at all."""

    @property
    def recovering(self) -> bool:
        """Whether a partition recovers."""

    @property
    def has_assignment(self) -> bool:
        """Whether the group has assigned anything."""


class IdleClock:
    """Counts how long a loop has had no message; the limit is ``limit_s`` seconds (None: no limit).

    Only time in which a message could have come counts: not before the first assignment, and not while partitions
    recover. A group that assigns nothing for `JOINING_S` counts as silent, so that a loop ends if no broker answers.
    """

    def __init__(self, waits: Waits, limit_s: float | None) -> None:
        self.limit_s = limit_s
        self._waits = waits
        self._began_s = self._heard_s = time.monotonic()

    def heard(self) -> None:
        """Start again: a message came, or is being handled."""
        self._heard_s = time.monotonic()

    @property
    def is_up(self) -> bool:
        """Whether the limit is reached; ask after every call that brought no message."""
        if self.limit_s is None:
            return False
        now_s = time.monotonic()
        waits = self._waits
        if waits.recovering or (not waits.has_assignment and now_s < self._began_s + JOINING_S):
            self._heard_s = now_s
        return now_s > self._heard_s + self.limit_s
