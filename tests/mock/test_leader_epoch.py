"""Unclean elections: the log goes on with other records where the group has completed some that it no longer has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import MemoryStore, Recovery
from dedup_sdk._cli.app import run
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._store.manifest import read_manifest, write_manifest
from tests.support.consuming import (
    PATIENCE_S,
    commit_text,
    committed,
    committed_metadata,
    poll_quiet,
    poll_some,
    values,
)

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


def test_a_commit_says_the_leader_epoch(make: Make, send: Send, kafka: MockKafka) -> None:
    """That of the records that were read; before the first of them nobody knows it."""
    send("a")
    kafka.set_leader("orders", 0, 1)
    send("b")
    with make("orders") as consumer:
        assert values(poll_some(consumer, 1)) == ["a"]
        metadata = committed_metadata(kafka.bootstrap, "g", "orders")
        assert metadata is not None
        assert metadata.epoch is None
        poll_some(consumer, 1)
    metadata = committed_metadata(kafka.bootstrap, "g", "orders")
    assert metadata is not None
    assert metadata.epoch == 1


def test_a_log_that_has_grown_again_is_noticed(
    make: Make,
    send: Send,
    kafka: MockKafka,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The commit is of an epoch that ended before it.

    The log's new records are handled, and duplicates stay hidden.
    """
    send("a", "b", "c")
    with make("orders") as first:
        poll_some(first, 3)
    kafka.set_leader("orders", 0, 1)
    send("x", "y", "a", "z")

    def committed_before(*_: object) -> dict[tuple[str, int], TopicPartition]:
        # The group had read three records more in epoch 0, which the new leader never had.
        return {("orders", 0): TopicPartition("orders", 0, 6, commit_text(6, epoch=0))}

    monkeypatch.setattr(Client, "committed", committed_before)
    consumer = make("orders", config={"auto.offset.reset": "latest"})

    assert values(poll_quiet(consumer)) == ["x", "y", "z"]
    assert consumer.counters.as_dict()["event.log-truncated"] == 1
    assert "in a log that the broker no longer has; going on at 3" in caplog.text
    consumer.commit(asynchronous=False)
    assert committed(kafka.bootstrap, "g", "orders").offset == 7


@pytest.mark.parametrize("grown", [True, False])
def test_a_machine_without_a_store_goes_on_where_the_log_parts(
    make: Make,
    send: Send,
    kafka: MockKafka,
    monkeypatch: pytest.MonkeyPatch,
    *,
    grown: bool,
) -> None:
    """The broker knows where that is.

    Nothing before it comes again, whatever the policy, and the records that replaced the rest are handled.
    """
    send("a", "b", "c")
    kafka.set_leader("orders", 0, 1)
    send("x", "a", *(["y", "z"] if grown else []))

    def committed_before(*_: object) -> dict[tuple[str, int], TopicPartition]:
        return {("orders", 0): TopicPartition("orders", 0, 6, commit_text(6, low=1, epoch=0))}

    monkeypatch.setattr(Client, "committed", committed_before)
    consumer = make("orders", config={"auto.offset.reset": "latest"})

    # "a" lies before the group's history: that one was not handled.
    assert values(poll_quiet(consumer)) == ["x", "a", *(["y", "z"] if grown else [])]
    assert consumer.counters.as_dict()["event.log-truncated"] == 1
    consumer.close()
    metadata = committed_metadata(kafka.bootstrap, "g", "orders")
    assert metadata is not None
    assert (metadata.low, metadata.complete) == (1, True)


def test_a_seek_forward_behind_an_election_is_no_cut(make: Make, send: Send, kafka: MockKafka) -> None:
    """The epoch that this host has noted is that of the records before the seek, not of those before its target."""
    send(*map(str, range(10)))
    here, there = MemoryStore(), MemoryStore()
    with make("orders", completion="explicit", store=here) as first:
        first.complete(*poll_some(first, 10)[:5])
    kafka.set_leader("orders", 0, 1)
    send(*map(str, range(10, 20)))
    with make("orders", completion="explicit", store=there) as elsewhere:
        elsewhere.complete(*poll_some(elsewhere, 15)[10:13])
    second = make("orders", completion="explicit", store=here)
    assert values(second.consume(2, PATIENCE_S)) == ["5", "6"]  # and judges no more than these

    second.seek(TopicPartition("orders", 0, 12))

    assert values(poll_quiet(second)) == ["12", "13", "14", "18", "19"]
    assert second.counters.events == {}


def test_a_clean_election_is_no_event(make: Make, send: Send, kafka: MockKafka) -> None:
    """Another leader that has everything: the next owner goes on, and nothing comes twice."""
    send("a", "b")
    with make("orders") as first:
        poll_some(first, 2)
    kafka.set_leader("orders", 0, 1)
    send("b", "c")
    with make("orders") as second:
        assert values(poll_quiet(second)) == ["c"]
        assert second.counters.events == {}


@pytest.mark.parametrize("cut", [True, False])
def test_a_snapshot_from_before_a_cut_is_not_taken(
    make: Make,
    send: Send,
    kafka: MockKafka,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    cut: bool,
) -> None:
    """Its leader epoch ended below its cut.

    It knows records that the log no longer has, and none of those that took their place.
    """
    send("a", "b", "c")
    kafka.set_leader("orders", 0, 1)
    send("x", "y", "z")
    with make("orders", store=tmp_path / "one") as first:
        poll_some(first, 6)
    snapshot = tmp_path / "snapshot"
    assert run(["snapshot", "--store", str(tmp_path / "one"), "--output", str(snapshot), "--quiet"]) == 0
    made = read_manifest(snapshot)
    assert made.partitions[0].epoch == 1
    if cut:
        # Made when the log still had six records of epoch 0.
        write_manifest(snapshot, replace(made, partitions=(replace(made.partitions[0], epoch=0),)))

    send("b", "z", "new")
    with make("orders", store=tmp_path / "two", recovery=Recovery(snapshot=snapshot)) as second:
        assert values(poll_quiet(second)) == ["new"]
    assert ("reaches offset 6 of leader epoch 0, which ends at 3" in caplog.text) == cut
