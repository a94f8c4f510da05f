"""Records without a timestamp, as recovery reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from dedup_sdk._kafka.client.reader import Readers, TailReader
from dedup_sdk._kafka.client.settings import client_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dedup_sdk.testing import MockKafka

STAMP_MS = 777


@pytest.fixture
def reader(kafka: MockKafka) -> Iterator[TailReader]:
    """A reader of a partition with one record that has a timestamp, and many after it that have none."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for stamp_ms in [STAMP_MS] + [-1] * 150:
        producer.produce("orders", b"x", timestamp=stamp_ms)
    assert producer.flush(30) == 0
    readers = Readers(
        client_settings({"bootstrap.servers": kafka.bootstrap, "group.id": "g", "log_level": 0})
    )
    opened = TailReader(readers, "orders", 0)
    yield opened
    opened.close()
    readers.close()


def newest(reader: TailReader, start: int) -> int | None:
    """The newest timestamp before offset 151, not looked for before `start`."""
    asking = reader.newest_before(151, start)
    while True:
        try:
            next(asking)
        except StopIteration as ended:
            found: int | None = ended.value
            return found


def test_the_newest_timestamp_is_looked_for_further_back(reader: TailReader) -> None:
    """Records without a timestamp say nothing of time, so that no window is reckoned from them."""
    assert newest(reader, 0) == STAMP_MS


def test_without_any_timestamp_there_is_no_newest(reader: TailReader) -> None:
    """Then everything is folded, instead of records one window older than nothing."""
    assert newest(reader, 1) is None
