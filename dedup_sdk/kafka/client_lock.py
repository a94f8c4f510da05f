"""The lock of a consumer: which thread may change its state, and which one may call the client under it.

The client lets one thread in at a time, and from inside it calls back (rebalances), which needs our state. So a thread that has our state must
never wait for the client while another one is inside: both would wait for ever. Hence the order: nobody takes our state in order to call the
client before the polling thread has left the client, which it does several times a second, and lets those go first who wait. While the client
calls back nobody gets in, and the callback may wait for the very thread that wants to: such a thread leaves a note instead, of what is to be
done when the callback is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, RLock, get_ident
from typing import Any

_LONGEST_WAIT_S = 5.0


class ClientLock:
    """The lock of a consumer's state (``lock``), who is inside the client, and whether the consumer is closed."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.closed = False
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
