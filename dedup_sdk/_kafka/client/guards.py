"""Protection of a consumer's state: the client lock, errors of callbacks, and interrupted steps.

**Client lock** (`ClientLock`). The client admits one thread at a time, and calls back (rebalances) from inside; the
callback needs the consumer's state. So a thread that holds the state lock must never wait for the client while
another thread is inside: both would wait for ever. To call the client, a thread first waits until the polling thread
has left the client, which happens several times a second; the polling thread lets waiting threads go first. During a
callback no thread may enter the client, and the callback may itself wait for the thread that wants to enter. Such a
thread therefore does not wait, but defers its request until the callback has returned.

**Errors of callbacks** (`CallbackErrors`). If a callback raises into the client's ``poll``, the client loses the
message that it has fetched; if it raises into the client's ``close``, that call may never return. So exceptions are
kept, and raised in the application's call after the fetched messages are stored. `CallbackErrors.around` wraps the
callbacks in the consumer's settings, of which the settings of all its other clients are made
(`dedup_sdk._kafka.client.settings.other_client`).

**Interrupted steps** (`Interruption`). An interruption is treated as a crash. Any exception that may leave a step half
done (Ctrl-C, a timeout signal, a damaged store, a bug) sets one flag. The next call for messages checks it first and
reopens every partition from its store and its completed offsets. Until then nothing is written: marks may have left the
memory, and reached no store. Messages that were handed out count as released: none is lost, and some may be delivered
twice. An end of the assignment reopens first, too, and commits what is completed. The reopening itself may be
interrupted: it begins again, with the client's assignment, which alone says what is ours. There is no cheaper recovery
path, not even for an exception inside the client's own call: this one path is covered by every test of recovery.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from inspect import currentframe
from math import inf
from sys import _current_frames as current_frames
from threading import Condition, RLock, get_ident
from types import FrameType
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException

from dedup_sdk._interruptions import is_interruption
from dedup_sdk._masking import error_shown
from dedup_sdk.errors import StoreCorruptError, StoreUnavailableError

T = TypeVar("T")
logger = logging.getLogger("dedup_sdk")

_LONGEST_WAIT_S = 5.0
_LOOK_S = 1.0
"""Seconds after which a thread that waits for another one looks whether that one is inside the client still."""
_IN_POLL = ("error_cb", "stats_cb", "throttle_cb")
"""Client callbacks that run inside ``poll`` and return nothing that the client uses.

Not ``oauth_cb``: it runs on a thread of the client, which takes an exception for "no token", and asks again."""


def _nothing() -> None:
    """Do nothing."""


class ClientLock:
    """A consumer's state lock (``lock``), and which thread is inside the client, or closes the consumer.

    ``closed`` is true after the consumer was closed.
    """

    def __init__(self, interrupted: Callable[[], None] = _nothing) -> None:
        """Prepare; ``interrupted`` is called where an exception comes out of the client (`Interruption.note`)."""
        self._interrupted = interrupted
        self.lock = RLock()
        self.is_mine: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001 (as `Condition`)
        """Whether this thread has the lock: an observer, or a signal's handler, calls in the middle of a step."""
        self.closed = False
        self.closer: int | None = None
        """The ID of the thread that is closing the consumer."""
        self._changed = Condition(self.lock)
        self.client_thread: int | None = None
        """The ID of the thread that is inside the client."""
        self._waiting: set[int] = set()
        """The IDs of the threads that wait for the client; no count, which an interruption could leave wrong."""
        self._asleep = 0
        """How many threads wait for ``_changed``: without one, nobody need be woken."""
        self._in_callback = False
        self._is_closing: Callable[[FrameType | None], bool] = lambda _: True
        self.ends = False
        """Whether the client is being ended by a thread of its own, also after an interruption of `close`."""

    def _sleep_until(self, condition: Callable[[], bool], timeout_s: float | None = None) -> None:
        self._asleep += 1
        try:
            self._changed.wait_for(condition, timeout_s)
        finally:
            self._asleep -= 1

    def check_open(self) -> None:
        """Raise `RuntimeError` after `close`, as the plain client does; also if `close` was interrupted at its end."""
        if self.closed or (self.ends and self.closer is None):
            raise RuntimeError("Consumer closed")

    def close(self) -> None:
        """Refuse all further calls."""
        self.closed = True

    def begin_close(self) -> bool:
        """Register this thread as the one that closes the consumer; False if another thread closes it or has closed it.

        Waits for another closing thread, except while that thread runs a callback: the callback may be waiting for
        this thread.
        """
        with self.lock:
            self.until_client_free()
            while self.closer is not None and not self._in_callback:
                self._sleep_until(lambda: self.closer is None or self._in_callback, _LOOK_S)
                self._forget_who_closed()
            if self.closed or self.closer is not None:
                return False
            self.closer = get_ident()
            return True

    def closes_by(self, is_closing: Callable[[FrameType | None], bool]) -> None:
        """Set how to see by the innermost frame of a thread that it is closing the consumer."""
        self._is_closing = is_closing

    def _forget_who_closed(self) -> None:
        """Count no thread as the closing one that a second exception of a signal took out of that."""
        thread = self.closer
        if thread is not None and not self._is_closing(current_frames().get(thread)):
            self.closer = None

    def end_close(self) -> None:
        """Unregister this thread as the closing one, also after an interruption."""
        with self.lock:
            if self.closer == get_ident():
                self.closer = None
                if self._asleep:
                    self._changed.notify_all()

    def may_change(self, call: str) -> bool:
        """Whether ``call`` may change the assignment or a position now; call this with the lock held.

        While the consumer closes, its callbacks still run, but a changed assignment would make the client's ``close``
        wait for ever: then this logs a warning and returns False.
        """
        self.check_open()
        self._forget_who_closed()
        if self.closer is not None:
            logger.warning(
                "%s() was ignored: the consumer is closing", call, extra={"event": "call-while-closing"}
            )
        return self.closer is None

    def leave_to_parent(self) -> None:
        """Mark the consumer as closed in a forked child, in which the threads that hold the lock do not exist."""
        self.__init__(self._interrupted)  # type: ignore[misc]
        self.closed = True

    def run_if_free(self, step: Callable[[], None]) -> None:
        """Do a step with the lock, unless a thread has the lock: then do nothing.

        That thread may be this one: a signal's handler looks in the middle of a step, which must find its state as it
        left it.
        """
        if self.is_mine():
            return
        taken: list[bool] = []
        try:
            # One call of C: no exception of a signal comes between taking the lock and noting that it is taken.
            taken.extend(map(self.lock.acquire, (False,)))
            if taken[0]:
                step()
        finally:
            if taken and taken[0]:
                self.lock.release()

    @property
    def in_other_thread(self) -> bool:
        """Whether another thread is inside the client; read this with the lock held."""
        return self.client_thread not in (None, get_ident())

    def call_client(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call the client in a way that may run callbacks; not in a callback.

        Threads that wait for the client go first; then waits until no other thread is inside it, and so goes before a
        thread that comes later.
        """
        with self.lock:
            if self._waiting and self.client_thread is None:
                self._sleep_until(lambda: not self._waiting, _LONGEST_WAIT_S)
            if self.client_thread is not None:
                self._wait_until(lambda: self.client_thread is None)
            self.client_thread = get_ident()
        try:
            return call(*arguments)
        except BaseException:
            # Also where nobody asked for messages: a callback may not have run, or not to its end.
            self._interrupted()
            raise
        finally:
            with self.lock:
                # A callback that was interrupted may have left its mark.
                self.client_thread, self._in_callback = None, False
                if self._asleep:
                    self._changed.notify_all()

    def _forget_who_left(self) -> None:
        """Count no thread as inside the client that an exception of a signal took out before it could say so."""
        thread = self.client_thread
        if thread is None or self.ends:
            return
        frame = current_frames().get(thread)
        if frame is None or not depth_in((ClientLock.call_client,), self, frame):
            self.client_thread, self._in_callback = None, False

    def enter_client(self) -> None:
        """Count this thread, which ends the client, as the one inside, in place of another one that waits for it."""
        with self.lock:
            self.ends = True
            if self.client_thread is not None:
                # Else the one that waited was interrupted before this thread ran: nobody would take the mark away, and
                # the next `close` would wait for ever.
                self.client_thread = get_ident()

    @contextmanager
    def in_callback(self) -> Iterator[None]:
        """Mark the block as a callback of the client: it may wait for other threads, so they do not wait for it."""
        with self.lock:
            self._in_callback = True
            if self._asleep:
                self._changed.notify_all()
        try:
            yield
        finally:
            self._in_callback = False

    def until_client_free(self) -> None:
        """Wait until no other thread is inside the client, so that you may call it; with the lock.

        No context manager that takes the lock: an exception of a signal could leave that half entered, and whoever
        keeps the traceback would keep the lock.
        """
        self._wait_until(lambda: self.client_thread is None)

    def until_client_free_or_callback(self) -> bool:
        """Return True if you may call the client, False if you must defer the request; with the lock.

        False: another thread is inside the client, in a callback. Else waits until no other thread is inside.
        """
        self._wait_until(lambda: self.client_thread is None or self._in_callback)
        return not self.in_other_thread

    def waits_for_client(self, until: float) -> bool:
        """Return whether no other thread is inside the client, at ``until`` (monotonic seconds) at the latest.

        With the lock: a step that calls the client begins with this. Another thread, which closes the consumer or
        leaves the group, may be inside, in a callback that waits for the lock; the client would let nobody else in.
        """
        self._wait_until(lambda: self.client_thread is None or time.monotonic() >= until, until)
        return not self.in_other_thread

    def _wait_until(self, may_go: Callable[[], bool], until: float = inf) -> None:
        if self.in_other_thread:
            me = get_ident()
            try:
                self._waiting.add(me)
                while not may_go():
                    self._sleep_until(may_go, max(0.0, min(_LOOK_S, until - time.monotonic())))
                    self._forget_who_left()
            finally:
                self._waiting.discard(me)
                if self._asleep:
                    self._changed.notify_all()


def depth_in(methods: Collection[Callable[..., Any]], owner: object, frame: FrameType | None = None) -> int:
    """Return how many calls of these methods of this object a thread is inside, by its stack.

    A count of ours could outlive an interruption. ``frame``: the innermost one of the thread; None: this thread's.
    """
    codes, depth = {method.__code__ for method in methods}, 0
    frame = currentframe() if frame is None else frame
    while frame is not None:
        if frame.f_code in codes and frame.f_locals.get("self") is owner:
            depth += 1
        frame = frame.f_back
    return depth


def is_inside(method: Callable[..., Any], owner: object) -> bool:
    """Whether this thread is inside a method of this object; see `depth_in`."""
    return depth_in((method,), owner) > 0


_POOLS: Final = frozenset({
    "concurrent.futures.thread", "anyio._backends._asyncio", "asgiref.sync", "trio._threads",
})  # fmt: skip
"""Modules whose threads call the functions that they are given: those of `asyncio.to_thread`, and of web frameworks."""


def is_called_by_pool() -> bool:
    """Whether a thread pool called this package, directly or by a lambda: it may drop the result.

    A function of the application between them may be a loop, which drops nothing.
    """
    frame: FrameType | None = currentframe()
    while frame is not None and (
        frame.f_code.co_name == "<lambda>" or str(frame.f_globals.get("__name__")).startswith("dedup_sdk.")
    ):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") in _POOLS


class _GuardedLogger:
    """The part of a logger that the client calls: it logs inside ``poll``, and an exception there is one of a callback.

    A handler or filter of the application may raise.
    """

    def __init__(self, log: Callable[..., None]) -> None:
        self.log = log


class CallbackErrors:
    """Keeps the first exception (``kept``) of a callback, or of a judged batch, until it can be raised."""

    def __init__(self, interrupted: Callable[[], None] = _nothing) -> None:
        """Prepare; ``interrupted`` is called where a callback is interrupted (`Interruption.note`)."""
        self._interrupted = interrupted
        self.kept: BaseException | None = None
        self._raised = 0
        """The `id` of the exception that `raise_kept` raised last; the exception itself would hold its frames."""
        self._closing = False

    def run(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Call a callback; keep an exception that it raises."""
        try:
            callback(*arguments)
        except BaseException as error:  # noqa: BLE001 (an interrupt must not lose a message either)
            if is_interruption(error):
                # Perhaps before the first line of a step: the client then answers the group by itself.
                self._interrupted()
            self.keep(error)

    def runs_here(self) -> bool:
        """Whether this thread is inside `run`, so in a callback of the client.

        There a second call of the client that can run callbacks would make it forget the thread state of the first
        one, and the next callback of the first one would end the process.
        """
        return is_inside(CallbackErrors.run, self) or is_inside(CallbackErrors._asked, self)

    def keep(self, error: BaseException) -> None:
        """Keep an exception until `raise_kept`; log it if another one is kept already."""
        if self.kept is None:
            self.kept = error
        else:
            logger.warning(
                "another error came before the first one was raised; only logged: %s",
                error_shown(error),
                exc_info=error,
                extra={"event": "second-error"},
            )

    def around(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a client's configuration with its logger, and its callbacks for events, wrapped in `run`."""
        guarded: dict[str, Any] = {
            name: partial(self.run, self._told, config[name])
            for name in _IN_POLL
            if callable(config.get(name))
        }
        log = getattr(config.get("logger"), "log", None)
        if callable(log):
            guarded["logger"] = _GuardedLogger(partial(self.run, self._told, log))
        if callable(config.get("oauth_cb")):
            guarded["oauth_cb"] = partial(self._asked, config["oauth_cb"])
        return {**config, **guarded}

    def _asked(self, callback: Callable[..., T], *arguments: Any) -> T:
        """Ask the application for a token; the client takes an exception for "no token", and asks again."""
        return callback(*arguments)

    def _told(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Tell the application of an event; while the consumer closes, an exception of that is only logged."""
        try:
            callback(*arguments)
        except Exception as error:
            if not self._closing:
                raise
            logger.warning(
                "a callback raised while the consumer closes; only logged: %s",
                error_shown(error),
                exc_info=error,
                extra={"event": "callback-raised-while-closing"},
            )

    def begin_close(self) -> None:
        """Note that the consumer closes: a broker that is away then fails no `DedupConsumer.close`."""
        self._closing = True

    def raise_kept(self, kind: type[BaseException] = BaseException) -> None:
        """Raise the kept exception, once, if it is of this kind."""
        if isinstance(self.kept, kind):
            kept, self.kept = self.kept, None
            self._raised = id(kept)
            try:
                raise kept
            finally:
                # Else its traceback would hold it, and handles of a store in its frames, until a collection.
                del kept

    def take(self) -> BaseException | None:
        """Return the kept exception, and forget it; None if there is none."""
        kept, self.kept = self.kept, None
        return kept

    def begin(self) -> None:
        """Forget which exception was raised last: the application may raise the same object again."""
        self._raised = 0

    def has_raised(self, error: BaseException) -> bool:
        """Whether `raise_kept` raised this exception since `begin`: between two steps, each message has a place."""
        return self._raised == id(error)


class Interruption:
    """Whether an exception left partitions half way through a step (``happened``), and when maintenance is due.

    ``maintenance_at`` is in monotonic seconds; before it `DedupConsumer.poll` returns queued messages without any
    other work. After an interruption, until the partitions are reopened, asking for more completes nothing: it is not
    certain which messages the application received.
    """

    note: Callable[[], None]
    """Make the next call for messages reopen the partitions. A signal interrupts this neither before nor half way."""

    def __init__(self) -> None:
        self.happened = False
        self.maintenance_at = 0.0
        self.noted = deque[Callable[[], object]]()
        """Calls that came in the middle of a step, to be done before the next one."""
        # Not a Python function: the interpreter handles signals when one begins, and the flag would stay unset.
        self.note = partial(object.__setattr__, self, "happened", True)

    def end(self) -> None:
        """Clear the flag: every partition was reopened. Maintenance is due at once."""
        self.happened, self.maintenance_at = False, 0.0

    def schedule_maintenance(self, at: float) -> None:
        """Schedule maintenance for the first call for messages from ``at`` on; if calls are noted, for the next one."""
        self.maintenance_at = 0.0 if self.noted else at

    def request_maintenance(self) -> None:
        """Schedule maintenance for the next call for messages."""
        self.maintenance_at = 0.0

    def note_call(self, call: Callable[[], object]) -> None:
        """Note a call that came in the middle of a step, to be done before the next one."""
        self.noted.append(call)
        self.request_maintenance()

    def take_noted(self) -> Callable[[], object] | None:
        """Return the oldest noted call, and forget it; None if there is none."""
        # Another thread may take the last one.
        with suppress(IndexError):
            return self.noted.popleft()
        return None

    def run_step(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """Run a step that changes partitions; if it raises, set the flag and raise.

        Hold the lock where the step needs it: no other thread may see a half-done step before the flag is set.
        """
        try:
            return step(*arguments)
        except BaseException:
            self.note()
            raise


class Steps:
    """What every part of a consumer needs for a change: the lock, the interruptions, the errors of callbacks."""

    def __init__(self, lock: ClientLock, interruption: Interruption, errors: CallbackErrors) -> None:
        self.lock: Final = lock
        self.interruption: Final = interruption
        self.errors: Final = errors
        self.run: Final = interruption.run_step
        self.run_kept: Final = partial(errors.run, interruption.run_step)
        """Run a step in a callback; keep an exception until the client's call has returned."""

    @contextmanager
    def guarded(self, *, defers_store_errors: bool = False) -> Iterator[None]:
        """Have an exception inside count as an interruption (see the top of this module); with the lock.

        ``defers_store_errors``: a damaged store, or a full disk, is not raised: the next call for messages handles it.
        """
        self.lock.check_open()
        try:
            yield
        except BaseException as error:
            if isinstance(error, KafkaException) and not is_interruption(error):
                raise
            self.interruption.note()
            if not (defers_store_errors and isinstance(error, StoreCorruptError | StoreUnavailableError)):
                raise

    def do_or_note(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T | None:
        """Make a change that the application asks for; in the middle of a step, make it before the next one.

        A signal's handler, an observer and a destructor call on this thread, between any two lines of a step that has
        the lock, or of a call of the client. What they ask for must not see, or change, what is half done, and no call
        of the client may begin inside another one. Their call returns None, as if the signal had come a little later.
        While the consumer closes, there is no next step: the call is ignored, and logged.

        An interruption is noted wherever it strikes: between two steps of the call, the first may have released
        messages, or paused partitions, for the second.
        """
        if self.is_midway:
            if self.lock.may_change(call.__name__.strip("_")):
                self.interruption.note_call(partial(call, *arguments, **named))
            return None
        self.do_noted()
        try:
            return call(*arguments, **named)
        except BaseException as error:
            if is_interruption(error):
                self.interruption.note()
            raise

    @property
    def is_midway(self) -> bool:
        """Whether this thread is in a step, or in the client but for a callback, and calls in between."""
        lock = self.lock
        return lock.is_mine() or (
            # The stack, too: an exception of a signal may have left the mark.
            lock.client_thread == get_ident()
            and is_inside(ClientLock.call_client, lock)
            and not self.errors.runs_here()
        )

    def do_noted(self) -> None:
        """Do the noted calls, which are older than the call that asks; a call for messages raises their errors.

        An interruption is raised at once: it struck the call that asks. The noted call may be lost by it, e.g. one that
        released a message.
        """
        while True:
            try:
                call = self.interruption.take_noted()
                if call is None:
                    return
                call()
            except BaseException as error:
                if is_interruption(error):
                    self.interruption.note()
                    raise
                self.errors.keep(error)
