"""A bridge between two mock clusters.

The records that arrive, their IDs, and the failure of an end.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from dedup_sdk import MemoryStore
from dedup_sdk.bridge import BridgeCounters, BridgeError
from dedup_sdk.bridge._source import Source
from dedup_sdk.bridge._source_log import Log, id_prefix
from dedup_sdk.bridge._target import Target
from dedup_sdk.testing import MockKafka
from tests.support.bridging import Running, bridge, copy_all, lying, until
from tests.support.consuming import PATIENCE_S, make_consumer, poll_quiet, values
from tests.support.producing import Outgoing, produce, with_ids

if TYPE_CHECKING:
    from collections.abc import Iterator

T0 = 1_700_000_000_000


@pytest.fixture
def there() -> Iterator[MockKafka]:
    """The other cluster, with the topics "orders" (1 partition) and "pairs" (3)."""
    with MockKafka() as mock:
        mock.create_topic("orders", partitions=1)
        mock.create_topic("pairs", partitions=3)
        yield mock


def test_a_record_arrives_as_it_was(kafka: MockKafka, there: MockKafka) -> None:
    """Headers in their order with repetitions and nulls, key, value (null too), timestamp.

    An ID that it bears stays the last.
    """
    sent = [
        Outgoing(value=b"v", key=b"k", headers=[("a", b"1"), ("a", None), ("é", b""), ("dedup-id", b"id-1")],
                 timestamp_ms=T0),
        Outgoing(value=None, key=b"k", headers={"dedup-id": b""}, timestamp_ms=T0 + 1),
        Outgoing(value=b"", key=b"k", headers=[("dedup-id", b"x"), ("dedup-id", b"id-3")], timestamp_ms=T0 + 2),
    ]  # fmt: skip
    produce(kafka.bootstrap, "orders", sent)
    counted = copy_all(kafka.bootstrap, there.bootstrap)
    got = lying(there.bootstrap, "orders")
    assert [(each.key, each.value, each.timestamp_ms, list(each.headers)) for each in got] == [
        (each.key, each.value, each.timestamp_ms,
         list(each.headers if isinstance(each.headers, list) else each.headers.items()))
        for each in sent
    ]  # fmt: skip
    assert counted == BridgeCounters(copied=3, batches=counted.batches)


def test_what_bears_no_id_gets_one_that_says_where_it_lay(kafka: MockKafka, there: MockKafka) -> None:
    """Absent, null, or too long to be one; two records never get the same."""
    produce(
        kafka.bootstrap, "orders",
        [Outgoing(value=b"0", timestamp_ms=T0), Outgoing(value=b"1", headers={"dedup-id": None}, timestamp_ms=T0),
         Outgoing(value=b"2", headers={"dedup-id": b"x" * 65_537, "other": b"1"}, timestamp_ms=T0)],
    )  # fmt: skip
    assert copy_all(kafka.bootstrap, there.bootstrap).named == 3
    got = lying(there.bootstrap, "orders")
    cluster = (got[0].ident or b"").partition(b".")[0]
    assert cluster
    assert [(each.ident or b"").rpartition(b".")[0] for each in got] == [
        b"%s.orders-0-%d@%d.0" % (cluster, offset, T0) for offset in range(3)
    ]
    assert got[2].headers[1] == ("other", b"1")


def test_callbacks_that_raise_cost_no_record(kafka: MockKafka, there: MockKafka) -> None:
    """The exception ends `run` after the batch; inside the client's call the fetched records would be lost.

    An error of the client, which a callback often raises again, would look like one of the call itself.
    """
    sent = [f"{number:04}" for number in range(400)]
    produce(kafka.bootstrap, "orders", with_ids(*sent))
    raised_at: list[int] = [0]

    def fail(_: str) -> None:
        if made.counters.copied >= raised_at[-1] + 60:
            raised_at.append(made.counters.copied)
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    noisy = {"stats_cb": fail, "statistics.interval.ms": 1, "max.partition.fetch.bytes": 1_000}
    made = bridge(kafka.bootstrap, there.bootstrap, source_config=noisy, batch_records=20)
    ended = 0
    for _ in sent:
        try:
            made.run(until_end=True)
        except KafkaException:
            ended += 1
        else:
            break

    assert {each.ident for each in lying(there.bootstrap, "orders")} == {each.encode() for each in sent}
    assert ended == len(raised_at) - 1 > 0


def test_what_is_sent_again_is_seen_once(kafka: MockKafka, there: MockKafka) -> None:
    """A group that forgot its offsets copies everything again.

    The same IDs, in the same partitions, so that one consumer sees each once.
    """
    produce(
        kafka.bootstrap, "pairs",
        [Outgoing(value=b"%d" % n, key=[None, b"", b"k1", b"k2"][n % 4],
                  headers={} if n % 3 else {"dedup-id": b"id-%d" % n}, partition=n % 2)
         for n in range(60)],
    )  # fmt: skip
    for group in ("first", "second"):
        assert copy_all(kafka.bootstrap, there.bootstrap, "pairs", group=group).copied == 60
    got = lying(there.bootstrap, "pairs", 3)
    assert len(got) == 120
    assert len({(each.ident, each.partition, each.value) for each in got}) == 60
    assert len({each.ident for each in got}) == 60
    with make_consumer(there.bootstrap, "reader", MemoryStore()) as consumer:
        consumer.subscribe(["pairs"])
        assert sorted(values(poll_quiet(consumer)), key=int) == [str(n) for n in range(60)]


@pytest.mark.slow
def test_a_topic_created_again_with_equal_timestamps_is_seen_whole(
    kafka: MockKafka, there: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers without topic IDs: the new records lie at the offsets of the old ones, with their timestamps.

    None is taken for an old one.
    """
    with MockKafka() as again:
        again.create_topic("orders", partitions=1)
        monkeypatch.setattr(Source, "id_prefix", lambda _, place: id_prefix("cluster", place, Log("")))
        for bootstrap, told in ((kafka.bootstrap, "old"), (again.bootstrap, "new")):
            produce(
                bootstrap,
                "orders",
                [Outgoing(value=f"{told}-{n}".encode(), timestamp_ms=T0) for n in range(10)],
            )
            # The second copy is a redelivery: it must bear the IDs of the first.
            for group in ("first", "second"):
                assert copy_all(bootstrap, there.bootstrap, group=group).copied == 10
    with make_consumer(there.bootstrap, "reader", MemoryStore()) as consumer:
        consumer.subscribe(["orders"])
        seen = values(poll_quiet(consumer))
    assert sorted(seen) == sorted(f"{told}-{n}" for told in ("old", "new") for n in range(10))


def test_an_id_stays_when_the_leader_changes(kafka: MockKafka, there: MockKafka) -> None:
    """The epoch is that of the leader that appended the record, whoever gives it out.

    A record that is appended later has another one.
    """
    produce(kafka.bootstrap, "orders", [Outgoing(value=b"a", timestamp_ms=T0)])
    copy_all(kafka.bootstrap, there.bootstrap, group="first")
    kafka.set_leader("orders", 0, 1)
    produce(kafka.bootstrap, "orders", [Outgoing(value=b"a", timestamp_ms=T0)])
    copy_all(kafka.bootstrap, there.bootstrap, group="second")
    before, same, other = (each.ident or b"" for each in lying(there.bootstrap, "orders"))
    assert before == same
    assert (before.split(b".")[-2], other.split(b".")[-2]) == (b"0", b"1")


def test_a_group_goes_on_where_it_was(kafka: MockKafka, there: MockKafka) -> None:
    """The next run copies the records since, and ends at once where nothing came."""
    produce(kafka.bootstrap, "orders", with_ids("a", "b"))
    assert copy_all(kafka.bootstrap, there.bootstrap).copied == 2
    produce(kafka.bootstrap, "orders", with_ids("c"))
    assert copy_all(kafka.bootstrap, there.bootstrap).copied == 1
    assert copy_all(kafka.bootstrap, there.bootstrap).copied == 0
    assert [each.value for each in lying(there.bootstrap, "orders")] == [b"a", b"b", b"c"]


def test_without_detection_nothing_is_added(kafka: MockKafka, there: MockKafka) -> None:
    """And any ID spec will do."""
    produce(kafka.bootstrap, "orders", [Outgoing(value=b'{"id": 7}'), *with_ids("a")])
    counted = copy_all(kafka.bootstrap, there.bootstrap, use_duplicate_detection=False, id="json:/id")
    assert (counted.copied, counted.named) == (2, 0)
    assert [each.ident for each in lying(there.bootstrap, "orders")] == [None, b"a"]


def test_rekeyed_records_of_one_id_come_to_one_partition(kafka: MockKafka, there: MockKafka) -> None:
    """Whatever their keys were; these are kept in a header."""
    produce(
        kafka.bootstrap, "pairs",
        [Outgoing(value=b"%d" % n, key=None if n % 3 else b"k%d" % n, headers={"dedup-id": b"id-%d" % (n % 5)},
                  partition=n % 2) for n in range(40)],
    )  # fmt: skip
    copy_all(kafka.bootstrap, there.bootstrap, "pairs", rekey_by_id=True)
    got = lying(there.bootstrap, "pairs", 3)
    assert len(got) == 40
    assert len({(each.ident, each.partition) for each in got}) == 5
    assert all(each.key == each.ident for each in got)
    former = {each.value: dict(each.headers).get("dedup-former-key") for each in got}
    assert former == {b"%d" % n: None if n % 3 else b"k%d" % n for n in range(40)}


def test_rekeyed_by_another_spec_the_key_is_a_digest(kafka: MockKafka, there: MockKafka) -> None:
    """Those of one ID have one key, and a record without an ID keeps its own."""
    produce(
        kafka.bootstrap,
        "orders",
        [Outgoing(value=v, key=b"k") for v in (b'{"id":1}', b'{"id":1}', b"no json")],
    )
    copy_all(kafka.bootstrap, there.bootstrap, id="json:/id", use_duplicate_detection=False, rekey_by_id=True)
    first, second, third = (each.key or b"" for each in lying(there.bootstrap, "orders"))
    assert first == second != third == b"k"
    assert len(bytes.fromhex(first.decode())) == 16


def test_partitions_may_stay_the_same(kafka: MockKafka, there: MockKafka) -> None:
    """By number.

    Where the target has fewer, the first record that has no place ends the bridge, and says where it lies.
    """
    produce(
        kafka.bootstrap,
        "pairs",
        [Outgoing(value=b"%d" % n, key=b"k%d" % n, partition=n % 2) for n in range(10)],
    )
    copy_all(kafka.bootstrap, there.bootstrap, "pairs", partitions="same")
    assert {(each.partition, int(each.value or b"") % 2) for each in lying(there.bootstrap, "pairs", 3)} == {
        (0, 0),
        (1, 1),
    }
    with pytest.raises(BridgeError, match=r"pairs\[1\]@\d has no partition 1 in the target's 'orders'"):
        copy_all(kafka.bootstrap, there.bootstrap, "pairs", partitions="same", rename="orders", group="g2")


def test_a_key_goes_where_the_targets_partitioner_puts_it(kafka: MockKafka, there: MockKafka) -> None:
    """As the same record would, were it produced there."""
    records = [Outgoing(value=b"%d" % n, key=b"k%d" % n) for n in range(30)]
    produce(kafka.bootstrap, "pairs", records)
    there.create_topic("plain", partitions=3)
    produce(there.bootstrap, "plain", records)
    copy_all(kafka.bootstrap, there.bootstrap, "pairs")
    assert {(each.key, each.partition) for each in lying(there.bootstrap, "pairs", 3)} == {
        (each.key, each.partition) for each in lying(there.bootstrap, "plain", 3)
    }


def test_patterns_and_new_names(kafka: MockKafka, there: MockKafka) -> None:
    """A pattern takes the topics that fit it, and {topic} stands for each name."""
    for name in ("orders", "pairs"):
        there.create_topic(f"copy.{name}", partitions=1)
        produce(kafka.bootstrap, name, with_ids(name))
    assert copy_all(kafka.bootstrap, there.bootstrap, "^(orders|pairs)$", rename="copy.{topic}").copied == 2
    for name in ("orders", "pairs"):
        assert [each.ident for each in lying(there.bootstrap, f"copy.{name}")] == [name.encode()]


@pytest.mark.parametrize(
    ("topics", "rename"),
    [(["orders"], "{topic}"), (["orders", "pairs"], "pairs"), (["^.*"], "copy.{topic}"), (["^.*orders$"], "c-{topic}")],
)  # fmt: skip
def test_a_bridge_into_itself_is_refused(kafka: MockKafka, topics: list[str], rename: str) -> None:
    """Whatever it would read again: one cluster is told by its ID, not by its address."""
    kafka.create_topic("copy.orders")
    with pytest.raises(
        BridgeError, match=r"which this bridge reads as well: its records would be copied in a loop"
    ):
        copy_all(kafka.bootstrap, f"{kafka.bootstrap},{kafka.bootstrap}", *topics, rename=rename)


def test_two_clusters_with_one_id_are_told_apart_by_a_topic(
    kafka: MockKafka, there: MockKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are taken for two then: a topic of the same name is no circle, and offsets are committed at the source."""
    produce(kafka.bootstrap, "orders", with_ids("a", "b"))
    monkeypatch.setattr(Source, "cluster_id", lambda _: "c")
    monkeypatch.setattr(Target, "cluster_id", lambda _: "c")
    monkeypatch.setattr("dedup_sdk._kafka.client.client.MOCK_CLUSTER", "c")
    with pytest.raises(BridgeError, match=r"records would be copied in a loop"):
        copy_all(kafka.bootstrap, there.bootstrap)
    monkeypatch.setattr("dedup_sdk.bridge._bridge.has_topic_ids", lambda _: True)
    monkeypatch.setattr("dedup_sdk.bridge._bridge.differing_topic", lambda *_: "orders")
    assert copy_all(kafka.bootstrap, there.bootstrap).copied == 2
    assert copy_all(kafka.bootstrap, there.bootstrap).copied == 0
    assert "topic orders differs, so that they are treated as two clusters" in caplog.text


def test_a_topic_that_is_missing_is_named(kafka: MockKafka, there: MockKafka) -> None:
    """At either end, before anything is read; and asking creates none."""
    with pytest.raises(BridgeError, match=r"^the source has no topic 'nowhere'"):
        copy_all(kafka.bootstrap, there.bootstrap, "nowhere")
    kafka.create_topic("lonely")
    with pytest.raises(BridgeError, match=r"^the target has no topic 'lonely', .*create it"):
        copy_all(kafka.bootstrap, there.bootstrap, "lonely")
    with pytest.raises(BridgeError, match=r"^the target has no topic 'lonely'"):
        copy_all(kafka.bootstrap, there.bootstrap, "lonely")


@pytest.mark.parametrize("transactions", ["auto", "never"])
def test_a_record_that_is_too_large_is_named_or_left_out(
    kafka: MockKafka, there: MockKafka, transactions: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """By default the bridge ends and commits nothing of its batch; it may leave it out, and says so."""
    produce(kafka.bootstrap, "orders", [*with_ids("a", "b"), Outgoing(value=b"x" * 5_000), *with_ids("c")])
    limit = {"message.max.bytes": 2_000}
    first = bridge(kafka.bootstrap, there.bootstrap, config=limit, transactions=transactions)
    with pytest.raises(
        BridgeError, match=r"^the target refuses orders\[0\]@2 \(5000 bytes, .*--on-refused skip$"
    ):
        first.run(until_end=True)
    counted = copy_all(
        kafka.bootstrap, there.bootstrap, config=limit, transactions=transactions, on_refused="skip"
    )
    # The first records may have come as a batch of their own.
    assert (first.counters.copied + counted.copied, counted.skipped) == (3, 1)
    assert "orders[0]@2" in caplog.text
    # The mock cluster delivers aborted records.
    assert {each.ident for each in lying(there.bootstrap, "orders")} == {b"a", b"b", b"c"}
    assert copy_all(kafka.bootstrap, there.bootstrap, config=limit).copied == 0


def test_records_that_are_too_large_together_go_one_by_one(
    kafka: MockKafka, there: MockKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker refuses a request as a whole; none of its records is too large, so that none is left out."""
    caplog.set_level("INFO", "dedup_sdk")
    produce(kafka.bootstrap, "orders", with_ids(*map(str, range(30))))
    there.push_errors("Produce", KafkaError.MSG_SIZE_TOO_LARGE, 1)
    counted = copy_all(kafka.bootstrap, there.bootstrap, transactions="never", on_refused="skip")
    assert (counted.copied, counted.skipped) == (30, 0)
    assert counted.repeated >= 1
    assert "batch.size is 100000 bytes now" in caplog.text
    assert {each.ident for each in lying(there.bootstrap, "orders")} == {b"%d" % n for n in range(30)}


def test_what_the_target_refuses_for_all_is_no_reason_to_leave_it_out(
    kafka: MockKafka, there: MockKafka
) -> None:
    """No right to write, a topic that is gone: the bridge ends, and nothing is passed over."""
    produce(kafka.bootstrap, "orders", with_ids("a", "b"))
    there.push_errors("Produce", KafkaError.TOPIC_AUTHORIZATION_FAILED, 1)
    with pytest.raises(BridgeError, match=r"^the target refuses records: .*authorization"):
        copy_all(kafka.bootstrap, there.bootstrap, transactions="never", on_refused="skip")
    assert copy_all(kafka.bootstrap, there.bootstrap).copied == 2


@pytest.mark.parametrize(
    "error",
    [
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
    ],
)
@pytest.mark.parametrize("request_name", ["EndTxn", "AddPartitionsToTxn"])
def test_an_aborted_transaction_is_written_again(
    kafka: MockKafka, there: MockKafka, request_name: str, error: int
) -> None:
    """The batch is read again from its first record, with a new producer where the old one is done for.

    So nothing is passed over.
    """
    produce(kafka.bootstrap, "orders", with_ids(*map(str, range(20))))
    there.push_errors(request_name, error, 1)
    counted = copy_all(kafka.bootstrap, there.bootstrap)
    assert counted.copied == 20
    assert counted.repeated == (error != KafkaError.COORDINATOR_NOT_AVAILABLE)
    assert {each.ident for each in lying(there.bootstrap, "orders")} == {b"%d" % n for n in range(20)}


def test_offsets_that_never_come_back_hold_nothing_up(
    kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client waits for a connection for as long as it takes.

    Another producer ends the transaction and writes the batch.
    """
    kafka.create_topic("copies", partitions=1)
    produce(kafka.bootstrap, "orders", with_ids(*map(str, range(20))))
    connected, asked = threading.Event(), list[int]()

    class Waiting(Producer):
        """A producer of which the first is cut off from the group's coordinator."""

        def send_offsets_to_transaction(self, *arguments: Any) -> None:
            asked.append(1)
            if len(asked) == 1:
                connected.wait()
            super().send_offsets_to_transaction(*arguments)

    monkeypatch.setattr("dedup_sdk._transactions.producer.Producer", Waiting)
    monkeypatch.setattr("dedup_sdk._transactions.producer.OFFSETS_S", 0.2)
    try:
        with Running(bridge(kafka.bootstrap, kafka.bootstrap, rename="copies")) as made:
            until(lambda: made.counters.copied >= 20)
            assert made.counters.copied == 20
            assert made.counters.repeated == 1
    finally:
        connected.set()
    assert len(asked) > 1
    assert {each.ident for each in lying(kafka.bootstrap, "copies")} == {b"%d" % n for n in range(20)}


def test_transactions_that_are_not_allowed(
    kafka: MockKafka, there: MockKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Chosen automatically, the bridge goes on without them and says why; asked for, it ends."""
    caplog.set_level("INFO", "dedup_sdk")
    produce(kafka.bootstrap, "orders", with_ids("a"))
    there.push_errors("InitProducerId", KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 1)
    with pytest.raises(BridgeError, match=r"^the target does not allow transactions: .*--transactions auto$"):
        copy_all(kafka.bootstrap, there.bootstrap, transactions="always")
    there.push_errors("InitProducerId", KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 1)
    assert copy_all(kafka.bootstrap, there.bootstrap).copied == 1
    [line] = [each.getMessage() for each in caplog.records if "group" in each.getMessage()]
    assert "two clusters, no transactions: " in line


def test_a_commit_that_is_refused_is_made_up_for(kafka: MockKafka, there: MockKafka) -> None:
    """The records are there, and the next run does not copy them again."""
    produce(kafka.bootstrap, "orders", with_ids("a", "b"))
    kafka.push_errors("OffsetCommit", KafkaError.COORDINATOR_LOAD_IN_PROGRESS, 1)
    assert copy_all(kafka.bootstrap, there.bootstrap).copied == 2
    assert copy_all(kafka.bootstrap, there.bootstrap).copied == 0


@pytest.mark.parametrize("transactions", ["auto", "never"])
def test_while_the_target_is_away_the_bridge_waits(
    kafka: MockKafka, there: MockKafka, transactions: Any
) -> None:
    """Nothing is passed over, and it goes on when the target is back."""
    produce(kafka.bootstrap, "orders", with_ids("a"))
    with Running(
        bridge(
            kafka.bootstrap,
            there.bootstrap,
            transactions=transactions,
            config={"reconnect.backoff.max.ms": 200},
        )
    ) as made:
        until(lambda: made.counters.copied >= 1)
        assert made.counters.copied == 1
        there.set_broker_down()
        produce(kafka.bootstrap, "orders", with_ids(*map(str, range(100))))
        there.set_broker_up()
        # Without transactions an outage may have a record copied twice.
        until(lambda: made.counters.copied >= 101)
    assert {each.ident for each in lying(there.bootstrap, "orders")} == {
        b"a",
        *(b"%d" % n for n in range(100)),
    }


def test_a_bridge_is_stopped_while_its_target_is_away(kafka: MockKafka, there: MockKafka) -> None:
    """It waits for nobody then, and commits nothing that the target does not have."""
    produce(kafka.bootstrap, "orders", with_ids("a"))
    waits = threading.Event()
    made = bridge(kafka.bootstrap, there.bootstrap, transactions="never", group="g")
    write = Target.write

    def noting(self: Target, *arguments: Any, **how: Any) -> None:
        there.set_broker_down()
        waits.set()
        write(self, *arguments, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Target, "write", noting)
        with Running(made):
            assert waits.wait(60)
    assert made.counters.copied == 0
    there.set_broker_up()
    with make_consumer(kafka.bootstrap, "g", MemoryStore()) as consumer:
        assert consumer.committed([TopicPartition("orders", 0)], timeout=PATIENCE_S)[0].offset < 0
    assert copy_all(kafka.bootstrap, there.bootstrap, group="g").copied == 1


def test_an_end_that_does_not_answer_is_named(kafka: MockKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, after a while."""
    monkeypatch.setattr("dedup_sdk.bridge._bridge.START_S", 0.1)
    monkeypatch.setattr("dedup_sdk.bridge._target.CALL_S", 0.3)
    with pytest.raises(BridgeError, match=r"^no broker answers at 127.0.0.1:9 .* of the target$"):
        copy_all(kafka.bootstrap, "127.0.0.1:9")


def test_it_tells_how_it_goes(kafka: MockKafka, there: MockKafka) -> None:
    """Now and then, and at the end nothing is behind."""
    produce(kafka.bootstrap, "orders", with_ids("a", "b"))
    told: list[tuple[int, int]] = []
    with Running(
        bridge(kafka.bootstrap, there.bootstrap),
        report=lambda made: told.append((made.counters.copied, made.lag())), report_every=0
    ):  # fmt: skip
        until(lambda: (2, 0) in told)


def test_of_partitions_that_go_to_another_nothing_is_passed_over(kafka: MockKafka, there: MockKafka) -> None:
    """A second bridge joins while there is work.

    Whose commit comes too late, its batch comes again under the same IDs.
    """
    how: dict[str, Any] = {"batch_records": 50, "session_ms": 2_000}
    with (
        Running(bridge(kafka.bootstrap, there.bootstrap, "pairs", **how)) as one,
        Running(bridge(kafka.bootstrap, there.bootstrap, "pairs", **how)) as two,
    ):
        for first in range(0, 2_000, 100):
            produce(
                kafka.bootstrap, "pairs",
                [Outgoing(value=b"%d" % n, headers={"dedup-id": b"%d" % n}, partition=n % 2)
                 for n in range(first, first + 100)],
            )  # fmt: skip
        until(lambda: one.counters.copied + two.counters.copied >= 2_000)
    got = {int(each.ident or b"") for each in lying(there.bootstrap, "pairs", 3)}
    assert got == set(range(2_000))


def test_headers_that_the_client_cannot_name(kafka: MockKafka, there: MockKafka) -> None:
    """Nothing in a record ends the bridge.

    Names and values of any kind, a value that is no text, an ID of odd bytes.
    """
    produce(
        kafka.bootstrap, "orders",
        [Outgoing(value=b"\xff\x00", key=b"\xff", headers=[("", b"1"), ("dedup-id", b"\xff\x00\n"),
                                                           ("%s{topic}", b"")]),
         Outgoing(value=b"x" * 900_000, headers={f"h{n}": b"v" for n in range(1_000)})],
    )  # fmt: skip
    assert copy_all(kafka.bootstrap, there.bootstrap).copied == 2
    first, second = lying(there.bootstrap, "orders")
    assert (first.ident, first.value, first.key) == (b"\xff\x00\n", b"\xff\x00", b"\xff")
    assert len(second.headers) == 1_001
