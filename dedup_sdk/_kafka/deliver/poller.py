"""A call for messages: complete the delivered ones, do the work that is due, fetch, judge, deliver.

fetch ─▶ judge ─▶ deliver ─▶ complete
`Fetcher`  `Judge`  `Delivery`  `CompletionPolicy`
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from sys import _current_frames as current_frames
from threading import get_ident, main_thread
from typing import Any, Final

from dedup_sdk._core.flight import OFFERED
from dedup_sdk._kafka.client.closing import ONE_DAY_S
from dedup_sdk._kafka.client.guards import ClientLock, Steps, depth_in, is_called_by_pool, is_inside
from dedup_sdk._kafka.deliver.assignment_api import AssignmentApi
from dedup_sdk._kafka.deliver.judge import Judge
from dedup_sdk._kafka.deliver.maintenance import Maintenance
from dedup_sdk._kafka.deliver.positions import Positions
from dedup_sdk.errors import StoreCorruptError, StoreError, StoreUnavailableError

logger = logging.getLogger("dedup_sdk")

SILENCE_S = 0.1
"""Seconds after which the group must hear from the client, although messages are ready."""
_AT_ONCE_S: Final = 0.0002
"""A message that the client returns within that time was there already, and others may be behind it."""
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


class Poller:
    """Answers calls for messages, of one thread at a time."""

    def __init__(
        self,
        judge: Judge,
        maintenance: Maintenance,
        assignment: AssignmentApi,
        positions: Positions,
        steps: Steps,
        *,
        is_nested: Callable[[], bool],
    ) -> None:
        """``is_nested``: whether this thread is inside two calls of the consumer's methods that return messages."""
        self._engine, self._judge, self._maintenance, self._steps = judge.engine, judge, maintenance, steps
        self._assignment, self._positions, self._writes = assignment, positions, maintenance.writes
        self._handover, self._upkeep = judge.handover, judge.upkeep
        self._fetcher, self._delivery = judge.fetcher, judge.delivery
        self._mutex: Final = steps.lock.lock
        self._main_thread = main_thread().ident
        self.heard_at = 0.0
        """When (monotonic seconds) the client was last asked for messages, or served; 0: never."""
        self.thread: int | None = None
        """The thread inside `messages`, or `heartbeat`."""
        self._refused = False
        """Whether another thread was refused since that thread entered."""
        self._is_nested, self._returning = is_nested, self._delivery.returning
        self._survived = -1
        """How many stores had been set aside at the last `StoreCorruptError`, -1 before the first."""
        self._holds_back = False
        """Whether `heartbeat` had to pause the client."""

    # --- a call for messages -------------------------------------------------------------------------------------

    def messages(self, count: int, timeout: float | None, at_most: int) -> list[Any]:
        """Return up to ``count`` messages after ``timeout`` seconds at most (None, -1: no limit).

        ``at_most``: the most messages that are judged together. Raises `RuntimeError` after `DedupConsumer.close`,
        while another thread is in this method (see `_redeliver`), and in a thread pool.
        """
        until = time.monotonic() + (ONE_DAY_S if timeout is None or timeout < 0 else timeout)
        me, got, lock, errors = get_ident(), list[Any](), self._steps.lock, self._steps.errors
        in_step = lock.is_mine()
        with self._mutex:
            busy = in_step or self.thread or lock.client_thread or lock.closer or self._holds_back
            busy = busy or self._returning[0]
            if busy or lock.closed or lock.ends or me != self._main_thread or not self._assignment.asked:
                self._refuse_or_warn(me, in_step=in_step)
            self.thread, self._refused = me, False
        try:
            try:
                while True:
                    # In the last round all fetched messages are judged, be they fewer than asked for.
                    last = time.monotonic() >= until
                    try:
                        got = self._round(count, until, at_most)
                        if not got and errors.kept is not None:
                            errors.raise_kept(StoreError)
                    except StoreError as error:
                        self._after_store_error(error)
                    if got or last or errors.kept is not None:
                        break
            finally:
                with self._mutex:
                    # Together: once this thread is no poller any more, nobody is refused for it.
                    if self._refused:
                        self._redeliver(got)
                    self.thread = None
                if self._maintenance.collector.paused:
                    self._maintenance.collector.resume()
        except BaseException:
            self._steps.interruption.note()
            # The ``finally`` itself may have been interrupted.
            self._maintenance.collector.resume()
            raise
        if not got and errors.kept is not None:
            # No interruption by itself: whoever kept it has noted one if a partition is half changed.
            errors.raise_kept()
        self._returning[0] = False
        return got

    def _round(self, count: int, until: float, at_most: int) -> list[Any]:
        """Complete delivered messages; do maintenance if it is due; deliver waiting messages, or fetch a batch."""
        delivery, interruption = self._delivery, self._steps.interruption
        if interruption.noted:
            self._steps.do_noted()
        with self._mutex:
            if (interruption.happened or self._steps.lock.client_thread) and not self._settle(until):
                return []
            try:
                completed = delivery.policy.ask_for_more()
                if not self._writes.defers:
                    self._writes.write(completed)
                now = time.monotonic()
                if self._maintenance.is_due(now):
                    self._maintenance.run(self.heard_at)
                ready = delivery.batch.ready
                silent = bool(ready) and now > self.heard_at + SILENCE_S
                if (ready or delivery.waiting.queue) and not silent and (got := self._hand_over(count)):
                    return got
            except BaseException:
                interruption.note()
                raise
        if silent and (got := self._listen_and_hand_over(count)):
            return got
        return [] if self._steps.errors.kept is not None else self._fetch_and_judge(count, until, at_most)

    def _settle(self, until: float) -> bool:
        """After an interruption, also of another thread, reopen the partitions.

        False if another thread is inside the client until then (monotonic seconds): no step may begin.
        """
        if not self._steps.lock.waits_for_client(until):
            return False
        if self._steps.interruption.happened:
            self._handover.reopen_all()
        return True

    def _fetch_and_judge(self, count: int, until: float, at_most: int) -> list[Any]:
        """Fetch the messages that are there, or that come in time; judge and deliver them."""
        engine, judge, fetcher, delivery = self._engine, self._judge, self._fetcher, self._delivery
        # A gate that waits for records must know when there are none; with it, or a recovery, all must be seen now.
        exact = self._upkeep.hurried or engine.waits_for_time
        alone = count == 1 and not exact
        now = time.monotonic()
        judges = alone and bool(fetcher.messages) and now <= self.heard_at + SILENCE_S
        judges = judges or self._fetch(count, until, at_most, now, exact=exact)
        with self._mutex:
            if self._steps.lock.client_thread is not None and not self._steps.lock.waits_for_client(until):
                return []
            try:
                if judges and fetcher.messages:
                    if alone and (got := judge.judge_one()):
                        self._returning[0] = True
                        return got
                    if judge.judged > self._maintenance.judged:
                        self._maintenance.write_before(len(fetcher.messages))
                    judge.judge()
                if engine.waits_for_time:
                    # Not before: a record that came in time is judged first, however long the application took.
                    judge.tick_gates()
                return self._hand_over(count) if delivery.batch.ready or delivery.waiting.queue else []
            except BaseException:
                self._steps.interruption.note()
                raise

    def _fetch(self, count: int, until: float, at_most: int, now: float, *, exact: bool) -> bool:
        """Fetch the messages that are there, or that come in time; return whether they are to be judged now."""
        fetcher, collector = self._fetcher, self._maintenance.collector
        # Messages come one at a time: wait for the next one at once.
        sparse = fetcher.ran_dry and count == 1 and not (exact or fetcher.messages)
        if not sparse or now >= until:
            if not (fetcher.ran_dry or collector.paused):
                # A whole batch may be ready. For a few messages the pause is not worth its price.
                collector.pause()
            fetcher.fetch(at_most, 0)
            now = time.monotonic()
        self.heard_at = now
        enough = at_most if count > 1 else 1
        if len(fetcher.messages) >= enough or now >= until or self._upkeep.hurried:
            return True
        return self._wait_for(enough, until - now, at_most, exact=exact)

    def _wait_for(self, enough: int, left_s: float, at_most: int, *, exact: bool) -> bool:
        """Fetch messages in the time that is left, or until maintenance is due; return whether there are ``enough``.

        Behind one message that was waited for, no others are expected, unless ``exact``.
        """
        fetcher, collector = self._fetcher, self._maintenance.collector
        if collector.paused:
            collector.resume()
        now = self.heard_at
        due = min(self._steps.interruption.maintenance_at, self._maintenance.recover_at)
        wait_s = max(0.0, min(left_s, due - now))
        if enough > 1:
            fetcher.fetch(at_most, wait_s)
        else:
            fetcher.listen(wait_s)
            if not exact and time.monotonic() - now > _AT_ONCE_S:
                return bool(fetcher.messages)
        collector.pause()
        if enough == 1:
            fetcher.fetch(at_most, 0)
        return len(fetcher.messages) >= enough

    def _listen_and_hand_over(self, count: int) -> list[Any]:
        """Serve the client, then deliver: with slow handlers a batch lasts long, and the group must hear from it."""
        self.heard_at = time.monotonic()
        self._fetcher.listen(0)
        with self._mutex:
            handed: list[Any] = self._steps.run(self._hand_over, count)
            return handed

    def _hand_over(self, count: int) -> list[Any]:
        if self._steps.errors.kept is not None:
            return []
        gatekeeper = self._engine.gatekeeper
        if gatekeeper is not None and not gatekeeper.is_sure:
            self._judge.ask(gatekeeper)
        got = self._delivery.take(count)
        self._returning[0] = bool(got)
        if self._delivery.waiting.queue:
            # The next call must come here again: the queue is delivered before the batch.
            self._steps.interruption.request_maintenance()
        return got

    # --- calls that are refused, and errors ----------------------------------------------------------------------

    def _refuse(self, thread: int, *, in_step: bool) -> None:
        """Refuse a call that fetches: after `close`, in a callback, inside another one, and beside another thread."""
        self._steps.lock.check_open()
        if self._steps.errors.runs_here():
            raise RuntimeError(_IN_CALLBACK)
        if in_step or depth_in((Poller.messages, Poller.heartbeat), self) > 1 or self._is_nested():
            raise RuntimeError(_NESTED)
        if self.thread not in (None, thread) and self._is_inside(self.thread):
            raise RuntimeError(_TWO_POLLERS)

    def _is_inside(self, thread: int | None) -> bool:
        """Whether a thread is in a call for messages, by its stack: an exception of a signal may have left the mark."""
        frame = None if thread is None else current_frames().get(thread)
        return frame is not None and depth_in((Poller.messages, Poller.heartbeat), self, frame) > 0

    def _refuse_or_warn(self, thread: int, *, in_step: bool) -> None:
        """Refuse a call for messages, also of a thread pool; warn if no message can come.

        A thread pool is looked for where another thread asks than before: it called `DedupConsumer.poll`, or `consume`.
        """
        if self.thread not in (None, thread):
            self._refused = True
        self._refuse(thread, in_step=in_step)
        if self._delivery.policy.completes_unnamed and is_called_by_pool():
            raise RuntimeError(_IN_POOL)
        # An exception has left it set.
        self._returning[0] = False
        if not self._assignment.asked:
            self._assignment.warn_not_asked()
        self.fetch_again()

    def _redeliver(self, got: list[Any]) -> None:
        """Have messages delivered once more that are about to be returned: another thread was refused meanwhile.

        The application may wait for this thread no longer, as with a cancelled `asyncio.to_thread`. If the next call
        completed messages that nobody got, they would be lost. Each message is doubted once, so that a program with
        two pollers gets on.
        """
        if not self._delivery.policy.completes_unnamed:
            return
        records = ((message, self._delivery.in_flight(message)) for message in got)
        again = [
            (message, record)
            for message, record in records
            if record and record.chunk.states[record.row] == OFFERED
        ]
        if again:
            logger.warning(
                "another thread called poll() or consume() meanwhile, and was refused: %d message(s) come once more, "
                "because the caller may wait for them no longer",
                len(again),
                extra={"event": "second-poller"},
            )
            self._delivery.redeliver(again)
            self._steps.interruption.request_maintenance()

    def _after_store_error(self, error: StoreError) -> None:
        """Have the next round open all partitions again after an error of a store, or raise the error.

        Recovery waits for a store that cannot be written now, and sets a damaged one aside. If the last damage set no
        store aside, it would come again for ever, and is raised.
        """
        self._steps.interruption.note()
        if isinstance(error, StoreUnavailableError):
            return
        if isinstance(error, StoreCorruptError):
            before, self._survived = self._survived, self._delivery.counters.stores_set_aside
            if before != self._survived:
                return
        raise error

    @property
    def is_in_call(self) -> bool:
        """Whether this thread is in a step, in a call for messages, or in the client, and calls in between."""
        lock = self._steps.lock
        return (
            lock.is_mine()
            or depth_in((Poller.messages, Poller.heartbeat), self) > 0
            or is_inside(ClientLock.call_client, lock)
        )

    # --- while no message is asked for ---------------------------------------------------------------------------

    def heartbeat(self) -> None:
        """Do maintenance and serve the client, without delivering a message; exceptions of callbacks stay kept.

        Refused where a call for messages is: the client returns messages here, too, which wait for the next call.
        """
        me, in_step = get_ident(), self._steps.lock.is_mine()
        try:
            with self._mutex:
                self._refuse(me, in_step=in_step)
                self.thread, self._refused = me, False
            self._steps.do_noted()
            try:
                self._steps.run(self._look_after)
            except StoreError as error:
                self._after_store_error(error)
        finally:
            with self._mutex:
                if self.thread == me and depth_in((Poller.messages, Poller.heartbeat), self) == 1:
                    self.thread = None
            # Maintenance pauses the collector while partitions recover.
            self._maintenance.collector.resume()

    def _look_after(self) -> None:
        with self._mutex:
            if not self._settle(time.monotonic() + SILENCE_S):
                return
            # Nothing is completed: the application still has the messages of its last call.
            self._maintenance.run(self.heard_at)
            if self._delivery.waiting.queue:
                # As in `_hand_over`: else `poll` would take the next ready message before the queue.
                self._steps.interruption.request_maintenance()
            if len(self._fetcher.messages) >= MOST_FETCHED or self._holds_back:
                self._holds_back = True
                self._positions.hold_back(hold=True)
        self.heard_at = time.monotonic()
        self._fetcher.listen(0)

    def fetch_again(self) -> None:
        """Have the client fetch again if `heartbeat` had to pause it."""
        if not self._holds_back:
            return
        try:
            with self._mutex:
                if self._steps.lock.waits_for_client(time.monotonic() + SILENCE_S):
                    self._holds_back = False
                    self._positions.hold_back(hold=False)
        except BaseException:
            self._steps.interruption.note()
            raise

    def look_if_free(self, *looks: Callable[[], None]) -> None:
        """Count the delivered messages, then look; not while a thread has the lock, which counts in its next step."""

        def step() -> None:
            for each in (self._delivery.batch.count, *looks):
                each()

        self._steps.lock.run_if_free(step)
