"""Commits that are answered late, or in another order than they were asked for."""

from __future__ import annotations

from confluent_kafka import KafkaError, TopicPartition

from tests.support.machine import LOG, Machine
from tests.support.one_partition import TOPIC, Cluster

AWAY = KafkaError(KafkaError._WAIT_COORD)


class Committing(Machine):
    """A machine whose group knows where its history begins; the broker answers no commit until it is told to."""

    def __init__(self) -> None:
        super().__init__(Cluster([*LOG]))
        self.up_to_date()
        self.commits = self.session.commits

    def handle(self, count: int) -> None:
        """Handle the next records of the log."""
        whole, start = self.cluster.log, self.session.assigned[TOPIC, 0].engine_partition
        assert start is not None
        waiting, self.client.unanswered = self.client.unanswered, []
        self.cluster.log = whole[: start.flight.position + count]
        self.handle_all()
        self.cluster.log, self.client.unanswered = whole, waiting

    def commit(self, *, asynchronous: bool = True) -> None:
        """Commit like a consumer on its commit interval, or when a partition goes."""
        self.commits.completed(self.session.assigned.values(), asynchronous=asynchronous)

    def commit_as_user(self) -> None:
        """Commit like the user's `commit`."""
        self.commits.exactly(self.commits.below(None, asynchronous=True), asynchronous=True)

    def answer(self, error: KafkaError | None = None) -> None:
        """Let the broker answer the oldest commit under way."""
        offsets = self.client.unanswered.pop(0)
        if error is None:
            [self.cluster.committed] = offsets
        self.commits.answered(error, offsets)

    @property
    def under_way(self) -> list[int]:
        """The offsets of commits that are not answered, in the order in which the client was given them."""
        return [tp.offset for offsets in self.client.unanswered for tp in offsets]

    @property
    def committed(self) -> int:
        """The offset that the group has committed."""
        assert self.cluster.committed is not None
        return self.cluster.committed.offset


def test_one_commit_of_a_partition_is_under_way_at_a_time() -> None:
    """Messages completed meanwhile are committed after the answer, so that no commit can overtake a later one."""
    machine = Committing()
    machine.handle(2)
    machine.commit()
    machine.handle(2)
    machine.commit()
    assert machine.under_way == [2]

    machine.answer()
    machine.commit()
    assert machine.under_way == [4]
    machine.answer()
    assert machine.committed == 4


def test_a_commit_that_failed_holds_up_no_other() -> None:
    """That the coordinator is away is an answer: the next commit takes everything along."""
    machine = Committing()
    machine.handle(2)
    machine.commit()
    machine.answer(AWAY)
    machine.handle(1)
    machine.commit()
    assert machine.under_way == [3]


def test_an_answer_that_names_nobody_holds_up_nothing() -> None:
    """Whose answer it was nobody knows: the next commit does not wait for one that may never come."""
    machine = Committing()
    machine.handle(2)
    machine.commit()
    machine.commits.answered(AWAY, [])
    machine.handle(1)
    machine.commit()
    assert machine.under_way == [2, 3]


def test_an_answer_that_an_interruption_swallowed_is_not_waited_for() -> None:
    """Messages after an interruption are committed, although an earlier commit will never be answered."""
    machine = Committing()
    machine.handle(2)
    machine.commit()
    machine.client.unanswered.clear()
    machine.session.reopen_all()
    machine.up_to_date()
    machine.handle(1)
    machine.commit()
    assert machine.under_way == [3]


def test_what_the_user_asks_for_meanwhile_is_sent_after_the_answer() -> None:
    """Without another call: the user, not an interval, commits."""
    machine = Committing()
    machine.handle(1)
    machine.commit_as_user()
    for _ in range(2):
        machine.handle(1)
        machine.commit_as_user()
    machine.upkeep.work()
    assert machine.under_way == [1]

    machine.answer()
    machine.upkeep.work()
    assert machine.under_way == [3]


def test_a_commit_of_less_takes_back_none_that_waits() -> None:
    """While an answer is out the user commits all, then up to an earlier message: the group gets all."""
    machine = Committing()
    machine.handle(1)
    machine.commit_as_user()
    machine.handle(3)
    machine.commit_as_user()
    ready = machine.commits.below({(TOPIC, 0): 2}, asynchronous=True)
    assert [tp.offset for tp in ready] == [4]
    machine.commits.exactly([TopicPartition(TOPIC, 0, 2)], asynchronous=True)
    machine.answer()
    machine.upkeep.work()
    assert machine.under_way == [4]


def test_what_is_owed_at_the_end_is_committed_without_waiting() -> None:
    """A partition that goes takes the user's last commit along, whatever happened to the one before it."""
    machine = Committing()
    machine.handle(1)
    machine.commit_as_user()
    machine.handle(1)
    machine.commit_as_user()
    machine.commits.send_pending(asynchronous=False)
    assert machine.committed == 2


def test_what_a_late_commit_undid_is_committed_again() -> None:
    """A commit that waited in the client while one was waited for comes after it; the group is put right at once."""
    machine = Committing()
    machine.handle(2)
    machine.commit()
    machine.handle(2)
    machine.commit(asynchronous=False)
    assert machine.committed == 4

    machine.answer()
    assert machine.committed == 2
    machine.upkeep.work()
    machine.answer()
    assert machine.committed == 4
    machine.upkeep.work()
    assert machine.under_way == []


def test_a_partition_that_comes_back_waits_for_the_answers_of_before() -> None:
    """The client may send a commit given before the partition went in the name of the member that has it now."""
    machine = Committing()
    machine.handle(2)
    machine.commit()
    machine.session.lose([TopicPartition(TOPIC, 0)])
    machine.session.take([TopicPartition(TOPIC, 0)])
    for _ in range(5):
        machine.upkeep.work()
    machine.commit()
    assert machine.under_way == [2]


def test_the_answer_to_a_commit_from_before_a_move_acknowledges_no_beginning() -> None:
    """The log has lost what the group was to read next: no message comes before the broker knows where to go on."""
    machine = Committing()
    machine.handle(2)
    machine.commit()
    machine.session.move(TOPIC, 0, 3, log_changed=True)
    for _ in range(20):
        machine.upkeep.work()
    machine.answer()
    machine.upkeep.work()
    assert machine.under_way == [3]
    assert machine.session.recovering

    machine.answer()
    machine.up_to_date()
    assert machine.committed == 3
