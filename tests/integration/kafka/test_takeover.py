from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from dedup_sdk import Recovery, Window
from tests.support.consuming import lookup, poll_quiet, values
from tests.support.producing import Outgoing, produce

if TYPE_CHECKING:
    from tests.support.worlds import World

HOUR_MS = 3_600_000


def send_aged(world: World, *records: tuple[str, float], now_ms: int) -> None:
    """Send records whose timestamps lie so many hours back."""
    produce(
        world.bootstrap,
        world.topic,
        [
            Outgoing(
                value=each.encode(), headers={"dedup-id": each.encode()}, partition=0,
                timestamp_ms=now_ms - round(hours * HOUR_MS),
            )
            for each, hours in records
        ],
    )  # fmt: skip


def test_a_machine_that_comes_back_reads_what_it_missed(world: World) -> None:
    """A store that is behind the group replays from where it was, no more."""
    world.send("a", "b")
    world.handle(2, "one")
    world.send("c", "d")
    world.handle(2, "two")
    world.send("c", "a", "e")

    with world.consumer("one") as consumer:
        assert values(poll_quiet(consumer)) == ["e"]
        assert consumer.partition_statuses[0].detail.endswith(", replayed 2 records")


def test_only_a_window_is_read_again(world: World) -> None:
    """Without a store the replay begins one window before the committed offset.

    Records before are out of every window.
    """
    now_ms = round(time.time() * 1000)
    aged = [(f"old-{number}", 100.0) for number in range(50)]
    send_aged(world, *aged, ("a", 30), ("b", 20), ("c", 1), now_ms=now_ms)
    strategy = lookup(window=Window(hours=24))
    assert len(world.handle(53, dedup=strategy)) == 53
    send_aged(world, ("old-7", 0), ("a", 0), ("b", 0), ("c", 0), ("d", 0), now_ms=now_ms)

    with world.consumer("two", dedup=strategy) as consumer:
        assert values(poll_quiet(consumer)) == ["old-7", "a", "d"]
        replayed = re.search(r"replayed (\d+) records", consumer.partition_statuses[0].detail)
        assert replayed is not None
        assert int(replayed[1]) < 10
        assert consumer.counters.verdicts["unverified"] == 0
    assert world.rest("one", dedup=strategy) == []


def test_the_first_commit_of_a_plain_group_is_the_beginning(world: World) -> None:
    """A group that committed without us has processed records, but nobody knows which: nothing of it is believed."""
    world.send("a", "b", "c")
    world.commit_plainly(2)
    world.send("a", "c", "c")

    with world.consumer() as consumer:
        assert values(poll_quiet(consumer)) == ["c", "a"]
        assert consumer.counters.verdicts["unverified"] == 2
    metadata = world.metadata()
    assert metadata is not None
    assert (metadata.low, metadata.complete) == (2, False)


def test_the_user_may_vouch_for_a_plain_group(world: World) -> None:
    """history="assume-processed": records before the committed offset count as handled."""
    world.send("a", "b", "c")
    world.commit_plainly(2)
    world.send("a", "c", "d")

    assert world.rest(recovery=Recovery(history="assume-processed")) == ["c", "d"]
    metadata = world.metadata()
    assert metadata is not None
    assert metadata.low == 0
    world.send("b", "d")
    assert world.rest("two") == []


def test_a_rewind_keeps_what_was_processed_before_it(world: World) -> None:
    """With our metadata of a new era beside the offset the marks are folded again from the beginning of the history."""
    world.send("a", "b", "c", "a")
    world.handle(3)
    world.commit_plainly(2, metadata=world.text_for(2, era="5f0c9a"))

    assert world.rest() == ["c"]


def test_a_group_set_forward_takes_nothing_in_between_for_handled(world: World) -> None:
    """A tool that skips: the history begins anew, on the same machine as on another."""
    world.send("a", "b", "c", "d")
    world.handle(1)
    world.commit_plainly(3)
    world.send("b", "a")

    assert world.rest() == ["d", "b"]
    metadata = world.metadata()
    assert metadata is not None
    assert metadata.low == 3
    assert world.rest("two") == []
