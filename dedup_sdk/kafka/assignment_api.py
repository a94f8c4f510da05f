"""Which partitions are read, from where, and which of them are paused: the plain client's calls, with recovery in between.

What was fetched of a partition when it was paused is dropped, and read again before the next fetch. While another thread is inside the client,
seeks are noted, and done when it is free.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from dedup_sdk.kafka.assignment import Pause
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.commits import Coordinates
from dedup_sdk.kafka.delivery import Delivery, Fetcher
from dedup_sdk.kafka.guards import CallbackErrors, ClientLock, Interruption
from dedup_sdk.kafka.session import Session, commit_in_group
from dedup_sdk.kafka.settings import ClientSettings


class Handlers(Protocol):
    """Who handles messages on other threads, and is told of partitions that go (`dedup_sdk.runner`)."""

    def leave(self, partitions: Collection[Coordinates], *, waits: bool) -> None:
        """Draw the conclusions of what is over, and let go of the rest, before partitions go or begin anew; with the lock.

        ``waits``: handlers that are running are waited for, for part of the revoke deadline.
        """

    def lose(self, partitions: Collection[Coordinates] | None) -> None:
        """Let go of all messages of partitions (None: of all) without conclusions: they come again, or belong to others; with the lock."""


class AssignmentApi:
    """Subscription, assignment, seek, pause, position; and the rebalance callbacks."""

    def __init__(
        self,
        consumer: Consumer,
        *,
        session: Session,
        client: Client,
        settings: ClientSettings,
        callback_errors: CallbackErrors,
        lock: ClientLock,
        interruption: Interruption,
        fetcher: Fetcher,
        delivery: Delivery,
    ) -> None:
        self._consumer = consumer
        self._session, self._client, self._settings = session, client, settings
        self._callback_errors, self._lock, self._interruption = callback_errors, lock, interruption
        self._fetcher, self._delivery = fetcher, delivery
        self._handlers: Handlers | None = None
        self._assigning: list[TopicPartition] | None = None
        """Inside the user's callback: what is to be assigned."""
        self._pausing: set[Coordinates] = set()
        """Partitions that the user's callback paused before they were taken."""
        self._by_callback: set[Coordinates] = set()
        """Partitions that the user assigned in the callback for others that go: they stay."""
        self.noted_seeks: dict[Coordinates, TopicPartition] = {}
        """Where other threads want partitions to be read from, said while a callback ran."""

    # --- subscription --------------------------------------------------------------------------------------------

    def subscribe(self, topics: list[str], on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        """Subscribe; the user's callbacks run before ours.

        They run without the lock: ``on_revoke`` may join threads that complete messages, which need it. Lost partitions
        are fenced *before* their callback.
        """
        with self._lock.lock:
            if not self._lock.may_change("subscribe"):
                return

        # The user's callbacks run without the lock: a thread that they wait for may be about to complete a message.
        def assign(_: Consumer, partitions: list[TopicPartition]) -> None:
            with self._lock.in_callback():
                self._callback_errors.run(
                    self._interruption.run_step, self._assign_by_group, partitions, on_assign
                )

        def revoke(_: Consumer, partitions: list[TopicPartition]) -> None:
            with self._lock.in_callback():
                self._by_callback.clear()
                if on_revoke is not None:
                    self._callback_errors.run(on_revoke, self._consumer, partitions)
                with self._lock.lock:
                    self._callback_errors.run(
                        self._interruption.run_step, self.give_back, self._going(partitions)
                    )

        def lost(_: Consumer, partitions: list[TopicPartition]) -> None:
            callback = on_lost or on_revoke
            with self._lock.in_callback():
                self._by_callback.clear()
                with self._lock.lock:
                    self._callback_errors.run(self._interruption.run_step, self._write_completed, partitions)
                    self._session.mark_lost(partitions)
                if callback is not None:
                    self._callback_errors.run(callback, self._consumer, partitions)
                with self._lock.lock:
                    self._callback_errors.run(
                        self._interruption.run_step, self._lose_with_the_rest, partitions
                    )

        Consumer.subscribe(self._consumer, topics, on_assign=assign, on_revoke=revoke, on_lost=lost)

    def unsubscribe(self) -> None:
        """Leave the group; what the last call handed out comes again to whoever gets its partition."""
        with self._lock.when_client_free():
            if not self._lock.may_change("unsubscribe"):
                return
            going = self._session.of_group
            if not going:
                Consumer.unsubscribe(self._consumer)
                return
            self.finish_asked()
            self._interruption.run_step(self._delivery.release, going)
            self._fetcher.drop(set(self._session.assigned))
        self.commit_in_group()
        Consumer.unsubscribe(self._consumer)
        self._go_on_by_hand()

    def commit_in_group(self) -> None:
        """Commit before leaving, while the group still takes it."""
        self._lock.call_client(
            commit_in_group, self._session, self._client, self._lock.lock, self._settings.revoke_deadline_s
        )

    def _go_on_by_hand(self) -> None:
        """Have partitions that no group assigned read on: while the group took its commit, what came of them was dropped."""
        with self._lock.lock:
            for coordinates, assigned in self._session.assigned.items():
                if assigned.by_hand:
                    self._fetcher.read_again([coordinates])
                    if assigned.is_fetched:
                        self._client.resume(*coordinates)
                        self._session.wake_soon(*coordinates)
            self._interruption.request_maintenance()

    def _assign_by_group(self, partitions: list[TopicPartition], callback: Any) -> None:
        self._assigning = partitions
        self._pausing.clear()
        try:
            if callback is not None:
                self._callback_errors.run(callback, self._consumer, partitions)
            chosen = self._assigning
        finally:
            self._assigning = None
        with self._lock.lock:
            if self._session.assigned and not self._settings.incremental:
                # The client drops what was assigned by hand for what the group assigns.
                self._give_all_back()
            self._session.take(chosen)
            if self._pausing:
                self._session.note_pause(self._pausing, paused=True)
            self._interruption.request_maintenance()

    def _going(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return what goes with these partitions: in the eager protocol all that is held, whoever assigned it.

        There the client drops what was assigned by hand together with what the group takes or assigns, and says
        nothing. Only what the callback itself has just assigned stays.
        """
        gone = [(tp.topic, tp.partition) for tp in partitions]
        if not self._settings.incremental:
            gone += [coordinates for coordinates in self._session.assigned if coordinates not in gone]
        return [TopicPartition(*coordinates) for coordinates in gone if coordinates not in self._by_callback]

    # --- partitions that go, or begin anew -----------------------------------------------------------------------

    def attach(self, handlers: Handlers | None) -> None:
        """Have somebody told of partitions that go."""
        self._handlers = handlers

    def give_back(self, partitions: list[TopicPartition]) -> None:
        """Write, commit and close partitions that go to another member in order."""
        if self._handlers is not None:
            # What handlers do of partitions that others have already is not written: they are not waited for.
            lost = {c for c, assigned in self._session.assigned.items() if not assigned.is_ours}
            self._handlers.leave(coordinates_in(partitions) - lost, waits=True)
        self.forget(coordinates_in(partitions))
        self._session.give_back(partitions)

    def lose(self, partitions: list[TopicPartition]) -> None:
        """Close partitions that others have already."""
        if self._handlers is not None:
            self._handlers.lose(coordinates_in(partitions))
        if not self._interruption.happened:
            self._write_completed(partitions)
        self.forget(coordinates_in(partitions))
        self._session.lose(partitions)

    def _write_completed(self, partitions: list[TopicPartition]) -> None:
        """Write what was completed before a loss was heard of: nothing of these partitions is written from here on."""
        for coordinates in coordinates_in(partitions):
            held = self._delivery.partition_of(*coordinates)
            if held is not None:
                held.persist()

    def forget(self, gone: Collection[Coordinates]) -> None:
        """Forget what came of these partitions, and where they were to be moved: they go, or begin elsewhere."""
        if self._handlers is not None:
            self._handlers.leave(gone, waits=False)
        self._delivery.purge(set(gone))
        self._fetcher.forget(gone)
        for coordinates in gone:
            self.noted_seeks.pop(coordinates, None)
        self._interruption.request_maintenance()

    def forget_if_it_recovers(self, coordinates: Coordinates) -> None:
        """Forget what came of a partition that begins anew."""
        assigned = self._session.assigned.get(coordinates)
        if assigned is not None and assigned.recovers:
            self.forget({coordinates})

    def reopen_all(self) -> None:
        """Open every partition again, from its store and from what is completed, as after a crash; with the lock."""
        if self._handlers is not None:
            self._handlers.lose(None)
        self._fetcher.note_stops()
        actual = Consumer.assignment(self._consumer)
        self._session.reconcile((tp.topic, tp.partition) for tp in actual)
        self._delivery.release_all()
        self._session.reopen_all()
        self._fetcher.rest([])
        self._interruption.clear()

    def part(self) -> None:
        """Let everything go, before the client closes: what was completed is written, what the last call handed out is released."""
        by_hand = self._session.assigned.keys() - self._session.of_group
        if self._interruption.happened:
            self.lose([TopicPartition(*coordinates) for coordinates in self._session.assigned])
        self.finish_asked()
        self._delivery.withdraw_last()
        self._delivery.release_all()
        self._fetcher.rest([])
        if by_hand:
            self.give_back([TopicPartition(*coordinates) for coordinates in by_hand])
            self._have_client_forget(by_hand)

    def _have_client_forget(self, by_hand: Collection[Coordinates]) -> None:
        """Have the client let partitions go that no group takes back: until then it neither leaves its group nor closes."""
        actual = Consumer.assignment(self._consumer)
        going = [tp for tp in actual if (tp.topic, tp.partition) in by_hand]
        if going and self._settings.incremental:
            self._interruption.run_step(Consumer.incremental_unassign, self._consumer, going)
        elif going and len(going) == len(actual):
            self._interruption.run_step(Consumer.unassign, self._consumer)

    def _lose_with_the_rest(self, partitions: list[TopicPartition]) -> None:
        going, lost = self._going(partitions), coordinates_in(partitions)
        self.lose([tp for tp in going if (tp.topic, tp.partition) in lost])
        if rest := [tp for tp in going if (tp.topic, tp.partition) not in lost]:
            self.give_back(rest)

    def finish_asked(self) -> None:
        """Complete what the application had before its last call for more, unless what it had is in doubt."""
        if not self._interruption.happened:
            self._interruption.run_step(self._finish, self._delivery.finish_asked)

    @staticmethod
    def _finish(step: Callable[..., list[Any]], *arguments: Any) -> None:
        for partition in step(*arguments):
            partition.persist()

    # --- assignment by hand --------------------------------------------------------------------------------------

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Take exactly these partitions; inside ``on_assign`` the way to set their offsets.

        If the client refuses, the partitions that were given back for it are in doubt: the next call for messages opens
        all of them again.
        """
        if self._assigning is not None:
            self._assigning = partitions
            return
        with self._lock.when_client_free():
            if not self._lock.may_change("assign"):
                return
            self.finish_asked()
            self._interruption.run_step(self._assign_by_hand, partitions)

    def _assign_by_hand(self, partitions: list[TopicPartition]) -> None:
        self._give_all_back()
        self._session.take(partitions, incremental=False, by_hand=True)
        self._by_callback = coordinates_in(partitions)
        self._interruption.request_maintenance()

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Take these partitions besides those that are assigned; inside ``on_assign`` as `assign`."""
        if self._assigning is not None:
            self._assigning = partitions
            return
        with self._lock.when_client_free():
            if not self._lock.may_change("incremental_assign"):
                return
            self._session.take(partitions, incremental=True, by_hand=True)
            self._by_callback |= coordinates_in(partitions)
            self._interruption.request_maintenance()

    def unassign(self) -> None:
        """Let all partitions go. Inside ``on_assign`` as `assign` of none."""
        if self._assigning is not None and not self._settings.incremental:
            self._assigning = []
            return
        with self._lock.when_client_free():
            if not self._lock.may_change("unassign"):
                return
            self.finish_asked()
            self._interruption.run_step(self._give_all_back)
            self._interruption.run_step(Consumer.unassign, self._consumer)
            self._by_callback.clear()

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Let these partitions go."""
        with self._lock.when_client_free():
            if not self._lock.may_change("incremental_unassign"):
                return
            self.finish_asked()
            self._interruption.run_step(self.give_back, partitions)
            self._interruption.run_step(Consumer.incremental_unassign, self._consumer, partitions)
            self._by_callback -= coordinates_in(partitions)

    def _give_all_back(self) -> None:
        if self._session.assigned:
            self.give_back([TopicPartition(*coordinates) for coordinates in self._session.assigned])

    # --- seek and position ---------------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition) -> None:
        """Read a partition from elsewhere; by another thread while a callback runs, when that is over."""
        with self._lock.when_client_free_or_callback() as alone:
            if not self._lock.may_change("seek"):
                return
            ours = (partition.topic, partition.partition) in self._session.assigned
            if ours and alone:
                self._seek(partition)
            elif ours:
                self.noted_seeks[partition.topic, partition.partition] = partition
                self._interruption.request_maintenance()
            elif alone:
                Consumer.seek(self._consumer, partition)  # the plain client's own error
            else:
                raise KafkaException(KafkaError(KafkaError._STATE))  # noqa: SLF001 (that is its public name)

    def _seek(self, partition: TopicPartition) -> None:
        coordinates = partition.topic, partition.partition
        with self._client.readers.default_timeout():
            offset = self._session.resolve(partition)
        self.finish_asked()
        if not self._interruption.happened:
            self._interruption.run_step(self._finish, self._delivery.finish_up_to, *coordinates, offset - 1)
        offset = self._before_what_waits(*coordinates, offset)
        self._interruption.run_step(self.forget, {coordinates})
        self._session.move(*coordinates, offset)

    def _before_what_waits(self, topic: str, partition: int, offset: int) -> int:
        """Return the offset to read on from so that no open unit is split.

        Nor is a unit that is over: without its first records the rest would wait for them, or count as the whole unit.
        """
        held = self._delivery.partition_of(topic, partition)
        if held is None:
            return offset
        return held.resumes_at(offset, self._delivery.first_waiting(topic, partition))

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return, for each partition, the offset after the last message handed out; hidden duplicates count as such."""
        with self._lock.lock:
            self._lock.check_open()
            return [TopicPartition(tp.topic, tp.partition, self._position(tp)) for tp in partitions]

    def _position(self, tp: TopicPartition) -> int:
        waiting = self._delivery.first_waiting(tp.topic, tp.partition)
        held = self._delivery.partition_of(tp.topic, tp.partition)
        if waiting is not None:
            return waiting
        return OFFSET_INVALID if held is None else held.flight.position

    # --- pauses --------------------------------------------------------------------------------------------------

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Stop partitions from delivering, until `resume`: what was fetched already waits too."""
        with self._lock.lock:
            self._lock.check_open()
            paused = coordinates_in(partitions)
            if self._assigning is not None:
                self._pausing |= paused
            assigning = self._assigning or ()
            self._fetcher.pause([tp for tp in partitions if tp not in assigning])
            self._session.note_pause(paused, paused=True)
            delivering = {c for c in paused if self._delivery.partition_of(*c) is not None}
            self._interruption.run_step(self._delivery.set_aside, delivering)
            self._fetcher.drop(paused)

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Let partitions deliver again; one that still recovers starts when it is up to date."""
        with self._lock.lock:
            self._lock.check_open()
            resumed = coordinates_in(partitions)
            self._pausing -= resumed
            self._session.note_pause(resumed, paused=False)
            self._interruption.run_step(self._delivery.bring_back, resumed)
            self._interruption.request_maintenance()
            self._fetcher.resume(partitions)

    def do_noted_seeks(self) -> None:
        """Do the seeks by other threads; what went meanwhile is left out. With the lock."""
        while self.noted_seeks:
            coordinates, target = self.noted_seeks.popitem()
            if coordinates in self._session.assigned:
                self._callback_errors.run(self._seek, target)

    def hold_back(self, *, hold: bool) -> None:
        """Have the client fetch nothing while handlers have enough, or go on; what has other reasons to pause stays so. With the lock."""
        changed = [
            TopicPartition(*coordinates)
            for coordinates, assigned in self._session.assigned.items()
            if (assigned.pause if hold else assigned.lift)(Pause.HANDLERS)
        ]
        (Consumer.pause if hold else Consumer.resume)(self._consumer, changed)
        if not hold:
            self._client.wake(changed)


def coordinates_in(partitions: Iterable[TopicPartition]) -> set[Coordinates]:
    """Return topic and partition of each."""
    return {(tp.topic, tp.partition) for tp in partitions}
