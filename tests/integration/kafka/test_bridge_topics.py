"""Topics of a bridge's source that are deleted, and made anew, on a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from dedup_sdk import MemoryStore
from dedup_sdk.bridge._source import Source
from dedup_sdk.bridge._source_log import parse_log
from tests.support.bridging import Running, bridge, copy_all, lying, until
from tests.support.brokers import delete_topic, make_anew
from tests.support.consuming import PATIENCE_S, make_consumer, poll_some, values
from tests.support.producing import Outgoing, produce

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

T0 = 1_700_000_000_000


def nameless(*told: str) -> list[Outgoing]:
    """Records without IDs, all of the same millisecond."""
    return [Outgoing(value=each.encode(), timestamp_ms=T0) for each in told]


def seen(broker: Broker, topic: str, count: int) -> list[str]:
    """So many messages that a `DedupConsumer` of the target hands out."""
    with make_consumer(broker.bootstrap, f"{topic}-reader", MemoryStore()) as consumer:
        consumer.subscribe([topic])
        return sorted(values(poll_some(consumer, count)))


def test_a_topic_made_anew_between_two_runs_is_another(broker: Broker, make_topic: MakeTopic) -> None:
    """Its records lie where those of the old one lay, and are of the same millisecond; none is hidden at the target."""
    source, target = make_topic(1), make_topic(1)
    produce(broker.bootstrap, source, nameless("a", "b", "c"))
    assert copy_all(broker.bootstrap, broker.bootstrap, source, rename=target).named == 3
    make_anew(broker.bootstrap, source)
    produce(broker.bootstrap, source, nameless("x", "y", "z", "w"))
    assert copy_all(broker.bootstrap, broker.bootstrap, source, rename=target).copied == 4
    assert seen(broker, target, 7) == ["a", "b", "c", "w", "x", "y", "z"]


def test_a_topic_that_stays_has_its_records_named_the_same(broker: Broker, make_topic: MakeTopic) -> None:
    """Whoever copies it, and however often."""
    source, target = make_topic(2), make_topic(1)
    produce(broker.bootstrap, source, [Outgoing(value=b"%d" % n, partition=n % 2) for n in range(20)])
    for group in ("first", "second"):
        assert (
            copy_all(
                broker.bootstrap, broker.bootstrap, source, rename=target, group=f"{source}-{group}"
            ).named
            == 20
        )
    got = lying(broker.bootstrap, target)
    assert len(got) == 40
    assert len({each.ident for each in got}) == len({(each.ident, each.value) for each in got}) == 20


@pytest.mark.slow
@pytest.mark.parametrize("transactions", ["auto", "never"])
def test_a_topic_made_anew_under_a_bridge_is_copied_from_its_beginning(
    broker: Broker, make_topic: MakeTopic, transactions: str
) -> None:
    """It is longer than where the bridge stood already, which the client does not notice."""
    source, target = make_topic(1), make_topic(1)
    produce(broker.bootstrap, source, nameless("a", "b", "c"))
    with Running(
        bridge(broker.bootstrap, broker.bootstrap, f"^{source}$", rename=target, transactions=transactions)
    ) as made:
        until(lambda: made.counters.copied >= 3)
        assert made.counters.copied == 3
        make_anew(broker.bootstrap, source)
        produce(broker.bootstrap, source, nameless("u", "v", "w", "x", "y"))
        until(lambda: made.counters.made_anew >= 1)
        assert made.counters.made_anew == 1
    copy_all(broker.bootstrap, broker.bootstrap, f"^{source}$", rename=target)
    assert set(seen(broker, target, 8)) == {"a", "b", "c", "u", "v", "w", "x", "y"}
    assert copy_all(broker.bootstrap, broker.bootstrap, f"^{source}$", rename=target).copied == 0


def test_what_was_committed_of_the_topic_before_is_no_place_in_this_one(
    broker: Broker, make_topic: MakeTopic
) -> None:
    """A bridge that had not heard went on in the new topic, and was killed.

    The text beside its commit says which topic it took it for.
    """
    source, target = make_topic(1), make_topic(1)
    group = f"{source}-g"
    produce(broker.bootstrap, source, nameless("a", "b", "c"))
    copy_all(broker.bootstrap, broker.bootstrap, source, rename=target, group=group)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(source, 0)])
    [stood] = admin.list_consumer_group_offsets([asked])[group].result(PATIENCE_S).topic_partitions
    assert stood.offset == 3
    assert parse_log(stood.metadata) is not None
    make_anew(broker.bootstrap, source)
    produce(broker.bootstrap, source, nameless("t", "u", "v", "w", "x"))
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [stood])])[group].result(
        PATIENCE_S
    )

    counted = copy_all(broker.bootstrap, broker.bootstrap, source, rename=target, group=group)
    assert (counted.copied, counted.made_anew) == (5, 1)
    assert seen(broker, target, 8) == ["a", "b", "c", "t", "u", "v", "w", "x"]


def test_a_topic_that_is_deleted_ends_no_bridge_that_found_it_by_a_pattern(
    broker: Broker, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """The others go on, and it is said once."""
    first, second, target = make_topic(1), make_topic(1), make_topic(1)
    for each in (first, second):
        produce(broker.bootstrap, each, nameless(f"{each}-1"))
    both = f"^({first}|{second})$"
    with Running(bridge(broker.bootstrap, broker.bootstrap, both, rename=target)) as made:
        until(lambda: made.counters.copied >= 2)
        assert made.counters.copied == 2
        delete_topic(broker.bootstrap, first)
        until(lambda: made.counters.gone >= 1)
        assert made.counters.gone == 1
        produce(broker.bootstrap, second, nameless(f"{second}-2"))
        until(lambda: made.counters.copied >= 3)
        assert made.counters.copied == 3
    [line] = [
        each.getMessage() for each in caplog.records if "was deleted at the source" in each.getMessage()
    ]
    assert first in line


def test_a_run_that_ends_by_itself_does_not_wait_for_what_a_topic_made_anew_had(
    broker: Broker, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shorter than it was when the run began."""
    monkeypatch.setattr("dedup_sdk.bridge._source.ENDS_EVERY_S", 0.2)
    source, other, target = make_topic(1), make_topic(1), make_topic(1)
    produce(broker.bootstrap, source, nameless(*"abcdef"))
    produce(broker.bootstrap, other, nameless("o"))
    real = Source.ends

    def then_made_anew(self: Source, places: Any) -> dict[Any, int]:
        found = real(self, places)
        if not anew:
            anew.append(source)
            make_anew(broker.bootstrap, source)
            produce(broker.bootstrap, source, nameless("x", "y"))
        return found

    anew: list[str] = []
    monkeypatch.setattr(Source, "ends", then_made_anew)
    running = Running(
        bridge(broker.bootstrap, broker.bootstrap, f"^({source}|{other})$", rename=target), until_end=True
    )
    with running as made:
        until(lambda: running.is_over)
    assert made.counters.copied == 3
