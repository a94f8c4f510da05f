"""Which history is folded, asked of a real broker: only that one knows transactions, timestamps and metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from dedup_sdk import Lookup, header
from dedup_sdk._commit_text import CommitMetadata, sealed
from dedup_sdk._rule_fingerprint import rule_digits
from dedup_sdk._store.protocol import DIGEST_NAME
from dedup_sdk._window import Window
from dedup_sdk.errors import ConfigurationError
from spark_backfill.errors import BackfillError
from spark_backfill.history import History
from spark_backfill.history_plan import resolve_history, rule_of
from spark_backfill.kafka_log import KafkaLog
from spark_backfill.offset_range import OffsetRange
from spark_backfill.options import parse_options
from spark_backfill.range_plan import Archived
from tests.support.producing import Outgoing

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.support.brokers import Broker

MINUTE_MS = 60_000
BASE_MS = 1_700_000_000_000
RULE, ANOTHER = "0123456789abcdef", "fedcba9876543210"
ANOTHER_RULE = (
    "committed by consumers with another ID spec, strategy, kind of window or isolation.level: give --id, "
    "--window and the others as they do"
)


def text(offset: int, **told: Any) -> str:
    """A group's text beside a committed offset."""
    return CommitMetadata(**{"low": 0, "complete": True, "rule": RULE, **told}).text(offset)


def minutes(count: int, partition: int = 0) -> list[Outgoing]:
    """One record a minute."""
    return [
        Outgoing(value=b"x", partition=partition, timestamp_ms=BASE_MS + each * MINUTE_MS)
        for each in range(count)
    ]


class Past:
    """A group, topics with a past, and the history of them that a run would fold."""

    def __init__(
        self, broker: Broker, make_topic: Callable[..., str], produce: Callable[..., int], group: str
    ) -> None:
        self.bootstrap, self.group = broker.bootstrap, group
        self.make_topic, self.produce = make_topic, produce

    def topic_of(self, count: int) -> str:
        """Make a topic of one partition with one record a minute."""
        topic = self.make_topic(1)
        self.produce(topic, minutes(count))
        return topic

    def delete_before(self, topic: str, offset: int) -> None:
        """Delete the records before an offset of partition 0."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for answer in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
            answer.result(30)

    def commit(self, topic: str, offsets: dict[int, tuple[int, str]]) -> None:
        """Commit an offset with its text for each partition."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group})
        try:
            consumer.commit(
                offsets=[
                    TopicPartition(topic, number, offset, sealed(said, self.group, topic, number))
                    for number, (offset, said) in offsets.items()
                ],
                asynchronous=False,
            )
        finally:
            consumer.close()

    def resolve(self, topic: str, window: Window, **given: Any) -> History:
        """Resolve a topic's history: ``resolve(topic, Window(...), group=...)``."""
        group, vouched = given.pop("group", None), given.pop("assume_processed", False)
        with KafkaLog(self.bootstrap, topic, {}) as log:
            return resolve_history(
                log,
                window,
                group,
                assume_processed=vouched,
                now_ms=BASE_MS + 10**9,
                **{"rule": RULE, **given},
            )


@pytest.fixture
def past(broker: Broker, make_topic: Callable[..., str], produce: Callable[..., int], group: str) -> Past:
    """Of a fresh group on a real broker."""
    return Past(broker, make_topic, produce, group)


def test_vouched_history_is_the_whole_log(past: Past) -> None:
    """Without a group everything up to the end counts, complete where the log begins at 0, with both identities."""
    topic = past.make_topic(2)
    past.produce(topic, minutes(3))
    history = past.resolve(topic, Window(days=1))
    assert [(each.low, each.begin, each.high, each.complete) for each in history.offset_ranges] == [
        (0, 0, 3, True),
        (0, 0, 0, True),
    ]
    assert history.cluster
    assert len(history.topic_id) > 10
    assert history.topic_id != past.resolve(past.make_topic(1), Window(days=1)).topic_id


def test_reading_begins_at_the_first_record_inside_the_window(past: Past) -> None:
    """With 100 minutes of log and a window of 16, reading begins 17 minutes before the last record.

    With a count at 0.
    """
    topic = past.topic_of(100)
    (offset_range,) = past.resolve(topic, Window(minutes=16)).offset_ranges
    assert offset_range.keep_from_ms == BASE_MS + 82 * MINUTE_MS
    assert 81 <= offset_range.begin <= 82
    assert not offset_range.complete
    (counted,) = past.resolve(topic, Window(minutes=16, count=5)).offset_ranges
    assert (counted.begin, counted.keep_from_ms) == (0, BASE_MS + 82 * MINUTE_MS)


def test_the_cut_is_what_the_group_committed(past: Past) -> None:
    """The offset range of each partition is [low, committed) of the group's own metadata.

    Others are skipped with a reason.
    """
    topic = past.make_topic(6)
    for partition in range(6):
        past.produce(topic, minutes(10, partition))
    past.commit(
        topic,
        {
            0: (7, text(7, low=2)),
            1: (6, text(6, low=3, complete=False)),
            2: (5, "another client's words"),
            3: (4, text(4, log="deadbeef")),
            4: (4, text(5)),
        },
    )
    history = past.resolve(topic, Window(days=1), group=past.group)
    assert [
        (each.partition, each.low, each.begin, each.high, each.complete) for each in history.offset_ranges
    ] == [
        (0, 2, 2, 7, True),
        (1, 3, 3, 6, False),
    ]
    without = "committed without this package's metadata"
    another = "committed with the metadata of another log"
    assert history.skipped == {2: without, 3: another, 4: without, 5: "nothing committed"}


def test_what_was_handled_by_another_rule_is_not_folded_by_this_one(past: Past) -> None:
    """Records its consumers hid as duplicates would count as handled, by IDs that nobody has handled.

    That is so whether somebody vouches or not.
    """
    topic = past.make_topic(2)
    for partition in range(2):
        past.produce(topic, minutes(10, partition))
    past.commit(topic, {0: (7, text(7)), 1: (7, text(7, rule=ANOTHER))})
    for vouched in (False, True):
        history = past.resolve(topic, Window(days=1), group=past.group, assume_processed=vouched)
        assert [each.partition for each in history.offset_ranges] == [0]
        assert history.skipped == {1: ANOTHER_RULE}
    with pytest.raises(BackfillError, match="give --id, --window"):
        past.resolve(topic, Window(days=1), group=past.group, rule="0" * 16)


@pytest.mark.parametrize(
    "changed",
    [
        ["--id", "key"],
        ["--id", "header:dedup-id", "--window", "5n"],
        ["--id", "header:dedup-id", "--unit", "header:dedup-unit"],
        ["--id", "header:dedup-id", "--order", "integer"],
        [
            "--id",
            "header:dedup-id",
            "--source",
            "a.parquet",
            "--archive-isolation",
            "read_uncommitted",
        ],
    ],
)
def test_the_rule_of_a_run_is_that_of_its_consumers(changed: list[str]) -> None:
    """The ID spec, the strategy, the kind of window and the isolation level of the records belong to it."""
    usual = ["--bootstrap", "h:1", "--topic", "orders", "--group", "g", "--output", "nowhere"]
    window = [] if "--window" in changed else ["--window", "7d"]
    source = [] if "--source" in changed else ["--source", "kafka"]
    options = parse_options([*usual, *window, *source, "--id", "header:dedup-id", *changed], print)
    ours = Lookup(id=header("dedup-id"), window=Window(days=7))
    mine = rule_digits(ours.keys, ours.window_of("orders"), digest=DIGEST_NAME, isolation="read_committed")
    assert rule_of(parse_options([*usual, "--window", "3d", "--id", "header:dedup-id"], print)) == mine
    assert rule_of(options) != mine


def test_assumed_history_keeps_the_cut(past: Past) -> None:
    """A user who vouches for records before the commits gets all of them, and nothing beyond them."""
    topic = past.topic_of(10)
    past.commit(topic, {0: (4, "")})
    (offset_range,) = past.resolve(
        topic, Window(days=1), group=past.group, assume_processed=True
    ).offset_ranges
    assert (offset_range.low, offset_range.high, offset_range.complete) == (0, 4, True)


def test_a_late_record_at_the_logs_beginning_hides_no_gap(past: Past) -> None:
    """Records before it were written inside the window, like those behind it: the offsets are named."""
    topic = past.make_topic(1)
    late = Outgoing(value=b"x", partition=0, timestamp_ms=BASE_MS - 90 * MINUTE_MS)
    past.produce(topic, [*minutes(20), late, *minutes(30)[20:]])
    past.delete_before(topic, 20)

    def survey(*_: object) -> dict[int, Archived]:
        old_ms = BASE_MS - 100 * MINUTE_MS
        return {0: Archived(0, 0, 3, 3, old_ms, old_ms, None)}

    (offset_range,) = past.resolve(topic, Window(hours=1), survey=survey).offset_ranges
    assert offset_range.gaps == ((3, 20),)


def test_a_group_without_history_is_an_error(past: Past) -> None:
    """A group that committed nothing ends in one line that names it and the ways out."""
    topic = past.topic_of(2)
    with pytest.raises(
        BackfillError, match=rf"group '{past.group}' has no history .*nothing committed.*--assume-processed"
    ):
        past.resolve(topic, Window(days=1), group=past.group)


def test_a_commit_beyond_the_log_is_an_error(past: Past) -> None:
    """Offsets that this log never had belong to another topic of the same name."""
    topic = past.topic_of(2)
    past.commit(topic, {0: (50, text(50))})
    with pytest.raises(BackfillError, match=r"committed offset 50 lies beyond the log's end 2"):
        past.resolve(topic, Window(days=1), group=past.group)


def test_an_open_transaction_bounds_the_cut(past: Past) -> None:
    """Records that may still be aborted are not folded, and aborted ones do not hide the last timestamp."""
    topic = past.topic_of(3)
    producer = Producer({"bootstrap.servers": past.bootstrap, "transactional.id": topic, "log_level": 2})
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(50):
        producer.produce(topic, b"aborted", partition=0)
    producer.flush(30)
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"undecided", partition=0)
    producer.flush(30)
    try:
        (offset_range,) = past.resolve(topic, Window(minutes=16)).offset_ranges
    finally:
        producer.abort_transaction(30)
    assert offset_range.high == 54
    assert offset_range.keep_from_ms == BASE_MS + (2 - 17) * MINUTE_MS


class Imported:
    """A topic of records with old timestamps, one a second, that transactions have written now."""

    RECORDS, TRANSACTION = 12_000, 500

    def __init__(self, past: Past, late: int | None = None) -> None:
        self.topic = past.make_topic(1)
        producer = Producer(
            {"bootstrap.servers": past.bootstrap, "transactional.id": self.topic, "log_level": 2}
        )
        producer.init_transactions(30)
        for begin in range(0, self.RECORDS, self.TRANSACTION):
            producer.begin_transaction()
            for each in range(begin, begin + self.TRANSACTION):
                second = self.RECORDS - 1 if each == late else each
                producer.produce(self.topic, b"x", partition=0, timestamp=BASE_MS + second * 1000)
            producer.commit_transaction(30)

    def offset_of(self, record: int) -> int:
        """Return the offset of a record: behind each transaction is a marker."""
        return record + record // self.TRANSACTION


@pytest.mark.parametrize("late", [510, 9_000])
def test_a_record_of_the_window_among_old_ones_of_new_transactions_is_read(past: Past, late: int) -> None:
    """The broker finds the first marker, and the record may be anywhere behind it."""
    imported = Imported(past, late)
    history = past.resolve(imported.topic, Window(minutes=16))
    (offset_range,) = history.offset_ranges
    assert offset_range.begin <= imported.offset_of(late)


def test_a_long_log_without_transactions_is_read_as_far_as_the_window_reaches(past: Past) -> None:
    """The broker finds the record itself."""
    topic = past.make_topic(1)
    times = (BASE_MS + each * 1000 for each in range(25_000))
    past.produce(topic, [Outgoing(value=b"x", partition=0, timestamp_ms=each) for each in times])
    history = past.resolve(topic, Window(hours=4))
    assert history.offsets == 4 * 3600 + 900 + 1


def test_the_epoch_at_the_cut_is_that_of_the_record_before_the_marker(
    past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base made of a transactional topic can be checked, unless the marker may be of a later epoch than the record.

    The broker is asked for each once, and says what it has of the older epoch where its leader has a newer one.
    """
    topic = past.make_topic(1)
    producer = Producer({"bootstrap.servers": past.bootstrap, "transactional.id": topic, "log_level": 2})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    producer.commit_transaction(30)
    for window in (Window(days=1), Window(count=5)):
        assert past.resolve(topic, window).epochs == {0: 0}
    monkeypatch.setattr(KafkaLog, "newest_epochs", {0: 1})
    assert past.resolve(topic, Window(days=1)).epochs == {0: 0}
    monkeypatch.setattr(KafkaLog, "same_until", lambda *_: 1)
    assert past.resolve(topic, Window(days=1)).epochs == {}


def test_the_last_record_is_fetched_once(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its timestamp and its epoch come from one answer."""
    topic = past.topic_of(10)
    fetched: list[tuple[int, int]] = []
    between = KafkaLog.between

    def counted(log: KafkaLog, partition: int, begin: int, end: int) -> Generator[Message]:
        fetched.append((begin, end))
        return between(log, partition, begin, end)

    monkeypatch.setattr(KafkaLog, "between", counted)
    assert past.resolve(topic, Window(days=1)).epochs == {0: 0}
    assert fetched == [(9, 10)]


def test_retention_shortens_what_is_known(past: Past) -> None:
    """Deleted records are not read and coverage is no longer complete, while low stays the group's own."""
    topic = past.topic_of(10)
    past.delete_before(topic, 6)
    (vouched,) = past.resolve(topic, Window(days=1)).offset_ranges
    assert (vouched.low, vouched.begin, vouched.complete) == (6, 6, False)
    past.commit(topic, {0: (8, text(8, low=1))})
    (offset_range,) = past.resolve(topic, Window(days=1), group=past.group).offset_ranges
    assert offset_range == OffsetRange(
        partition=0,
        low=1,
        begin=6,
        high=8,
        complete=False,
        keep_from_ms=offset_range.keep_from_ms,
        known_from_ms=BASE_MS + 6 * MINUTE_MS,
        log_from=6,
        gaps=((1, 6),),
    )
    assert offset_range.since_ms(BASE_MS + 6 * MINUTE_MS, None) == BASE_MS + 6 * MINUTE_MS


def test_unknown_topics_and_settings_are_named(broker: Broker) -> None:
    """A topic that is not there and a setting that librdkafka refuses end in one line each."""
    with (
        KafkaLog(broker.bootstrap, "no-such-topic", {}) as log,
        pytest.raises(BackfillError, match="'no-such-topic'"),
    ):
        log.partitions()
    with pytest.raises(ConfigurationError, match=r"no\.such\.setting.*--client-config"):
        KafkaLog(broker.bootstrap, "orders", {"no.such.setting": "1"})
