"""A log that is no longer the one that the group saw: what is believed, and where reading goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from dedup_sdk import (
    Lookup,
    MemoryStore,
    PartitionEvent,
    RecoveryError,
    VerdictEvent,
    VerdictKind,
    Window,
    key,
)
from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.ids import digest_one
from dedup_sdk.kafka.assigned import State
from dedup_sdk.kafka.callbacks import Guard
from dedup_sdk.kafka.dead_letter_log import GivenUp
from dedup_sdk.kafka.recovery import RecoverySettings
from dedup_sdk.kafka.session import Session
from dedup_sdk.kafka.settings import Reset, client_settings
from tests.support.one_partition import TOPIC, Cluster, ListClient, ids_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from dedup_sdk.engine.partition import Partition

LOG = [b"a", b"b", b"c", b"d", b"e", b"f"]
DAY = Window(days=1)


class Listener:
    """An observer of verdicts and of partition events."""

    def __init__(self) -> None:
        self.events: list[PartitionEvent] = []

    def __call__(self, event: VerdictEvent) -> None:
        """Verdicts are not looked at."""

    def partition_event(self, event: PartitionEvent) -> None:
        """Keep it."""
        self.events.append(event)


class Machine:
    """A consumer on a disk of its own that handles everything up to the end of the log."""

    def __init__(
        self,
        cluster: Cluster,
        memory: MemoryStore | None = None,
        reset: Reset = "earliest",
        dead_letters: Any = None,
        window: Window = DAY,
    ) -> None:
        self.cluster, self.listener = cluster, Listener()
        self.memory = MemoryStore() if memory is None else memory
        config = client_settings({"group.id": "g", "auto.offset.reset": reset})
        self.engine = Deduplicator(
            Lookup(id=key(), window=window), store=self.memory, group="g", observers=[self.listener]
        )
        self.client, self.guard = ListClient(cluster), Guard()
        chosen = RecoverySettings(
            snapshot=(), on_rewind="reprocess", history="none", dead_letters=dead_letters
        )
        self.session = Session(self.engine, self.client, config, chosen, self.guard)
        self.session.take([TopicPartition(TOPIC, 0)])

    def up_to_date(self) -> Partition:
        """Recover; the broker answers every commit."""
        for _ in range(50):
            self.session.work()
            self.guard.raise_kept()
            for offsets in self.client.unanswered:
                [self.cluster.committed] = offsets
                self.session.commits.answered(None, offsets)
            self.client.unanswered.clear()
            assigned = self.session.assigned[TOPIC, 0]
            if assigned.state is State.ACTIVE and assigned.held is not None:
                if assigned.held.lane.position <= len(self.cluster.log):
                    return assigned.held
                # What the client says of an offset beyond the end of the log.
                assert self.session.absorbs(OutOfRange())
        raise AssertionError("it does not come up to date")

    def handle_all(self) -> list[tuple[int, VerdictKind]]:
        """Handle what is to be delivered up to the end of the log; return the offsets and verdicts."""
        held, delivered = self.up_to_date(), []
        start, end = held.lane.position, len(self.cluster.log)
        if start < end:
            offsets = list(range(start, end))
            ids = ids_of(self.cluster, start, end)
            timestamps = self.cluster.timestamps(start, end)
            chunks: list[Any] = held.admit(offsets, timestamps, ids, offsets, discard_unkeyed=False)
            for chunk in chunks:
                verdicts = [(offset, chunk.verdict(row)) for row, offset in enumerate(chunk.offsets)]
                delivered += [(offset, verdict.kind) for offset, verdict in verdicts if verdict.deliver]
                held.complete_chunk(chunk)
        return delivered

    def leave(self) -> None:
        """Hand the partition over in order."""
        self.session.give_back([TopicPartition(TOPIC, 0)])


def lived(cluster: Cluster) -> MemoryStore:
    """The disk of a machine that has handled the whole log."""
    machine = Machine(cluster)
    machine.handle_all()
    machine.leave()
    return machine.memory


@pytest.mark.parametrize("reset", ["earliest", "latest", "error"])
def test_a_truncated_log_is_read_on_from_where_it_parts(reset: Reset) -> None:
    """What was written in place of the lost records is handled, whatever the policy for missing offsets says."""
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    cluster.log[3:] = [b"x", b"c"]

    machine = Machine(cluster, memory, reset)
    assert machine.handle_all() == [(3, VerdictKind.FRESH)]
    assert [(event.name, event.offset) for event in machine.listener.events] == [("log-truncated", 3)]
    assert machine.engine.counters.as_dict()["event.log-truncated"] == 1
    machine.leave()
    assert cluster.committed is not None
    assert cluster.committed.offset == 5


@pytest.mark.parametrize("more", [[], [b"x"], [b"a"]])
def test_records_without_an_id_are_handled_where_the_log_parts(more: list[bytes | None]) -> None:
    """Nothing says that such a record is the old one: it is handled, also where a record behind it was seen before."""
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    cluster.log[3:] = [None, None, *more]

    machine = Machine(cluster, memory)
    delivered = machine.handle_all()
    if len(cluster.log) == len(LOG):
        # As long as before: only the broker's word tells that it is another one.
        assert delivered == []
        assert machine.session.absorbs(OutOfRange("Partition log truncation detected at offset 6"))
        delivered = machine.handle_all()
    assert [offset for offset, _ in delivered] == [3, 4, 5][: 3 if more == [b"x"] else 2]


def test_records_with_an_id_are_not_repeated_for_those_without() -> None:
    """What is proven to be the old log stays completed, and with it all before it."""
    cluster = Cluster([b"a", None, b"b", None, b"c", b"d"])
    memory = lived(cluster)
    cluster.log[5:] = []
    assert Machine(cluster, memory).handle_all() == []


def test_old_timestamps_are_handled_where_the_log_parts() -> None:
    """A new record may be older than the window (a mirror sent it): that nobody remembers it does not mean that it was handled."""
    day_ms = 86_400_000
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    cluster.log[3:] = [b"x", b"y"]
    cluster.times = {3: -2 * day_ms, 4: -2 * day_ms}
    assert [offset for offset, _ in Machine(cluster, memory).handle_all()] == [3, 4]


def test_a_log_of_which_nothing_is_known_any_more_is_read_from_the_beginning() -> None:
    """All of the old log is gone, and what is new looks older than the window: no record is skipped."""
    day_ms = 86_400_000
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    cluster.log[:] = [b"u", b"v", b"w"]
    cluster.times = dict.fromkeys(range(3), -2 * day_ms)
    assert [offset for offset, _ in Machine(cluster, memory).handle_all()] == [0, 1, 2]


def test_what_was_sent_again_in_the_lost_part_is_not_repeated() -> None:
    """The marks of the last records that are left point into what is gone; they were handled all the same."""
    cluster = Cluster([b"a", b"b", b"c", b"b", b"c"])
    memory = lived(cluster)
    del cluster.log[3:]
    assert Machine(cluster, memory).handle_all() == []


def test_a_group_that_was_truncated_is_not_rewound_at_the_next_start() -> None:
    """What it committed before does not make the next start look set back: its marks stay."""
    cluster = Cluster([*LOG])
    machine = Machine(cluster)
    machine.handle_all()
    machine.session.commits.completed(machine.session.assigned.values(), asynchronous=False)
    cluster.log[3:] = [b"x"]
    assert machine.session.absorbs(OutOfRange("Partition log truncation detected at offset 6"))
    assert [offset for offset, _ in machine.handle_all()] == [3]
    machine.leave()
    assert cluster.committed is not None
    assert cluster.committed.offset == 4
    cluster.log += [b"e", b"f"]
    again = Machine(cluster, machine.memory)
    assert again.up_to_date().lane.high == 4
    assert again.session.assigned[TOPIC, 0].note == "resumed"


def test_what_grows_behind_a_truncation_is_handled() -> None:
    """Nothing above the place where the log parts is taken for completed, though the store knew of completions there."""
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    del cluster.log[2:]
    first = Machine(cluster, memory)
    assert first.handle_all() == []
    first.leave()
    cluster.log += [b"v", b"w", b"x", b"y", b"z", b"a"]

    assert [offset for offset, _ in Machine(cluster, memory).handle_all()] == [2, 3, 4, 5, 6]


def test_without_a_store_a_truncated_log_is_read_from_its_beginning() -> None:
    """Nobody knows how far it is the old one: everything is delivered, in doubt."""
    cluster = Cluster([*LOG])
    lived(cluster)
    cluster.log[2:] = [b"x"]

    machine = Machine(cluster)
    assert machine.handle_all() == [(offset, VerdictKind.UNVERIFIED) for offset in range(3)]
    assert [event.name for event in machine.listener.events] == ["log-truncated"]


def test_without_a_store_and_a_policy_a_truncated_log_is_an_error() -> None:
    """auto.offset.reset=error: the group's offset and the log's end are named."""
    cluster = Cluster([*LOG])
    lived(cluster)
    del cluster.log[2:]

    with pytest.raises(RecoveryError, match="committed 6, but the log ends at 2"):
        Machine(cluster, reset="error").up_to_date()


def test_a_log_that_shrinks_under_a_consumer_is_recovered_anew() -> None:
    """The client hears that its offset is out of range; what came instead of the lost records is not skipped."""
    cluster = Cluster([*LOG])
    machine = Machine(cluster, reset="latest")
    machine.handle_all()
    cluster.log[4:] = [b"x"]

    assert machine.session.absorbs(OutOfRange())
    assert machine.handle_all() == [(4, VerdictKind.FRESH)]
    assert [event.name for event in machine.listener.events] == ["log-truncated"]


def test_a_log_that_has_grown_again_is_recovered_anew_when_the_broker_says_so() -> None:
    """The store stands at the end of what it saw, and the log has other records below it."""
    cluster = Cluster([*LOG])
    machine = Machine(cluster, reset="latest")
    machine.handle_all()
    cluster.log[4:] = [b"x", b"a", b"y", b"z"]

    assert machine.session.absorbs(OutOfRange("Partition log truncation detected at offset 6"))
    assert [offset for offset, _ in machine.handle_all()] == [4, 6, 7]
    assert [(event.name, event.offset) for event in machine.listener.events] == [("log-truncated", 4)]


def killed(cluster: Cluster) -> MemoryStore:
    """The disk of a machine that has handled the whole log, and was killed before it committed that."""
    machine = Machine(cluster)
    machine.handle_all()
    machine.up_to_date().persist()
    machine.engine.lose(TOPIC, 0)
    assert cluster.committed is not None
    assert cluster.committed.offset < len(cluster.log)
    return machine.memory


@pytest.mark.parametrize("more", [[], [b"y"], [b"y", b"z", b"a"]])
def test_a_log_that_was_cut_above_the_commit_and_grew_again_is_noticed(more: list[bytes | None]) -> None:
    """Nobody committed what the store knows to be completed, so only the records themselves tell that they are others."""
    cluster = Cluster([*LOG])
    memory = killed(cluster)
    cluster.log[4:] = [b"v", b"w", *more]
    machine = Machine(cluster, memory)
    assert [offset for offset, _ in machine.handle_all()] == list(
        range(4, 4 + len([b"v", b"w", *more]) - (b"a" in more))
    )
    assert [(event.name, event.offset) for event in machine.listener.events] == [("log-truncated", 0)]


@pytest.mark.parametrize("window", [DAY, Window(milliseconds=1), Window(count=100)])
def test_the_leader_epoch_tells_what_marks_cannot(window: Window) -> None:
    """Records without an ID, a window that is over, a window by count: the broker says where the noted epoch ends."""
    cluster = Cluster([b"a", b"b", b"c", b"d", None, None])
    first = Machine(cluster, window=window)
    first.handle_all()
    held = first.up_to_date()
    held.lane.note_epoch(3)
    held.persist()
    first.engine.lose(TOPIC, 0)
    cluster.log[4:] = [None, None, None]
    cluster.ends = {3: 4}

    machine = Machine(cluster, first.memory, window=window)
    offsets = [offset for offset, _ in machine.handle_all()]
    assert offsets[-3:] == [4, 5, 6]
    assert [event.name for event in machine.listener.events] == ["log-truncated"]


def test_an_epoch_that_the_log_still_has_is_no_event() -> None:
    """Whatever the marks say: the broker knows better."""
    cluster = Cluster([*LOG])
    first = Machine(cluster)
    first.handle_all()
    held = first.up_to_date()
    held.lane.note_epoch(3)
    held.persist()
    first.engine.lose(TOPIC, 0)
    machine = Machine(cluster, first.memory)
    assert machine.handle_all() == []
    assert machine.listener.events == []


def test_what_was_folded_has_no_epoch_of_before() -> None:
    """What others completed may be of a later epoch than what this store knows: that must not look like another log."""
    cluster = Cluster([*LOG])
    first = Machine(cluster)
    first.handle_all()
    first.up_to_date().lane.note_epoch(3)
    first.leave()
    cluster.log += [b"g", b"h"]
    cluster.committed = TopicPartition(TOPIC, 0, 8, "dedup/1 low=0 era= complete=1")
    cluster.ends = {3: 6}
    second = Machine(cluster, first.memory)
    assert second.up_to_date().lane.epoch is None
    assert second.handle_all() == []
    assert second.listener.events == []


def test_an_id_of_the_lost_part_waits_for_nobody() -> None:
    """The mark of a lost record lies where another one is in flight: a message with its ID is not parked behind that one."""
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    cluster.log[3:] = [b"x"]
    machine = Machine(cluster, memory)
    held = machine.up_to_date()
    assert held.lane.position == 3
    cluster.log += [b"y", b"e"]
    chunks = []
    for start, end in ((3, 5), (5, 6)):
        offsets = list(range(start, end))
        ids = ids_of(cluster, start, end)
        chunks += held.admit(offsets, cluster.timestamps(start, end), ids, offsets, discard_unkeyed=False)
    assert [chunk.verdict(0).kind for chunk in chunks] == [VerdictKind.FRESH, VerdictKind.DUPLICATE]
    for chunk in chunks:
        held.complete_chunk(chunk)
    assert held.lane.high == 6
    assert not held.lane.parked


class Letters:
    """A dead-letter topic that says what was given up."""

    def __init__(self, given_up: GivenUp) -> None:
        self._given_up = given_up

    def read(self, topic: str, partition: int) -> Generator[None, None, GivenUp]:
        """As `DeadLetterLog`."""
        del topic, partition
        yield
        return self._given_up


def test_what_was_given_up_casts_no_doubt() -> None:
    """A message that became a dead letter left no mark at its offset, which is no sign of another log."""
    cluster = Cluster([*LOG])
    first = Machine(cluster)
    held = first.up_to_date()
    offsets = list(range(6))
    held.admit(offsets, cluster.timestamps(0, 6), ids_of(cluster, 0, 6), offsets, discard_unkeyed=False)
    held.complete(offsets[:5])
    held.bury([5])
    held.persist()
    first.engine.lose(TOPIC, 0)

    machine = Machine(cluster, first.memory, dead_letters=Letters(GivenUp({5: digest_one(b"f")})))
    assert machine.handle_all() == []
    assert machine.listener.events == []


def test_after_a_kill_an_intact_log_is_no_event() -> None:
    """What the store knows beyond the commit stays completed: records without an ID and old ones do not cast doubt on it."""
    day_ms = 86_400_000
    cluster = Cluster([*LOG, b"old", None, b"a", None], times={6: -2 * day_ms})
    memory = killed(cluster)
    machine = Machine(cluster, memory)
    assert machine.handle_all() == []
    assert machine.listener.events == []


def test_an_intact_log_is_no_event() -> None:
    """A store that has what is committed, and no more than the log, goes on."""
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    cluster.log.append(b"a")

    machine = Machine(cluster, memory)
    assert machine.handle_all() == []
    assert machine.listener.events == []


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


def test_an_observer_that_fails_harms_nothing() -> None:
    """It is counted, and the event is told to the others."""
    cluster = Cluster()
    machine = Machine(cluster)

    class Failing(Listener):
        def partition_event(self, event: PartitionEvent) -> None:
            raise ValueError(event.name)

    other = Listener()
    machine.engine._observers = [Failing(), other]
    event = PartitionEvent("topic-recreated", TOPIC, 0, 0, "made anew")
    machine.engine.tell(event)
    assert other.events == [event]
    assert machine.engine.counters.observer_errors == 1
    assert replace(event, offset=1) != event
