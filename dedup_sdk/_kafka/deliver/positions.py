"""Seek, position, pause and resume, as the plain client has them, combined with what is in flight.

Messages already fetched from a partition that is paused are dropped and read again before the next fetch. A seek from
another thread while a callback runs is noted, and done when the callback has returned.
"""

from __future__ import annotations

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from confluent_kafka.cimpl import Consumer

from dedup_sdk._kafka.assign.assignment import Pause
from dedup_sdk._kafka.assign.commits import Coordinates
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.client.guards import Steps
from dedup_sdk._kafka.deliver.assignment_api import AssignmentApi
from dedup_sdk._kafka.deliver.handover import Handover, coordinates_in


class Positions:
    """Where partitions are read, and whether."""

    def __init__(
        self, consumer: Consumer, client: Client, handover: Handover, assignment: AssignmentApi, steps: Steps
    ) -> None:
        self._consumer, self._client, self._steps = consumer, client, steps
        self._handover, self._assignment = handover, assignment
        self._session, self._fetcher, self._delivery = handover.session, handover.fetcher, handover.delivery

    def seek(self, partition: TopicPartition) -> None:
        """Move a partition to another offset; from another thread while a callback runs, after the callback."""
        with self._steps.lock.lock:
            alone = self._steps.lock.until_client_free_or_callback()
            if not self._steps.lock.may_change("seek"):
                return
            ours = (partition.topic, partition.partition) in self._session.assigned
            if ours and alone:
                self._seek(partition)
            elif ours:
                self._handover.note_seek(partition)
                self._steps.interruption.request_maintenance()
            elif alone:
                Consumer.seek(self._consumer, partition)  # raises the plain client's own error
            else:
                raise KafkaException(KafkaError(KafkaError._STATE))  # noqa: SLF001 (that is its public name)

    def _seek(self, partition: TopicPartition) -> None:
        coordinates = partition.topic, partition.partition
        with self._client.readers.default_timeout():
            offset = self._session.starts.resolve(partition)
        self._handover.complete_all_but_last()
        # One step: between two the messages in hand would be forgotten, and the partition not moved.
        self._steps.run(self._seek_to, coordinates, offset)

    def _seek_to(self, coordinates: Coordinates, offset: int) -> None:
        if not self._steps.interruption.happened:
            if offset == self._position(TopicPartition(*coordinates)):
                # No move: what is in flight stays in flight.
                self._handover.forget_seek(coordinates)
                return
            self._handover.write(self._delivery.policy.skip({coordinates: offset}))
        offset = self._before_open_units(*coordinates, offset)
        waiting = (
            set() if self._handover.handlers is None else self._handover.handlers.withdraw({coordinates})
        )
        delivered_to = self._delivery.delivered_to(*coordinates, waiting)
        self._handover.forget({coordinates})
        # Behind it: handlers that have ended by now are completed.
        before = self._session.commits.before_move(self._session.assigned[coordinates])
        self._session.move(*coordinates, offset, delivered_to=delivered_to, before=before)
        self._handover.forget_seek(coordinates)

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
        settled = not self._steps.lock.is_mine()
        with self._steps.lock.lock:
            self._steps.lock.check_open()
            settled = settled and not self._steps.interruption.happened
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
        if partition is not None and self._handover.handlers is not None:
            # Also of a message on its way from `poll` to a worker, which is in no queue.
            began = self._handover.handlers.began({(tp.topic, tp.partition)})
            return next(partition.flight.in_hand_but(began), partition.flight.position)
        if waiting is not None:
            return waiting
        return OFFSET_INVALID if partition is None else partition.flight.position

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Pause partitions until `resume`; messages already fetched are held back too."""
        with self._steps.lock.lock:
            self._steps.lock.check_open()
            paused = coordinates_in(partitions)
            coming = self._assignment.pause_coming(paused)
            self._fetcher.pause([tp for tp in partitions if tp not in coming])
            self._session.note_pause(paused, paused=True)
            delivering = {c for c in paused if self._delivery.partition_of(*c) is not None}
            self._steps.run(self._delivery.set_aside, delivering)
            self._fetcher.drop(paused)

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Resume partitions; one that still recovers delivers when its recovery has ended."""
        with self._steps.lock.lock:
            self._steps.lock.check_open()
            resumed = coordinates_in(partitions)
            self._assignment.resume_coming(resumed)
            self._session.note_pause(resumed, paused=False)
            self._steps.run(self._delivery.waiting.bring_back, resumed)
            self._steps.interruption.request_maintenance()
            self._fetcher.resume(partitions)

    def do_noted_seeks(self) -> None:
        """Do the noted seeks by other threads, except of partitions that are no longer assigned; with the lock."""
        interruption = self._steps.interruption
        while not interruption.happened and (target := self._handover.next_seek()) is not None:
            self._steps.errors.run(self._seek, target)
            # Struck by a signal, the seek is done when the partitions are open again; an error is told instead.
            if not interruption.happened:
                self._handover.forget_seek((target.topic, target.partition))

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
