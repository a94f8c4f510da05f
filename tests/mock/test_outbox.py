"""A producer with an outbox.

Persisted before it is sent, sent again with the same key, and gone when it is confirmed.
"""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from dedup_sdk.producer import DedupProducer, OutboxDamagedError, OutboxError, OutboxFullError, ProducerKey
from dedup_sdk.producer._client_adapter import PartitionChooser
from tests.support.consuming import PATIENCE_S, poll_quiet, values
from tests.support.outboxes import GatedOutbox, make_producer, poll_until, records, stored

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make


def test_a_message_bears_its_key_and_leaves_the_outbox_when_it_is_confirmed(
    kafka: MockKafka, tmp_path: Path, make: Make
) -> None:
    """The key is a header that a consumer looks for; headers, key and value are as they were given."""
    with make_producer(kafka.bootstrap, tmp_path / "outbox") as producer:
        assert isinstance(producer, Producer)
        for number in range(10):
            producer.produce("orders", f"{number}", key=b"k", headers=[("a", b"1"), ("a", None), ("é", "x")])
        producer.persist()
        assert producer.flush() == len(producer) == 0
        assert producer.counters.as_dict() == {
            "recovered": 0, "persisted": 10, "sent": 10, "confirmed": 10, "retried": 0, "refused": 0, "unreadable": 0
        }  # fmt: skip
    seen = records(kafka.bootstrap, "orders")
    assert [each.value for each in seen] == [b"%d" % number for number in range(10)]
    assert {(each.key, each.headers) for each in seen} == {(b"k", (("a", b"1"), ("a", None), ("é", b"x")))}
    assert len({each.dedup_id for each in seen}) == 10
    assert all(ProducerKey.read(each.dedup_id) for each in seen)
    assert stored(tmp_path / "outbox") == []
    assert values(poll_quiet(make("orders"))) == [f"{number}" for number in range(10)]


def test_nothing_is_sent_before_it_is_on_disk(kafka: MockKafka, tmp_path: Path) -> None:
    """While the transaction hangs the topic is empty, and persist() says that it is not done."""
    outbox = GatedOutbox(tmp_path / "outbox")
    with make_producer(kafka.bootstrap, outbox) as producer:
        producer.produce("orders", b"1")
        assert outbox.waiting.wait(PATIENCE_S)
        with pytest.raises(OutboxError, match=r"not on disk after 0\.05 s"):
            producer.persist(timeout=0.05)
        assert producer.flush(0.3) == len(producer) == 1
        assert records(kafka.bootstrap, "orders") == []
        outbox.gate.set()
        producer.persist()
        assert producer.flush() == 0
    assert len(records(kafka.bootstrap, "orders")) == 1


def test_what_a_dead_process_left_is_sent_again_as_it_was(
    kafka: MockKafka, tmp_path: Path, make: Make
) -> None:
    """With the same key, partition, timestamp and headers, first of all, and in its order.

    A consumer sees each once.
    """
    outbox = GatedOutbox(tmp_path / "outbox")
    outbox.gate.set()
    with make_producer(kafka.bootstrap, outbox) as producer:
        kafka.set_broker_down()
        for number in range(20):
            producer.produce(
                "pairs", f"{number}", key=[None, b"", b"k1", b"k2"][number % 4], headers={"n": f"{number}"},
                timestamp=1_700_000_000_000 + number if number % 2 else 0,
            )  # fmt: skip
        producer.persist()
        # As SIGKILL leaves it: nobody tidies up.
        shutil.copytree(tmp_path / "outbox", tmp_path / "killed")
        kafka.set_broker_up()
        assert producer.flush() == 0
    first = records(kafka.bootstrap, "pairs", 2)
    with make_producer(kafka.bootstrap, tmp_path / "killed") as again:
        assert (len(again), again.counters.recovered) == (20, 20)
        again.produce("pairs", "new", key=b"k1")
        assert again.flush() == 0
    log = records(kafka.bootstrap, "pairs", 2)
    for partition in range(2):
        sent = [each for each in first if each.partition == partition]
        new = [each for each in log if each.partition == partition and each.value == b"new"]
        assert [each for each in log if each.partition == partition] == sent + sent + new
    assert len({each.partition for each in first}) == 2
    seen = values(poll_quiet(make("pairs")))
    assert sorted(seen) == sorted(["new", *(f"{number}" for number in range(20))])


def test_nothing_overtakes_a_message_whose_partition_is_not_known_yet(
    kafka: MockKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the broker does not say how many there are.

    Others of its topic wait behind it, those of another one do not.
    """
    known, choose = threading.Event(), PartitionChooser.choose

    def patient(self: PartitionChooser, topic: str, dedup_id: bytes) -> int | None:
        return choose(self, topic, dedup_id) if known.is_set() or topic != "pairs" else None

    monkeypatch.setattr(PartitionChooser, "choose", patient)
    with make_producer(kafka.bootstrap, tmp_path / "outbox") as producer:
        for number in range(20):
            partition = [-1, number // 2 % 2][number % 2]
            producer.produce("pairs", f"{number}", partition=partition, dedup_id=f"{number}")
        producer.produce("orders", "another")
        producer.persist()
        poll_until(producer, lambda: producer.counters.confirmed >= 1, "the other topic")
        assert producer.counters.confirmed == 1
        assert producer.counters.sent == 1
        known.set()
        assert producer.flush() == 0
    log = records(kafka.bootstrap, "pairs", 2)
    assert len(log) == 20
    for partition in range(2):
        sent = [int(each.value or b"") for each in log if each.partition == partition]
        assert sent == sorted(sent)
        assert {number % 2 for number in sent} == {0, 1}, "with and without a partition of its own"


def test_a_message_without_a_key_goes_where_its_dedup_key_says(kafka: MockKafka, tmp_path: Path) -> None:
    """The client would draw a partition, another one for a resend: the same dedup key leads to the same partition."""
    ids = [f"order-{number}" for number in range(40)]
    for attempt in range(2):
        with make_producer(kafka.bootstrap, tmp_path / f"outbox-{attempt}") as producer:
            for each in ids:
                producer.produce("pairs", each, dedup_id=each)
    places: dict[bytes, set[int]] = {}
    for record in records(kafka.bootstrap, "pairs", 2):
        places.setdefault(record.dedup_id, set()).add(record.partition)
    assert all(len(each) == 1 for each in places.values())
    assert {min(each) for each in places.values()} == {0, 1}


def test_a_key_of_the_users_own_is_taken(kafka: MockKafka, tmp_path: Path) -> None:
    """As an argument, or in the header.

    Both, two of them or a null are refused, and a header's other name is the user's.
    """
    with make_producer(kafka.bootstrap, tmp_path / "outbox") as producer:
        producer.produce("orders", "1", dedup_id="order-1")
        producer.produce("orders", "2", headers={"dedup-id": b"order-2", "other": b"x"})
        wrongs: tuple[dict[str, Any], ...] = (
            {"headers": {"dedup-id": b"a"}, "dedup_id": b"b"},
            {"headers": [("dedup-id", b"a"), ("dedup-id", b"b")]},
            {"headers": {"dedup-id": None}},
        )
        for wrong in wrongs:
            with pytest.raises(ValueError, match="give it once"):
                producer.produce("orders", "3", **wrong)
    with make_producer(
        kafka.bootstrap, tmp_path / "outbox", id_header="other", keys=lambda: b"mine"
    ) as producer:
        producer.produce("orders", "4", headers={"dedup-id": b"a"})
    seen = records(kafka.bootstrap, "orders")
    assert [(each.value, each.dedup_id, each.headers) for each in seen] == [
        (b"1", b"order-1", ()), (b"2", b"order-2", (("other", b"x"),)), (b"4", b"a", (("other", b"mine"),))
    ]  # fmt: skip


def test_reports_come_once_on_the_thread_that_polls(kafka: MockKafka, tmp_path: Path) -> None:
    """Of each message, from the call, the configuration or the batch; never from the outbox's own thread."""
    told: list[tuple[str, bytes | None, bool]] = []

    def note(name: str) -> Any:
        def called(error: KafkaError | None, message: Message) -> None:
            assert error is None
            told.append((name, message.value(), threading.current_thread() is threading.main_thread()))

        return called

    with make_producer(kafka.bootstrap, tmp_path / "outbox", {"on_delivery": note("config")}) as producer:
        producer.produce("orders", "1", on_delivery=note("call"))
        producer.produce("orders", "2", callback=note("callback"))
        producer.produce("orders", "3")
        batch: list[dict[str, Any]] = [
            {"value": "4"},
            {"value": "5", "callback": note("own"), "dedup_id": b"5"},
        ]
        assert producer.produce_batch("orders", batch, on_delivery=note("batch")) == 2
        poll_until(producer, lambda: len(told) >= 5, "five reports")
    assert told == [
        ("call", b"1", True), ("callback", b"2", True), ("config", b"3", True), ("batch", b"4", True),
        ("own", b"5", True)
    ]  # fmt: skip


def test_a_callback_that_raises_costs_no_message(kafka: MockKafka, tmp_path: Path) -> None:
    """It raises out of poll(), as the plain client's does, and the message has left the outbox all the same."""

    def fail(error: KafkaError | None, message: Message) -> None:
        raise ZeroDivisionError(f"{error} {message}")

    with make_producer(kafka.bootstrap, tmp_path / "outbox") as producer:
        producer.produce("orders", "1", on_delivery=fail)
        with pytest.raises(ZeroDivisionError):
            producer.poll(PATIENCE_S)
        producer.produce("orders", "2")
        assert producer.flush() == 0
    assert stored(tmp_path / "outbox") == []


def test_a_message_that_is_too_large_stays_until_it_is_taken(
    kafka: MockKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, counted, in the way of none behind it, and tried again at the next start."""
    told: list[tuple[str, bytes | None]] = []
    with make_producer(kafka.bootstrap, tmp_path / "outbox", {"message.max.bytes": 2_000}) as producer:
        producer.produce(
            "orders",
            b"x" * 3_000,
            dedup_id=b"large",
            on_delivery=lambda e, m: told.append((e.name(), m.value())),
        )
        producer.produce("orders", b"1")
        assert producer.flush() == 0
        assert (producer.counters.refused, producer.counters.confirmed) == (1, 1)
        assert told == [("MSG_SIZE_TOO_LARGE", b"x" * 3_000)]
    [(key, reason)] = stored(tmp_path / "outbox", "dedup_id, refused")
    assert key == b"large"
    assert reason.startswith("MSG_SIZE_TOO_LARGE")
    assert "stays in the outbox" in caplog.text
    with make_producer(kafka.bootstrap, tmp_path / "outbox") as producer:
        assert producer.flush() == 0
    assert stored(tmp_path / "outbox") == []
    assert [each.dedup_id for each in records(kafka.bootstrap, "orders")][1:] == [b"large"]


@pytest.mark.parametrize(("answer", "left"), [(True, 0), (False, 1), (None, 1)])
def test_what_is_refused_goes_where_the_user_says(
    kafka: MockKafka, tmp_path: Path, *, answer: bool | None, left: int
) -> None:
    """The broker's no is given to on_refused, with the message; a message that it took need not be kept."""
    asked: list[Any] = []

    def on_refused(error: KafkaError, message: Message) -> bool | None:
        asked.append((error.code(), message.value(), dict(message.headers() or ())["dedup-id"]))
        return answer

    kafka.push_errors("Produce", KafkaError.TOPIC_AUTHORIZATION_FAILED, 1)
    with make_producer(kafka.bootstrap, tmp_path / "outbox", on_refused=on_refused) as producer:
        producer.produce("orders", "1", dedup_id="a")
        assert producer.flush() == 0
    assert asked == [(KafkaError.TOPIC_AUTHORIZATION_FAILED, b"1", b"a")]
    assert len(stored(tmp_path / "outbox")) == left


def test_an_on_refused_that_raises_keeps_the_message(kafka: MockKafka, tmp_path: Path) -> None:
    """The error comes out of poll(), and the message stays."""

    def on_refused(error: KafkaError, message: Message) -> bool:
        raise ZeroDivisionError(f"{error} {message}")

    kafka.push_errors("Produce", KafkaError.TOPIC_AUTHORIZATION_FAILED, 1)
    with make_producer(kafka.bootstrap, tmp_path / "outbox", on_refused=on_refused) as producer:
        producer.produce("orders", "1", dedup_id="a")
        with pytest.raises(ZeroDivisionError):
            poll_until(producer, lambda: False, "the refusal")
        assert len(producer) == 0
    assert stored(tmp_path / "outbox") == [b"a"]


def test_what_runs_out_of_time_is_handed_over_again(kafka: MockKafka, tmp_path: Path) -> None:
    """Where the user has the client give up: the outbox does not; the callback is called when it is delivered."""
    told: list[KafkaError | None] = []
    kafka.set_broker_down()
    with make_producer(kafka.bootstrap, tmp_path / "outbox", {"delivery.timeout.ms": 300}) as producer:
        producer.produce(
            "orders", "1", dedup_id="a", partition=0, on_delivery=lambda error, _: told.append(error)
        )
        poll_until(producer, lambda: producer.counters.retried >= 2, "two deliveries that failed")
        assert (len(producer), told) == (1, [])
        kafka.set_broker_up()
        assert producer.flush(PATIENCE_S) == 0
        assert told == [None]
    assert [each.dedup_id for each in records(kafka.bootstrap, "orders")][-1:] == [b"a"]
    assert stored(tmp_path / "outbox") == []


def test_too_many_at_once_are_refused_as_by_the_plain_client(kafka: MockKafka, tmp_path: Path) -> None:
    """A BufferError, and room again when some are confirmed; in a batch each tells of itself."""
    kafka.set_broker_down()
    with make_producer(kafka.bootstrap, tmp_path / "outbox", most_waiting=3) as producer:
        batch: list[dict[str, Any]] = [{"value": f"{number}"} for number in range(5)]
        assert producer.produce_batch("orders", batch) == 3
        assert [message["_error"].code() for message in batch[3:]] == [KafkaError._QUEUE_FULL] * 2
        with pytest.raises(BufferError, match="3 messages wait"):
            producer.produce("orders", "6")
        kafka.set_broker_up()
        assert producer.flush() == 0
        producer.produce("orders", "6")


def test_more_than_the_client_and_the_memory_hold_goes_through_in_order(
    kafka: MockKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that finds no room waits on disk, and is read again from there."""
    monkeypatch.setattr("dedup_sdk.producer._pipeline.MOST_READY", 50)
    monkeypatch.setattr("dedup_sdk.producer._pipeline.READ_ROWS", 7)
    kafka.set_broker_down()
    config = {"queue.buffering.max.messages": 20}
    with make_producer(kafka.bootstrap, tmp_path / "outbox", config) as producer:
        for number in range(300):
            producer.produce("orders", f"{number}", key=b"k")
            if number % 40 == 0:
                producer.persist()
        producer.persist()
        kafka.set_broker_up()
        assert producer.flush(PATIENCE_S) == 0
    assert [each.value for each in records(kafka.bootstrap, "orders")] == [
        b"%d" % number for number in range(300)
    ]


def test_a_full_disk_is_told_by_persist_and_ends_nothing(
    kafka: MockKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is sent meanwhile, one line says so, and all of it goes when there is room."""
    outbox = GatedOutbox(tmp_path / "outbox")
    outbox.gate.set()
    outbox.full = True
    with make_producer(kafka.bootstrap, outbox) as producer:
        for number in range(3):
            producer.produce("orders", f"{number}")
            with pytest.raises(OutboxFullError, match="no room"):
                producer.persist()
        assert producer.flush(0.1) == 3
        assert records(kafka.bootstrap, "orders") == []
        assert caplog.text.count("no room") == 1
        outbox.full = False
        producer.persist(PATIENCE_S)
        assert producer.flush() == 0
    assert [each.value for each in records(kafka.bootstrap, "orders")] == [b"0", b"1", b"2"]


def test_what_no_disk_took_is_told_when_the_producer_is_closed(
    kafka: MockKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody says that it stays in the outbox: the callback has the message with its key, and `close` raises."""
    outbox = GatedOutbox(tmp_path / "outbox")
    outbox.gate.set()
    told: list[tuple[KafkaError | None, Any]] = []
    producer = make_producer(kafka.bootstrap, outbox, close_timeout=0.1)
    producer.produce("orders", "kept")
    producer.persist(PATIENCE_S)
    assert producer.flush(PATIENCE_S) == 0
    outbox.full = True
    for number in range(2):
        producer.produce("orders", f"{number}", on_delivery=lambda *report: told.append(report))
    with pytest.raises(OutboxFullError, match="the outbox could not take 2 messages"):
        producer.close()
    assert "they stay in the outbox" not in caplog.text
    assert [error and error.code() for error, _ in told] == [KafkaError._PURGE_QUEUE] * 2
    assert [message.value() for _, message in told] == [b"0", b"1"]
    assert all(dict(message.headers())["dedup-id"] for _, message in told)
    assert len(producer) == 0


@pytest.mark.parametrize(
    "given",
    [{"dedup_id": ""}, {"dedup_id": b""}, {"headers": {"dedup-id": b""}}],
    ids=["text", "bytes", "header"],
)
def test_an_empty_key_is_refused(kafka: MockKafka, tmp_path: Path, given: dict[str, Any]) -> None:
    """It would make duplicates of all messages that lack theirs."""
    with make_producer(kafka.bootstrap, tmp_path / "outbox") as producer:
        with pytest.raises(ValueError, match="key is empty"):
            producer.produce("orders", "1", **given)
        assert len(producer) == 0


def test_an_outbox_that_is_lost_ends_the_producer_with_its_reason(kafka: MockKafka, tmp_path: Path) -> None:
    """Every call says it from then on, persist() and close() too; nobody waits for good."""
    outbox = GatedOutbox(tmp_path / "outbox")
    outbox.gate.set()
    outbox.lost = True
    producer = make_producer(kafka.bootstrap, outbox)
    producer.produce("orders", "1")
    for call in (
        producer.persist,
        lambda: producer.produce("orders", "2"),
        producer.flush,
        producer.persist,
        producer.close,
    ):
        with pytest.raises(OutboxDamagedError, match="it is gone"):
            call()


def test_what_close_does_not_wait_for_stays(
    kafka: MockKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A line says how many; a second close does nothing, everything else says that the producer is closed."""
    kafka.set_broker_down()
    producer = make_producer(kafka.bootstrap, tmp_path / "outbox", close_timeout=0)
    producer.produce("orders", "1", dedup_id="a")
    producer.close()
    producer.close()
    assert stored(tmp_path / "outbox") == [b"a"]
    assert "1 message not confirmed; what is in the outbox stays there" in caplog.text
    for call in (lambda: producer.produce("orders", "2"), producer.persist, producer.poll, producer.flush):
        with pytest.raises(OutboxError, match="closed"):
            call()


def test_nothing_is_purged(kafka: MockKafka, tmp_path: Path) -> None:
    """It would come back with the next start."""
    with (
        make_producer(kafka.bootstrap, tmp_path / "outbox") as producer,
        pytest.raises(OutboxError, match="cannot be purged"),
    ):
        producer.purge()


def test_a_client_that_failed_for_good_sends_nothing_more_and_loses_nothing(
    kafka: MockKafka, tmp_path: Path
) -> None:
    """Flush() and produce() raise the client's error, neither hangs, and the next producer sends the rest."""
    told: list[KafkaError] = []
    kafka.push_errors("Produce", KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, 1)
    producer = make_producer(kafka.bootstrap, tmp_path / "outbox", close_timeout=0)
    producer.produce("orders", "1", dedup_id="a", on_delivery=lambda error, _: told.append(error))
    with pytest.raises(KafkaException, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        producer.flush()
    assert producer.flush() == 1
    assert [error.code() for error in told] == [KafkaError._FATAL]
    with pytest.raises(KafkaException, match="_FATAL"):
        producer.produce("orders", "2")
    producer.close()
    with make_producer(kafka.bootstrap, tmp_path / "outbox") as again:
        assert again.flush() == 0
    assert [each.dedup_id for each in records(kafka.bootstrap, "orders")] == [b"a"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": ""}, TypeError), ({"topic": b"orders"}, TypeError), ({"value": 5}, TypeError),
        ({"key": 5.0}, TypeError),
        ({"partition": -2}, ValueError), ({"partition": 2**31}, ValueError), ({"partition": "0"}, ValueError),
        ({"timestamp": -1}, ValueError), ({"timestamp": 1.5}, ValueError), ({"headers": [(b"a", b"b")]}, TypeError),
        ({"headers": {"a": 5}}, TypeError), ({"headers": {"a" * 65_536: b""}}, ValueError),
        ({"dedup_id": 5}, TypeError),
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused_at_once(
    kafka: MockKafka, tmp_path: Path, arguments: dict[str, Any], error: type[Exception]
) -> None:
    """Where the caller stands, and not later in a thread; nothing of it is kept."""
    with make_producer(kafka.bootstrap, tmp_path / "outbox") as producer:
        with pytest.raises(error):
            producer.produce(**{"topic": "orders", **arguments})
        assert len(producer) == 0


def test_the_names_are_the_public_ones() -> None:
    """Nothing of the plain client's is missing."""
    assert not {name for name in dir(Producer) if not name.startswith("_")} - set(dir(DedupProducer))
