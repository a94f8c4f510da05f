from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from dedup_sdk import ConfigurationError, MemoryStore
from dedup_sdk.kafka.dead_letter_log import DeadLetterLog, GivenUp
from dedup_sdk.kafka.metadata import CommitMetadata
from tests.support.consuming import PATIENCE_S, committed_metadata, poll_quiet, values
from tests.support.given_up import give_up, letter_of, send_letters

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

HOUR_MS = 3_600_000


def test_what_was_given_up_is_not_taken_for_handled(make: Make, send: Send) -> None:
    """After the disk is lost a re-driven message is handled, and what was handled stays hidden; nothing is in doubt."""
    send("a", "b", "c")
    give_up(make, "b")
    send("b", "a", "c")

    consumer = make("orders", store=MemoryStore())
    assert values(poll_quiet(consumer)) == ["b"]
    assert consumer.counters.verdicts["duplicate"] == 2
    assert consumer.counters.verdicts["unverified"] == 0


def test_without_looking_at_the_dead_letters_it_would_be_lost(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same without the dead letters hides the re-driven message: what the test above is about."""

    def nothing(*_: object, **__: object) -> Any:
        yield
        return GivenUp()

    monkeypatch.setattr(DeadLetterLog, "read", nothing)
    send("a", "b", "c")
    give_up(make, "b")
    send("b", "a")

    assert poll_quiet(make("orders", store=MemoryStore())) == []


def test_a_tail_is_replayed_without_what_was_given_up(make: Make, send: Send) -> None:
    """A store that is behind learns what the other machine handled, and not what that one gave up."""
    send("a")
    give_up(make)
    other = MemoryStore()
    send("b", "c")
    give_up(make, "b", store=other)
    send("b", "c", "a")

    consumer = make("orders")
    assert values(poll_quiet(consumer)) == ["b"]
    assert consumer._session.assigned["orders", 0].replayed == 2


def test_what_was_sent_again_and_handled_is_handled(make: Make, send: Send) -> None:
    """The dead letter of a message that was re-driven says nothing of the record by which it was handled."""
    send("a")
    give_up(make, "a")
    send("a")
    give_up(make)
    send("a", "b")

    assert values(poll_quiet(make("orders", store=MemoryStore()))) == ["b"]


def test_a_time_of_nineteen_digits_makes_no_handled_message(make: Make, kafka: MockKafka) -> None:
    """A message whose producer writes nanoseconds, and that was given up, is handled when it is sent again."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    now_ms = int(time.time() * 1000)
    for value, timestamp in (("a", now_ms), ("b", now_ms * 1_000_000), ("c", now_ms)):
        producer.produce("orders", value, headers={"dedup-id": value}, partition=0, timestamp=timestamp)
    assert producer.flush(PATIENCE_S) == 0
    give_up(make, "b")
    producer.produce("orders", "b", headers={"dedup-id": "b"}, partition=0, timestamp=now_ms)
    assert producer.flush(PATIENCE_S) == 0

    assert "b" in values(poll_quiet(make("orders", store=MemoryStore())))


@pytest.mark.usefixtures("letters")
def test_a_dead_letter_of_ours_that_cannot_be_read_is_told_once(
    make: Make, send: Send, kafka: MockKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody changed it, and its message passes for handled: one line in the log says so, however many there are."""
    send("a")
    give_up(make)
    send_letters(kafka, letter_of(2**63), letter_of(2**64), letter_of(2**63, group="other"))

    assert poll_quiet(make("orders", store=MemoryStore(), dead_letters="letters")) == []
    told = [record.message for record in caplog.records if "cannot be read" in record.message]
    assert len(told) == 1
    assert told[0].startswith("letters[0]@0 is a dead letter of group g ")


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize(
    ("said", "again"),
    [
        ([("old", -HOUR_MS)], []),
        ([("old", -HOUR_MS), ("old", -HOUR_MS)], []),
        ([("old", 0)], ["a"]),
        ([("a", -HOUR_MS)], ["a"]),
        ([(None, -HOUR_MS)], ["a"]),
        ([("a", 0), ("old", -HOUR_MS)], ["a"]),
        ([("a", 0), ("old", -HOUR_MS), ("old", -HOUR_MS)], ["a"]),
        ([("old", None)], ["a"]),
    ],
    ids=[
        "another",
        "another twice",
        "ID differs",
        "time differs",
        "no ID",
        "both",
        "both, one twice",
        "no time",
    ],
)
def test_a_dead_letter_of_a_topic_before_says_nothing_of_this_one(
    make: Make, kafka: MockKafka, said: list[tuple[str | None, int | None]], again: list[str]
) -> None:
    """Where neither ID nor time are those of the record, it was handled; where one is, or nobody can tell, it is handed out."""
    now_ms = int(time.time() * 1000)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    producer.produce("orders", "a", headers={"dedup-id": "a"}, partition=0, timestamp=now_ms)
    assert producer.flush(PATIENCE_S) == 0
    give_up(make)
    send_letters(
        kafka,
        *(letter_of(0, name=name, timestamp_ms=-1 if late is None else now_ms + late) for name, late in said),
    )
    producer.produce("orders", "a", headers={"dedup-id": "a"}, partition=0, timestamp=now_ms)
    assert producer.flush(PATIENCE_S) == 0

    assert values(poll_quiet(make("orders", store=MemoryStore(), dead_letters="letters"))) == again


@pytest.mark.usefixtures("letters")
def test_dead_letters_of_others_say_nothing(make: Make, send: Send, kafka: MockKafka) -> None:
    """Those of another group or topic, and what is no dead letter, leave what this group handled as it is."""
    send("a", "b")
    give_up(make)
    send_letters(kafka, letter_of(0, group="other"), letter_of(1, topic="pairs"))
    send("x", topic="letters")
    send("a", "b")

    assert poll_quiet(make("orders", store=MemoryStore(), dead_letters="letters")) == []


def test_every_commit_tells_of_what_was_given_up(kafka: MockKafka, make: Make, send: Send) -> None:
    """Also those of a later run over the same store, of another disk, and of one that never committed it itself."""
    send("a", "b", "c")
    give_up(make, "b")
    told = committed_metadata(kafka.bootstrap, "g", "orders")
    assert told == CommitMetadata(low=0, complete=True, epoch=0, buried=2)
    for store in ({}, {"store": MemoryStore()}):
        send("d")
        give_up(make, **store)
        now = committed_metadata(kafka.bootstrap, "g", "orders")
        assert now is not None
        assert now.buried == 2


def test_an_empty_name_is_refused(make: Make) -> None:
    """The message names the value and the way out."""
    with pytest.raises(ConfigurationError, match="dead_letters='' is no topic; name one"):
        make("orders", dead_letters="")
