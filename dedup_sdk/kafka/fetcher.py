"""Calls of the client for messages: one thread at a time, the collector paused, and what came kept until it is judged.

Locking (`ClientLock`): the client lets one thread in at a time, and from inside it calls back (rebalances), which needs our state. So a thread that
has our state must never wait for the client while another one is inside: both would wait for ever. Hence the order: nobody takes our state in order
to call the client before the polling thread has left the client, which it does several times a second, and lets those go first who wait. While the
client calls back nobody gets in, and the callback may wait for the very thread that wants to: such a thread leaves a note instead, of what is to be
done when the callback is over.

Fetching (`Fetcher`): every change of what is read of a partition (a pause, a seek, a rebalance) makes what was fetched of it void, and gives its fetch
position a new generation. A fetch that began in an older generation brought messages from where the partition was read before: they are dropped, too,
and the partition is read again from where judging stands, before the next fetch. While another thread is inside the client, pauses and resumptions are
noted, and told when it is free: as it is by then.

The garbage collector (`Collector`) would walk a thousand live messages (and the headers that each has by then) twice a batch: a tenth of the whole
cost. So it is paused while a batch is fetched and judged, never while waiting. It comes back as the very last thing before the application has its
messages: those of the batch before are then freed before the next allocation asks whether there is anything to collect.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from threading import Condition, RLock, get_ident
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from dedup_sdk.kafka.assignment import Pause
from dedup_sdk.kafka.commits import Coordinates
from dedup_sdk.kafka.session import Session

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


class Collector:
    """Pauses the collector if it runs, and brings it back if it was paused here (``paused``).

    A ``gc.disable()`` by another thread during the few milliseconds between is undone.
    """

    def __init__(self) -> None:
        self.paused = False

    def pause(self) -> None:
        """Keep the collector out until `resume`."""
        if gc.isenabled():
            gc.disable()
            self.paused = True

    def resume(self) -> None:
        """Leave the collector as the user has it."""
        if self.paused:
            self.paused = False
            gc.enable()


class Fetcher:
    """Fetches by the client, and keeps what came: ``messages``, in the order in which they came, events of the client among them.

    ``ran_dry``: whether the client had less ready than it was asked for, when it was asked last.

    The client counts a message as read when it hands it over. So what is dropped here lies behind the client's own
    position: nothing of that partition is kept until it was read again.
    """

    def __init__(self, consumer: Consumer, session: Session, lock: ClientLock) -> None:
        self.messages: list[Any] = []
        self.ran_dry = False
        self._consumer, self._session, self._lock = consumer, session, lock
        self._generation = 0
        self._generations: dict[Coordinates, int] = {}
        self._behind: set[Coordinates] = set()
        """Partitions of which messages were dropped: the client reads behind them, so that nothing more may be kept until they are read again."""

        self._untold: set[Coordinates] = set()
        """Partitions whose pause or resumption the client has not heard of: it was busy with another thread."""

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Have the client fetch nothing of these; with the lock."""
        if self._is_free(partitions):
            Consumer.pause(self._consumer, partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Have the client fetch these again, as far as they deliver; with the lock."""
        if self._is_free(partitions):
            Consumer.resume(self._consumer, self._session.resumable(partitions))

    def _is_free(self, partitions: list[TopicPartition]) -> bool:
        """Whether the client may be called; else it hears of these partitions before the next fetch.

        It is not waited for: the thread inside may wait for ours, in a rebalance.
        """
        busy = self._lock.busy_elsewhere
        if busy:
            self._untold |= {(tp.topic, tp.partition) for tp in partitions}
        return not busy

    def fetch(self, at_most: int, wait_s: float) -> None:
        """Top up what was fetched."""
        room = at_most - len(self.messages)
        self.ran_dry = False
        if room > 0:
            if self._behind or self._untold:
                self._catch_up()
            began = self._generation
            came = self._lock.call_client(Consumer.consume, self._consumer, room, wait_s)
            self.ran_dry = len(came) < room
            if came:
                with self._lock.lock:
                    if self._behind or self._generation != began:
                        came = self._still_read(came, began)
                    self.messages = self.messages + came if self.messages else came

    def listen(self, wait_s: float) -> None:
        """Let the client do its work; keep the message or event that comes with it."""
        if self._behind or self._untold:
            self._catch_up()
        began = self._generation
        message = self._lock.call_client(Consumer.poll, self._consumer, wait_s)
        if message is not None:
            self.keep([message], began)

    def keep(self, messages: list[Any], began: int) -> None:
        """Keep what a fetch brought that began in a generation, as far as it is still read from there."""
        with self._lock.lock:
            self.messages = self.messages + self._still_read(messages, began)

    def rest(self, messages: list[Any]) -> None:
        """Keep these of what was fetched; the others are dealt with."""
        self.messages = messages

    def put_first(self, messages: list[Any]) -> None:
        """Put messages, or events, before all others."""
        self.messages = [*messages, *self.messages]

    def drop(self, gone: Collection[Coordinates]) -> None:
        """Drop what was fetched of these partitions, and what the fetch under way brings of them."""
        self._generation += 1
        self._generations |= dict.fromkeys(gone, self._generation)
        if self.messages:
            self.note_stops()
            self.messages = self._without(self.messages, gone)

    def forget(self, gone: Collection[Coordinates]) -> None:
        """Drop what was fetched of partitions that go, or begin elsewhere, and the news that the client stopped reading them."""
        self.drop(gone)
        self._drop_stops(gone)

    def read_again(self, partitions: Iterable[Coordinates]) -> None:
        """Have partitions read again from where judging stands, before the next fetch."""
        self._behind |= set(partitions)

    def is_behind(self, coordinates: Coordinates) -> bool:
        """Whether something of a partition is to be read again, or waits to be judged."""
        return coordinates in self._behind or any(
            (message.topic(), message.partition()) == coordinates for message in self.messages
        )

    def note_stops(self) -> None:
        """Take note of partitions that the client stopped reading: they cannot be moved. Their events wait for their turn.

        Whoever places such a partition meanwhile has it assigned again. The event, which may wait behind messages, then
        belongs to the old place, and is dropped.
        """
        for message in self.messages:
            if _is_stop(message):
                assigned = self._session.assigned.get((message.topic(), message.partition()))
                if assigned is not None:
                    assigned.note_stop()

    def drop_moved(self) -> None:
        """Drop what was fetched of partitions that the client reads from elsewhere since."""
        if moved := self._session.reading.take_moved():
            if self.messages:
                # Others that stopped wait for their own turn.
                still = {c for c, assigned in self._session.assigned.items() if assigned.stopped}
                self._drop_stops(moved - still)
            self.drop(moved)

    def _catch_up(self) -> None:
        """Before a fetch: tell the client what it has not heard of, and go back for what was dropped of earlier fetches.

        The thread that fetches does so itself: in the middle of its fetch old and new messages could not be told apart. Partitions that the
        user keeps paused wait for their turn.
        """
        with self._lock.lock:
            self._tell_pauses()
            assigned = self._session.assigned
            due = {c for c in self._behind if c not in assigned or Pause.USER not in assigned[c].pauses}
            if due:
                self.note_stops()
                self._behind -= due
                self._session.refetch(due)
                self.drop_moved()

    def _tell_pauses(self) -> None:
        """Tell the client whether partitions are paused, as it is now, whatever came in between; what went is left out.

        Told one change after the other, a late resumption would undo the pause after it.
        """
        untold, self._untold = self._untold, set()
        for coordinates in untold & self._session.assigned.keys():
            paused = self._session.assigned[coordinates].pauses
            (self.pause if paused else self.resume)([TopicPartition(*coordinates)])

    def _drop_stops(self, moved: Collection[Coordinates]) -> None:
        """Drop the news that the client stopped reading these partitions: it is about where they were read before."""
        self.messages = [
            m for m in self.messages if not (_is_stop(m) and (m.topic(), m.partition()) in moved)
        ]

    def _still_read(self, messages: list[Any], began: int) -> list[Any]:
        """Return what a fetch brought that began in a generation, as far as it is still read from there."""
        void = {c for c, generation in self._generations.items() if generation > began}
        return self._without(messages, void | self._behind)

    def _without(self, messages: list[Any], gone: Collection[Coordinates]) -> list[Any]:
        kept = []
        for message in messages:
            coordinates = message.topic(), message.partition()
            if message.error() is None and coordinates in gone:
                self._behind.add(coordinates)
            else:
                kept.append(message)
        return kept


def _is_stop(message: Any) -> bool:
    """Whether it is the client's word that it reads a partition no further: the log has not the offset that was asked for."""
    error = message.error()
    return error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 (that is its public name)
