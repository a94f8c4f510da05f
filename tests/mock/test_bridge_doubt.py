"""A bridge whose log goes back under it, in a cluster that cannot say which topic it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from dedup_sdk.bridge import _source as source
from dedup_sdk.bridge._source import Source
from tests.support.bridging import Running, bridge, lying, until
from tests.support.producing import Outgoing, produce

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka


def test_a_log_that_goes_back_is_copied_from_there(kafka: MockKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an unclean election.

    The topic is asked for, is the same, and its records have the names that they had; the other partition is not
    touched.
    """
    kafka.create_topic("copies")
    produce(kafka.bootstrap, "pairs", [Outgoing(value=b"%d" % n, partition=n % 2) for n in range(20)])
    doubted: list[dict[tuple[str, int], int]] = []
    recheck = Source.recheck

    def noting(self: Source, firsts: dict[tuple[str, int], int]) -> None:
        doubted.extend([dict(firsts)] if firsts else [])
        recheck(self, firsts)

    class GoingBack(Consumer):
        def consume(self, *arguments: Any, **named: Any) -> list[Any]:
            while back:
                self.seek(back.pop())
            return super().consume(*arguments, **named)

    back: list[TopicPartition] = []
    monkeypatch.setattr(source, "Consumer", GoingBack)
    monkeypatch.setattr(Source, "recheck", noting)
    with Running(bridge(kafka.bootstrap, kafka.bootstrap, "pairs", rename="copies")) as made:
        until(lambda: made.counters.copied >= 20)
        assert made.counters.copied == 20
        back.append(TopicPartition("pairs", 1, 4))
        until(lambda: made.counters.copied >= 26)
        assert made.counters.copied == 26
        produce(kafka.bootstrap, "pairs", [Outgoing(value=b"21", partition=1)])
        until(lambda: made.counters.copied >= 27)
        assert made.counters.copied == 27
    assert doubted == [{("pairs", 1): 4}]
    got = lying(kafka.bootstrap, "copies")
    assert (len(got), len({each.ident for each in got})) == (27, 21)


def test_records_that_come_twice_in_a_batch_are_copied_once(
    kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has returned a record twice for a partition that nobody moved: that partition is read again."""
    kafka.create_topic("copies")
    produce(kafka.bootstrap, "pairs", [Outgoing(value=b"%d" % n, partition=n % 2) for n in range(40)])

    class Repeating(Consumer):
        def consume(self, *arguments: Any, **named: Any) -> list[Any]:
            came = super().consume(*arguments, **named)
            if len(came) > 2 and not repeated:
                repeated.extend(came[-2:])
                came += came[-2:]
            return came

    repeated: list[Any] = []
    monkeypatch.setattr(source, "Consumer", Repeating)
    with Running(bridge(kafka.bootstrap, kafka.bootstrap, "pairs", rename="copies")) as made:
        until(lambda: made.counters.copied >= 40)
        produce(kafka.bootstrap, "pairs", [Outgoing(value=b"last %d" % n, partition=n) for n in (0, 1)])
        until(lambda: made.counters.copied >= 42)
    assert repeated
    got = [each.value or b"" for each in lying(kafka.bootstrap, "copies")]
    assert sorted(got) == sorted(set(got))
    assert len(got) == 42
