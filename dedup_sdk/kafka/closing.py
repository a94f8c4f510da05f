"""Closing a consumer that has rebalance callbacks.

Inside its ``close`` the client serves no callbacks that begin late: when the group assigns a partition at that moment, the callback asks the
client for something that nobody answers any more, and ``close`` never returns (librdkafka, issue 4041). So the member leaves its group
first, while its callbacks are served, and closes when nothing is assigned. A ``close`` that does not return all the same is left to a
thread of its own.

Signals end a loop in order (`stopped_by`): SIGTERM, by which systemd, Docker and Kubernetes end a process, and Ctrl-C. Without a handler SIGTERM ends the
process at once, in the middle of a message: that counts as a crash.

Consumers in the child of a fork do not close at all: their threads, connections and open stores are the parent's, and stay it. A child has none of the
client's threads, so that whoever waits for them waits for ever; and what it wrote to an open store would tear the store of the parent, which does not
know of it.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn
from weakref import WeakSet

from confluent_kafka import Consumer, KafkaException

from dedup_sdk.errors import ConfigurationError
from dedup_sdk.fork_safety import keep_in_children
from dedup_sdk.kafka.settings import Membership

if TYPE_CHECKING:
    from dedup_sdk.kafka.consumer import DedupConsumer

logger = logging.getLogger("dedup_sdk")

_POLL_S: Final = 0.005


def leave_group(
    consumer: Consumer,
    membership: Membership,
    *,
    within_s: float,
    by_hand: Collection[tuple[str, int]] = (),
) -> None:
    """Leave the group and serve callbacks until it can assign nothing more; what comes of partitions meanwhile is dropped.

    A static member does not leave its group: it keeps its partitions until its session is over, or it comes back. ``by_hand``: partitions that the
    application assigned itself; no group takes them back, so they are not waited for.
    """
    if membership == "static":
        return
    until = time.monotonic() + within_s
    try:
        Consumer.unsubscribe(consumer)
        # What the group has assigned is not in the assignment before its callback has run: so the first poll comes before the first look.
        Consumer.poll(consumer, _POLL_S)
        while _is_member(consumer, membership, by_hand) and time.monotonic() < until:
            Consumer.poll(consumer, _POLL_S)
    except (KafkaException, RuntimeError) as error:
        logger.info("the group was not left in order: %s", error)


def _is_member(consumer: Consumer, membership: Membership, by_hand: Collection[tuple[str, int]]) -> bool:
    """Whether the group may still assign or revoke something.

    With the classic protocols a member that has left has no ID; with ``group.protocol=consumer`` it keeps its ID, so its partitions tell.
    """
    if membership == "classic":
        return bool(Consumer.memberid(consumer))
    return any((tp.topic, tp.partition) not in by_hand for tp in Consumer.assignment(consumer))


def close_client(consumer: Consumer, *, within_s: float) -> None:
    """Close a consumer whose group was left; one that does not close in time goes on by itself, with a line in the log."""
    if not call_with_timeout(within_s, Consumer.close, consumer):
        logger.warning(
            "the client did not close within %g s and is left to a thread of its own: does the group's coordinator answer? The group puts "
            "the member out after its session timeout", within_s,
        )  # fmt: skip


def call_with_timeout(limit_s: float, call: Callable[..., object], *arguments: Any) -> bool:
    """Return whether a call was over in time, and raise what it raised; else it goes on by itself, and what it uses is its own.

    For what the client may not come back from: it sends a transaction's offsets through a connection that it has to open first, and waits
    for that whatever the timeout (librdkafka, issue 5456).
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call(*arguments)
        except BaseException as error:  # noqa: BLE001 (raised by the caller)
            raised.append(error)

    thread = threading.Thread(target=run, name="dedup-client-call", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        return False
    if raised:
        raise raised[0]
    return True


@contextmanager
def stopped_by(signals: Collection[signal.Signals], stop: Callable[[], None]) -> Iterator[list[int]]:
    """Call ``stop`` when one of these signals comes inside the block; the list gets the signals that came.

    A second Ctrl-C does what Ctrl-C did before the block, so that nobody has to wait. Raises `ConfigurationError` outside of the main thread,
    where Python allows no handlers.
    """
    caught: list[int] = []
    former: dict[signal.Signals, object] = {}

    def stop_in_order(number: int, _frame: object) -> None:
        caught.append(number)
        if number == signal.SIGINT:
            # None: one that C code installed, which cannot be put back.
            before = former[signal.SIGINT]
            signal.signal(number, signal.default_int_handler if before is None else before)  # type: ignore[arg-type]  # as `getsignal` returned it
        stop()

    try:
        for each in signals:
            former[each] = signal.getsignal(each)
            try:
                signal.signal(each, stop_in_order)
            except ValueError as error:
                raise ConfigurationError(
                    f"signals are handled in the main thread only ({error}): enter this block there, or call stop() yourself"
                ) from None
        yield caught
    finally:
        for each, handler in former.items():
            # One that C code installed has no name here, and cannot be put back.
            if handler is not None and signal.getsignal(each) is stop_in_order:
                signal.signal(each, handler)  # type: ignore[arg-type]  # as above


_WITHOUT_EFFECT: Final = ("close", "stop")
_MADE: Final[WeakSet[DedupConsumer]] = WeakSet()


def keep_from_children(consumer: DedupConsumer) -> None:
    """Have every call of a consumer refused in children of this process, but `close` and `stop`, which do nothing there.

    Also the calls of the plain client, which would wait for threads that only the parent has. They are replaced on the
    object itself, so that no call has to ask whether there was a fork.
    """
    # RocksDB would write on its way out, too.
    _MADE.add(keep_in_children(consumer))


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError(
        "this consumer was made before the fork: its threads, connections and stores are its parent's; make one in each process"
    )


def _ignore(*_: Any, **__: Any) -> None:
    return None


def _after_fork() -> None:
    for consumer in list(_MADE):
        if not consumer.leave_to_parent():
            continue
        kind = type(consumer)
        for name in dir(kind):
            # On the object itself: the calls that nobody forks for stay as fast as they are.
            if not name.startswith("_") and callable(getattr(kind, name)):
                vars(consumer)[name] = _ignore if name in _WITHOUT_EFFECT else _refuse


os.register_at_fork(after_in_child=_after_fork)
