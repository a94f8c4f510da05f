"""The plain client's calls for subscription and assignment, and the rebalance callbacks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.cimpl import Consumer

from dedup_sdk._kafka.assign.assignment import Assigned
from dedup_sdk._kafka.assign.commits import Coordinates
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.client.guards import Steps
from dedup_sdk._kafka.client.settings import ClientSettings
from dedup_sdk._kafka.deliver.handover import Handover, coordinates_in
from dedup_sdk._kafka.recover.session import commit_in_group

logger = logging.getLogger("dedup_sdk")

_GROUP_ASSIGNS: Final = (
    "the group has assigned partitions by a cooperative protocol: call incremental_assign() for others, seek() to move "
    "one, or unsubscribe() first"
)


class AssignmentApi:
    """Subscription, and assignment by the group and by hand."""

    def __init__(
        self, consumer: Consumer, client: Client, settings: ClientSettings, handover: Handover, steps: Steps
    ) -> None:
        self._consumer, self._settings, self._handover, self._steps = consumer, settings, handover, steps
        self.client: Final = client
        self._session, self._fetcher, self._delivery = handover.session, handover.fetcher, handover.delivery
        self.asked = False
        """Whether the application ever subscribed to topics, or assigned partitions."""
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
        self._left: dict[Coordinates, Assigned] = {}
        """Partitions of the group whose messages `unsubscribe` let go."""
        self._staying: dict[Coordinates, Assigned] = {}
        """Those that stay all the same, to be reopened: now, or at the end of a transaction that has messages of it."""

    @property
    def subscribed(self) -> bool:
        """Whether the application is subscribed to topics now, and so a member of the group, or about to be one."""
        return self._session.commits.is_subscribed

    def warn_not_asked(self) -> None:
        """Log a warning, once: no topic and no partition was ever asked for, so a call for messages waits in vain."""
        if self._warned:
            return
        self._warned = True
        logger.warning(
            "no message can come: call subscribe(['orders']) or assign() before you ask for messages",
            extra={"event": "not-subscribed"},
        )

    # --- the group -----------------------------------------------------------------------------------------------

    def subscribe(self, topics: list[str], on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        """Subscribe; the user's callbacks run before ours.

        They run without the lock: ``on_revoke`` may join threads that complete messages, which need it. Lost partitions
        are fenced *before* their callback.
        """

        def assign(_: Consumer, partitions: list[TopicPartition]) -> None:
            self._member = {}
            if on_assign is not None:
                self._steps.errors.run(self._note_member)
            with self._steps.lock.in_callback():
                self._steps.run_kept(self._assign_by_group, partitions, on_assign)

        def revoke(_: Consumer, partitions: list[TopicPartition]) -> None:
            self._member = {}
            if on_revoke is not None:
                self._steps.errors.run(self._note_member)
            with self._steps.lock.in_callback():
                self._by_callback, self._gave_up = set(), False
                if on_revoke is not None:
                    self._steps.errors.run(on_revoke, self._consumer, partitions)
                with self._steps.lock.lock:
                    self._steps.run_kept(self._handover.settle)
                    self._steps.run_kept(self._handover.give_back, self._revoked_with(partitions))
                    self._steps.run_kept(self._answer, partitions)

        def lost(_: Consumer, partitions: list[TopicPartition]) -> None:
            callback, self._member = on_lost or on_revoke, {}
            if callback is not None:
                self._steps.errors.run(self._note_member)
            with self._steps.lock.in_callback():
                self._by_callback, self._gave_up = set(), False
                with self._steps.lock.lock:
                    self._steps.run_kept(self._handover.write_completed, partitions)
                    self._session.mark_lost(partitions)
                if callback is not None:
                    self._steps.errors.run(callback, self._consumer, partitions)
                with self._steps.lock.lock:
                    self._steps.run_kept(self._close_lost_and_rest, partitions)
                    self._steps.run_kept(self._answer, partitions)

        with self._steps.lock.lock:
            self._steps.lock.until_client_free()
            if self._steps.lock.may_change("subscribe"):
                self.asked = True
                self._session.commits.note_subscription(is_subscribed=True)
                self.first_topic = [(topic, 0) for topic in topics if not topic.startswith("^")][:1]
                Consumer.subscribe(self._consumer, topics, on_assign=assign, on_revoke=revoke, on_lost=lost)

    def _note_member(self) -> None:
        """Note what other threads may ask `of_member` while a callback of the user runs, which may wait for them.

        Before threads are told that a callback runs: whoever finds no note waits for its end. A client that ends may
        know nothing more.
        """
        for ask in (Consumer.memberid, Consumer.consumer_group_metadata):
            try:
                self._member[ask] = ask(self._consumer)
            except (KafkaException, RuntimeError):
                if not self._steps.lock.ends:
                    raise

    def of_member(self, ask: Callable[[Consumer], Any]) -> Any:
        """Return what the client knows of itself; while another thread is in the user's callback, what it knew before.

        From any thread.
        """
        if self._steps.lock.is_mine():
            return ask(self._consumer)
        with self._steps.lock.lock:
            if not self._steps.lock.until_client_free_or_callback() and ask in self._member:
                return self._member[ask]
            self._steps.lock.until_client_free()
            self._steps.lock.check_open()
            return ask(self._consumer)

    def unsubscribe(self) -> None:
        """Leave the group; messages of the last call are delivered again to the next owner of their partition."""
        with self._steps.lock.lock:
            self._steps.lock.until_client_free()
            if not self._steps.lock.may_change("unsubscribe"):
                return
            self._session.commits.note_subscription(is_subscribed=False)
            going = self._session.of_group
            if not going:
                Consumer.unsubscribe(self._consumer)
                return
            self._handover.complete_all_but_last()
            self._left = {coordinates: self._session.assigned[coordinates] for coordinates in going}
            self._steps.run(self._delivery.release, going)
            self._fetcher.drop(set(self._session.assigned))
        if not (self._steps.errors.runs_here() or self._steps.interruption.happened):
            # In a callback the client cannot be polled; the revocation commits.
            self.commit_in_group()
        # One step: the user's own partitions are paused in the client, and their messages dropped.
        self._steps.run(self._leave)

    def _leave(self) -> None:
        if self._steps.errors.runs_here():
            Consumer.unsubscribe(self._consumer)
        else:
            self._steps.lock.call_client(Consumer.unsubscribe, self._consumer)
        self._resume_manual()

    def commit_in_group(self) -> None:
        """Commit before leaving, while the group still accepts commits of this member."""
        self._steps.lock.call_client(self._commit_in_group)

    def _commit_in_group(self) -> None:
        with self._steps.lock.lock:
            # The client is polled now, and what it returns is dropped.
            self._fetcher.read_again(self._session.assigned.keys() - self._session.of_group)
        commit_in_group(self._session, self.client, self._steps.lock.lock)

    def _resume_manual(self) -> None:
        """Resume partitions assigned by the user; their messages were dropped during the commit before leaving."""
        with self._steps.lock.lock:
            for coordinates, assigned in self._session.assigned.items():
                if assigned.by_hand:
                    self._fetcher.read_again([coordinates])
                    if assigned.is_fetched:
                        self.client.resume(*coordinates)
                        self._session.reading.wake_soon(*coordinates)
            self._steps.interruption.request_maintenance()

    def _assign_by_group(self, partitions: list[TopicPartition], callback: Any) -> None:
        try:
            self._assigning = partitions
            self._pausing.clear()
            if callback is not None:
                self._steps.errors.run(callback, self._consumer, partitions)
            chosen = self._assigning
        finally:
            self._assigning = None
        with self._steps.lock.lock:
            self._make_room(chosen)
            try:
                self._session.take(chosen)
            except KafkaException as refusal:
                if chosen is partitions:
                    raise
                self._steps.errors.keep(refusal)
                self._make_room(partitions)
                self._session.take(partitions)
            if self._pausing:
                self._session.note_pause(self._pausing, paused=True)
            if self.subscribed:
                # During a rebalance the client puts an `unsubscribe` off. A `subscribe` takes its place, and nothing is
                # revoked.
                self._staying |= self._left
                self._left = {}
                self.reopen_staying()
            self._steps.interruption.request_maintenance()

    def reopen_staying(self) -> None:
        """Reopen the partitions that `unsubscribe` left, and that stay: nobody else gets the messages it let go.

        A transaction that has not ended may still be committed: until then its messages stay in hand. With the lock.
        """
        for coordinates, assigned in list(self._staying.items()):
            if self._session.commits.is_in_doubt(coordinates):
                continue
            del self._staying[coordinates]
            if self._session.assigned.get(coordinates) is assigned:
                self._handover.reopen(coordinates)

    def _make_room(self, coming: list[TopicPartition]) -> None:
        """Give back what the client replaces by the group's partitions, or would refuse to assign a second time.

        In the eager protocol these are all partitions of the user, else those that come now.
        """
        self._handover.settle()
        replaced = set(self._session.assigned)
        if self._settings.incremental:
            replaced &= coordinates_in(coming)
        if replaced:
            self._handover.give_back([TopicPartition(*coordinates) for coordinates in replaced])
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
        try:
            self._give_up(partitions)
        except KafkaException as error:
            # A client that ends may have left its group already: nobody waits for the answer.
            if not (self._steps.lock.ends and error.args[0].code() == KafkaError._DESTROY):  # noqa: SLF001 (that is its public name)
                raise

    def _give_up(self, partitions: list[TopicPartition]) -> None:
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

    # --- the end -------------------------------------------------------------------------------------------------

    def part(self) -> None:
        """Release everything before the client closes: write completed records, release messages of the last call."""
        self._handover.settle()
        by_hand = self._session.assigned.keys() - self._session.of_group
        if self._steps.lock.ends:
            # The client of an interrupted `close` answers, and commits, no more.
            self._handover.lose([TopicPartition(*coordinates) for coordinates in self._session.assigned])
        self._handover.complete_all_but_last()
        self._delivery.policy.close()
        self._delivery.release_all()
        # Not only forgotten: a loop of another thread would take the client's position behind them for judged.
        self._fetcher.drop(set(self._session.assigned))
        self._fetcher.rest([])
        if by_hand:
            self._handover.give_back([TopicPartition(*coordinates) for coordinates in by_hand])
            self._unassign_in_client(by_hand)

    def _unassign_in_client(self, by_hand: Collection[Coordinates]) -> None:
        """Unassign the user's partitions in the client, which otherwise neither leaves its group nor closes."""
        actual = Consumer.assignment(self._consumer)
        going = [tp for tp in actual if (tp.topic, tp.partition) in by_hand]
        if going and self._settings.incremental:
            self._steps.run(Consumer.incremental_unassign, self._consumer, going)
        elif going and len(going) == len(actual):
            self._steps.run(Consumer.unassign, self._consumer)

    def _close_lost_and_rest(self, partitions: list[TopicPartition]) -> None:
        # Before the lost ones are gone: the client has them still, and they would be taken back.
        self._handover.settle()
        going, lost = self._revoked_with(partitions), coordinates_in(partitions)
        self._handover.lose([tp for tp in going if (tp.topic, tp.partition) in lost])
        if rest := [tp for tp in going if (tp.topic, tp.partition) not in lost]:
            self._handover.give_back(rest)

    # --- assignment by hand --------------------------------------------------------------------------------------

    def pause_coming(self, paused: Collection[Coordinates]) -> list[TopicPartition]:
        """Note that the user pauses partitions; return those that the client gets only when ``on_assign`` has ended."""
        if self._assigning is None:
            return []
        self._pausing |= set(paused)
        return self._assigning

    def resume_coming(self, resumed: Collection[Coordinates]) -> None:
        """Note that the user resumes partitions."""
        self._pausing -= set(resumed)

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Assign exactly these partitions; inside ``on_assign`` this sets their start offsets.

        If the client refuses, the state of the partitions closed for this call is in doubt: the next call for messages
        reopens all partitions.
        """
        self.asked = True
        if self._assigning is not None:
            self._choose(partitions)
            return
        with self._steps.lock.lock:
            self._steps.lock.until_client_free()
            if not self._steps.lock.may_change("assign"):
                return
            self._refuse_beside_group()
            self._handover.complete_all_but_last()
            self._steps.run(self._assign_by_hand, partitions)

    def _refuse_beside_group(self) -> None:
        """Raise, as the client would, before anything is given up for a call that it refuses."""
        if self._settings.incremental and self._session.of_group:
            raise KafkaException(KafkaError(KafkaError._STATE, _GROUP_ASSIGNS))  # noqa: SLF001 (that is its public name)

    def _choose(self, partitions: list[TopicPartition]) -> None:
        """Note the offsets that ``on_assign`` gives: at once, for the client may assign by itself after a signal."""
        self._session.note_asked(partitions)
        self._assigning = partitions

    def _assign_by_hand(self, partitions: list[TopicPartition]) -> None:
        self._give_all_back()
        self._session.take(partitions, incremental=False, by_hand=True)
        self._by_callback = coordinates_in(partitions)
        self._steps.interruption.request_maintenance()

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Assign these partitions in addition to the present ones; inside ``on_assign`` the same as `assign`."""
        self.asked = True
        if self._assigning is not None:
            self._choose(partitions)
            return
        with self._steps.lock.lock:
            self._steps.lock.until_client_free()
            if not self._steps.lock.may_change("incremental_assign"):
                return
            self._raise_refusal(self._assign_more, partitions)

    def _assign_more(self, partitions: list[TopicPartition]) -> KafkaException | None:
        try:
            self._session.take(partitions, incremental=True, by_hand=True)
        except KafkaException as refusal:
            return refusal
        self._by_callback |= coordinates_in(partitions)
        self._steps.interruption.request_maintenance()
        return None

    def _raise_refusal(
        self, step: Callable[[list[TopicPartition]], KafkaException | None], partitions: list[TopicPartition]
    ) -> None:
        """Do a step; raise the client's refusal, which has changed nothing and is no interruption."""
        refusal = self._steps.run(step, partitions)
        if refusal is not None:
            raise refusal

    def unassign(self) -> None:
        """Close all partitions; inside ``on_assign`` the same as `assign` of no partition."""
        if self._assigning is not None and not self._settings.incremental:
            self._assigning = []
            return
        with self._steps.lock.lock:
            self._steps.lock.until_client_free()
            if not self._steps.lock.may_change("unassign"):
                return
            self._refuse_beside_group()
            self._handover.complete_all_but_last()
            self._steps.run(self._give_all_back)
            self._steps.run(Consumer.unassign, self._consumer)
            self._by_callback.clear()

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Close these partitions."""
        with self._steps.lock.lock:
            self._steps.lock.until_client_free()
            if not self._steps.lock.may_change("incremental_unassign"):
                return
            self._handover.complete_all_but_last()
            # Before the client forgets them: that would count as a loss.
            self._steps.run(self._handover.settle)
            self._raise_refusal(self._unassign_some, partitions)

    def _unassign_some(self, partitions: list[TopicPartition]) -> KafkaException | None:
        try:
            # First: what the client refuses, as it does with the eager protocol, changes nothing.
            Consumer.incremental_unassign(self._consumer, partitions)
        except KafkaException as refusal:
            return refusal
        self._gave_up = True
        self._handover.give_back(partitions)
        self._by_callback -= coordinates_in(partitions)
        return None

    def _give_all_back(self) -> None:
        self._handover.settle()
        if self._session.assigned:
            self._handover.give_back([TopicPartition(*coordinates) for coordinates in self._session.assigned])
