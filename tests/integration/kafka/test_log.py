from __future__ import annotations

import re
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition

from dedup_sdk import RecoveryError, header
from dedup_sdk._kafka.assign import topic_watch
from dedup_sdk._kafka.client.reader import SILENCE_S, Readers, TailReader
from dedup_sdk._kafka.client.settings import client_settings
from tests.support.consuming import (
    PATIENCE_S,
    commit_plainly,
    commit_text,
    committed,
    poll_quiet,
    poll_some,
    values,
    wait_for,
)

if TYPE_CHECKING:
    from tests.support.worlds import World


def send_in_transaction(producer: Producer, world: World, *ids: str, commit: bool) -> None:
    """Send records in one transaction, and end it."""
    producer.begin_transaction()
    for each in ids:
        producer.produce(world.topic, each.encode(), headers={"dedup-id": each.encode()}, partition=0)
    producer.flush()
    if commit:
        producer.commit_transaction()
    else:
        producer.abort_transaction()


def transactional(world: World) -> Producer:
    """A producer that is ready for transactions."""
    producer = Producer(
        {"bootstrap.servers": world.bootstrap, "transactional.id": world.topic, "log_level": 0}
    )
    producer.init_transactions()
    return producer


@pytest.mark.parametrize("disk", ["one", "another"])
def test_a_group_set_into_an_open_transaction_goes_on_there(world: World, disk: str) -> None:
    """A reset tool sets it to the log's very end.

    Nothing comes again, and later messages are handled when that is decided.
    """
    producer = transactional(world)
    send_in_transaction(producer, world, "a", commit=True)
    assert world.handle(1) == ["a"]
    producer.begin_transaction()
    producer.produce(world.topic, b"b", headers={"dedup-id": b"b"}, partition=0)
    producer.flush()
    commit_plainly(world.bootstrap, world.group, world.topic, 3)

    consumer = world.consumer(disk)
    waiting = [("recovering", ("transaction",))]
    wait_for(
        consumer,
        lambda: [(s.state, s.hindrances) for s in consumer.partition_statuses] == waiting,
        "it waits",
    )
    for _ in range(10):
        assert consumer.poll(0.1) is None
    assert [(s.state, s.hindrances) for s in consumer.partition_statuses] == waiting
    producer.abort_transaction()
    send_in_transaction(producer, world, "c", commit=True)
    assert values(poll_some(consumer, 1)) == ["c"]
    assert consumer.counters.verdicts["fresh"] + consumer.counters.verdicts["unverified"] == 1
    assert consumer.counters.as_dict()["event.log-truncated"] == 0


def test_an_aborted_record_is_no_sighting(world: World) -> None:
    """A record that a producer took back and sends again is handled, also on a machine that reads the tail again."""
    producer = transactional(world)
    send_in_transaction(producer, world, "a", "b", commit=False)
    send_in_transaction(producer, world, "a", commit=True)
    assert world.handle(1) == ["a"]
    send_in_transaction(producer, world, "c", commit=False)
    send_in_transaction(producer, world, "b", "a", commit=True)

    assert world.rest("two") == ["b"]
    send_in_transaction(producer, world, "c", "b", commit=True)
    assert world.rest("one") == ["c"]


def test_markers_at_the_end_of_a_replay_do_not_hold_it(world: World) -> None:
    """A replay ends on position: the committed offset may lie behind markers and aborted records, which nobody sees."""
    producer = transactional(world)
    send_in_transaction(producer, world, "a", commit=True)
    send_in_transaction(producer, world, "x", "y", commit=False)
    world.handle(1)
    end = 5
    world.commit_plainly(end, metadata=commit_text(end))
    send_in_transaction(producer, world, "a", "b", commit=True)

    assert world.rest("two") == ["b"]


def test_a_replay_of_a_log_that_was_cut_ends_where_the_log_does(world: World) -> None:
    """It waits neither for records nobody will write, nor at an offset that the log does not have."""
    producer = transactional(world)
    send_in_transaction(producer, world, "a", "b", commit=True)
    send_in_transaction(producer, world, "x", commit=False)
    readers = Readers(client_settings({"bootstrap.servers": world.bootstrap, "group.id": world.group}))
    for start, expected in ((0, [0, 1]), (7, [])):
        with closing(TailReader(readers, world.topic, 0)) as reader:
            began = time.monotonic()
            pieces = [piece for piece in reader.slices(start, 9, header("dedup-id")) if piece]
            assert time.monotonic() - began < SILENCE_S / 2
        assert [offset for piece in pieces for offset in piece.offsets] == expected
    readers.close()


def test_at_read_uncommitted_aborted_records_are_messages(world: World) -> None:
    """The reader of a recovery sees the consumer's messages: at this level an aborted record was handled."""
    producer = transactional(world)
    send_in_transaction(producer, world, "a", commit=False)
    config = {"isolation.level": "read_uncommitted"}
    assert world.handle(1, config=config) == ["a"]
    send_in_transaction(producer, world, "a", "b", commit=True)

    assert world.rest("two", config=config) == ["b"]


def test_what_was_aborted_before_the_group_read_such_records_was_not_handled(world: World) -> None:
    """The isolation level belongs to the rule: where it changes, nothing vouches for the past.

    A resend of an aborted record is delivered.
    """
    producer, uncommitted = transactional(world), {"isolation.level": "read_uncommitted"}
    send_in_transaction(producer, world, "a", commit=False)
    send_in_transaction(producer, world, "b", commit=True)
    assert world.rest("one") == ["b"]
    send_in_transaction(producer, world, "a", "b", commit=True)
    assert world.rest("two", config=uncommitted) == ["a", "b"]

    send_in_transaction(producer, world, "c", commit=False)
    assert world.rest("two", config=uncommitted) == ["c"]
    send_in_transaction(producer, world, "a", "b", "c", "d", commit=True)
    assert world.rest("three", config=uncommitted) == ["d"]


def test_a_transaction_below_the_committed_offset_is_waited_for(world: World) -> None:
    """Whether the group handled its records only its end tells, and that is in the partition's status meanwhile."""
    producer = transactional(world)
    send_in_transaction(producer, world, "a", commit=True)
    world.handle(1)
    producer.begin_transaction()
    producer.produce(world.topic, b"b", headers={"dedup-id": b"b"}, partition=0)
    producer.flush()
    world.send("c")
    world.commit_plainly(4, metadata=commit_text(4))

    consumer = world.consumer("two")
    waiting = [("recovering", ("transaction",))]
    wait_for(
        consumer,
        lambda: [(s.state, s.hindrances) for s in consumer.partition_statuses] == waiting,
        "it waits",
    )
    producer.abort_transaction()
    world.send("a", "b", "c")
    assert values(poll_some(consumer, 1)) == ["b"]
    assert poll_quiet(consumer) == []


def test_history_that_is_gone_is_doubted(world: World) -> None:
    """Where the tail cannot be read any more, messages that need it are delivered and counted as unverified."""
    world.send("a", "b", "c", "d")
    world.handle(4, "one")
    world.delete_before(3)
    world.send("a", "d", "e")

    with world.consumer("two") as consumer:
        assert values(poll_quiet(consumer)) == ["a", "e"]
        assert consumer.counters.verdicts["unverified"] == 2
        assert consumer.counters.verdicts["duplicate"] == 1


def test_a_new_group_begins_where_the_policy_says(world: World) -> None:
    """Its beginning is committed before anything is delivered, so that a crash does not move it."""
    world.send("a", "b")
    latest = world.consumer(config={"auto.offset.reset": "latest"})
    assert poll_quiet(latest) == []
    assert world.committed().offset == 2
    assert re.fullmatch(
        r"dedup/2 at=\d+/[0-9a-f]{8} fingerprint=[0-9a-f]{16}\.[0-9a-f]{16} low=2 complete=1 era=[0-9a-f]{8}",
        world.committed().metadata or "",
    )
    world.send("a")
    latest.close()

    assert world.rest("two", config={"auto.offset.reset": "latest"}) == ["a"]


def test_a_new_group_without_a_policy_is_an_error_in_one_line(world: World) -> None:
    """auto.offset.reset=error and nothing committed: the partition is named, and the remedy."""
    consumer = world.consumer(config={"auto.offset.reset": "error"})

    with pytest.raises(RecoveryError, match=r"\[0\] has no valid committed offset") as caught:
        consumer.poll(PATIENCE_S)
    assert "\n" not in str(caught.value)


def test_a_topic_made_anew_is_not_the_old_one(world: World) -> None:
    """Same name, same offsets, other records.

    The old store is kept apart, and no record that it never saw is hidden.
    """
    world.send("a", "b", "c")
    world.handle(3)
    world.make_anew(world.topic)
    world.send("x", "y", "z", "a")

    with world.consumer() as consumer:
        assert values(poll_quiet(consumer)) == ["x", "y", "z", "a"]
        assert consumer.counters.as_dict()["event.topic-recreated"] == 1
        assert consumer.counters.verdicts["redelivered"] == 0
    kept = [path.name for path in world.disk().rglob("0.*") if path.is_dir()]
    assert len(kept) == 1


def test_a_topic_made_anew_under_a_consumer_is_read_from_its_beginning(world: World) -> None:
    """Its leader epochs are those of the old one. By them the broker takes its first records for completed."""
    world.send("a", "b", "c")
    consumer = world.consumer()
    assert values(poll_some(consumer, 3)) == ["a", "b", "c"]
    assert consumer.poll(0.1) is None
    world.make_anew(world.topic)
    world.send("x", "b")

    assert values(poll_some(consumer, 2)) == ["x", "b"]
    counters = consumer.counters.as_dict()
    assert counters["event.topic-recreated"] == counters["event.log-truncated"] == 1
    assert consumer.counters.verdicts["duplicate"] == 0


def test_a_topic_made_anew_and_longer_already_is_read_from_its_beginning(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client reads on where it stood; the topic's ID tells that records before were never read."""
    monkeypatch.setattr(topic_watch, "LOOK_EVERY_S", 0.5)
    world.send("a", "b", "c")
    consumer = world.consumer()
    assert values(poll_some(consumer, 3)) == ["a", "b", "c"]
    assert consumer.poll(0.1) is None
    world.make_anew(world.topic)
    world.send("t", "u", "b", "w", "x", "y")

    got: list[str] = []
    for _ in range(round(PATIENCE_S)):
        got += values(poll_quiet(consumer, 1.0))
        if {"t", "u", "b", "w", "x", "y"} <= set(got):
            break
    assert {"t", "u", "b", "w", "x", "y"} <= set(got)
    assert got[-6:] == ["t", "u", "b", "w", "x", "y"]
    assert consumer.counters.as_dict()["event.topic-recreated"] == 1
    consumer.close()
    assert values(poll_quiet(world.consumer())) == []


@pytest.mark.parametrize("disk", ["one", "another"])
def test_a_group_that_committed_in_a_topic_made_anew_unaware_reads_it_from_its_beginning(
    world: World, disk: str
) -> None:
    """Its consumer went on in the new topic and ended before it heard.

    The next one knows by the text beside its commit.
    """
    world.send("a", "b", "c")
    consumer = world.consumer()
    assert values(poll_some(consumer, 3)) == ["a", "b", "c"]
    assert consumer.poll(0.1) is None
    world.make_anew(world.topic)
    world.send("t", "u", "v", "w", "x")
    before = values(poll_some(consumer, 2))
    consumer.close()

    with world.consumer(disk) as again:
        got = values(poll_quiet(again))
        assert again.counters.as_dict()["event.log-truncated"] == 1
        assert again.counters.verdicts["unverified"] == 5
    assert (before, got) == (["w", "x"], ["t", "u", "v", "w", "x"])


def test_a_missing_topic_is_the_clients_event(world: World) -> None:
    """Subscribed to by mistake: the application hears of it as from the plain client, and the loop may go on."""
    consumer = world.idle_consumer()
    consumer.subscribe(["no-such-" + world.topic])

    event = poll_some(consumer, 1)[0]
    assert event.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert "no-such-" in event.error().str()
    assert committed(world.bootstrap, world.group, world.topic).offset < 0


@pytest.mark.slow
def test_a_missing_topic_taken_by_hand_is_an_error_in_one_line(world: World) -> None:
    """The name is in it, and the thing to look at."""
    consumer = world.idle_consumer()
    consumer.assign([TopicPartition("no-such-" + world.topic, 0)])

    with pytest.raises(Exception, match=r"no-such-|UNKNOWN_TOPIC|Unknown") as caught:
        consumer.poll(PATIENCE_S)
    assert "\n" not in str(caught.value)
