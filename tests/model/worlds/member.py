"""One process of a group: the real session, engine and judging, over a `Broker` and a `Disk`.

A life decides its acts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import OFFSET_INVALID, KafkaError, TopicPartition

from dedup_sdk._advice.ids import IdAdvice
from dedup_sdk._core.flight import SINGLE
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._engine.partition import Partition
from dedup_sdk._kafka.assign.assignment import Recovering
from dedup_sdk._kafka.client.guards import CallbackErrors
from dedup_sdk._kafka.client.settings import client_settings
from dedup_sdk._kafka.deliver.classifier import BatchClassifier
from dedup_sdk._kafka.recover.session import Session
from dedup_sdk._kafka.recover.settings import Recovery
from dedup_sdk._kafka.recover.upkeep import Upkeep
from dedup_sdk._record import Verdict
from dedup_sdk._strategy import Lookup
from dedup_sdk.errors import RecoveryError, StoreError
from dedup_sdk.ids import key
from tests.model.worlds.broker import TOPIC, Broker
from tests.model.worlds.client import ModelClient, OutOfRange
from tests.model.worlds.disk import Disk, DiskStore
from tests.model.worlds.world import WALL_CLOCK_MS

if TYPE_CHECKING:
    from confluent_kafka import Message

    from dedup_sdk._core.flight import RecordRef
    from dedup_sdk._kafka.client.settings import Reset
    from dedup_sdk._kafka.deliver.write_policy import Durability
    from dedup_sdk._kafka.recover.settings import HistoryChoice
    from tests.model.worlds.world import World


class Told(NamedTuple):
    """A member's verdict on a record."""

    partition: int
    serial: int
    verdict: Verdict


class Member:
    """``in_flight`` are the messages that handlers have; ``tell`` is called with every final verdict."""

    def __init__(
        self, world: World, broker: Broker, group: str, disk: Disk, *,
        recent_marks: int, durability: Durability, impatient: bool, in_time: bool,
        tell: Callable[[Member, Told], None], reset: Reset = "earliest",
        history: HistoryChoice = "none",
    ) -> None:  # fmt: skip
        self.group, self.disk, self.broker = group, disk, broker
        self.durability, self.tell = durability, tell
        self.recent_marks = recent_marks
        strategy = (
            Lookup(id=key(), window=world.window)
            if world.compared is None
            else world.compared.strategy(world.window)
        )
        self.engine = Deduplicator(
            strategy, DiskStore(disk, recent_marks), group=group,
            clock=lambda: WALL_CLOCK_MS / 1000, tolerates_full_disk=True,
        )  # fmt: skip
        settings = client_settings(
            {"group.id": group, "auto.offset.reset": reset, "auto.commit.interval.ms": 10**9}
        )
        chosen = Recovery(history=history, timeout=0 if impatient else None, on_full_disk=world.on_full_disk)
        self.client, self.callback_errors = (
            ModelClient(broker, group, in_time=in_time),
            CallbackErrors(),
        )
        self.session = Session(self.engine, self.client, settings)
        self.upkeep = Upkeep(self.session, self.client, settings, chosen, self.callback_errors)
        self.judge = BatchClassifier(
            self.engine, self.session, observing=False, watch=partial(IdAdvice, self.engine.strategy)
        )
        self.in_flight: list[Message] = []
        self._came: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"a member of {self.group}"

    # --- the group ---------------------------------------------------------------------------------------------------

    def take(self, partition: int, offset: int = OFFSET_INVALID) -> None:
        """Get a partition; ``offset``: where the user's callback has it begin."""
        self._came.pop(partition, None)
        self.client.generations[partition] = self.broker.grant(self.group, partition)
        self.session.take([TopicPartition(TOPIC, partition, offset)], incremental=True)

    def give_back(self, partition: int) -> None:
        """Hand a partition over in order."""
        self._forget(partition)
        self.session.give_back([TopicPartition(TOPIC, partition)])

    def lose(self, partition: int) -> None:
        """Hear that a partition belongs to somebody else."""
        self._forget(partition)
        self.session.lose([TopicPartition(TOPIC, partition)])

    def seek(self, partition: int, offset: int) -> bool:
        """Go elsewhere; return whether that lies beyond what has come. To go to the own place is no move."""
        held = self.held(partition)
        if held is not None and held.flight.position == offset:
            return False
        self._forget(partition)
        delivered_to = None if held is None else held.flight.position
        before = self.session.commits.before_move(self.session.assigned[TOPIC, partition])
        self.session.move(TOPIC, partition, offset, delivered_to=delivered_to, before=before)
        return offset > self._came.get(partition, -1 if before is None else before.offset)

    def _forget(self, partition: int) -> None:
        self.in_flight = [message for message in self.in_flight if message.partition() != partition]

    def die(self) -> None:
        """End without another word."""
        self.disk.dead = True
        for assigned in list(self.session.assigned.values()):
            if isinstance(assigned.phase, Recovering) and assigned.phase.steps is not None:
                assigned.phase.steps.close()
            self.engine.lose(assigned.topic, assigned.partition)

    def held(self, partition: int) -> Partition | None:
        """The engine's partition, if it delivers."""
        assigned = self.session.assigned.get((TOPIC, partition))
        active = None if assigned is None else assigned.active
        return None if active is None else active.partition

    # --- a poll ------------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Do the work of a poll beside reading."""
        for assigned in self.session.assigned.values():
            assigned.retry.at = 0.0
        self.upkeep.write_again_at = 0.0
        self.engine.trim()
        self.upkeep.work()
        try:
            self.callback_errors.raise_kept()
        except RecoveryError:
            return  # the application polls again

    def fetch(self, partition: int, count: int) -> None:
        """Read some records and judge them."""
        if self.held(partition) is None or partition in self.client.paused:
            return
        fetched = self.client.fetch(partition, count)
        if isinstance(fetched, OutOfRange):
            self._forget(partition)
            assert self.upkeep.handle_offset_reset(fetched)
        elif fetched:
            self._came[partition] = 1 + (fetched[-1].offset() or 0)
            judged = self.judge.classify(fetched)
            for held, chunk in judged.chunks:
                for row, message in enumerate(chunk.items):
                    self._say(message, held.partition, chunk.verdict(row))
            self.in_flight += judged.messages
            for held in {held.partition: held for held, _ in judged.chunks}.values():
                # Records that waited for one that the group had completed elsewhere.
                due = held.take_due()
                for place in due:
                    self._say(place.chunk.items[place.row], held.partition, place.chunk.verdict(place.row))
                self.in_flight += [
                    place.chunk.items[place.row] for place in due if place.chunk.states[place.row] == SINGLE
                ]
            if judged.error is not None:
                assert isinstance(judged.error, StoreError)
                self.in_flight.clear()
                self.session.reopen_all()

    def _say(self, message: Message, partition: int, verdict: Verdict) -> None:
        value: Any = message.value()
        self.tell(self, Told(partition, int(value), verdict))

    def persist(self) -> None:
        """Write the completions."""
        for assigned in self.session.assigned.values():
            if assigned.active is not None:
                assigned.active.partition.persist()

    # --- handlers ----------------------------------------------------------------------------------------------------

    def end(self, message: Message, *, dead: bool) -> None:
        """End one message: its handler is done, or gave it up."""
        held = self._taken(message)
        if held is None:
            return
        offset: Any = message.offset()
        self._offer(held.complete([offset], dead_lettered=dead), held)
        if self.durability == "record":
            held.persist()

    def release(self, message: Message) -> None:
        """Hand one message back."""
        held = self._taken(message)
        if held is not None:
            offset: Any = message.offset()
            self._offer(held.release([offset]), held)

    def _taken(self, message: Message) -> Partition | None:
        self.in_flight.remove(message)
        number: Any = message.partition()
        return self.held(number) if self.session.is_current(message) else None

    def _offer(self, offered: list[RecordRef], held: Partition) -> None:
        for place in held.judged:
            self._say(place.chunk.items[place.row], held.partition, place.chunk.verdict(place.row))
        held.judged = []
        self.in_flight += [place.chunk.items[place.row] for place in offered]

    # --- commits -----------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Ask for completions to be committed."""
        self.session.commits.completed(self.session.assigned.values(), asynchronous=True)

    def arrive(self, *, heard: bool = True) -> None:
        """Have the oldest commit that is on its way taken or refused, and maybe hear so."""
        if not self.client.unanswered:
            return
        sent = self.client.unanswered.pop(0)
        taken = self.client.arrive(sent)
        if heard:
            error = None if taken else KafkaError(KafkaError.ILLEGAL_GENERATION)
            self.session.commits.answered(error, sent.offsets)
