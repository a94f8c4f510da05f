"""A time limit for the database's answers.

libpq has no setting for this, and TCP only checks whether the machine behind a connection answers: a server
that hangs, or a proxy that lost its own connection, keeps ours open without an answer. So this module cuts
the connection of an overdue query, and the driver then reports a lost connection.

``statement_timeout`` is enforced by the server, which may be the part that hangs; keepalives and
``tcp_user_timeout`` are answered by its kernel, or by a proxy. A thread per query would cost two thread
switches each, and leave one thread behind for each query of an outage. So one thread watches all queries,
including those that SQLAlchemy runs on a new connection by itself. It cannot watch ``pool_pre_ping``, so
that is not used: a query whose connection was lost is run once more.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread, local
from typing import Any, Final
from weakref import ref

_LOOKS: Final = 4
"""How often within the time limit overdue queries are looked for."""
_LONGEST_PAUSE_S: Final = 1.0


class Query:
    """One query of a thread; ``overdue``: no answer came in time, and its connections are cut."""

    def __init__(self, until_s: float) -> None:
        self.overdue = False
        self._until_s = until_s
        self._lock = Lock()
        self._sockets: list[socket.socket] = []

    def watch(self, connection: Any) -> None:
        """Cut a driver's connection when the query is overdue, at once if it is overdue already.

        Connections without ``fileno`` are ignored.
        """
        # Drivers raise errors of their own for a closed connection.
        with suppress(Exception):
            # A duplicate descriptor: the driver's number may belong to another connection once it is closed.
            own = socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)
            with self._lock:
                self._sockets.append(own)
                if self.overdue:
                    _cut(own)

    def cut_if_overdue(self, now_s: float) -> bool:
        """Cut the connections if the query is overdue; return whether it is."""
        with self._lock:
            # A thread with an older clock reading may come later: an overdue query stays overdue.
            self.overdue = self.overdue or now_s >= self._until_s
            if self.overdue:
                for each in self._sockets:
                    _cut(each)
            return self.overdue

    def end(self) -> None:
        """Stop watching: the query was answered, or has failed."""
        with self._lock:
            for each in self._sockets:
                each.close()
            self._sockets = []


class QueryTimeout:
    """A time limit for queries, from any thread.

    A background thread enforces it, from the first query until `close`.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._asked: set[Query] = set()
        self._own = local()
        self._lock = Lock()
        self._thread: Thread | None = None
        self._stopped = Event()

    @contextmanager
    def query(self) -> Iterator[Query]:
        """Run a query inside the block; a connection that this thread opens meanwhile (`watch`) belongs to it."""
        asked = self._own.query = Query(time.monotonic() + self.seconds)
        self._asked.add(asked)
        try:
            self._look_after()
            yield asked
        finally:
            self._own.query = None
            self._asked.discard(asked)
            asked.end()

    def watch(self, connection: Any) -> None:
        """Cut a new connection of this thread when its query is overdue."""
        asked = getattr(self._own, "query", None)
        if asked is not None:
            asked.watch(connection)

    def cut_overdue(self) -> None:
        """Cut the connections of overdue queries."""
        now_s = time.monotonic()
        for asked in list(self._asked):
            if asked.cut_if_overdue(now_s):
                self._asked.discard(asked)

    def close(self) -> None:
        """End the thread; the next query starts a new one."""
        self._stopped.set()

    def _look_after(self) -> None:
        with self._lock:
            if self._thread is not None and self._thread.is_alive() and not self._stopped.is_set():
                return
            stopped = self._stopped = Event()
            # The thread must not keep this object alive if it is never closed.
            arguments = (
                ref(self, lambda _: stopped.set()),
                stopped,
                min(_LONGEST_PAUSE_S, self.seconds / _LOOKS),
            )
            self._thread = Thread(target=_cut_overdue, args=arguments, name="dedup-answers", daemon=True)
            self._thread.start()


def _cut_overdue(of: ref[QueryTimeout], stopped: Event, pause_s: float) -> None:
    while not stopped.wait(pause_s):
        timeout = of()
        if timeout is None:
            return
        timeout.cut_overdue()
        del timeout


def _cut(own: socket.socket) -> None:
    # The other end may have closed it.
    with suppress(OSError):
        own.shutdown(socket.SHUT_RDWR)
