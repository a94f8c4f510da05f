"""Which commits ``dedup adopt`` gives a text, and which stay as they are."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import MemoryStore, VerdictKind
from dedup_sdk._admin.adopt import adopted
from dedup_sdk._admin.group_offsets import CommitInLog
from dedup_sdk._commit_text import CommitMetadata, log_name, parse_metadata
from tests.support.machine import LOG, Machine, text_at
from tests.support.one_partition import TOPIC, Cluster

HERE = log_name("cluster", "one")
WANTED = CommitMetadata(low=3, log=HERE, rule="a" * 16, era="new")


def stands(committed: int | None = 9, metadata: CommitMetadata | None = None, text: str = "") -> CommitInLog:
    """A commit in a log of the offsets 3 to 10."""
    if metadata is not None and committed is not None:
        text = metadata.text(committed)
    return CommitInLog(partition=0, committed=committed, text=text, first=3, end=10)


@pytest.mark.parametrize(
    "now",
    [
        stands(),
        stands(text="another tool's"),
        stands(3),
        stands(10),
        stands(text=CommitMetadata(low=5, log=HERE, rule="a" * 16).text(8)),
        stands(metadata=CommitMetadata(low=5, log=log_name("other", "one"), rule="a" * 16)),
    ],
)
def test_a_commit_without_a_valid_text_gets_one(now: CommitInLog) -> None:
    """All offsets of the log before it count as handled then."""
    found = adopted(now, WANTED)
    assert found.metadata == WANTED
    assert found.offsets == (now.committed or 0) - 3


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (stands(None), "committed nothing"),
        (stands(2), "begins at 3"),
        (stands(11), "ends at 10"),
        (stands(metadata=CommitMetadata(low=5, log=HERE, rule="b" * 16)), "another rule"),
        (stands(text=CommitMetadata(low=5, log=HERE, rule="b" * 16).text(8)), "another rule"),
        (
            stands(metadata=CommitMetadata(low=5, log=log_name("cluster", "two"), rule="a" * 16)),
            "deleted topic",
        ),
        (stands(metadata=CommitMetadata(low=3, log=HERE, rule="a" * 16)), "already"),
        (stands(metadata=CommitMetadata(low=5, log=HERE, rule="a" * 16, complete=True)), "already"),
    ],
)
def test_a_commit_that_cannot_be_adopted_stays(now: CommitInLog, why: str) -> None:
    """The note says why."""
    found = adopted(now, WANTED)
    assert (found.metadata, found.offsets) == (None, 0)
    assert why in found.note


def test_a_history_that_began_later_is_extended() -> None:
    """In its era, with the records completed above the commit: the first start of the consumer is over."""
    now = CommitMetadata(low=5, log=HERE, rule="a" * 16, era="old", epoch=7)
    found = adopted(stands(metadata=now), WANTED)
    assert found.metadata == CommitMetadata(low=3, log=HERE, rule="a" * 16, era="old", epoch=7)
    assert "before 5" in found.note


@pytest.mark.parametrize("first_start_is_over", [False, True])
def test_copies_of_adopted_messages_are_hidden(
    *, first_start_is_over: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the first start of the consumer, and after the start that gave the warning."""
    cluster, memory = Cluster([*LOG]), MemoryStore()
    cluster.committed = TopicPartition(TOPIC, 0, len(LOG))
    if first_start_is_over:
        machine = Machine(cluster, memory)
        machine.handle_all()
        machine.leave()
        assert "dedup adopt" in caplog.text
        caplog.clear()
    commit, valid = cluster.committed, parse_metadata(text_at(6), committed=6)
    assert valid is not None
    now = CommitInLog(partition=0, committed=commit.offset, text=commit.metadata or "", first=0, end=len(LOG))
    found = adopted(now, CommitMetadata(low=0, log=valid.log, rule=valid.rule, era="new"))
    assert found.metadata is not None
    cluster.committed = TopicPartition(TOPIC, 0, 6, found.metadata.text(6))
    cluster.log += [b"a", b"x"]
    machine = Machine(cluster, memory)
    assert machine.handle_all() == [(7, VerdictKind.UNVERIFIED)]
    machine.leave()
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
