"""What guards the state of a consumer: one thread at a time in the client, no exception into it, no step half done.

One thread at a time (`ClientLock`). The client lets one thread in at a time, and from inside it calls back (rebalances), which needs our state. So a
thread that has our state must never wait for the client while another one is inside: both would wait for ever. Hence the order: nobody takes our state
in order to call the client before the polling thread has left the client, which it does several times a second, and lets those go first who wait. While
the client calls back nobody gets in, and the callback may wait for the very thread that wants to: such a thread leaves a note instead, of what is to be
done when the callback is over.

No exception into the client (`CallbackErrors`). One that leaves a rebalance callback inside the client's ``poll`` makes it lose the message that it had
fetched. So it is kept, and raised where the application called, after what was fetched is safe.

No step half done (`Interruption`): an interruption is a crash. An exception that leaves a step half way (Ctrl-C, a timeout's signal, a damaged store, a bug) sets one flag.
The next call for messages sees it first: it opens every partition again from its store and from what is completed, as after a crash. Messages
that were out count as released. So an interruption loses no message; some may come twice.

There is no cheaper way back on purpose, not even for an exception inside the client's own call: one way back is tested
by every test of recovery.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import Condition, RLock, get_ident
from typing import Any

logger = logging.getLogger("dedup_sdk")

_LONGEST_WAIT_S = 5.0
_IN_POLL = ("error_cb", "stats_cb", "throttle_cb")
"""The client's callbacks whose answer nobody waits for, and that run inside ``poll``."""


class ClientLock:
    """The lock of a consumer's state (``lock``), who is inside the client, who closes it, and whether it is ``closed``."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.closed = False
        self.closer: int | None = None
        """The thread that closes the consumer."""
        self._changed = Condition(self.lock)
        self._inside: int | None = None
        self._waiting = 0
        self._calls_back = False

    def check_open(self) -> None:
        """Raise `RuntimeError`, as the plain client does, after `close`."""
        if self.closed:
            raise RuntimeError("Consumer closed")

    def close(self) -> None:
        """Let no call in any more."""
        self.closed = True

    def begin_close(self) -> bool:
        """Note that this thread closes the consumer; False where it is closed, or another thread closes it.

        Waits for the other thread, but not while that is called back: the callback may wait for this one.
        """
        with self.alone():
            self._changed.wait_for(lambda: self.closer is None or self._calls_back)
            if self.closed or self.closer is not None:
                return False
            self.closer = get_ident()
            return True

    def end_close(self) -> None:
        """Note that this thread closes the consumer no more, be it that it was interrupted."""
        with self.lock:
            if self.closer == get_ident():
                self.closer = None
                self._changed.notify_all()

    def may_change(self, call: str) -> bool:
        """Whether a call may change what is read, and from where; ask with the lock.

        Not while the consumer closes, when its callbacks still run: the client would wait for the return of what they take.
        """
        self.check_open()
        if self.closer is not None:
            logger.warning("%s() is left out: the consumer closes", call)
        return self.closer is None

    def leave_to_parent(self) -> None:
        """Count as closed in the child of a fork, where the holders of the lock are not."""
        self.__init__()  # type: ignore[misc]
        self.closed = True

    @property
    def busy_elsewhere(self) -> bool:
        """Whether another thread is inside the client; ask with the lock."""
        return self._inside not in (None, get_ident())

    def call_client(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call the client in a way that may call back; threads that wait go first, and nobody comes in beside another one."""
        with self.lock:
            me = get_ident()
            if self._waiting:
                self._changed.wait_for(lambda: not self._waiting, _LONGEST_WAIT_S)
            if self._inside not in (None, me):
                self._changed.wait_for(lambda: not self.busy_elsewhere)
            self._inside = me
        try:
            return call(*arguments)
        finally:
            with self.lock:
                self._inside = None
                self._changed.notify_all()

    @contextmanager
    def calling_back(self) -> Iterator[None]:
        """Be in a callback of the client, which may wait for other threads: these do not wait for its end."""
        with self.lock:
            self._calls_back = True
            self._changed.notify_all()
        try:
            yield
        finally:
            self._calls_back = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have the lock while no other thread is inside the client, so that the client may be called with it."""
        with self._lock_when(lambda: self._inside is None):
            yield

    @contextmanager
    def alone_or_noting(self) -> Iterator[bool]:
        """Have the lock and be alone with the client (True), or be asked to leave a note: another thread is called back (False)."""
        with self._lock_when(lambda: self._inside is None or self._calls_back):
            yield not self.busy_elsewhere

    @contextmanager
    def _lock_when(self, may_go: Callable[[], bool]) -> Iterator[None]:
        with self.lock:
            if self.busy_elsewhere:
                self._waiting += 1
                try:
                    self._changed.wait_for(may_go)
                finally:
                    self._waiting -= 1
                    self._changed.notify_all()
            yield


class CallbackErrors:
    """Runs callbacks and keeps the first exception (``kept``) until it can be raised."""

    def __init__(self) -> None:
        self.kept: BaseException | None = None

    def run(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Call; keep what it raises (later ones are logged)."""
        try:
            callback(*arguments)
        except BaseException as error:  # noqa: BLE001 (also an interrupt must not cost a message)
            self.keep(error)

    def keep(self, error: BaseException) -> None:
        """Keep an exception until `raise_kept`; a second one is logged."""
        if self.kept is None:
            self.kept = error
        else:
            logger.warning("a second failure before the first was raised: %r", error)

    def around(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the client's configuration with its callbacks guarded."""
        guarded = {name: partial(self.run, config[name]) for name in _IN_POLL if callable(config.get(name))}
        return {**config, **guarded}

    def raise_kept(self, kind: type[BaseException] = BaseException) -> None:
        """Raise what was kept, once, if it is of this kind."""
        if isinstance(self.kept, kind):
            kept, self.kept = self.kept, None
            raise kept


class Interruption:
    """Whether an exception has left partitions half way (``happened``), and when the next upkeep is due.

    ``upkeep_at`` is in monotonic seconds. Until it has come, `DedupConsumer.poll` hands out what is ready without a look at anything else.
    Until the partitions are opened again nothing is completed by being handed out: which messages the application has is not certain.
    """

    note: Callable[[], None]
    """Have the next call for messages open the partitions again. Signals interrupt it neither before nor half way."""

    def __init__(self) -> None:
        self.happened = False
        self.upkeep_at = 0.0
        # No function of Python: the interpreter looks for signals where one begins, and then nothing would be noted.
        self.note = partial(object.__setattr__, self, "happened", True)

    def over(self) -> None:
        """Take note that every partition was opened again."""
        self.happened, self.upkeep_at = False, 0.0

    def look_at(self, at: float) -> None:
        """Have the first call for messages from then on (monotonic seconds) do its upkeep."""
        self.upkeep_at = at

    def look_soon(self) -> None:
        """Have the next call for messages do its upkeep."""
        self.upkeep_at = 0.0

    def whole(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """Do a step that changes partitions; an exception that leaves it half way is noted, and raised.

        Call it with the lock held where the step needs the lock: no other thread may see what is half way and not yet marked so.
        """
        try:
            return step(*arguments)
        except BaseException:
            self.note()
            raise
