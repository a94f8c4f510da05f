"""A consumer of one partition without a client: it recovers and handles the records of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, TopicPartition

from dedup_sdk import Lookup, MemoryStore, PartitionEvent, VerdictKind, Window
from dedup_sdk._commit_text import CommitMetadata, parse_metadata
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._kafka.assign.assignment import Assigned, State
from dedup_sdk._kafka.client.guards import CallbackErrors
from dedup_sdk._kafka.client.settings import Reset, client_settings
from dedup_sdk._kafka.recover.session import Session
from dedup_sdk._kafka.recover.settings import HistoryChoice, Recovery, WithoutCommit
from dedup_sdk._kafka.recover.upkeep import Upkeep
from dedup_sdk._rule_fingerprint import rule_digits
from dedup_sdk._store.protocol import DIGEST_NAME
from dedup_sdk.ids import key
from tests.support.events import Events
from tests.support.one_partition import TOPIC, Cluster, ListClient, ids_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dedup_sdk._engine.partition import Partition
    from dedup_sdk._observe import Observer

LOG = [b"a", b"b", b"c", b"d", b"e", b"f"]
DAY = Window(days=1)


class Listener(Events):
    """An observer of partition events, but for those that tell how a recovery goes."""

    def partition_event(self, event: PartitionEvent) -> None:
        """Keep it, if it is about the log or the store."""
        if event.name not in ("recovery-started", "recovery-progress", "recovery-ended"):
            super().partition_event(event)


class OutOfRange:
    """The client's event for an offset that the log does not have."""

    def __init__(self, reason: str = "Offset out of range") -> None:
        self._reason = reason

    def topic(self) -> str:
        """As a message."""
        return TOPIC

    def partition(self) -> int:
        """As a message."""
        return 0

    def error(self) -> Any:
        """As a message."""
        return KafkaError(KafkaError._AUTO_OFFSET_RESET, self._reason)


class Machine:
    """A consumer on a disk of its own that handles everything up to the end of the log."""

    def __init__(
        self,
        cluster: Cluster,
        memory: MemoryStore | None = None,
        reset: Reset = "earliest",
        window: Window = DAY,
        timeout_s: float | None = None,
        observers: Iterable[Observer] = (),
        without_commit: WithoutCommit = "resume",
        history: HistoryChoice | None = None,
    ) -> None:
        self.cluster, self.listener = cluster, Listener()
        self.memory = MemoryStore() if memory is None else memory
        config = client_settings({"group.id": "g", "auto.offset.reset": reset})
        self.engine = Deduplicator(
            Lookup(id=key(), window=window),
            store=self.memory,
            group="g",
            observers=[*observers, self.listener],
        )
        self.client, self.callback_errors = ListClient(cluster), CallbackErrors()
        chosen = Recovery(timeout=timeout_s, without_commit=without_commit, history=history)
        self.session = Session(self.engine, self.client, config)
        self.upkeep = Upkeep(self.session, self.client, config, chosen, self.callback_errors)
        self._read: Assigned | None = None
        self.session.take([TopicPartition(TOPIC, 0)])

    def up_to_date(self) -> Partition:
        """Recover; the broker answers every commit."""
        for _ in range(50):
            self.upkeep.work()
            self.callback_errors.raise_kept()
            for offsets in self.client.unanswered:
                [self.cluster.committed] = offsets
                self.session.commits.answered(None, offsets)
            self.client.unanswered.clear()
            assigned = self.session.assigned[TOPIC, 0]
            if assigned.state is State.ACTIVE and assigned.engine_partition is not None:
                if assigned.engine_partition.flight.position <= len(self.cluster.log):
                    return assigned.engine_partition
                # The client's answer for an offset beyond the end of the log.
                assert self.upkeep.handle_offset_reset(OutOfRange())
        raise AssertionError("it does not come up to date")

    def handle_all(self) -> list[tuple[int, VerdictKind]]:
        """Handle the records to deliver up to the end of the log; return the offsets and verdicts."""
        held, delivered = self.up_to_date(), []
        start, end = held.flight.position, len(self.cluster.log)
        assigned = self.session.assigned[TOPIC, 0]
        if assigned is not self._read and assigned.start is not None:
            # The client reads from where the group stands, also below the store's offsets.
            self._read, start = assigned, min(start, assigned.start.offset)
        if start < end:
            offsets = list(range(start, end))
            ids = ids_of(self.cluster, start, end)
            timestamps = self.cluster.timestamps(start, end)
            other = held.another_log(offsets, timestamps, ids, lambda: [None] * len(offsets))
            if other is not None:
                self.session.recover_again(TOPIC, 0, contradicted_at=other.first_offset)
                return self.handle_all()
            chunks: list[Any] = held.admit(offsets, timestamps, ids, offsets, discard_unkeyed=False)
            for chunk in chunks:
                verdicts = [(offset, chunk.verdict(row)) for row, offset in enumerate(chunk.offsets)]
                delivered += [(offset, verdict.kind) for offset, verdict in verdicts if verdict.deliver]
                held.complete_chunk(chunk)
        return delivered

    def leave(self) -> None:
        """Hand the partition over in order."""
        self.session.give_back([TopicPartition(TOPIC, 0)])


def text_at(offset: int, *, epoch: int | None = None, after: Cluster | None = None) -> str:
    """The text of a commit of this offset by a group that was new at offset 0, as a `Machine` commits it.

    ``after``: the group has committed in this cluster before, in the same era.
    """
    rule = rule_digits(key(), DAY, digest=DIGEST_NAME, isolation="read_committed")
    last = None if after is None else after.committed
    before = None if last is None else parse_metadata(last.metadata, committed=last.offset)
    era = "" if before is None else before.era
    return CommitMetadata(low=0, complete=True, epoch=epoch, rule=rule, era=era).text(offset)


def lived(cluster: Cluster, window: Window = DAY) -> MemoryStore:
    """The disk of a machine that has handled the whole log."""
    machine = Machine(cluster, window=window)
    machine.handle_all()
    machine.leave()
    return machine.memory


def killed(cluster: Cluster) -> MemoryStore:
    """The disk of a machine that has handled the whole log, and was killed before it committed that."""
    machine = Machine(cluster)
    machine.handle_all()
    machine.up_to_date().persist()
    machine.engine.lose(TOPIC, 0)
    assert cluster.committed is not None
    assert cluster.committed.offset < len(cluster.log)
    return machine.memory
