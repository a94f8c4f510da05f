"""Closing a consumer: leaving the group, and stopping on signals.

**Leaving the group.** librdkafka's ``close`` does not serve rebalance callbacks that start late: if the group assigns
a partition at that moment, the callback sends a request that is never answered, and ``close`` never returns
(librdkafka issue 4041). So the member first leaves its group, while callbacks are still served, and closes when
nothing is assigned. A ``close`` that hangs anyway continues in a thread of its own.

**Signals** (`stopped_by`). SIGTERM, which systemd, Docker and Kubernetes send to stop a process, and Ctrl-C end a
loop in order. Without a handler SIGTERM kills the process in the middle of a message, which counts as a crash.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import Consumer

from dedup_sdk._kafka.client.settings import Membership
from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError

logger = logging.getLogger("dedup_sdk")

T = TypeVar("T")

ONE_DAY_S: Final = 86_400.0
"""The longest time that a call waits, also one without a limit: the client counts milliseconds in 32 bits."""
_MAKING_S: Final = 60.0
_POLL_S: Final = 0.005
JOINING_S: Final = 1.0
"""Seconds that a member without partitions waits for the end of its joining.

While another member does not come to the rebalance, that takes as long as this one's handler."""


def leave_group(
    consumer: Consumer,
    membership: Membership,
    *,
    until: float,
    by_hand: Collection[tuple[str, int]] = (),
) -> None:
    """Leave the group and serve callbacks until the group can assign nothing more; messages received here are dropped.

    Without partitions there is nothing to hand over, and the end is awaited for `JOINING_S` only. ``until``: when
    (monotonic seconds) to stop waiting. A static member does not leave: it keeps its partitions until its session
    expires or it returns. ``by_hand`` are the partitions that the application assigned itself; no group revokes them,
    so they are not waited for.
    """
    if membership == "static":
        return
    joins_until = min(until, time.monotonic() + JOINING_S)
    try:
        Consumer.unsubscribe(consumer)
        # Poll before the first check: an assignment of the group is visible only after its callback has run.
        Consumer.poll(consumer, _POLL_S)
        while _is_member(consumer, membership, by_hand):
            if time.monotonic() >= (until if _holds(consumer, by_hand) else joins_until):
                break
            Consumer.poll(consumer, _POLL_S)
    except (KafkaException, RuntimeError) as error:
        logger.info(
            "the member could not leave its group: %s; the group removes it after its session timeout",
            error,
            extra={"event": "group-not-left"},
        )


def _is_member(consumer: Consumer, membership: Membership, by_hand: Collection[tuple[str, int]]) -> bool:
    """Whether the group may still assign or revoke partitions.

    With the classic protocols a member that has left has no member ID. With ``group.protocol=consumer`` it keeps its
    ID, so its assignment is checked.
    """
    if membership == "classic":
        return bool(Consumer.memberid(consumer))
    return _holds(consumer, by_hand)


def _holds(consumer: Consumer, by_hand: Collection[tuple[str, int]]) -> bool:
    """Whether a partition is assigned by the group."""
    return any((tp.topic, tp.partition) not in by_hand for tp in Consumer.assignment(consumer))


def close_client(consumer: Consumer, *, within_s: float) -> None:
    """Close the client of a consumer that has left its group; log a warning if that takes longer than ``within_s``.

    The call then continues in a background thread.
    """
    ClientEnd(consumer).wait(within_s)


class ClientEnd:
    """The closing of a client, on a thread of its own: an interrupted wait for it can be repeated."""

    def __init__(self, consumer: Consumer, enter: Callable[[], None] = lambda: None) -> None:
        """Prepare. ``enter``: called on that thread first: callbacks of the client run there."""

        def close() -> None:
            enter()
            Consumer.close(consumer)

        self._call = _Call(close)

    @property
    def has_begun(self) -> bool:
        """Whether `wait` was called: nothing may call the client any more."""
        return self._call.has_begun

    def wait(self, within_s: float) -> None:
        """Close the client, or wait on for that; see `close_client`."""
        if self._call.is_over_within(within_s):
            return
        logger.warning(
            "the client did not close within %.3g s; closing continues in a background thread, and the group removes "
            "the member after its session timeout. Check that the group's coordinator answers", within_s,
            extra={"event": "client-not-closed"},
        )  # fmt: skip


def call_with_timeout(limit_s: float, call: Callable[..., object], *arguments: Any) -> bool:
    """Run a call in a thread; return True if it finished within ``limit_s``, and raise its exception here.

    After a timeout (False) the call still runs and still uses its arguments. This is for client calls that may never
    return: sending a transaction's offsets first opens a connection, and waits for that whatever timeout is given
    (librdkafka issue 5456).
    """
    return _Call(call, *arguments).is_over_within(limit_s)


def made_aside(make: Callable[[], T]) -> T:
    """Make a client on a thread of its own, where no handler of a signal runs, and return it.

    The client's constructors swallow an exception that a handler raises inside, and raise a `TypeError` about a setting
    instead: it would count as a bug of ours, and close a partition.
    """
    made: list[T] = []
    if not call_with_timeout(_MAKING_S, lambda: made.append(make())):
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "a client could not be made in time"))  # noqa: SLF001 (that is its public name)
    return made[0]


class _Call:
    """A call on a thread of its own."""

    def __init__(self, call: Callable[..., object], *arguments: Any) -> None:
        self._call, self._arguments = call, arguments
        self._raised: BaseException | None = None
        self._over = threading.Event()
        self.has_begun = False

    def _run(self) -> None:
        try:
            self._call(*self._arguments)
        except BaseException as error:  # noqa: BLE001 (raised in the calling thread)
            self._raised = error
        finally:
            self._over.set()

    def is_over_within(self, limit_s: float) -> bool:
        """Begin the call if it has not begun; return True if it ended in time, and raise its exception here, once."""
        if not self.has_begun:
            # Not `Thread.start`: a signal inside could leave open whether the thread runs.
            self.has_begun = True
            start_new_thread(self._run, ())
        if not self._over.wait(limit_s):
            return False
        raised, self._raised = self._raised, None
        if raised is not None:
            try:
                raise raised
            finally:
                # Else its traceback would hold it until a collection.
                del raised
        return True


class _Stops:
    """What one signal stops. One handler serves all blocks, which need not end in the order in which they began."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number
        self._stops: list[Callable[[int], object]] = []
        self._former: object = signal.SIG_DFL
        """The handler before the first block; None for one of C code, which Python cannot restore."""

    @property
    def is_set(self) -> bool:
        """Whether the signal has this handler."""
        return signal.getsignal(self._number) == self._stop

    def add(self, stop: Callable[[int], object]) -> None:
        """Have the signal call ``stop``; raises `ValueError` outside of the main thread."""
        self._stops.append(stop)
        if self.is_set:
            return
        former = signal.getsignal(self._number)
        try:
            signal.signal(self._number, self._stop)
        except ValueError:
            self._stops.remove(stop)
            raise
        self._former = former

    def remove(self, stop: Callable[[int], object]) -> None:
        """Have the signal call ``stop`` no longer; without another one it has its former effect."""
        if self._stops == [stop] and self.is_set and self._former is not None:
            self._restore()
        if stop in self._stops:
            self._stops.remove(stop)

    def _restore(self) -> None:
        former = signal.default_int_handler if self._former is None else self._former
        signal.signal(self._number, former)  # type: ignore[arg-type]  # as `getsignal` returned it

    def _stop(self, number: int, _frame: object) -> None:
        if number == signal.SIGINT:
            self._restore()
        for stop in list(self._stops):
            stop(number)


_STOPS: Final[dict[signal.Signals, _Stops]] = {}


def is_unhandled(number: signal.Signals) -> bool:
    """Whether this thread may handle a signal, and the program has no handler of its own for it."""
    is_ours = number in _STOPS and _STOPS[number].is_set
    is_free = is_ours or signal.getsignal(number) is signal.SIG_DFL
    return is_free and threading.current_thread() is threading.main_thread()


@contextmanager
def stopped_by(signals: Collection[signal.Signals], stop: Callable[[], object]) -> Iterator[list[int]]:
    """Call ``stop`` when one of these signals arrives in the block; yield the list of signal numbers that arrived.

    A signal stops all blocks that are open. A second Ctrl-C has its former effect, so that you need not wait for the
    end of the loop. Raises `ConfigurationError` outside of the main thread, the only one in which Python allows signal
    handlers.
    """
    caught: list[int] = []
    added: list[_Stops] = []

    def stop_in_order(number: int) -> None:
        caught.append(number)
        stop()

    try:
        for each in signals:
            if not isinstance(each, int):
                raise ConfigurationError(f"stop_on_signals({shown(each)}): give signals, e.g. signal.SIGTERM")
            stops = _STOPS.setdefault(each, _Stops(each))
            added.append(stops)
            try:
                stops.add(stop_in_order)
            except ValueError as error:
                raise ConfigurationError(
                    f"signals can be handled in the main thread only ({error}): enter this block there, or call "
                    "stop() yourself"
                ) from None
        yield caught
    finally:
        for stops in added:
            stops.remove(stop_in_order)
