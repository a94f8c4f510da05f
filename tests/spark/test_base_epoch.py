"""A base of records that an unclean election cut off the log is refused; the mock cluster has leader epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from dedup_sdk._marks import Known
from dedup_sdk._store.manifest import Manifest, PartitionManifest
from dedup_sdk._store.snapshot_source import SnapshotSource
from dedup_sdk._window import Window
from dedup_sdk.testing import MockKafka
from spark_backfill.base import Base
from spark_backfill.errors import BackfillError
from spark_backfill.history import History
from spark_backfill.history_plan import resolve_history
from spark_backfill.kafka_log import KafkaLog
from spark_backfill.range_plan import Archived

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY = Window(days=1)


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockKafka]:
    """A topic of three records of leader epoch 0, and four of epoch 1."""
    with MockKafka() as mock:
        mock.create_topic("orders", partitions=1)
        producer = Producer({"bootstrap.servers": mock.bootstrap, "log_level": 0})
        for count in (3, 4):
            for _ in range(count):
                producer.produce("orders", b"x")
            assert producer.flush(30) == 0
            mock.set_leader("orders", 0, 1)
        yield mock


@pytest.fixture(autouse=True)
def without_topic_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mock cluster does not answer when it is asked for a topic's ID."""
    monkeypatch.setattr(KafkaLog, "topic_id", lambda _: "")


def resolve(kafka: MockKafka, **given: Any) -> History:
    """The history of the whole topic on a base of its first offsets."""
    usual: dict[str, Any] = {
        "partition": 0, "low": 0, "high": 3, "known": Known(newest_ms=900), "marks": 0,
    }  # fmt: skip
    with KafkaLog(kafka.bootstrap, "orders", {}) as log:
        log.partitions()
        manifest = Manifest(
            cluster=log.cluster,
            topic="orders",
            topic_id="",
            id_spec="key",
            digest="sha256",
            isolation="read_committed",
            window=str(DAY),
            group=None,
            vouched=True,
            created_ms=1,
            partitions=(PartitionManifest(**{**usual, **given}),),
        )
        base = Base(SnapshotSource(place="base", manifest=manifest))
        return resolve_history(
            log, DAY, None, assume_processed=False, now_ms=10**13, rule="0" * 16, base=base
        )


@pytest.mark.parametrize(("end", "epochs"), [(7, {0: 1}), (3, {})])
def test_what_ends_before_the_log_does_is_of_an_epoch_that_nobody_knows(
    kafka: MockKafka, end: int, epochs: dict[int, int]
) -> None:
    """An archive alone is read: the epoch of the log's last record is not that of the archive's."""
    known = Archived(0, 0, end, end, 900, 900, 0)
    with KafkaLog(kafka.bootstrap, "orders", {}) as log:
        history = resolve_history(
            log, DAY, None, assume_processed=False, now_ms=10**13, rule="0" * 16,
            survey=lambda *_: {0: known}, reads_log=False,
        )  # fmt: skip
    assert history.offset_ranges[0].high == end
    assert history.epochs == epochs


@pytest.mark.parametrize("epoch", [None, 0])
def test_a_base_of_records_that_are_there_is_taken(kafka: MockKafka, epoch: int | None) -> None:
    """Nothing is read again; the history says the epoch in which it ends."""
    history = resolve(kafka, epoch=epoch)
    (part,) = history.offset_ranges
    assert part.base is not None
    assert (part.begin, part.high) == (3, 7)
    assert history.epochs == {0: 1}


def test_a_base_of_records_that_were_cut_off_is_refused(kafka: MockKafka) -> None:
    """It had five records of epoch 0, the log has three: the others came afterwards, and no mark is of them."""
    with pytest.raises(BackfillError) as caught:
        resolve(kafka, high=5, epoch=0)
    assert "the base reaches offset 5 of leader epoch 0, which ends at 3 in the log now" in str(caught.value)
    assert "rebuild in full" in str(caught.value)


def test_a_base_of_the_last_epoch_is_not_asked_for(kafka: MockKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within one epoch no record is ever replaced, so that a run without an election asks nothing more."""
    monkeypatch.setattr(KafkaLog, "same_until", None)
    (part,) = resolve(kafka, high=6, epoch=1).offset_ranges
    assert part.begin == 6
