"""A disk that is really full, under a consumer."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import pytest

from dedup_sdk import Recovery, RocksStore
from dedup_sdk._store import rocks
from dedup_sdk._store.rocks import RocksPartition
from dedup_sdk.errors import StoreUnavailableError
from tests.support.consuming import committed, poll_quiet, poll_some, values, wait_for
from tests.support.disks import FullPartition, FullStore, SmallDisk, small_disk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dedup_sdk import DedupConsumer
    from dedup_sdk._kafka.recover.settings import OnFullDisk
    from dedup_sdk._marks import Marks, Progress
    from dedup_sdk._store.protocol import Identity
    from dedup_sdk._window import Window
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

RECOVERING = "the consumer closes while"
"""The beginning of the line about partitions that recover."""
BEFORE = [f"before{number}" for number in range(500)]
DURING = [f"during{number}" for number in range(3_000)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of 8 MB."""
    with small_disk(tmp_path / "disk", 8) as disk:
        yield disk


def waits(consumer: DedupConsumer) -> bool:
    """Whether the partition waits for its store."""
    return any("store" in status.hindrances for status in consumer.partition_statuses)


@pytest.mark.slow
def test_a_consumer_pauses_while_its_disk_is_full(
    make: Make, send: Send, kafka: MockKafka, disk: SmallDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing new is delivered, no error reaches the loop.

    When there is room it goes on by itself, each message once.
    """
    consumer = make("orders", store=disk.path / "store")
    send(*BEFORE)
    seen = values(poll_some(consumer, len(BEFORE)))
    disk.fill()
    send(*DURING)
    with caplog.at_level(logging.WARNING):
        seen += values(wait_for(consumer, lambda: waits(consumer), "the disk to be full"))
        seen += values(poll_quiet(consumer))
        assert len(seen) < len(BEFORE) + len(DURING)
        assert [status.hindrances for status in consumer.partition_statuses] == [("store",)]
        disk.make_room()
        seen += values(wait_for(consumer, lambda: not waits(consumer), "room"))
    seen += values(poll_quiet(consumer, 1.0))
    assert seen == BEFORE + DURING
    said = [record.getMessage() for record in caplog.records]
    assert sum("stay in memory until the store can be written" in line for line in said) == 1
    assert sum("the store can be written again" in line for line in said) == 1
    consumer.close()
    assert committed(kafka.bootstrap, "g", "orders").offset == len(seen)
    send(*BEFORE, *DURING, "after")
    assert values(poll_quiet(make("orders", store=disk.path / "store"))) == ["after"]


def test_or_it_goes_on_by_choice(make: Make, send: Send, disk: SmallDisk) -> None:
    """With ``on_full_disk="unverified"`` messages go on, and duplicates are still known.

    All of it is written when there is room.
    """
    consumer = make("orders", store=disk.path / "store", recovery=Recovery(on_full_disk="unverified"))
    send(*BEFORE)
    seen = values(poll_some(consumer, len(BEFORE)))
    disk.fill()
    send(*DURING, *BEFORE, *DURING)
    seen += values(poll_some(consumer, len(DURING)))
    seen += values(poll_quiet(consumer))
    assert seen == BEFORE + DURING
    assert waits(consumer)
    disk.make_room()
    seen += values(wait_for(consumer, lambda: not waits(consumer), "room"))
    consumer.close()
    send(*BEFORE, *DURING, "after")
    assert values(poll_quiet(make("orders", store=disk.path / "store"))) == ["after"]
    assert seen == BEFORE + DURING


@pytest.mark.parametrize("policy", ["pause", "unverified"])
def test_old_marks_that_a_full_disk_does_not_drop_interrupt_nothing(
    make: Make, send: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: OnFullDisk
) -> None:
    """Messages that are in workers' hands at that time are completed once, and do not come again."""
    store = RocksStore(tmp_path / "store", recent_marks=100, generation_marks=1, max_disk=1)
    consumer = make("orders", store=store, completion="explicit", recovery=Recovery(on_full_disk=policy))
    refused: list[int] = []
    evict = RocksPartition.evict

    def once(partition: RocksPartition) -> int | None:
        if not refused:
            refused.append(1)
            raise StoreUnavailableError("there is no room")
        return evict(partition)

    monkeypatch.setattr(RocksPartition, "evict", once)
    send(*BEFORE)
    in_hand = poll_some(consumer, len(BEFORE))
    for message in in_hand[:-10]:
        consumer.complete(message)
    seen = values(in_hand)
    seen += values(wait_for(consumer, lambda: bool(refused) and not waits(consumer), "room"))
    consumer.complete(*in_hand[-10:])
    seen += values(poll_quiet(consumer))
    assert seen == BEFORE
    assert consumer.counters.stale == 0


def test_a_store_that_does_not_open_again_interrupts_nothing(
    make: Make, send: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has room again, but the process no file to open: the partition waits, and messages in hand stay so."""
    consumer = make("orders", store=tmp_path / "store", completion="explicit")
    send(*BEFORE)
    in_hand = poll_some(consumer, len(BEFORE))
    tries: list[int] = []

    def refuse(*_: object) -> None:
        raise StoreUnavailableError("there is no room")

    def does_not_open(*_: object) -> None:
        tries.append(1)
        raise StoreUnavailableError("too many open files")

    with monkeypatch.context() as trouble:
        trouble.setattr(RocksPartition, "append", refuse)
        consumer.complete(*in_hand[:-10])
        trouble.setattr(rocks, "open_database", does_not_open)
        seen = values(in_hand) + values(wait_for(consumer, lambda: len(tries) > 1, "another try"))
    seen += values(wait_for(consumer, lambda: not waits(consumer), "the store"))
    consumer.complete(*in_hand[-10:])
    send("after")
    seen += values(poll_quiet(consumer))
    assert seen == [*BEFORE, "after"]
    assert consumer.counters.stale == 0


def test_one_that_starts_on_a_full_disk_waits(make: Make, send: Send, disk: SmallDisk) -> None:
    """A partition that is assigned while there is no room recovers when there is.

    Until then nothing of it is delivered.
    """
    disk.fill()
    consumer = make("orders", store=disk.path / "store")
    send("a", "b")
    wait_for(consumer, lambda: waits(consumer), "the wait")
    assert consumer.poll(0.5) is None
    disk.make_room()
    assert values(poll_some(consumer, 2)) == ["a", "b"]


def test_a_replay_waits_for_room(make: Make, send: Send) -> None:
    """A disk that fills up in the middle of a replay stops the replay, not its knowledge: no duplicate comes again."""
    ids = [f"id{number}" for number in range(10_000)]
    send(*ids)
    first = make("orders")
    assert len(poll_some(first, len(ids))) == len(ids)
    poll_quiet(first)
    first.close()
    send(*ids, "new")

    store = FullStore()
    second = make("orders", store=store, recent_marks=100)
    real = store.open

    def fills_up(identity: Identity, window: Window) -> FullPartition:
        """A store whose disk is full once something was folded."""
        held = real(identity, window)
        append = held.append

        def once(progress: Progress, marks: Marks) -> None:
            append(progress, marks)
            if marks.count:
                store.full, held.append = True, append  # type: ignore[method-assign]

        held.append = once  # type: ignore[method-assign]
        return held

    store.open = fills_up  # type: ignore[method-assign]
    wait_for(second, lambda: waits(second), "the disk to be full")
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        assert second.poll(0.1) is None
    assert waits(second)
    store.full = False
    assert values(poll_some(second, 1)) == ["new"]
    assert values(poll_quiet(second)) == []
    assert second.counters.as_dict()["unverified"] == 0


def test_a_loop_that_ends_in_a_recovery_is_told(
    make: Make, send: Send, caplog: pytest.LogCaptureFixture
) -> None:
    """It took None for the end of the topic: the line says which partition recovers, how far, and a better loop."""
    send("a", "b", "c")
    with make("orders") as first:
        poll_some(first, 3)
    assert RECOVERING not in caplog.text
    store = FullStore()
    real = store.open

    def is_full_from_now_on(identity: Identity, window: Window) -> FullPartition:
        held = real(identity, window)
        store.full = True
        return held

    store.open = is_full_from_now_on  # type: ignore[method-assign]
    second = make("orders", store=store)
    wait_for(second, lambda: waits(second), "the disk to be full")
    assert second.poll(0.1) is None
    second.close()
    lines = [each.getMessage() for each in caplog.records if RECOVERING in each.getMessage()]
    second.close()
    assert len(lines) == 1
    for said in ("orders[0] (replayed up to offset 3 of 3)", "idle_timeout", "Recovery(snapshot=)"):
        assert said in lines[0]
