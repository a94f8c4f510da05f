"""How long an answer of the database is waited for.

No setting of libpq bounds that, and TCP asks only whether the machine behind a connection is there: a server that stands still, or a middleman that has
lost his, keeps the connection and says nothing. So the connection of a question that is overdue is cut from here: for its driver it is lost then.
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
"""So often in what an answer may take it is looked whether one is overdue."""
_LONGEST_PAUSE_S: Final = 1.0


class Question:
    """What one thread asks; ``overdue``: there was no answer in time, and its connections are cut."""

    def __init__(self, until_s: float) -> None:
        self.overdue = False
        self._until_s = until_s
        self._lock = Lock()
        self._sockets: list[socket.socket] = []

    def watch(self, connection: Any) -> None:
        """Have a driver's connection cut when the answer is overdue; at once where it is. One that does not tell its socket is left alone."""
        # A driver's own errors for one that is closed.
        with suppress(Exception):
            # A socket of our own for the same connection: the number of the driver's is another one's when that is closed.
            own = socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)
            with self._lock:
                self._sockets.append(own)
                if self.overdue:
                    _cut(own)

    def cut_if_overdue(self, now_s: float) -> bool:
        """Whether the time is over; then its connections are cut."""
        with self._lock:
            self.overdue = now_s >= self._until_s
            if self.overdue:
                for each in self._sockets:
                    _cut(each)
            return self.overdue

    def end(self) -> None:
        """Cut nothing from here on: it was answered, or has failed."""
        with self._lock:
            for each in self._sockets:
                each.close()
            self._sockets = []


class Patience:
    """Bounds what is asked, from any thread, to some seconds; a thread looks after that, from the first question until `close`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._asked: set[Question] = set()
        self._own = local()
        self._lock = Lock()
        self._thread: Thread | None = None
        self._stopped = Event()

    @contextmanager
    def question(self) -> Iterator[Question]:
        """Ask in here; connections that this thread makes meanwhile (`watch`) are the question's."""
        asked = self._own.question = Question(time.monotonic() + self.seconds)
        self._asked.add(asked)
        try:
            self._look_after()
            yield asked
        finally:
            self._own.question = None
            self._asked.discard(asked)
            asked.end()

    def watch(self, connection: Any) -> None:
        """Have a connection that was made just now cut when what this thread asks is overdue."""
        asked = getattr(self._own, "question", None)
        if asked is not None:
            asked.watch(connection)

    def cut_overdue(self) -> None:
        """Cut the connections of the questions whose time is over."""
        now_s = time.monotonic()
        for asked in list(self._asked):
            if asked.cut_if_overdue(now_s):
                self._asked.discard(asked)

    def close(self) -> None:
        """End the thread; the next question begins another one."""
        self._stopped.set()

    def _look_after(self) -> None:
        with self._lock:
            if self._thread is not None and self._thread.is_alive() and not self._stopped.is_set():
                return
            stopped = self._stopped = Event()
            # It must not keep alive what nobody closes.
            arguments = (
                ref(self, lambda _: stopped.set()),
                stopped,
                min(_LONGEST_PAUSE_S, self.seconds / _LOOKS),
            )
            self._thread = Thread(target=_cut_overdue, args=arguments, name="dedup-answers", daemon=True)
            self._thread.start()


def _cut_overdue(of: ref[Patience], stopped: Event, pause_s: float) -> None:
    while not stopped.wait(pause_s):
        patience = of()
        if patience is None:
            return
        patience.cut_overdue()
        del patience


def _cut(own: socket.socket) -> None:
    # It may be closed by now at the other end.
    with suppress(OSError):
        own.shutdown(socket.SHUT_RDWR)
