"""The half of the drop-in consumer that says which partitions are read, and from where."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from threading import RLock
from typing import Any

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from dedup_sdk.engine.partition import Partition
from dedup_sdk.kafka.assigned import State
from dedup_sdk.kafka.callbacks import Guard
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.handout import Coordinates, HandOut
from dedup_sdk.kafka.leaving import commit_in_group
from dedup_sdk.kafka.reading import is_fetched
from dedup_sdk.kafka.session import Session
from dedup_sdk.kafka.settings import ClientSettings
from dedup_sdk.kafka.turns import Turns


class Placement(Consumer):
    """Subscription, assignment, seek, position: as the plain client's, with recovery in between."""

    _session: Session
    _hand: HandOut
    _guard: Guard
    _client: Client
    _settings: ClientSettings
    _lock: RLock
    _implicit: bool
    _fetched: list[Any]
    _gone: set[Coordinates]
    """Partitions that went while the client was fetching."""
    _dropped: set[Coordinates]
    """Partitions of which fetched messages were dropped: behind the client's own position, so that nothing of them may be kept
    until they are read again."""
    _assigning: list[TopicPartition] | None
    _by_callback: set[Coordinates]
    """Partitions that the user assigned in the callback for others that go: they stay."""
    _pausing: set[Coordinates]
    """Partitions that the user's callback paused before they were taken."""
    _doubtful: bool
    """Whether something failed that may have left a partition, or what is handed out of it, half way: nothing is completed in bulk
    before it was put right, because what was given out cannot be told from what was not."""
    _tidy_at: float
    _closed: bool
    _turns: Turns
    _seeks: dict[Coordinates, TopicPartition]
    """Where other threads want partitions to be read from, said while a callback ran."""

    def subscribe(
        self, topics: list[str], on_assign: Any = None, on_revoke: Any = None, on_lost: Any = None
    ) -> None:
        """Subscribe as the plain client does; callbacks get this consumer and may set offsets and call `assign`.

        The user's callbacks run before ours. What they raise is raised by the `poll`, `consume` or `close` that ran them,
        and costs no message. Do not do slow work in them: the group waits. ``on_revoke`` may wait for threads of yours: what
        they `complete` meanwhile is committed, and what they `commit` goes out when the callback is over. What is completed
        from ``on_lost`` on counts as stale.
        """
        self._check_open()

        # The user's callbacks run without the lock: a thread that they wait for may be about to complete a message.
        def assign(_: Consumer, partitions: list[TopicPartition]) -> None:
            with self._turns.calling_back():
                self._guard.run(self._whole, self._assign_by_group, partitions, on_assign)

        def revoke(_: Consumer, partitions: list[TopicPartition]) -> None:
            with self._turns.calling_back():
                self._by_callback.clear()
                if on_revoke is not None:
                    self._guard.run(on_revoke, self, partitions)
                with self._lock:
                    self._guard.run(self._whole, self._give_back, self._going(partitions))

        def lost(_: Consumer, partitions: list[TopicPartition]) -> None:
            callback = on_lost or on_revoke
            with self._turns.calling_back():
                self._by_callback.clear()
                with self._lock:
                    self._session.condemn(partitions)
                if callback is not None:
                    self._guard.run(callback, self, partitions)
                with self._lock:
                    self._guard.run(self._whole, self._lose_with_the_rest, partitions)

        super().subscribe(topics, on_assign=assign, on_revoke=revoke, on_lost=lost)

    def unsubscribe(self) -> None:
        """Leave the group; what the last call handed out comes again to whoever gets its partition.

        The partitions go, and `on_revoke` is called, with the next `poll` or `consume`. What was assigned by hand stays, as with
        the plain client.
        """
        with self._turns.alone():
            self._check_open()
            going = self._session.of_group
            if not going:
                super().unsubscribe()
                return
            self._finish_asked()
            self._whole(self._hand.release, going)
            self._drop_fetched(set(self._session.assigned))
        self._commit_in_group()
        super().unsubscribe()
        self._go_on_by_hand()

    def _commit_in_group(self) -> None:
        """Commit before leaving, while the group still takes it."""
        with self._turns.inside_client():
            commit_in_group(self._session, self._client, self._lock, self._settings.revoke_deadline_s)

    def _go_on_by_hand(self) -> None:
        """Have partitions that no group assigned read on: while the group took its commit, what came of them was dropped."""
        with self._lock:
            for coordinates, assigned in self._session.assigned.items():
                if assigned.by_hand:
                    self._dropped.add(coordinates)
                    if is_fetched(assigned):
                        self._client.resume(*coordinates)
                        self._session.waking.append(TopicPartition(*coordinates))
            self._tidy_at = 0.0

    def _whole(self, step: Callable[..., None], *arguments: Any) -> None:
        """Do our part of a rebalance; what interrupts it, or the client's refusal, leaves the assignment in doubt."""
        try:
            step(*arguments)
        except BaseException:
            # The next call for messages puts it right: what it handed out before that would come again.
            self._doubtful, self._tidy_at = True, 0.0
            raise

    def _assign_by_group(self, partitions: list[TopicPartition], callback: Any) -> None:
        self._assigning = partitions
        self._pausing.clear()
        try:
            if callback is not None:
                self._guard.run(callback, self, partitions)
            chosen = self._assigning
        finally:
            self._assigning = None
        with self._lock:
            if not self._settings.incremental:
                # The client drops what was assigned by hand for what the group assigns.
                self._give_all_back()
            self._session.take(chosen)
            self._session.note_pause(self._pausing, paused=True)

    def _going(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return what goes with these partitions: in the eager protocol all that is held, whoever assigned it."""
        gone = [(tp.topic, tp.partition) for tp in partitions]
        if not self._settings.incremental:
            gone += [coordinates for coordinates in self._session.assigned if coordinates not in gone]
        return [TopicPartition(*coordinates) for coordinates in gone if coordinates not in self._by_callback]

    def _lose_with_the_rest(self, partitions: list[TopicPartition]) -> None:
        going, lost = self._going(partitions), coordinates_in(partitions)
        self._lose([tp for tp in going if (tp.topic, tp.partition) in lost])
        if rest := [tp for tp in going if (tp.topic, tp.partition) not in lost]:
            self._give_back(rest)

    def _give_back(self, partitions: list[TopicPartition]) -> None:
        self._forget(coordinates_in(partitions))
        self._session.give_back(partitions)

    def _lose(self, partitions: list[TopicPartition]) -> None:
        self._forget(coordinates_in(partitions))
        self._session.lose(partitions)

    def _forget(self, gone: Collection[Coordinates]) -> None:
        """Forget what came of these partitions, and where they were to be moved: they go, or begin elsewhere."""
        self._hand.purge(set(gone))
        self._drop_fetched(gone)
        self._drop_stops(gone)
        for coordinates in gone:
            self._seeks.pop(coordinates, None)

    def _forget_if_it_recovers(self, coordinates: Coordinates) -> None:
        assigned = self._session.assigned.get(coordinates)
        if assigned is not None and assigned.state is State.RECOVERING:
            self._forget({coordinates})

    def _note_stops(self) -> None:
        """Take note of partitions that the client stopped reading: they cannot be moved. Their events wait for their turn."""
        for message in self._fetched:
            if _is_stop(message):
                assigned = self._session.assigned.get((message.topic(), message.partition()))
                if assigned is not None:
                    assigned.stopped = True

    def _drop_stops(self, moved: Collection[Coordinates]) -> None:
        """Drop the news that the client stopped reading these partitions: it is about where they were read before."""
        self._fetched = [
            m for m in self._fetched if not (_is_stop(m) and (m.topic(), m.partition()) in moved)
        ]

    def _drop_moved(self) -> None:
        """Drop what was fetched of partitions that the client reads from elsewhere since."""
        moved, self._session.reading.moved = self._session.reading.moved, set()
        if moved:
            # Others that stopped wait for their own turn.
            still = {c for c, assigned in self._session.assigned.items() if assigned.stopped}
            self._drop_stops(moved - still)
            self._drop_fetched(moved)

    def _drop_fetched(self, gone: Collection[Coordinates]) -> None:
        """Drop what was fetched of these partitions, and not judged."""
        self._note_stops()
        self._gone |= set(gone)
        fetched, self._fetched = self._fetched, []
        self._fetched = self._without(fetched, gone)

    def _without(self, messages: list[Any], gone: Collection[Coordinates]) -> list[Any]:
        kept = []
        for message in messages:
            coordinates = message.topic(), message.partition()
            if message.error() is None and coordinates in gone:
                self._dropped.add(coordinates)
            else:
                kept.append(message)
        return kept

    def _finish_asked(self) -> None:
        """Complete what the application had before its last call for more, unless what it had is in doubt."""
        if self._implicit and not self._doubtful:
            self._whole(self._finish, self._hand.finish_asked)

    @staticmethod
    def _finish(step: Callable[..., list[Partition]], *arguments: Any) -> None:
        for partition in step(*arguments):
            partition.persist()

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Take exactly these partitions; inside ``on_assign`` the way to set their offsets."""
        if self._assigning is not None:
            self._assigning = partitions
            return
        with self._turns.alone():
            self._check_open()
            self._finish_asked()
            self._whole(self._assign_by_hand, partitions)

    def _assign_by_hand(self, partitions: list[TopicPartition]) -> None:
        self._give_all_back()
        self._session.take(partitions, incremental=False, by_hand=True)
        self._by_callback = coordinates_in(partitions)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Take these partitions besides those that are assigned; inside ``on_assign`` as `assign`."""
        if self._assigning is not None:
            self._assigning = partitions
            return
        with self._turns.alone():
            self._check_open()
            self._session.take(partitions, incremental=True, by_hand=True)
            self._by_callback |= coordinates_in(partitions)

    def unassign(self) -> None:
        """Let all partitions go: completed work is written and committed. Inside ``on_assign`` as `assign` of none."""
        if self._assigning is not None and not self._settings.incremental:
            self._assigning = []
            return
        with self._turns.alone():
            self._check_open()
            self._finish_asked()
            self._whole(self._give_all_back)
            self._whole(super().unassign)
            self._by_callback.clear()

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Let these partitions go: completed work is written and committed."""
        with self._turns.alone():
            self._check_open()
            self._finish_asked()
            self._whole(self._give_back, partitions)
            self._whole(super().incremental_unassign, partitions)
            self._by_callback -= coordinates_in(partitions)

    def _give_all_back(self) -> None:
        held = [TopicPartition(topic, partition) for topic, partition in self._session.assigned]
        if held:
            self._give_back(held)

    def seek(self, partition: TopicPartition) -> None:
        """Read a partition from elsewhere.

        What was handed out of it below the target is completed (with ``completion="explicit"`` it is not), the rest of it
        is forgotten. Forward, the group's history begins anew at the target; backward, what was completed comes again, with the
        verdicts of the first time; back to the first message that is not completed is no
        such step. It is no commit: where only you commit and none follows, the next start is where the group stood, and what was
        completed above that comes again. Called by another thread while a rebalance callback runs,
        it is done when that is over, if the partition is still there.
        """
        with self._turns.alone_or_noting() as alone:
            self._check_open()
            ours = (partition.topic, partition.partition) in self._session.assigned
            if ours and alone:
                self._seek(partition)
            elif ours:
                self._seeks[partition.topic, partition.partition] = partition
                self._tidy_at = 0.0
            elif alone:
                super().seek(partition)  # the plain client's own error
            else:
                raise KafkaException(KafkaError(KafkaError._STATE))  # noqa: SLF001 (that is its public name)

    def _seek(self, partition: TopicPartition) -> None:
        coordinates = partition.topic, partition.partition
        with self._client.readers.patient():
            offset = self._session.resolve(partition)
        self._finish_asked()
        if self._implicit and not self._doubtful:
            self._whole(self._finish, self._hand.finish_up_to, *coordinates, offset - 1)
        offset = self._before_what_waits(*coordinates, offset)
        self._whole(self._forget, {coordinates})
        self._session.move(*coordinates, offset)

    def _before_what_waits(self, topic: str, partition: int, offset: int) -> int:
        """Return where to read on so that no record of a unit is passed that the application does not know of, or not that it came in vain.

        Nor the first records of one that is over: the rest would be waited for in vain, or pass for all of it.
        """
        held = self._partition_of(topic, partition)
        lane = None if held is None else held.units
        if lane is None or offset > lane.position:
            return offset
        if offset <= lane.high:
            return lane.before_units(offset)
        queued = self._hand.first_waiting(topic, partition)
        passes = lane.waits_below(offset) or (queued is not None and queued < offset)
        return lane.high if passes else offset

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return, for each partition, the offset after the last message handed out; hidden duplicates count as such."""
        with self._lock:
            self._check_open()
            return [TopicPartition(tp.topic, tp.partition, self._position(tp)) for tp in partitions]

    def _position(self, tp: TopicPartition) -> int:
        waiting = self._hand.first_waiting(tp.topic, tp.partition)
        held = self._partition_of(tp.topic, tp.partition)
        if waiting is not None:
            return waiting
        return OFFSET_INVALID if held is None else held.lane.position

    def _partition_of(self, topic: str, partition: int) -> Partition | None:
        assigned = self._session.assigned.get((topic, partition))
        return assigned.held if assigned is not None and assigned.state is State.ACTIVE else None

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("Consumer closed")

    def leave_to_parent(self) -> bool:
        """Count as closed in the child of a fork, without waiting for a lock whose holder is not here; False when it was closed before."""
        if self._closed:
            return False
        self._turns = Turns()
        self._lock = self._turns.lock
        self._closed, self._tidy_at = True, 0.0
        return True


def coordinates_in(partitions: Iterable[TopicPartition]) -> set[Coordinates]:
    """Return topic and partition of each."""
    return {(tp.topic, tp.partition) for tp in partitions}


def _is_stop(message: Any) -> bool:
    """Whether it is the client's word that it reads a partition no further: the log has not the offset that was asked for."""
    error = message.error()
    return error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 (that is its public name)
