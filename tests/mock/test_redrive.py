"""Dead letters that are sent back with their headers are handled once more by the group that failed, by nobody else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from dedup_sdk import DeadLetter, MemoryStore
from dedup_sdk._cli.app import run as dedup
from dedup_sdk._kafka.client.fields import as_record
from dedup_sdk._runner.dead_letters import original_headers
from dedup_sdk.ids._redrive import REDRIVE_HEADER
from dedup_sdk.shared import MemoryClaimStore, Shared
from tests.support.consuming import poll_quiet, values
from tests.support.dead_letters import dead_letter, dead_letters, forward

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


def test_what_fails_again_is_sent_back_again(make: Make, send: Send, kafka: MockKafka) -> None:
    """Its new dead letter has one redrive header, which names the record that failed last.

    Without ours it is as the producer sent it.
    """
    send("a")
    dead_letter(make, "a")
    forward(kafka.bootstrap, dead_letters(kafka.bootstrap))
    dead_letter(make, "a")
    first, second = sorted(dead_letters(kafka.bootstrap), key=Message.timestamp)
    for offset, letter in enumerate((first, second)):
        [said] = [text for name, text in as_record(letter).headers if name == REDRIVE_HEADER]
        read = DeadLetter.read(letter)
        assert read is not None
        assert said == b"group=g&topic=orders&partition=0&offset=%d&timestamp=%d" % (
            offset,
            read.timestamp_ms,
        )
    assert original_headers(second) == [("dedup-id", b"a")]
    forward(kafka.bootstrap, [first, second])
    with make("orders") as consumer:
        assert values(poll_quiet(consumer)) == ["a"]
        assert consumer.counters.verdicts["duplicate"] == 1


def test_a_retry_topic_that_the_group_reads_needs_no_tool(make: Make, send: Send, kafka: MockKafka) -> None:
    """The dead letter that arrives there is handled once more."""
    kafka.create_topic("orders.retry")
    send("a", "b")
    dead_letter(make, "a", letters="orders.retry")
    with make("orders", "orders.retry") as consumer:
        assert values(poll_quiet(consumer)) == ["a"]


@pytest.mark.parametrize("scope", ["topic", "group", "global"])
def test_a_retry_topic_of_the_same_scope_is_read(
    make: Make, send: Send, kafka: MockKafka, scope: Any
) -> None:
    """The shared memory has the message as completed, and its dead letter as another one, which is handled once."""
    kafka.create_topic("orders.retry")
    store = MemoryClaimStore()
    options: dict[str, Any] = {
        "shared": Shared(store, scope=scope, origins={"orders.retry": "orders"}),
    }
    send("a", "b")
    dead_letter(make, "a", letters="orders.retry", **options)
    with make("orders.retry", store=MemoryStore(), **options) as consumer:
        assert values(poll_quiet(consumer)) == ["a"]
    [letter] = dead_letters(kafka.bootstrap, "orders.retry")
    forward(kafka.bootstrap, [letter])
    forward(kafka.bootstrap, [letter], "orders.retry")
    with make("orders", "orders.retry", store=MemoryStore(), **options) as consumer:
        assert poll_quiet(consumer) == []
        assert consumer.counters.verdicts["duplicate"] == 2


# --- dedup redrive
# -------------------------------------------------------------------------------------------------------


def redrive(kafka: MockKafka, *options: str, source: str = "g.dead-letters") -> int:
    """Call the command."""
    return dedup(["redrive", "--bootstrap", kafka.bootstrap, "--from", source, *options])


def test_the_command_sends_all_and_goes_on_where_it_ended(
    make: Make, send: Send, kafka: MockKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing without --execute; each run takes those that earlier ones did not, and --again starts over."""
    send("a", "b", partition=1, topic="pairs")
    send("c", partition=0, topic="pairs")
    dead_letter(make, "a", "b", "c", topic="pairs")
    assert redrive(kafka, "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {
        "from": "g.dead-letters", "to": None, "executed": False, "letters": 3, "topics": {"pairs": 3},
        "stranded": {}, "others": 0,
        "read": 3, "total": 3,
    }  # fmt: skip
    assert "nothing was sent, 3 dead letters would be; add --execute" in said.err
    with make("pairs") as consumer:
        assert poll_quiet(consumer) == []

    sent: list[str] = []
    for options, count in (("--limit", "2"), 2), ((), 1), ((), 0):
        assert redrive(kafka, "--execute", "--json", *options) == 0
        assert json.loads(capsys.readouterr().out)["letters"] == count
        with make("pairs") as consumer:
            got = poll_quiet(consumer)
        assert len(got) == count
        sent += values(got)
        assert all(each.partition() == (0 if each.value() == b"c" else 1) for each in got)
    assert sorted(sent) == ["a", "b", "c"]
    assert redrive(kafka, "--execute", "--again") == 0
    assert "3 dead letters sent back" in capsys.readouterr().err
    with make("pairs") as consumer:
        assert poll_quiet(consumer) == []
        assert consumer.counters.verdicts["duplicate"] == 3


def test_a_position_beyond_the_end_of_the_topic_is_that_of_an_older_topic(
    make: Make, send: Send, kafka: MockKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was deleted and made again: the command starts at its beginning."""
    send("a")
    dead_letter(make, "a")
    plain = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "g.dead-letters.redrive"})
    numbers = plain.list_topics("g.dead-letters").topics["g.dead-letters"].partitions
    plain.commit(offsets=[TopicPartition("g.dead-letters", each, 9) for each in numbers], asynchronous=False)
    plain.close()
    assert redrive(kafka, "--execute") == 0
    assert capsys.readouterr().out == "orders: 1 dead letter\n"


def test_the_command_sends_to_another_topic(
    make: Make, send: Send, kafka: MockKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --to; other messages are left, and counted."""
    kafka.create_topic("orders.retry")
    send("a")
    dead_letter(make, "a")
    send("what else", topic="g.dead-letters")
    assert redrive(kafka, "--to", "orders.retry", "--execute") == 0
    said = capsys.readouterr()
    assert said.out == "orders.retry: 1 dead letter\n"
    assert "1 record passed over as no dead letters of this SDK" in said.err
    with make("orders.retry", store=MemoryStore()) as consumer:
        assert values(poll_quiet(consumer)) == ["a"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--to", "g.dead-letters"), "--to 'g.dead-letters' is the same as --from"),
        (
            ("--to", "never-made", "--execute"),
            "topic 'never-made' is unknown to the broker; check --to",
        ),
    ],
)
def test_what_cannot_be_sent_is_told_in_one_line(
    make: Make,
    send: Send,
    kafka: MockKafka,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    sentence: str,
) -> None:
    """And nothing was sent."""
    send("a")
    dead_letter(make, "a")
    assert redrive(kafka, *options) != 0
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("topic", ["never-made", "a\0b", "x" * 40_000, "__consumer_offsets", "../x"])
def test_a_dead_letter_of_no_topic_holds_up_no_other(
    make: Make, send: Send, kafka: MockKafka, capsys: pytest.CaptureFixture[str], topic: str
) -> None:
    """It is left, counted and told in one line; all others are sent."""
    send("a")
    dead_letter(make, "a")
    [letter] = dead_letters(kafka.bootstrap, "g.dead-letters")
    headers: Any = dict(as_record(letter).headers) | {"dedup-dead-letter-topic": topic.encode()}
    stranded = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    stranded.produce("g.dead-letters", b"lost", partition=0, headers=headers)
    assert stranded.flush(30) == 0
    forward(kafka.bootstrap, [letter], "g.dead-letters")
    assert redrive(kafka, "--execute") == 1
    said = capsys.readouterr()
    assert said.out == "orders: 2 dead letters\n"
    assert "left 1 dead letter of topic" in said.err
    assert "which the broker does not have: create it" in said.err
    assert "Traceback" not in said.err
    assert len(said.err) < 1_000


def test_a_setting_that_no_producer_takes_is_told(
    make: Make, send: Send, kafka: MockKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, whatever the client raises."""
    send("a")
    dead_letter(make, "a")
    assert redrive(kafka, "--execute", "--client-config", "delivery.report.only.error=true") != 0
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.startswith("dedup: the client refuses its settings")
    assert "delivery.report.only.error" in said
    assert said.endswith("see --client-config\n")
    assert said.count("\n") == 1


def test_a_dead_letter_topic_that_is_not_there_is_told(
    kafka: MockKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its name."""
    assert redrive(kafka, source="no-such") != 0
    assert "topic 'no-such' is unknown to the broker; check --from" in capsys.readouterr().err
