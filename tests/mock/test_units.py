"""The consumer with units: the time of delivery, the messages that a crash repeats, and the marks.

Records are written as in `tests.support.sending_units`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import ConfigurationError, DedupConsumer, Lookup, MemoryStore, Unit, Window, header
from dedup_sdk._commit_text import parse_metadata
from tests.support import inside
from tests.support.consuming import iterate_all, lookup, poll_quiet, poll_some, run_all, values
from tests.support.sending_units import SendUnits, unit_sender, units

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make

SOON_S = 0.3
"""A unit that does not become whole within this has failed."""


@pytest.fixture
def send(kafka: MockKafka) -> SendUnits:
    """Sends records as `tests.support.sending_units` writes them."""
    return unit_sender(kafka.bootstrap)


def committed(consumer: DedupConsumer) -> int:
    """The offset that the group has committed of "orders"."""
    return consumer.committed([TopicPartition("orders", 0)])[0].offset


def kill(consumer: DedupConsumer) -> None:
    """Leave as a killed process does: nothing is written or committed."""
    inside.lose_all(consumer)
    consumer.close()


def test_a_unit_is_handed_out_when_it_is_whole(make: Make, send: SendUnits) -> None:
    """Record by record, in the order of the log; records between are not held up."""
    consumer = make("orders", dedup=units())
    send("x/U", "a", "/U")
    assert values(poll_some(consumer, 1)) == ["a"]
    assert values(poll_quiet(consumer)) == []
    consumer.commit()
    assert committed(consumer) == 0
    send("b", "y/U.")
    got = values(poll_quiet(consumer))
    assert [value for value in got if value != "b"] == ["x/U", "/U", "y/U."]
    assert consumer.counters.verdicts["fresh"] == 5


def test_one_duplicate_hides_the_unit(make: Make, send: SendUnits) -> None:
    """None of it is handed out, and its new records are not remembered."""
    consumer = make("orders", dedup=units())
    send("a", "x/U", "a/U", "/U.", "x", "a/V:2", "z/V:2", "z")
    assert values(poll_quiet(consumer)) == ["a", "x", "z"]
    assert consumer.counters.as_dict()["duplicate.unit"] == 3


def test_members_have_a_verdict_each(make: Make, send: SendUnits) -> None:
    """With ``members`` only records that are duplicates are hidden; the rest comes when all of it has come."""
    consumer = make("orders", dedup=units(unit_mode="members"))
    send("a", "x/U", "a/U")
    assert values(poll_quiet(consumer)) == ["a"]
    send("/U.", "x")
    assert values(poll_quiet(consumer)) == ["x/U", "/U."]


@pytest.mark.parametrize("count", [1, 3, 100])
def test_units_by_consume(make: Make, send: SendUnits, count: int) -> None:
    """However many are asked for at once, each message comes once."""
    consumer = make("orders", dedup=units())
    send("a", "x/U", "b", "y/U.", "x", "a/V", "c/V:2", "c")
    got: list[str] = []
    while len(got) < 5:
        got += values(consumer.consume(count, 0.5))
    assert sorted(got) == sorted(["a", "x/U", "b", "y/U.", "c"])
    assert values(consumer.consume(count, 0.5)) == []
    consumer.commit(asynchronous=False)
    assert committed(consumer) == 8


def test_units_by_iteration_and_by_workers(make: Make, send: SendUnits) -> None:
    """The usual loop, and one with threads."""
    send("a", "x/U", "b", "y/U.", "x")
    with make("orders", dedup=units()) as consumer:
        # What waits for the end of a unit comes behind what came before that.
        assert sorted(values(iterate_all(consumer))) == ["a", "b", "x/U", "y/U."]
    send("p/V", "q/V", "y", "r/V:3", "p")
    handled: list[str] = []
    with make("orders", dedup=units()) as consumer:
        run_all(consumer, lambda message: handled.append(message.value().decode()), workers=2)
    assert sorted(handled) == ["p/V", "q/V", "r/V:3"]


def test_a_crash_in_a_unit_brings_it_again_whole(make: Make, send: SendUnits) -> None:
    """Both in the middle of receiving it and in the middle of handling it.

    Messages over beside it do not come again.
    """
    first = make("orders", dedup=units(), completion="explicit")
    send("x/U", "a")
    first.complete(poll_some(first, 1)[0])
    kill(first)
    second = make("orders", dedup=units(), completion="explicit")
    send("y/U.", "b")
    x, y, b = poll_some(second, 3)
    assert values([x, y, b]) == ["x/U", "y/U.", "b"]
    second.complete(y)
    second.complete(b)
    second.commit(asynchronous=False)
    assert committed(second) == 0
    kill(second)
    third = make("orders", dedup=units())
    assert values(poll_some(third, 2)) == ["x/U", "y/U."]
    assert values(poll_quiet(third)) == []
    third.commit(asynchronous=False)
    assert committed(third) == 4


KILLED = """
    import os, signal, sys
    from dedup_sdk import DedupConsumer, Lookup, Window, header

    bootstrap, store = sys.argv[1:]
    consumer = DedupConsumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50,
         "session.timeout.ms": 1200, "heartbeat.interval.ms": 100, "auto.commit.interval.ms": 60000, "log_level": 0},
        dedup=Lookup(id=header("dedup-id"), window=Window(days=7), unit=header("dedup-unit")), \
store=store, completion="explicit",
    )
    consumer.subscribe(["orders"])
    handled = {}
    while len(handled) < 4:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            handled[message.value()] = message
    consumer.release(handled[b"b"])
    for each in (b"a", b"c", b"d"):
        consumer.complete(handled[each])
    os.kill(os.getpid(), signal.SIGKILL)
"""
"""Completes a, c and d, hands b back, and has a twin of b and two units waiting when it is killed."""


@pytest.mark.slow
def test_a_backlog_that_is_read_again_gives_nothing_twice(
    make: Make, send: SendUnits, kafka: MockKafka, tmp_path: Path
) -> None:
    """HornetQ's paging: messages waiting in us at a kill (a unit, twins, retries) comes again, and only that."""
    send("a", "b", "x/U", "a", "c", "y/V", "b", "d")
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), kafka.bootstrap, str(tmp_path)],
        check=False,
        timeout=60,
    )
    assert ended.returncode == -signal.SIGKILL
    again = make("orders", dedup=units(), store=tmp_path)
    send("x", "z/U.", "b", "c/V.", "e")
    # U ends behind a record with one of its IDs, and V holds a duplicate.
    assert values(poll_quiet(again)) == ["b", "x", "e"]
    assert again.counters.verdicts["redelivered"] == 4
    again.commit(asynchronous=False)
    assert committed(again) == 13


def test_a_unit_that_does_not_become_whole_is_delivered_unverified(make: Make, send: SendUnits) -> None:
    """After its time, record by record; it leaves no mark, so that it may come again, whole."""
    consumer = make("orders", dedup=units(SOON_S))
    send("x/U:3", "y/U", "a")
    assert values(poll_some(consumer, 3)) == ["a", "x/U:3", "y/U"]
    assert consumer.counters.reasons == {"unverified.unit-unfinished": 2}
    send("x/W", "y/W", "z/W.", "z/U")
    assert values(poll_quiet(consumer)) == ["x/W", "y/W", "z/W.", "z/U"]
    consumer.commit(asynchronous=False)
    told = consumer.committed([TopicPartition("orders", 0)])[0]
    metadata = parse_metadata(told.metadata, committed=told.offset)
    assert told.offset == 7
    # The log's records of it are not the handled ones: nobody folds them.
    assert metadata is not None
    assert (metadata.low, metadata.complete) == (7, False)


def test_a_partition_that_begins_inside_a_unit(make: Make, send: SendUnits) -> None:
    """It does not wait for records that it never gets."""
    send("x/U:2", "y/U", "a")
    consumer = make(dedup=units(SOON_S))
    consumer.assign([TopicPartition("orders", 0, 1)])
    assert values(poll_some(consumer, 2)) == ["a", "y/U"]


@pytest.mark.parametrize(
    "records", [["x/U:0"], ["x/U:many"], ["x/U:3", "y/U:2"], ["x/U", "y/U", "z/U:2"], ["x/U:3", "y/U."]]
)
def test_a_unit_that_contradicts_itself(make: Make, send: SendUnits, records: list[str]) -> None:
    """Is delivered at once, record by record, and counted."""
    consumer = make("orders", dedup=units())
    send(*records)
    assert sorted(values(poll_some(consumer, len(records)))) == sorted(records)
    assert consumer.counters.reasons == {"unverified.unit-malformed": len(records)}


def test_a_unit_with_too_many_records(make: Make, send: SendUnits) -> None:
    """Does not wait for its end."""
    consumer = make("orders", dedup=lookup(unit=Unit(records=2)))
    send("x/U", "y/U", "z/U", "a", "b/V:3")
    assert sorted(values(poll_quiet(consumer))) == ["a", "b/V:3", "x/U", "y/U", "z/U"]
    assert consumer.counters.reasons == {"unverified.unit-unfinished": 4}


def test_a_unit_in_two_partitions(make: Make, send: SendUnits, caplog: pytest.LogCaptureFixture) -> None:
    """An error line names both, and its records are delivered one by one."""
    consumer = make("pairs", dedup=units())
    send("x/U", topic="pairs", partition=0)
    send("a", "y/U", "z/U.", topic="pairs", partition=1)
    assert sorted(values(poll_some(consumer, 4) + poll_quiet(consumer))) == ["a", "x/U", "y/U", "z/U."]
    line = next(record.message for record in caplog.records if record.levelname == "ERROR")
    assert line.startswith("unit 'U' has records in pairs[")
    assert "pairs[0] from offset 0" in line
    assert "pairs[1] from offset 1" in line
    assert consumer.counters.events["unit-crosses"] == 1


def test_a_unit_waits_for_what_is_in_flight(make: Make, send: SendUnits) -> None:
    """A record with one of its IDs that was handed out decides; when it fails for good the unit is accepted."""
    consumer = make("orders", dedup=units(), completion="explicit")
    send("a", "x/U", "a/U.", "x")
    (a,) = poll_some(consumer, 1)
    assert values(poll_quiet(consumer)) == []
    consumer.release(a)
    (a,) = poll_some(consumer, 1)
    consumer.complete(a)
    assert values(poll_quiet(consumer)) == ["x"]


def test_a_member_that_is_dead_lettered(make: Make, send: SendUnits) -> None:
    """Its unit is remembered, here and where its marks are made anew from the log."""

    def handle(message: Any) -> None:
        if message.value() == b"y/U.":
            raise ValueError("no")

    send("x/U", "y/U.", "a")
    with make("orders", dedup=units()) as consumer:
        run_all(consumer, handle, on_error="dead-letter", attempts=1)
        assert consumer.counters.dead_lettered == 1
        consumer.commit(asynchronous=False)
        assert committed(consumer) == 3
    send("x", "y", "b")
    elsewhere = make("orders", dedup=units(), store=MemoryStore())
    assert values(poll_quiet(elsewhere)) == ["b"]
    assert elsewhere.counters.verdicts["duplicate"] == 2


def test_a_lost_disk_is_made_up_for_by_the_topic(make: Make, send: SendUnits) -> None:
    """The replay judges units as they were: rejected ones leave nothing of their new records."""
    with make("orders", dedup=units(), store=MemoryStore()) as consumer:
        send("a", "x/U", "a/U.", "p/V", "b", "q/V.")
        assert values(poll_some(consumer, 4)) == ["a", "p/V", "b", "q/V."]
    send("x", "q", "a", "p/W", "n/W.", "n")
    elsewhere = make("orders", dedup=units(), store=MemoryStore())
    assert values(poll_quiet(elsewhere)) == ["x", "n"]
    assert elsewhere.counters.verdicts["unverified"] == 0


def test_a_paused_partition_waits_for_its_unit(make: Make, send: SendUnits) -> None:
    """Nothing can come of it meanwhile."""
    soon_s = 3.0
    consumer = make("orders", dedup=units(soon_s))
    send("x/U", "a")
    assert values(poll_some(consumer, 1)) == ["a"]
    consumer.pause([TopicPartition("orders", 0)])
    assert values(poll_quiet(consumer, soon_s + 1)) == []
    send("y/U.")
    consumer.resume([TopicPartition("orders", 0)])
    assert values(poll_some(consumer, 2)) == ["x/U", "y/U."]
    assert consumer.counters.verdicts["unverified"] == 0


def test_a_seek_to_the_message_in_hand_passes_no_open_unit(make: Make, send: SendUnits) -> None:
    """The usual way to try again: records that wait below it for their unit were never handed out, and come yet."""
    consumer = make("orders", dedup=units())
    send("w", "x/U", "a")
    assert values(poll_some(consumer, 2)) == ["w", "a"]
    consumer.seek(TopicPartition("orders", 0, 2))
    assert values(poll_some(consumer, 1)) == ["a"]
    send("y/U.", "b")
    assert values(poll_some(consumer, 3)) == ["x/U", "y/U.", "b"]


def test_a_seek_to_a_member_in_hand_goes_back_to_the_beginning_of_its_unit(
    make: Make, send: SendUnits
) -> None:
    """The rest of it would pass for all of it, and its first ID would not be remembered; nothing is in doubt for it."""
    consumer = make("orders", dedup=units())
    send("w", "x/U", "y/U.", "b")
    assert values(poll_some(consumer, 3)) == ["w", "x/U", "y/U."]
    consumer.seek(TopicPartition("orders", 0, 2))
    assert values(poll_some(consumer, 3)) == ["x/U", "y/U.", "b"]
    send("x", "y", "c")
    assert values(poll_quiet(consumer)) == ["c"]
    assert consumer.counters.verdicts["unverified"] == 0


def test_a_seek_into_a_unit_that_is_over_goes_back_to_its_beginning(make: Make, send: SendUnits) -> None:
    """Its rest would not come; an overlapping unit comes whole, too, with the verdicts of the first time."""
    consumer = make("orders", dedup=units())
    send("w", "x/U:2", "p/V:2", "y/U", "b", "q/V", "c")
    assert len(poll_some(consumer, 7)) == 7
    consumer.commit(asynchronous=False)
    assert committed(consumer) == 7
    consumer.seek(TopicPartition("orders", 0, 3))
    assert sorted(values(poll_some(consumer, 6))) == ["b", "c", "p/V:2", "q/V", "x/U:2", "y/U"]
    assert consumer.counters.verdicts["unverified"] == 0
    consumer.commit(asynchronous=False)
    assert committed(consumer) == 7


def test_a_store_without_units_is_another_one(make: Make, send: SendUnits, tmp_path: Path) -> None:
    """Its marks say something else: it is set aside, and nothing is hidden by its word."""
    with make("orders", store=tmp_path) as consumer:
        send("a")
        assert values(poll_some(consumer, 1)) == ["a"]
    send("a/U", "b/U.")
    changed = make("orders", dedup=units(), store=tmp_path)
    assert values(poll_quiet(changed)) == ["a/U", "b/U."]
    assert changed.counters.verdicts["unverified"] == 2
    assert changed.counters.events["rule-changed"] == 1


def test_settings_that_contradict_units(make: Make) -> None:
    """Are refused in one line."""
    with pytest.raises(ConfigurationError, match="mode='observe' hides nothing"):
        make("orders", dedup=units(), mode="observe")
    with pytest.raises(ConfigurationError, match="unit=7"):
        Lookup(id=header("a"), window=Window(days=1), unit=7)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="unit_mode='both'"):
        Lookup(id=header("a"), window=Window(days=1), unit_mode="both")  # type: ignore[arg-type]
