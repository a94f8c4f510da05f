"""A duplicate whose timestamp is older than the window.

Its mark leaves the store before its time, and proves nothing of the log.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from tests.support.consuming import poll_quiet, values

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make

COUNT = 3_000
MONTH_MS = 30 * 86_400_000


def send(kafka: MockKafka, *rows: tuple[str, int]) -> None:
    """Send records with an ID and a timestamp (ms)."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 50, "log_level": 0})
    for each, timestamp_ms in rows:
        producer.produce("orders", each, headers={"dedup-id": each}, partition=0, timestamp=timestamp_ms)
    assert producer.flush(30) == 0


def test_a_late_time_makes_no_other_log_of_it(make: Make, kafka: MockKafka, tmp_path: Path) -> None:
    """Completed, flushed and not committed, because the first message keeps failing.

    At each start only that one comes again.
    """
    now_ms = int(time.time() * 1000)
    rows = [("head", now_ms), ("x", now_ms), ("x", now_ms - MONTH_MS)]
    send(kafka, *rows, *((str(each), now_ms) for each in range(COUNT)))
    options: dict[str, Any] = {"completion": "explicit", "store": tmp_path, "recent_marks": 200}
    with make("orders", **options) as consumer:
        got = poll_quiet(consumer)
        for message in got[1:]:
            consumer.complete(message)
        assert len(got) == COUNT + 2
    for _ in range(3):
        with make("orders", **options) as again:
            assert values(poll_quiet(again)) == ["head"]
