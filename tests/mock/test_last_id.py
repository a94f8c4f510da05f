"""The consumer with a strategy that compares IDs with the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition

from dedup_sdk import LastId, Lookup, MemoryStore, Recovery, Window, header, orders
from dedup_sdk._cli.app import run
from dedup_sdk.ids import key
from tests.support.consuming import poll_quiet, poll_some, run_all, values

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


def last_id(**settings: Any) -> LastId:
    """Integers in the header ``dedup-id``; the partition is one source."""
    return LastId(**{"id": header("dedup-id"), "order": orders.integer(), **settings})


def counted(consumer: Any) -> dict[str, int]:
    """The verdicts given, without those never given."""
    return {kind: count for kind, count in consumer.counters.verdicts.items() if count}


def test_what_is_not_newer_is_a_duplicate(make: Make, send: Send) -> None:
    """A late one that never came is handed out; so is one that nobody can compare, and it is counted."""
    consumer = make("orders", dedup=last_id())
    send("1", "2", "5", "2", "5", "4", "4", "x", "6", "3")
    assert values(poll_quiet(consumer)) == ["1", "2", "5", "4", "x", "6", "3"]
    assert counted(consumer) == {"fresh": 6, "duplicate": 3, "unverified": 1}
    assert consumer.counters.reasons == {"unverified.malformed": 1}


def test_the_last_one_outlives_a_restart(make: Make, send: Send, tmp_path: Path) -> None:
    """On the same disk nothing comes again."""
    with make("orders", dedup=last_id(), store=tmp_path) as consumer:
        send("1", "2", "4")
        assert values(poll_some(consumer, 3)) == ["1", "2", "4"]
    send("2", "4", "3", "5")
    again = make("orders", dedup=last_id(), store=tmp_path)
    assert values(poll_quiet(again)) == ["3", "5"]
    assert counted(again) == {"fresh": 2, "duplicate": 2}


def test_the_last_one_can_be_looked_up(
    make: Make, send: Send, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last ID of a source, or of each partition where the partition is one source."""
    with make("orders", dedup=last_id(), store=tmp_path) as consumer:
        send("1", "9", "4")
        assert values(poll_some(consumer, 3)) == ["1", "9", "4"]
    looked = ["lookup", "--store", str(tmp_path), "--topic", "orders"]
    assert run(looked) == 0
    assert capsys.readouterr().out.endswith(", last ID 9\n")
    assert run([*looked, "9"]) == 2
    assert "each partition is one source" in capsys.readouterr().err


def test_a_lost_disk_is_made_up_for_by_the_topic(make: Make, send: Send) -> None:
    """The replay folds the sources anew; a dead letter is an end like any other."""

    def handle(message: Any) -> None:
        if message.value() == b"4":
            raise ValueError("no")

    with make("orders", dedup=last_id(), store=MemoryStore()) as consumer:
        send("1", "2", "5", "3", "2", "4")
        run_all(consumer, handle, on_error="dead-letter", attempts=1)
        assert consumer.counters.dead_lettered == 1
    send("5", "3", "1", "4", "6")
    again = make("orders", dedup=last_id(), store=MemoryStore())
    assert values(poll_quiet(again)) == ["6"]
    assert counted(again) == {"fresh": 1, "duplicate": 4}


def test_another_host_takes_over_from_a_snapshot(make: Make, send: Send, tmp_path: Path) -> None:
    """A snapshot of a running consumer has the sources; only messages after its cut are replayed."""
    first = make("orders", dedup=last_id(), store=tmp_path / "one")
    send("1", "2", "7")
    assert values(poll_some(first, 3)) == ["1", "2", "7"]
    first.commit(asynchronous=False)
    snapshot = tmp_path / "snapshot"
    assert run(["snapshot", "--store", str(tmp_path / "one"), "--output", str(snapshot), "--quiet"]) == 0
    assert run(["snapshots", "verify", str(snapshot)]) == 0
    send("9")
    assert values(poll_quiet(first)) == ["9"]
    first.close()

    second = make("orders", dedup=last_id(), store=tmp_path / "two", recovery=Recovery(snapshot=snapshot))
    send("7", "2", "8", "9", "10")
    assert values(poll_quiet(second)) == ["8", "10"]
    assert "snapshot of 1 mark" in second.partition_statuses[0].detail
    assert counted(second) == {"fresh": 2, "duplicate": 3}


def test_a_snapshot_of_lookups_does_not_serve_a_last_id(make: Make, send: Send, tmp_path: Path) -> None:
    """Marks of IDs say nothing of sources, and looked-up IDs vouch for nothing that is compared.

    All of it is delivered, in doubt.
    """
    first = make("orders", store=tmp_path / "one")
    send("1", "2")
    assert values(poll_some(first, 2)) == ["1", "2"]
    first.commit(asynchronous=False)
    snapshot = tmp_path / "snapshot"
    assert run(["snapshot", "--store", str(tmp_path / "one"), "--output", str(snapshot), "--quiet"]) == 0
    first.close()
    second = make("orders", dedup=last_id(), store=tmp_path / "two", recovery=Recovery(snapshot=snapshot))
    send("1", "2", "3")
    assert values(poll_quiet(second)) == ["1", "2", "3"]
    assert second.counters.verdicts["unverified"] == 3
    assert "snapshot not taken" in second.partition_statuses[0].detail


def test_who_seeks_back_gets_it_again(make: Make, send: Send) -> None:
    """Sources are folded anew for the records before, so that the verdicts are those of the first time."""
    consumer = make("orders", dedup=last_id())
    send("1", "3", "2", "3", "5")
    assert values(poll_quiet(consumer)) == ["1", "3", "2", "5"]
    consumer.seek(TopicPartition("orders", 0, 2))
    assert values(poll_quiet(consumer)) == ["2", "5"]


def test_a_released_message_comes_again_and_its_twin_waits(make: Make, send: Send) -> None:
    """The twin is a duplicate once it is completed."""
    consumer = make("orders", dedup=last_id(), completion="explicit")
    send("1", "2", "2")
    one, two = poll_some(consumer, 2)
    consumer.release(two)
    (again,) = poll_some(consumer, 1)
    assert values([one, again]) == ["1", "2"]
    consumer.complete(one)
    consumer.complete(again)
    assert values(poll_quiet(consumer)) == []
    assert counted(consumer) == {"fresh": 2, "duplicate": 1}


def test_observing_hides_nothing(make: Make, send: Send) -> None:
    """Everything is handed out, and counted by its verdict."""
    consumer = make("orders", dedup=last_id(), mode="observe")
    send("1", "1", "3", "2", "3")
    assert values(poll_quiet(consumer)) == ["1", "1", "3", "2", "3"]
    assert counted(consumer) == {"fresh": 3, "duplicate": 2}


def test_a_jump_forward_leaves_a_doubt(make: Make, send: Send) -> None:
    """Nobody knows the last ID of the skipped messages."""
    consumer = make("orders", dedup=last_id())
    send("1", "2", "3")
    assert values(poll_quiet(consumer)) == ["1", "2", "3"]
    consumer.pause([TopicPartition("orders", 0)])
    send("4", "5", "5", "6")
    consumer.seek(TopicPartition("orders", 0, 5))
    consumer.resume([TopicPartition("orders", 0)])
    assert values(poll_quiet(consumer)) == ["5", "6"]
    assert counted(consumer) == {"fresh": 3, "unverified": 2}


def with_opinion() -> LastId:
    """Numbers of the key as well: where they tell nothing the header ``dedup-id`` is looked up."""
    return LastId(
        id=key(),
        order=orders.integer(),
        reorder_depth=1,
        otherwise=Lookup(id=header("dedup-id"), window=Window(days=1)),
    )


@pytest.fixture
def send_pairs(kafka: MockKafka) -> Callable[..., None]:
    """Sends records that bear a key and an ID: ``send_pairs("1 a", "2 b")``."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0, "log_level": 0})

    def send(*pairs: str) -> None:
        for pair in pairs:
            number, ident = pair.split()
            producer.produce("orders", pair, key=number, headers={"dedup-id": ident}, partition=0)
        assert producer.flush(30) == 0

    return send


def test_where_comparing_tells_nothing_another_id_is_looked_up(
    make: Make, send_pairs: Callable[..., None]
) -> None:
    """Below the floor and of unreadable IDs: completed ones are duplicates, all else is known to be new."""
    consumer = make("orders", dedup=with_opinion())
    send_pairs("1 a", "5 b", "9 c", "2 a", "3 d", "x d", "x e", "x e", "9 z")
    # Messages are below the floor once those in flight are over: they wait for them.
    assert sorted(values(poll_quiet(consumer))) == ["1 a", "3 d", "5 b", "9 c", "x e"]
    assert counted(consumer) == {"fresh": 5, "duplicate": 4}


def test_a_second_opinion_waits_for_what_is_in_flight(make: Make, send_pairs: Callable[..., None]) -> None:
    """Given up, the next one takes its place; completed, it is a duplicate."""
    consumer = make("orders", dedup=with_opinion(), completion="explicit")
    send_pairs("x a", "x a", "x a")
    (first,) = poll_quiet(consumer)
    consumer.release(first)
    (again,) = poll_quiet(consumer)
    assert values([again]) == ["x a"]
    consumer.complete(again)
    assert values(poll_quiet(consumer)) == []
    assert counted(consumer) == {"fresh": 1, "duplicate": 2}


def test_a_second_opinion_outlives_restarts_and_lost_disks(
    make: Make, send_pairs: Callable[..., None], tmp_path: Path
) -> None:
    """Its marks lie beside the sources, in files, and are folded with them."""
    with make("orders", dedup=with_opinion(), store=tmp_path, recent_marks=1) as consumer:
        send_pairs("1 a", "x b", "7 c")
        assert values(poll_some(consumer, 3)) == ["1 a", "x b", "7 c"]
    send_pairs("x a", "x b", "2 c", "8 d")
    with make("orders", dedup=with_opinion(), store=tmp_path) as consumer:
        assert values(poll_quiet(consumer)) == ["8 d"]
    send_pairs("x d", "x c", "x f")
    with make("orders", dedup=with_opinion(), store=MemoryStore()) as consumer:
        assert values(poll_quiet(consumer)) == ["x f"]
        assert counted(consumer) == {"fresh": 1, "duplicate": 2}


def test_a_dead_letter_is_a_second_opinion(make: Make, send_pairs: Callable[..., None]) -> None:
    """A message that its producer sends again after its dead letter is a duplicate of it."""

    def handle(message: Any) -> None:
        if message.key() == b"x":
            raise ValueError("no")

    with make("orders", dedup=with_opinion(), store=MemoryStore()) as consumer:
        send_pairs("1 a", "x b", "2 c")
        run_all(consumer, handle, on_error="dead-letter", attempts=1)
    send_pairs("y b", "y a")
    with make("orders", dedup=with_opinion(), store=MemoryStore()) as consumer:
        assert values(poll_quiet(consumer)) == []
        assert counted(consumer) == {"duplicate": 2}
