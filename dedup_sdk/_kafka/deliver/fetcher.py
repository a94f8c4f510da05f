"""Messages that the client has given, and that are not judged yet.

fetch position and its generation
    Every change of the position from which a partition is read (a pause, a seek, a rebalance) makes the messages that
    were fetched of it void, and gives the position a new generation. A fetch that began in an older generation brought
    messages of the old position; they are dropped, too, and the partition is read again from the position of judging
    before the next fetch. While another thread is inside the client, pauses and resumptions are only noted; the client
    gets the state of that moment when it is free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.cimpl import Consumer

from dedup_sdk._kafka.assign.assignment import Pause, State
from dedup_sdk._kafka.assign.commits import Coordinates
from dedup_sdk._kafka.client.guards import ClientLock
from dedup_sdk._kafka.recover.session import Session


class Fetcher:
    """Fetches with the client. ``messages`` are the fetched messages, and the client's events, in the order they came.

    ``ran_dry``: the client had fewer messages ready than the last `fetch` asked for.

    The client counts a message as read when it returns it. So messages that are dropped here lie behind the client's
    own position: nothing more of that partition is kept until it is read again.
    """

    def __init__(self, consumer: Consumer, session: Session, lock: ClientLock) -> None:
        self.messages: list[Any] = []
        self.ran_dry = False
        self._consumer, self._session, self._lock = consumer, session, lock
        self._generation = 0
        self._generations: dict[Coordinates, int] = {}
        self._behind: set[Coordinates] = set()
        """Partitions of which messages were dropped: they must be read again before any message of them is kept."""

        self._is_under_way = False
        """Whether a call of the client has begun whose messages are not kept here yet."""
        self._untold: set[Coordinates] = set()
        """Partitions whose pause or resumption the client does not know yet: another thread was inside it."""

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Have the client fetch nothing of these; with the lock."""
        if self._is_free(partitions):
            Consumer.pause(self._consumer, partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Have the client fetch these again, except those that do not deliver now; with the lock."""
        if self._is_free(partitions):
            Consumer.resume(self._consumer, self._session.resumable(partitions))

    def _is_free(self, partitions: list[TopicPartition]) -> bool:
        """Whether the client may be called; if not, the partitions are noted, and it is told before the next fetch.

        Nobody waits for it: in a rebalance the thread inside it may wait for this one.
        """
        busy = self._lock.in_other_thread
        if busy:
            self._untold |= {(tp.topic, tp.partition) for tp in partitions}
        return not busy

    def fetch(self, at_most: int, wait_s: float) -> None:
        """Fetch until there are ``at_most`` messages, or the time is up."""
        room = at_most - len(self.messages)
        self.ran_dry = False
        if room > 0:
            if self._behind or self._untold:
                self._catch_up()
            began, self._is_under_way = self._generation, True
            came = self._lock.call_client(Consumer.consume, self._consumer, room, wait_s)
            self.ran_dry = len(came) < room
            if came:
                with self._lock.lock:
                    if self._behind or self._generation != began:
                        came = self._still_read(came, began)
                    self.messages = self.messages + came if self.messages else came
            self._is_under_way = False

    def listen(self, wait_s: float) -> None:
        """Serve the client; keep the message or event that it returns."""
        if self._behind or self._untold:
            self._catch_up()
        began, self._is_under_way = self._generation, True
        message = self._lock.call_client(Consumer.poll, self._consumer, wait_s)
        if message is not None:
            with self._lock.lock:
                came = [message]
                if self._behind or self._generation != began:
                    came = self._still_read(came, began)
                self.messages = self.messages + came if self.messages else came
        self._is_under_way = False

    def pass_holes(self) -> None:
        """Move the positions of partitions behind what the client returns to nobody; with the lock.

        The client's own position is behind markers of transactions, and aborted records. It proves nothing while a
        call of it runs, or was interrupted: records that it has taken out of its queue, and returned to nobody, count
        as read by it. The same holds for records that were returned, and are not judged or must be read again.
        """
        if self._is_under_way or self._lock.client_thread is not None:
            return
        waiting = {(message.topic(), message.partition()) for message in self.messages} | self._behind
        ready = {
            coordinates: assigned.engine_partition
            for coordinates, assigned in self._session.assigned.items()
            if assigned.state is State.ACTIVE and assigned.engine_partition and coordinates not in waiting
        }
        asked = [TopicPartition(*coordinates) for coordinates in ready]
        for tp in Consumer.position(self._consumer, asked) if asked else ():
            # Below zero before the first record since a seek.
            ready[tp.topic, tp.partition].pass_holes(tp.offset)

    def rest(self, messages: list[Any]) -> None:
        """Keep these fetched messages; the others are handled."""
        self.messages = messages

    def put_first(self, messages: list[Any]) -> None:
        """Put messages, or events, before all others."""
        self.messages = [*messages, *self.messages]

    def drop(self, gone: Collection[Coordinates]) -> None:
        """Drop the fetched messages of these partitions, and those of the running fetch."""
        self._generation += 1
        self._generations |= dict.fromkeys(gone, self._generation)
        if self.messages:
            self.note_stops()
            self.messages = self._without(self.messages, gone)

    def forget(self, gone: Collection[Coordinates]) -> None:
        """Drop messages and stop events of partitions that are revoked, or begin at another position."""
        self.drop(gone)
        self._drop_stops(gone)

    def read_again(self, partitions: Iterable[Coordinates]) -> None:
        """Have partitions read again from the position of judging, before the next fetch."""
        self._behind |= set(partitions)

    def note_stops(self) -> None:
        """Mark partitions for which a stop event is queued: the client does not read them, and cannot seek in them.

        Code that moves such a partition must assign it again. The event, which may be queued behind messages, then
        belongs to the old position, and is dropped.
        """
        for message in self.messages:
            if _is_stop(message):
                assigned = self._session.assigned.get((message.topic(), message.partition()))
                if assigned is not None:
                    assigned.note_stop()

    def drop_moved(self) -> None:
        """Drop the fetched messages of partitions whose position was changed since."""
        if moved := self._session.reading.take_moved():
            if self.messages:
                # Partitions that stopped again keep their event.
                still = {c for c, assigned in self._session.assigned.items() if assigned.stopped}
                self._drop_stops(moved - still)
            self.drop(moved)

    def _catch_up(self) -> None:
        """Before a fetch: pass noted pauses to the client, and seek back to messages that were dropped.

        Only the fetching thread does so: in the middle of its fetch, old and new messages could not be told apart.
        Partitions that the user paused are left as they are.
        """
        with self._lock.lock:
            self._tell_pauses()
            assigned = self._session.assigned
            due = {c for c in self._behind if c not in assigned or Pause.USER not in assigned[c].pauses}
            if due:
                self.note_stops()
                self._behind -= due
                self._session.reading.again(due)
                self.drop_moved()

    def _tell_pauses(self) -> None:
        """Tell the client which partitions are paused now.

        Not one change after the other: a late resumption would undo the pause that followed it.
        """
        untold, self._untold = self._untold, set()
        for coordinates in untold & self._session.assigned.keys():
            paused = self._session.assigned[coordinates].pauses
            (self.pause if paused else self.resume)([TopicPartition(*coordinates)])

    def _drop_stops(self, moved: Collection[Coordinates]) -> None:
        """Drop stop events of these partitions: they are about an earlier position."""
        self.messages = [
            m for m in self.messages if not (_is_stop(m) and (m.topic(), m.partition()) in moved)
        ]

    def _still_read(self, messages: list[Any], began: int) -> list[Any]:
        """Return the messages of a fetch that began in a generation, except those of void positions."""
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
    """Whether it is a stop event: the client stopped reading a partition, because the log does not have its offset."""
    error = message.error()
    return error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 (that is its public name)
