"""A bridge on a real broker: batches and offsets in one transaction, and the fate of one that was overtaken."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from dedup_sdk._transactions import producer as transactional_producer
from dedup_sdk.bridge import BridgeError
from dedup_sdk.bridge._target import Target
from tests.support.bridging import bridge, copy_all, lying
from tests.support.producing import Outgoing, produce, with_ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker

PATIENCE_S = 60.0


def test_one_cluster_gets_each_record_once(broker: Broker, make_topic: MakeTopic) -> None:
    """Also where a batch fails after its offsets are in the transaction.

    They are not committed without it, nor is it without them.
    """
    source, target = make_topic(2), make_topic(3)
    produce(broker.bootstrap, source, [Outgoing(value=b"%d" % n, partition=n % 2) for n in range(500)])
    fails = [True, False, True]

    class Failing(Producer):
        """Fails before some commits, and after others: nobody knows whether they were made."""

        def commit_transaction(self, *given: Any) -> None:
            if fails and fails.pop():
                if len(fails) == 2:
                    super().commit_transaction(*given)
                raise KafkaException(KafkaError(KafkaError._FAIL))
            super().commit_transaction(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transactional_producer, "Producer", Failing)
        made = bridge(broker.bootstrap, broker.bootstrap, source, rename=target, batch_records=100)
        made.run(until_end=True)
    assert fails == []
    assert made.counters.repeated == 2
    got = lying(broker.bootstrap, target, 3)
    assert sorted(int(each.value or b"") for each in got) == list(range(500))
    assert len({each.ident for each in got}) == 500


def test_a_member_that_was_overtaken_writes_nothing(broker: Broker, make_topic: MakeTopic) -> None:
    """Its batch was in hand when the group gave its partitions to another.

    The transaction is refused, and nothing comes twice.
    """
    source, target = make_topic(1), make_topic(1)
    produce(broker.bootstrap, source, with_ids(*map(str, range(200))))
    in_hand, overtaken = threading.Event(), threading.Event()
    write = Target.write
    slow: list[int] = []

    def gated(self: Target, copies: Any, commit: Any, *, one_by_one: bool) -> None:
        def waiting() -> Iterator[Any]:
            yield from copies
            if threading.get_ident() in slow and not in_hand.is_set():
                in_hand.set()
                assert overtaken.wait(PATIENCE_S)

        write(self, waiting(), commit, one_by_one=one_by_one)

    def run() -> None:
        slow.append(threading.get_ident())
        first.run(until_end=True)

    how: dict[str, Any] = {"rename": target, "group": f"{source}-g", "session_ms": 2_000}
    first = bridge(
        broker.bootstrap, broker.bootstrap, source, source_config={"max.poll.interval.ms": 2_000}, **how
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Target, "write", gated)
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert in_hand.wait(PATIENCE_S)
        second = copy_all(broker.bootstrap, broker.bootstrap, source, **how)
        overtaken.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert (first.counters.copied, second.copied) == (0, 200)
    assert first.counters.repeated == 1
    assert [each.value for each in lying(broker.bootstrap, target)] == [b"%d" % n for n in range(200)]


def test_what_was_aborted_at_the_source_is_not_copied(broker: Broker, make_topic: MakeTopic) -> None:
    """And a log that ends with the marker of a transaction is copied to its end."""
    source, target = make_topic(1), make_topic(1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": source, "log_level": 0})
    producer.init_transactions(PATIENCE_S)
    for value, commits in ((b"kept", True), (b"aborted", False), (b"kept too", True)):
        producer.begin_transaction()
        producer.produce(source, value)
        producer.flush()
        (producer.commit_transaction if commits else producer.abort_transaction)(PATIENCE_S)
    for _ in range(2):
        copy_all(broker.bootstrap, broker.bootstrap, source, rename=target)
    assert [each.value for each in lying(broker.bootstrap, target)] == [b"kept", b"kept too"]


def test_a_topic_that_takes_less_than_the_source(broker: Broker, make_topic: MakeTopic) -> None:
    """Records that fit one by one arrive, though not together; the one that does not is named, or left out."""
    source, target = make_topic(1), make_topic(1, {"max.message.bytes": "3000"})
    records = [Outgoing(value=b"x" * 1_000, headers={"dedup-id": b"%d" % n}) for n in range(20)]
    produce(broker.bootstrap, source, [*records, Outgoing(value=b"y" * 5_000), *records[:3]])
    with pytest.raises(BridgeError, match=rf"^the target refuses {source}\[0\]@20 \(5000 bytes"):
        copy_all(broker.bootstrap, broker.bootstrap, source, rename=target)
    assert lying(broker.bootstrap, target) == []
    counted = copy_all(broker.bootstrap, broker.bootstrap, source, rename=target, on_refused="skip")
    assert (counted.copied, counted.skipped) == (23, 1)
    got = [each.ident for each in lying(broker.bootstrap, target)]
    assert got == [b"%d" % n for n in (*range(20), 0, 1, 2)]


def test_a_producer_with_the_same_transactional_id_ends_the_bridge(
    broker: Broker, make_topic: MakeTopic
) -> None:
    """Two with one ID would end each other for ever: it says so."""
    source, target = make_topic(1), make_topic(1)
    produce(broker.bootstrap, source, with_ids("a"))
    write = Target.write

    def overtaken(self: Target, *arguments: Any, **how: Any) -> None:
        other = Producer(
            {"bootstrap.servers": broker.bootstrap, "transactional.id": f"{target}-id", "log_level": 0}
        )
        other.init_transactions(PATIENCE_S)
        write(self, *arguments, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Target, "write", overtaken)
        with pytest.raises(
            BridgeError, match=r"was taken by another producer.*give each bridge an ID of its own$"
        ):
            copy_all(
                broker.bootstrap,
                broker.bootstrap,
                source,
                rename=target,
                config={"transactional.id": f"{target}-id"},
            )
    assert lying(broker.bootstrap, target) == []
    assert copy_all(broker.bootstrap, broker.bootstrap, source, rename=target).copied == 1
