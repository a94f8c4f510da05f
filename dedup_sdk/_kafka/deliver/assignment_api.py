"""The plain client's calls for subscription, assignment, seek, position and pause, combined with recovery.

Messages already fetched from a partition that is paused are dropped and read again before the next fetch. A seek from
another thread while a callback runs is noted, and done when the callback has returned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from confluent_kafka.cimpl import Consumer

from dedup_sdk._kafka.assign.assignment import Pause
from dedup_sdk._kafka.assign.commits import Coordinates
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.client.guards import CallbackErrors, ClientLock, Interruption
from dedup_sdk._kafka.client.settings import ClientSettings
from dedup_sdk._kafka.deliver.delivery import BatchClassifier, Delivery, Fetcher
from dedup_sdk._kafka.recover.session import Session, commit_in_group, waiting_until

logger = logging.getLogger("dedup_sdk")


class Handlers(Protocol):
    """Handles messages on other threads, and is notified when partitions are revoked or lost (`dedup_sdk._runner`)."""

    def leave(self, partitions: Collection[Coordinates], *, until: float | None) -> None:
        """Apply the outcomes of finished handlers and drop the other messages; with the lock.

        Called before partitions are revoked, closed or restarted. Running handlers are waited for until ``until``
        (monotonic seconds; None: not at all).
        """

    def began(self, partitions: Collection[Coordinates]) -> set[int]:
        """Return the offsets of messages whose handler was called, of partitions; with the lock."""

    def withdraw(self, partitions: Collection[Coordinates]) -> set[int]:
        """Drop the messages of partitions whose handlers were never called; return their offsets. With the lock."""

    def lose(self, partitions: Collection[Coordinates] | None) -> None:
        """Drop all messages of partitions (None: of all) without applying outcomes; with the lock.

        This consumer, or the new owner, gets them again.
        """


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
        classifier: BatchClassifier,
        delivery: Delivery,
    ) -> None:
        self._consumer = consumer
        self._session, self._client, self._settings = session, client, settings
        self._callback_errors, self._lock, self._interruption = callback_errors, lock, interruption
        self._fetcher, self._classifier, self._delivery = fetcher, classifier, delivery
        self._handlers: Handlers | None = None
        self.asked = False
        """Whether the application ever subscribed to topics, or assigned partitions."""
        self.subscribed = False
        """Whether it is subscribed to topics now, and so a member of the group, or about to be one."""
        self._warned = False
        self.first_topic: list[Coordinates] = []
        """A partition of the first subscribed topic; none if all are patterns."""
        self._member: dict[Callable[[Consumer], Any], Any] = {}
        """What the client knew of itself when the user's running callback began, by the method that tells it."""
        self._assigning: list[TopicPartition] | None = None
        """Inside the user's ``on_assign`` callback: the partitions to assign; None outside."""
        self._pausing: set[Coordinates] = set()
        """Partitions that the user's callback paused before they were assigned."""
        self._by_callback: set[Coordinates] = set()
        """Partitions that the user assigned inside a callback for others that are revoked or lost: they stay."""
        self._gave_up = False
        """Whether the client accepted an `incremental_unassign` inside such a callback."""
        self.noted_seeks: dict[Coordinates, TopicPartition] = {}
        """Seeks by other threads while a callback ran; `do_noted_seeks` does them."""

    def warn_not_asked(self) -> None:
        """Log a warning, once: no topic and no partition was ever asked for, so a call for messages waits in vain."""
        if self._warned:
            return
        self._warned = True
        logger.warning(
            "no message can come: call subscribe(['orders']) or assign() before you ask for messages",
            extra={"event": "not-subscribed"},
        )

    # --- subscription --------------------------------------------------------------------------------------------

    def subscribe(self, topics: list[str], on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        """Subscribe; the user's callbacks run before ours.

        They run without the lock: ``on_revoke`` may join threads that complete messages, which need it. Lost partitions
        are fenced *before* their callback.
        """

        def assign(_: Consumer, partitions: list[TopicPartition]) -> None:
            self._member = {}
            if on_assign is not None:
                self._callback_errors.run(self._note_member)
            with self._lock.in_callback():
                self._callback_errors.run(
                    self._interruption.run_step, self._assign_by_group, partitions, on_assign
                )

        def revoke(_: Consumer, partitions: list[TopicPartition]) -> None:
            self._member = {}
            if on_revoke is not None:
                self._callback_errors.run(self._note_member)
            with self._lock.in_callback():
                self._by_callback, self._gave_up = set(), False
                if on_revoke is not None:
                    self._callback_errors.run(on_revoke, self._consumer, partitions)
                with self._lock.lock:
                    self._callback_errors.run(
                        self._interruption.run_step, self.give_back, self._revoked_with(partitions)
                    )
                    self._callback_errors.run(self._interruption.run_step, self._answer, partitions)

        def lost(_: Consumer, partitions: list[TopicPartition]) -> None:
            callback, self._member = on_lost or on_revoke, {}
            if callback is not None:
                self._callback_errors.run(self._note_member)
            with self._lock.in_callback():
                self._by_callback, self._gave_up = set(), False
                with self._lock.lock:
                    self._callback_errors.run(self._interruption.run_step, self._write_completed, partitions)
                    self._session.mark_lost(partitions)
                if callback is not None:
                    self._callback_errors.run(callback, self._consumer, partitions)
                with self._lock.lock:
                    self._callback_errors.run(
                        self._interruption.run_step, self._close_lost_and_rest, partitions
                    )
                    self._callback_errors.run(self._interruption.run_step, self._answer, partitions)

        with self._lock.lock:
            self._lock.until_client_free()
            if self._lock.may_change("subscribe"):
                self.asked = self.subscribed = True
                self.first_topic = [(topic, 0) for topic in topics if not topic.startswith("^")][:1]
                Consumer.subscribe(self._consumer, topics, on_assign=assign, on_revoke=revoke, on_lost=lost)

    def _note_member(self) -> None:
        """Note what other threads may ask `of_member` while a callback of the user runs, which may wait for them.

        Before threads are told that a callback runs: whoever finds no note waits for its end.
        """
        asked = (Consumer.memberid, Consumer.consumer_group_metadata)
        self._member = {ask: ask(self._consumer) for ask in asked}

    def of_member(self, ask: Callable[[Consumer], Any]) -> Any:
        """Return what the client knows of itself; while another thread is in the user's callback, what it knew before.

        From any thread.
        """
        if self._lock.is_mine():
            return ask(self._consumer)
        with self._lock.lock:
            if not self._lock.until_client_free_or_callback() and ask in self._member:
                return self._member[ask]
            self._lock.until_client_free()
            self._lock.check_open()
            return ask(self._consumer)

    def unsubscribe(self) -> None:
        """Leave the group; messages of the last call are delivered again to the next owner of their partition."""
        with self._lock.lock:
            self._lock.until_client_free()
            if not self._lock.may_change("unsubscribe"):
                return
            self.subscribed = False
            going = self._session.of_group
            if not going:
                Consumer.unsubscribe(self._consumer)
                return
            self.complete_all_but_last()
            self._interruption.run_step(self._delivery.release, going)
            self._fetcher.drop(set(self._session.assigned))
        if not (self._callback_errors.runs_here() or self._interruption.happened):
            # In a callback the client cannot be polled; the revocation commits.
            self.commit_in_group()
        # One step: the user's own partitions are paused in the client, and their messages dropped.
        self._interruption.run_step(self._leave)

    def _leave(self) -> None:
        if self._callback_errors.runs_here():
            Consumer.unsubscribe(self._consumer)
        else:
            self._lock.call_client(Consumer.unsubscribe, self._consumer)
        self._resume_manual()

    def commit_in_group(self) -> None:
        """Commit before leaving, while the group still accepts commits of this member."""
        self._lock.call_client(self._commit_in_group)

    def _commit_in_group(self) -> None:
        with self._lock.lock:
            # The client is polled now, and what it returns is dropped.
            self._fetcher.read_again(self._session.assigned.keys() - self._session.of_group)
        commit_in_group(self._session, self._client, self._lock.lock)

    def _resume_manual(self) -> None:
        """Resume partitions assigned by the user; their messages were dropped during the commit before leaving."""
        with self._lock.lock:
            for coordinates, assigned in self._session.assigned.items():
                if assigned.by_hand:
                    self._fetcher.read_again([coordinates])
                    if assigned.is_fetched:
                        self._client.resume(*coordinates)
                        self._session.wake_soon(*coordinates)
            self._interruption.request_maintenance()

    def _assign_by_group(self, partitions: list[TopicPartition], callback: Any) -> None:
        try:
            self._assigning = partitions
            self._pausing.clear()
            if callback is not None:
                self._callback_errors.run(callback, self._consumer, partitions)
            chosen = self._assigning
        finally:
            self._assigning = None
        with self._lock.lock:
            self._make_room(chosen)
            try:
                self._session.take(chosen)
            except KafkaException as refusal:
                if chosen is partitions:
                    raise
                self._callback_errors.keep(refusal)
                self._make_room(partitions)
                self._session.take(partitions)
            if self._pausing:
                self._session.note_pause(self._pausing, paused=True)
            self._interruption.request_maintenance()

    def _make_room(self, coming: list[TopicPartition]) -> None:
        """Give back what the client replaces by the group's partitions, or would refuse to assign a second time.

        In the eager protocol these are all partitions of the user, else those that come now.
        """
        replaced = set(self._session.assigned)
        if self._settings.incremental:
            replaced &= coordinates_in(coming)
        if replaced:
            self.give_back([TopicPartition(*coordinates) for coordinates in replaced])
            # The client may have dropped them before: a loss that was interrupted left them here alone.
            held = coordinates_in(Consumer.assignment(self._consumer)) & replaced
            if held and self._settings.incremental:
                Consumer.incremental_unassign(
                    self._consumer, [TopicPartition(*coordinates) for coordinates in held]
                )

    def _answer(self, partitions: list[TopicPartition]) -> None:
        """Tell the client that these revoked or lost partitions are given up, unless the user's callback did.

        The client takes any call of the callback for its answer, also a call that it refused, or one that assigns
        others. The group would wait for this member, and `close` for the group.
        """
        if not self._settings.incremental:
            # What the callback assigned stays, as with the plain client.
            if not self._by_callback:
                Consumer.unassign(self._consumer)
            return
        held = coordinates_in(Consumer.assignment(self._consumer)) - self._by_callback
        rest = [tp for tp in partitions if (tp.topic, tp.partition) in held]
        if rest or not self._gave_up:
            Consumer.incremental_unassign(self._consumer, rest)

    def _revoked_with(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return all partitions that end when these are revoked or lost.

        In the eager protocol these are all assigned partitions: the client also drops those that the user assigned, and
        makes no callback for them. Only partitions that the user's callback has just assigned stay.
        """
        gone = [(tp.topic, tp.partition) for tp in partitions]
        if not self._settings.incremental:
            gone += [coordinates for coordinates in self._session.assigned if coordinates not in gone]
        return [TopicPartition(*coordinates) for coordinates in gone if coordinates not in self._by_callback]

    # --- partitions that are revoked, lost or restarted ----------------------------------------------------------

    def attach(self, handlers: Handlers | None) -> None:
        """Set the handlers to notify when partitions are revoked or lost; None: no handlers."""
        self._handlers = handlers

    def give_back(self, partitions: list[TopicPartition]) -> None:
        """Write, commit and close revoked partitions; after an interruption their state is in doubt, as if lost."""
        if self._interruption.happened:
            self.lose(partitions)
            return
        until = self._session.deadline()
        if self._handlers is not None:
            # Outcomes for lost partitions cannot be written, so that their handlers are not waited for.
            lost = {c for c, assigned in self._session.assigned.items() if not assigned.is_ours}
            self._handlers.leave(coordinates_in(partitions) - lost, until=waiting_until(until))
        self.forget(coordinates_in(partitions))
        self._classifier.warn_of_missing_ids(coordinates_in(partitions))
        self._session.give_back(partitions, until)

    def lose(self, partitions: list[TopicPartition]) -> None:
        """Close lost partitions, which another member may own already; nothing is committed."""
        if self._handlers is not None:
            self._handlers.lose(coordinates_in(partitions))
        if not self._interruption.happened:
            self._write_completed(partitions)
        self.forget(coordinates_in(partitions))
        self._classifier.warn_of_missing_ids(coordinates_in(partitions))
        self._session.lose(partitions)

    def _write_completed(self, partitions: list[TopicPartition]) -> None:
        """Write the records completed before the loss was known; nothing is written for these partitions afterwards."""
        for coordinates in coordinates_in(partitions):
            partition = self._delivery.partition_of(*coordinates)
            if partition is not None:
                partition.persist()

    def forget(self, gone: Collection[Coordinates]) -> None:
        """Drop the fetched messages and noted seeks of partitions that are closed or moved."""
        if self._handlers is not None:
            self._handlers.leave(gone, until=None)
        self._delivery.purge(set(gone))
        self._fetcher.forget(gone)
        for coordinates in gone:
            self.noted_seeks.pop(coordinates, None)
        self._interruption.request_maintenance()

    def forget_if_it_recovers(self, coordinates: Coordinates) -> None:
        """Drop the fetched messages of a partition if it recovers: it is read again from its start."""
        assigned = self._session.assigned.get(coordinates)
        if assigned is not None and assigned.recovers:
            self.forget({coordinates})

    def reopen_all(self) -> None:
        """Reopen every partition from its store and its completed records, as after a crash; with the lock."""
        if self._handlers is not None:
            self._handlers.lose(None)
        self._fetcher.note_stops()
        self._session.reconcile((tp.topic, tp.partition) for tp in self._client.assignment())
        self._delivery.release_all()
        self._session.reopen_all()
        self._fetcher.rest([])
        self._interruption.clear()

    def part(self) -> None:
        """Release everything before the client closes: write completed records, release messages of the last call."""
        by_hand = self._session.assigned.keys() - self._session.of_group
        if self._interruption.happened:
            self.lose([TopicPartition(*coordinates) for coordinates in self._session.assigned])
        self.complete_all_but_last()
        self._delivery.withdraw_last()
        self._delivery.release_all()
        # Not only forgotten: a loop of another thread would take the client's position behind them for judged.
        self._fetcher.drop(set(self._session.assigned))
        self._fetcher.rest([])
        if by_hand:
            self.give_back([TopicPartition(*coordinates) for coordinates in by_hand])
            self._unassign_in_client(by_hand)

    def _unassign_in_client(self, by_hand: Collection[Coordinates]) -> None:
        """Unassign the user's partitions in the client, which otherwise neither leaves its group nor closes."""
        actual = Consumer.assignment(self._consumer)
        going = [tp for tp in actual if (tp.topic, tp.partition) in by_hand]
        if going and self._settings.incremental:
            self._interruption.run_step(Consumer.incremental_unassign, self._consumer, going)
        elif going and len(going) == len(actual):
            self._interruption.run_step(Consumer.unassign, self._consumer)

    def _close_lost_and_rest(self, partitions: list[TopicPartition]) -> None:
        going, lost = self._revoked_with(partitions), coordinates_in(partitions)
        self.lose([tp for tp in going if (tp.topic, tp.partition) in lost])
        if rest := [tp for tp in going if (tp.topic, tp.partition) not in lost]:
            self.give_back(rest)

    def complete_all_but_last(self) -> None:
        """Complete the messages returned before the last call, unless an interruption left their state in doubt."""
        if not self._interruption.happened:
            self._interruption.run_step(self._finish, self._delivery.complete_all_but_last)
            self._interruption.run_step(self._fetcher.pass_holes)

    @staticmethod
    def _finish(step: Callable[..., list[Any]], *arguments: Any) -> None:
        for partition in step(*arguments):
            partition.persist()

    # --- assignment by hand --------------------------------------------------------------------------------------

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Assign exactly these partitions; inside ``on_assign`` this sets their start offsets.

        If the client refuses, the state of the partitions closed for this call is in doubt: the next call for messages
        reopens all partitions.
        """
        self.asked = True
        if self._assigning is not None:
            self._assigning = partitions
            return
        with self._lock.lock:
            self._lock.until_client_free()
            if not self._lock.may_change("assign"):
                return
            self.complete_all_but_last()
            self._interruption.run_step(self._assign_by_hand, partitions)

    def _assign_by_hand(self, partitions: list[TopicPartition]) -> None:
        self._give_all_back()
        self._session.take(partitions, incremental=False, by_hand=True)
        self._by_callback = coordinates_in(partitions)
        self._interruption.request_maintenance()

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Assign these partitions in addition to the present ones; inside ``on_assign`` the same as `assign`."""
        self.asked = True
        if self._assigning is not None:
            self._assigning = partitions
            return
        with self._lock.lock:
            self._lock.until_client_free()
            if not self._lock.may_change("incremental_assign"):
                return
            self._raise_refusal(self._assign_more, partitions)

    def _assign_more(self, partitions: list[TopicPartition]) -> KafkaException | None:
        try:
            self._session.take(partitions, incremental=True, by_hand=True)
        except KafkaException as refusal:
            return refusal
        self._by_callback |= coordinates_in(partitions)
        self._interruption.request_maintenance()
        return None

    def _raise_refusal(
        self, step: Callable[[list[TopicPartition]], KafkaException | None], partitions: list[TopicPartition]
    ) -> None:
        """Do a step; raise the client's refusal, which has changed nothing and is no interruption."""
        refusal = self._interruption.run_step(step, partitions)
        if refusal is not None:
            raise refusal

    def unassign(self) -> None:
        """Close all partitions; inside ``on_assign`` the same as `assign` of no partition."""
        if self._assigning is not None and not self._settings.incremental:
            self._assigning = []
            return
        with self._lock.lock:
            self._lock.until_client_free()
            if not self._lock.may_change("unassign"):
                return
            self.complete_all_but_last()
            self._interruption.run_step(self._give_all_back)
            self._interruption.run_step(Consumer.unassign, self._consumer)
            self._by_callback.clear()

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Close these partitions."""
        with self._lock.lock:
            self._lock.until_client_free()
            if not self._lock.may_change("incremental_unassign"):
                return
            self.complete_all_but_last()
            self._raise_refusal(self._unassign_some, partitions)

    def _unassign_some(self, partitions: list[TopicPartition]) -> KafkaException | None:
        try:
            # First: what the client refuses, as it does with the eager protocol, changes nothing.
            Consumer.incremental_unassign(self._consumer, partitions)
        except KafkaException as refusal:
            return refusal
        self._gave_up = True
        self.give_back(partitions)
        self._by_callback -= coordinates_in(partitions)
        return None

    def _give_all_back(self) -> None:
        if self._session.assigned:
            self.give_back([TopicPartition(*coordinates) for coordinates in self._session.assigned])

    # --- seek and position ---------------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition) -> None:
        """Move a partition to another offset; from another thread while a callback runs, after the callback."""
        with self._lock.lock:
            alone = self._lock.until_client_free_or_callback()
            if not self._lock.may_change("seek"):
                return
            ours = (partition.topic, partition.partition) in self._session.assigned
            if ours and alone:
                self._seek(partition)
            elif ours:
                self.noted_seeks[partition.topic, partition.partition] = partition
                self._interruption.request_maintenance()
            elif alone:
                Consumer.seek(self._consumer, partition)  # raises the plain client's own error
            else:
                raise KafkaException(KafkaError(KafkaError._STATE))  # noqa: SLF001 (that is its public name)

    def _seek(self, partition: TopicPartition) -> None:
        coordinates = partition.topic, partition.partition
        with self._client.readers.default_timeout():
            offset = self._session.resolve(partition)
        self.complete_all_but_last()
        # One step: between two the messages in hand would be forgotten, and the partition not moved.
        self._interruption.run_step(self._seek_to, coordinates, offset)

    def _seek_to(self, coordinates: Coordinates, offset: int) -> None:
        if not self._interruption.happened:
            if offset == self._position(TopicPartition(*coordinates)):
                # No move: what is in flight stays in flight.
                self.noted_seeks.pop(coordinates, None)
                return
            self._finish(self._delivery.finish_up_to, *coordinates, offset - 1)
        offset = self._before_open_units(*coordinates, offset)
        waiting = set() if self._handlers is None else self._handlers.withdraw({coordinates})
        delivered_to = self._delivery.delivered_to(*coordinates, waiting)
        self.forget({coordinates})
        # Behind it: handlers that have ended by now are completed.
        before = self._session.commits.before_move(self._session.assigned[coordinates])
        self._session.move(*coordinates, offset, delivered_to=delivered_to, before=before)

    def _before_open_units(self, topic: str, partition: int, offset: int) -> int:
        """Return the offset to continue from so that no unit is split, neither an open nor a finished one.

        Without its first records, the rest of a finished unit would wait for them, or count as the whole unit.
        """
        opened = self._delivery.partition_of(topic, partition)
        if opened is None:
            return offset
        return opened.resumes_at(offset, self._delivery.first_waiting(topic, partition))

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return the offset after the last message delivered, per partition; hidden duplicates count as delivered."""
        settled = not self._lock.is_mine()
        with self._lock.lock:
            self._lock.check_open()
            settled = settled and not self._interruption.happened
            if settled:
                self._fetcher.pass_holes()
            return [
                TopicPartition(
                    tp.topic, tp.partition, self._position(tp, settled=settled), leader_epoch=self._epoch(tp)
                )
                for tp in partitions
            ]

    def _epoch(self, tp: TopicPartition) -> int:
        """Return the highest leader epoch of the records that came, -1 where none is known."""
        partition = self._delivery.partition_of(tp.topic, tp.partition)
        return -1 if partition is None or partition.flight.epoch is None else partition.flight.epoch

    def _position(self, tp: TopicPartition, *, settled: bool = True) -> int:
        waiting = self._delivery.first_waiting(tp.topic, tp.partition)
        partition = self._delivery.partition_of(tp.topic, tp.partition)
        if partition is not None and not settled:
            # Inside a step, and after an interruption: a message may be in no queue. What is not completed may come.
            return partition.flight.high
        if partition is not None and self._handlers is not None:
            # Also of a message on its way from `poll` to a worker, which is in no queue.
            began = self._handlers.began({(tp.topic, tp.partition)})
            return next(partition.flight.in_hand_but(began), partition.flight.position)
        if waiting is not None:
            return waiting
        return OFFSET_INVALID if partition is None else partition.flight.position

    # --- pauses --------------------------------------------------------------------------------------------------

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Pause partitions until `resume`; messages already fetched are held back too."""
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
        """Resume partitions; one that still recovers delivers when its recovery has ended."""
        with self._lock.lock:
            self._lock.check_open()
            resumed = coordinates_in(partitions)
            self._pausing -= resumed
            self._session.note_pause(resumed, paused=False)
            self._interruption.run_step(self._delivery.bring_back, resumed)
            self._interruption.request_maintenance()
            self._fetcher.resume(partitions)

    def do_noted_seeks(self) -> None:
        """Do the noted seeks by other threads, except of partitions that are no longer assigned; with the lock."""
        while self.noted_seeks:
            coordinates, target = self.noted_seeks.popitem()
            if coordinates in self._session.assigned:
                self._callback_errors.run(self._seek, target)

    def hold_back(self, *, hold: bool) -> None:
        """Pause or resume fetching for the handlers; other reasons to pause stay in force. With the lock."""
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
