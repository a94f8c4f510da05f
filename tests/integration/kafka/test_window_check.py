"""A window that does not fit its topic, as a real broker tells of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dedup_sdk import Window
from tests.support.consuming import PATIENCE_S, lookup, make_consumer, poll_quiet

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker


def test_a_window_that_does_not_fit_is_told_of_once(
    broker: Broker, make_topic: MakeTopic, group: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic that keeps less than the window, and stamps late: each is one event with both numbers, for two partitions."""
    topic = make_topic(
        partitions=2, config={"retention.ms": "100000", "message.timestamp.type": "LogAppendTime"}
    )
    window = lookup(window=Window(milliseconds=400_001))
    with make_consumer(broker.bootstrap, group, tmp_path, dedup=window) as consumer:
        consumer.subscribe([topic])
        until = time.monotonic() + PATIENCE_S
        while not consumer.counters.events:
            consumer.poll(0.1)
            assert time.monotonic() < until
        poll_quiet(consumer)
        assert consumer.counters.events == {"window-beyond-retention": 1, "window-too-short": 1}
    beyond, short = (line for line in caplog.messages if "window-" in line)
    assert "400001 ms, the topic keeps 100000 ms" in beyond
    assert "sent again 540000 ms later" in short


def test_a_window_that_fits_is_no_news(
    broker: Broker, make_topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    """A week, and a topic as brokers make them."""
    topic = make_topic(partitions=1)
    with make_consumer(broker.bootstrap, group, tmp_path) as consumer:
        consumer.subscribe([topic])
        poll_quiet(consumer)
        check = consumer._session._window_check
        until = time.monotonic() + PATIENCE_S
        while check.asked or not check._topics:
            consumer.poll(0.1)
            assert time.monotonic() < until
        assert consumer.counters.events == {}
