"""A log that is no longer the one that the group saw: the marks believed, and where reading goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import (
    MemoryStore,
    PartitionEvent,
    RecoveryError,
    VerdictKind,
    Window,
)
from dedup_sdk._kafka.client.settings import Reset
from tests.support.machine import DAY, LOG, Listener, Machine, OutOfRange, killed, lived, text_at
from tests.support.one_partition import TOPIC, Cluster, ids_of


@pytest.mark.parametrize("reset", ["earliest", "latest", "error"])
def test_a_truncated_log_is_read_on_from_where_it_parts(reset: Reset) -> None:
    """Records in place of the lost ones are handled, whatever the policy for missing offsets says."""
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    cluster.log[3:] = [b"x", b"c"]

    machine = Machine(cluster, memory, reset)
    assert machine.handle_all() == [(3, VerdictKind.FRESH)]
    assert [(event.name, event.offset) for event in machine.listener.seen] == [("log-truncated", 3)]
    assert machine.engine.counters.as_dict()["event.log-truncated"] == 1
    machine.leave()
    assert cluster.committed is not None
    assert cluster.committed.offset == 5


@pytest.mark.parametrize("window", [Window(count=4), Window(count=4, days=1)])
def test_a_count_window_does_not_vouch_for_numbers_of_lost_records(window: Window) -> None:
    """IDs that the log no longer has took numbers, and put others out of the window.

    These are delivered in doubt, until it has filled.
    """
    cluster = Cluster([*LOG])
    memory = lived(cluster, window)
    cluster.log[3:] = []
    machine = Machine(cluster, memory, window=window)
    kinds = []
    for value in (b"x", b"a", b"y", b"z", b"b", b"y"):
        cluster.log.append(value)
        kinds += [kind for _, kind in machine.handle_all()]
    assert kinds == [*[VerdictKind.UNVERIFIED] * 4, VerdictKind.FRESH]


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
        assert machine.upkeep.handle_offset_reset(OutOfRange("Partition log truncation detected at offset 6"))
        delivered = machine.handle_all()
    assert [offset for offset, _ in delivered] == [3, 4, 5][: 3 if more == [b"x"] else 2]


def test_records_with_an_id_are_not_repeated_for_those_without() -> None:
    """The part proven to be the old log stays completed, and with it all before it."""
    cluster = Cluster([b"a", None, b"b", None, b"c", b"d"])
    memory = lived(cluster)
    cluster.log[5:] = []
    assert Machine(cluster, memory).handle_all() == []


def test_old_timestamps_are_handled_where_the_log_parts() -> None:
    """A new record may be older than the window (a mirror sent it).

    That nobody remembers it does not mean that it was handled.
    """
    day_ms = 86_400_000
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    cluster.log[3:] = [b"x", b"y"]
    cluster.times = {3: -2 * day_ms, 4: -2 * day_ms}
    assert [offset for offset, _ in Machine(cluster, memory).handle_all()] == [3, 4]


def test_a_log_of_which_nothing_is_known_any_more_is_read_from_the_beginning() -> None:
    """All of the old log is gone, and the new one looks older than the window: no record is skipped."""
    day_ms = 86_400_000
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    cluster.log[:] = [b"u", b"v", b"w"]
    cluster.times = dict.fromkeys(range(3), -2 * day_ms)
    assert [offset for offset, _ in Machine(cluster, memory).handle_all()] == [0, 1, 2]


def test_what_was_sent_again_in_the_lost_part_is_not_repeated() -> None:
    """The marks of the last records that are left point into the lost part; they were handled all the same."""
    cluster = Cluster([b"a", b"b", b"c", b"b", b"c"])
    memory = lived(cluster)
    del cluster.log[3:]
    assert Machine(cluster, memory).handle_all() == []


def test_a_group_that_was_truncated_is_not_rewound_at_the_next_start() -> None:
    """Its earlier commit does not make the next start look set back: its marks stay."""
    cluster = Cluster([*LOG])
    machine = Machine(cluster)
    machine.handle_all()
    machine.session.commits.completed(machine.session.assigned.values(), asynchronous=False)
    cluster.log[3:] = [b"x"]
    assert machine.upkeep.handle_offset_reset(OutOfRange("Partition log truncation detected at offset 6"))
    assert [offset for offset, _ in machine.handle_all()] == [3]
    machine.leave()
    assert cluster.committed is not None
    assert cluster.committed.offset == 4
    cluster.log += [b"e", b"f"]
    again = Machine(cluster, machine.memory)
    assert again.up_to_date().flight.high == 4
    assert again.session.assigned[TOPIC, 0].known.note == "resumed"


def test_what_grows_behind_a_truncation_is_handled() -> None:
    """Nothing above the place where the log parts is taken for completed, though the store knew completions there."""
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
    assert [event.name for event in machine.listener.seen] == ["log-truncated"]


def test_without_a_store_and_a_policy_a_truncated_log_is_an_error() -> None:
    """auto.offset.reset=error: the group's offset and the log's end are named."""
    cluster = Cluster([*LOG])
    lived(cluster)
    del cluster.log[2:]

    with pytest.raises(RecoveryError, match="committed 6, but the log ends at 2"):
        Machine(cluster, reset="error").up_to_date()


def test_a_log_that_shrinks_under_a_consumer_is_recovered_anew() -> None:
    """The client hears that its offset is out of range; records instead of the lost ones are not skipped."""
    cluster = Cluster([*LOG])
    machine = Machine(cluster, reset="latest")
    machine.handle_all()
    cluster.log[4:] = [b"x"]

    assert machine.upkeep.handle_offset_reset(OutOfRange())
    assert machine.handle_all() == [(4, VerdictKind.FRESH)]
    assert [event.name for event in machine.listener.seen] == ["log-truncated"]


def test_a_log_that_has_grown_again_is_recovered_anew_when_the_broker_says_so() -> None:
    """The store stands at the end of its old log, and the log has other records below it."""
    cluster = Cluster([*LOG])
    machine = Machine(cluster, reset="latest")
    machine.handle_all()
    cluster.log[4:] = [b"x", b"a", b"y", b"z"]

    assert machine.upkeep.handle_offset_reset(OutOfRange("Partition log truncation detected at offset 6"))
    assert [offset for offset, _ in machine.handle_all()] == [4, 6, 7]
    assert [(event.name, event.offset) for event in machine.listener.seen] == [("log-truncated", 4)]


@pytest.mark.parametrize("more", [[], [b"y"], [b"y", b"z", b"a"]])
def test_a_log_that_was_cut_above_the_commit_and_grew_again_is_noticed(more: list[bytes | None]) -> None:
    """Nobody committed records that the store knows to be completed.

    So only the records themselves tell that they are others.
    """
    cluster = Cluster([*LOG])
    memory = killed(cluster)
    cluster.log[4:] = [b"v", b"w", *more]
    machine = Machine(cluster, memory)
    assert [offset for offset, _ in machine.handle_all()] == list(
        range(4, 4 + len([b"v", b"w", *more]) - (b"a" in more))
    )
    assert [(event.name, event.offset) for event in machine.listener.seen] == [("log-truncated", 0)]


@pytest.mark.parametrize("window", [DAY, Window(milliseconds=1), Window(count=100)])
def test_the_leader_epoch_tells_what_marks_cannot(window: Window) -> None:
    """Records without an ID, a window that is over, a window by count: the broker says where the noted epoch ends."""
    cluster = Cluster([b"a", b"b", b"c", b"d", None, None])
    first = Machine(cluster, window=window)
    first.handle_all()
    held = first.up_to_date()
    held.flight.note_epoch(3)
    held.persist()
    first.engine.lose(TOPIC, 0)
    cluster.log[4:] = [None, None, None]
    cluster.ends = {3: 4}

    machine = Machine(cluster, first.memory, window=window)
    offsets = [offset for offset, _ in machine.handle_all()]
    assert offsets[-3:] == [4, 5, 6]
    assert [event.name for event in machine.listener.seen] == ["log-truncated"]


def test_an_epoch_that_the_log_still_has_is_no_event() -> None:
    """Whatever the marks say: the broker knows better."""
    cluster = Cluster([*LOG])
    first = Machine(cluster)
    first.handle_all()
    held = first.up_to_date()
    held.flight.note_epoch(3)
    held.persist()
    first.engine.lose(TOPIC, 0)
    machine = Machine(cluster, first.memory)
    assert machine.handle_all() == []
    assert machine.listener.seen == []


def test_what_was_folded_has_no_epoch_of_before() -> None:
    """Records that others completed may be of a later epoch than this store's: that must not look like another log."""
    cluster = Cluster([*LOG])
    first = Machine(cluster)
    first.handle_all()
    first.up_to_date().flight.note_epoch(3)
    first.leave()
    cluster.log += [b"g", b"h"]
    cluster.committed = TopicPartition(TOPIC, 0, 8, text_at(8, after=cluster))
    cluster.ends = {3: 6}
    second = Machine(cluster, first.memory)
    assert second.up_to_date().flight.epoch is None
    assert second.handle_all() == []
    assert second.listener.seen == []


def test_an_id_of_the_lost_part_waits_for_nobody() -> None:
    """The mark of a lost record lies where another one is in flight.

    A message with its ID is not parked behind that one.
    """
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    cluster.log[3:] = [b"x"]
    machine = Machine(cluster, memory)
    held = machine.up_to_date()
    assert held.flight.position == 3
    cluster.log += [b"y", b"e"]
    chunks = []
    for start, end in ((3, 5), (5, 6)):
        offsets = list(range(start, end))
        ids = ids_of(cluster, start, end)
        chunks += held.admit(offsets, cluster.timestamps(start, end), ids, offsets, discard_unkeyed=False)
    assert [chunk.verdict(0).kind for chunk in chunks] == [VerdictKind.FRESH, VerdictKind.DUPLICATE]
    for chunk in chunks:
        held.complete_chunk(chunk)
    assert held.flight.high == 6
    assert not held.flight.waiting


def test_a_dead_letter_casts_no_doubt() -> None:
    """Its message left its mark as any other."""
    cluster = Cluster([*LOG])
    first = Machine(cluster)
    held = first.up_to_date()
    offsets = list(range(6))
    held.admit(offsets, cluster.timestamps(0, 6), ids_of(cluster, 0, 6), offsets, discard_unkeyed=False)
    held.complete(offsets[:5])
    held.complete([5], dead_lettered=True)
    held.persist()
    first.engine.lose(TOPIC, 0)

    machine = Machine(cluster, first.memory)
    assert machine.handle_all() == []
    assert machine.listener.seen == []


def test_after_a_kill_an_intact_log_is_no_event() -> None:
    """The store's records beyond the commit stay completed.

    Records without an ID and old ones do not cast doubt on it.
    """
    day_ms = 86_400_000
    cluster = Cluster([*LOG, b"old", None, b"a", None], times={6: -2 * day_ms})
    memory = killed(cluster)
    machine = Machine(cluster, memory)
    assert machine.handle_all() == []
    assert machine.listener.seen == []


@pytest.mark.parametrize("same_at_the_end", [False, True], ids=["another-record", "the-same-record"])
def test_a_log_restored_from_a_backup_is_another_one(*, same_at_the_end: bool) -> None:
    """At the same leader epoch, with the group's offset of then.

    The new records are handled, whether or not the last record differs.
    """
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    cluster.log[2:] = [b"x", None, b"y", LOG[5] if same_at_the_end else b"w", b"z"]
    cluster.committed = TopicPartition(TOPIC, 0, 2, text_at(2, epoch=0, after=cluster))

    machine = Machine(cluster, memory)
    delivered = dict(machine.handle_all())
    assert delivered.keys() >= {2, 3, 4, 6}
    assert delivered.keys() <= {2, 3, 4, 5, 6}
    assert [(event.name, event.offset) for event in machine.listener.seen] == [("log-truncated", 2)]


def test_what_only_a_store_knows_is_not_committed_before_it_is_read() -> None:
    """The log of a restored broker ends with the same record as before, others lie below.

    Whoever has no store must be given them.
    """
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    cluster.log[2:] = [b"x", None, b"y", LOG[5]]
    cluster.committed = TopicPartition(TOPIC, 0, 2, text_at(2, epoch=0, after=cluster))

    machine = Machine(cluster, memory)
    machine.up_to_date()
    machine.leave()
    assert cluster.committed is not None
    assert cluster.committed.offset == 2
    offsets = {offset for offset, _ in Machine(cluster).handle_all()}
    assert offsets >= {2, 3, 4}


def test_what_only_a_store_knows_is_committed_as_it_is_read() -> None:
    """After a kill before a commit the group follows the reading, record by record.

    Then it stands where the store does.
    """
    cluster = Cluster([*LOG])
    memory = killed(cluster)
    machine = Machine(cluster, memory)
    held = machine.up_to_date()
    assert held.flight.high == len(LOG)
    assert (held.committable, held.completed_above(0)) == (0, ())
    ids = ids_of(cluster, 0, 2)
    held.admit([0, 1], cluster.timestamps(0, 2), ids, [0, 1], discard_unkeyed=False)
    assert held.committable == 2
    machine.session.reopen_all()
    again = machine.up_to_date()
    assert again.committable == 2
    assert machine.handle_all() == []
    machine.leave()
    assert cluster.committed is not None
    assert cluster.committed.offset == len(LOG)


def test_an_intact_log_is_no_event() -> None:
    """A store with the committed records, and no more than the log, goes on."""
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    cluster.log.append(b"a")

    machine = Machine(cluster, memory)
    assert machine.handle_all() == []
    assert machine.listener.seen == []


def test_an_observer_that_fails_harms_nothing() -> None:
    """It is counted, and the event is told to the others."""

    class Failing(Listener):
        def partition_event(self, event: PartitionEvent) -> None:
            raise ValueError(event.name)

    machine = Machine(Cluster(), observers=[Failing()])
    event = PartitionEvent("topic-recreated", TOPIC, 0, 0, "made anew")
    machine.engine.tell(event)
    assert machine.listener.seen == [event]
    assert machine.engine.counters.observer_errors == 1
    assert replace(event, offset=1) != event


def test_a_store_that_was_cut_back_commits_nothing_of_a_broker_that_was_restored() -> None:
    """It does not know the last record below its watermark any more.

    The marks are asked before anything is committed.
    """
    cluster = Cluster([*LOG])
    memory = killed(cluster)
    backup = cluster.committed
    cluster.log[4:] = []
    first = Machine(cluster, memory)
    first.up_to_date().persist()
    first.engine.lose(TOPIC, 0)

    cluster.log[2:], cluster.committed = [b"x", b"y", b"z"], backup
    second = Machine(cluster, memory)
    second.up_to_date()
    second.leave()
    elsewhere = Machine(cluster).handle_all()
    assert [offset for offset, _ in elsewhere if offset >= 2] == [2, 3, 4]


_REPLACED = [*LOG[:2], b"u", b"v", b"w", b"x", b"y", b"z"]
"""The log of a restored broker, longer than the one before."""


def replaced(committed: int) -> tuple[Cluster, MemoryStore]:
    """The disk of a machine that has handled the log before; another host has handled the new one up to an offset."""
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    cluster.log[:] = _REPLACED
    cluster.committed = TopicPartition(TOPIC, 0, committed, text_at(committed, epoch=0, after=cluster))
    return cluster, memory


@pytest.mark.parametrize("committed", [4, 5, 7, 8])
def test_a_host_counts_nothing_of_a_log_that_another_host_saw_replaced(committed: int) -> None:
    """Copies of all that the other one has handled there are hidden, wherever the commit lies; nothing comes again."""
    cluster, memory = replaced(committed)
    cluster.log[committed:] = _REPLACED[2:committed]

    machine = Machine(cluster, memory)
    assert machine.handle_all() == []
    assert [(event.name, event.offset) for event in machine.listener.seen] == [("log-truncated", committed)]


def test_the_leader_epoch_of_a_commit_at_the_end_of_a_store_tells_of_another_log() -> None:
    """No record is replayed there, whose offset could be compared."""
    cluster = Cluster([*LOG])
    first = Machine(cluster)
    first.handle_all()
    first.up_to_date().flight.note_epoch(3)
    first.leave()
    cluster.log[2:] = [*_REPLACED[2:6], b"u"]
    cluster.committed = TopicPartition(TOPIC, 0, 6, text_at(6, epoch=5, after=cluster))
    cluster.ends = {3: 2}

    machine = Machine(cluster, first.memory)
    assert machine.handle_all() == []
    assert [event.name for event in machine.listener.seen] == ["log-truncated"]


def test_a_host_compares_records_that_it_completed_out_of_order() -> None:
    """The last of these lies in the middle of the replay."""
    cluster = Cluster([*LOG])
    first = Machine(cluster)
    held, offsets = first.up_to_date(), list(range(6))
    held.admit(offsets, cluster.timestamps(0, 6), ids_of(cluster, 0, 6), offsets, discard_unkeyed=False)
    held.complete([0, 5])
    first.leave()
    cluster.log[:] = [*LOG[:5], b"x", b"y", b"x"]
    cluster.committed = TopicPartition(TOPIC, 0, 7, text_at(7, after=cluster))

    machine = Machine(cluster, first.memory)
    assert machine.handle_all() == []
    assert [event.name for event in machine.listener.seen] == ["log-truncated"]


def test_the_log_of_another_host_that_went_on_is_no_event() -> None:
    """Whether the last record that this one completed is still there, or compaction has taken it."""
    cluster = Cluster([*LOG])
    memory = lived(cluster)
    cluster.log += [b"g", b"h"]
    cluster.committed = TopicPartition(TOPIC, 0, 8, text_at(8, after=cluster))
    machine = Machine(cluster, memory)
    assert machine.handle_all() == []
    machine.leave()
    assert machine.listener.seen == []
    cluster.log += [b"i", b"j", b"g"]
    cluster.committed = TopicPartition(TOPIC, 0, 10, text_at(10, after=cluster))
    cluster.first = 9

    machine = Machine(cluster, machine.memory)
    assert machine.handle_all() == []
    assert machine.listener.seen == []
