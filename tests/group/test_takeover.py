"""A machine that takes over from another one, and a log that has lost the place where the group stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, TopicPartition

from tests.support.consuming import poll_quiet, poll_some, values
from tests.support.stored import stored_marks, stored_progress

if TYPE_CHECKING:
    from tests.support.worlds import World


def test_another_machine_gives_the_same_verdicts(world: World) -> None:
    """It reads the tail of the log again, IDs only, and then holds the marks that the first machine holds."""
    world.send("a", "b", "a", "c", "b", "d")
    assert world.handle(4) == ["a", "b", "c", "d"]
    world.send("a", "d", "e", "c")

    with world.consumer("two") as consumer:
        assert values(poll_quiet(consumer)) == ["e"]
        assert consumer.partition_statuses[0].detail.endswith(", replayed 6 records")
        assert consumer.counters.verdicts["unverified"] == 0
        assert consumer.counters.verdicts["duplicate"] == 3
    world.rest("one")
    assert stored_marks(world.disk("two")) == stored_marks(world.disk("one"))
    one, two = stored_progress(world.disk("one")), stored_progress(world.disk("two"))
    assert one is not None
    assert two is not None
    assert (one.low, one.high, one.known.since_ms) == (two.low, two.high, two.known.since_ms)


@pytest.mark.parametrize(("reset", "expected"), [("earliest", ["d", "e", "a"]), ("latest", [])])
def test_an_offset_that_is_gone_follows_the_policy(world: World, reset: str, expected: list[str]) -> None:
    """Retention has overtaken the group: it goes on where the policy says, and its history begins there."""
    world.send("a", "b", "c", "d", "e", "a")
    world.handle(1, "one")
    world.delete_before(3)

    with world.consumer("two", config={"auto.offset.reset": reset}) as consumer:
        assert values(poll_quiet(consumer)) == expected
        world.send("d", "f")
        assert values(poll_quiet(consumer)) == (["f"] if reset == "earliest" else ["d", "f"])
    metadata = world.metadata()
    assert metadata is not None
    assert metadata.low == (3 if reset == "earliest" else 6)


def test_an_offset_that_is_gone_with_the_store_at_hand(world: World) -> None:
    """The marks of handled messages stay: they were handled, though the log is gone."""
    world.send("a", "b", "c", "d", "e", "a")
    world.handle(1, "one")
    world.delete_before(3)

    assert world.rest("one") == ["d", "e"]


def test_without_a_policy_an_offset_that_is_gone_is_an_event(world: World) -> None:
    """auto.offset.reset=error: the application gets the client's own event, and decides."""
    world.send("a", "b", "c")
    world.handle(1)
    world.delete_before(2)
    consumer = world.consumer(config={"auto.offset.reset": "error"})

    event = poll_some(consumer, 1)[0]
    assert event.error().code() == KafkaError._AUTO_OFFSET_RESET
    consumer.seek(TopicPartition(world.topic, 0, 2))
    # The client may have told of it once more before the seek.
    *again, last = values(poll_quiet(consumer))
    assert last == "c"
    # A slow client tells of it once more, although it was moved by then.
    assert set(again) <= {"_AUTO_OFFSET_RESET"}


def test_a_commit_that_comes_late_is_no_rewind(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A client sends an older commit again: on the same disk nothing is handled twice, and a line says so."""
    world.send("a", "b", "c", "a")
    assert world.rest() == ["a", "b", "c"]
    world.commit_plainly(2, metadata=world.text_for(2))
    world.send("d")

    assert world.rest() == ["d"]
    assert "a commit of 2 came after that of 4" in caplog.text
    assert world.committed().offset == 5


@pytest.mark.parametrize(("disk", "again", "low"), [("one", ["b", "c"], 0), ("two", ["b", "a", "c"], 1)])
def test_a_rewound_group_sees_it_again(world: World, disk: str, again: list[str], low: int) -> None:
    """A tool sets the offset back: what is completed from there on comes again, on any machine.

    The store of the first disk knows the record below, of which one is a duplicate; another disk has to deliver that.
    """
    world.send("a", "b", "a", "c")
    world.handle(3)
    world.commit_plainly(1)

    assert world.rest(disk) == again
    metadata = world.metadata()
    assert metadata is not None
    assert metadata.low == low
