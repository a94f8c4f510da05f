"""The arithmetic of Tencent CMQ's guide, and the adapter's presets."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from dedup_adapters import cmq
from dedup_sdk import ConfigurationError, Lookup, Window, header, required_window
from dedup_sdk.producer import ProducerKeys
from tests.support.outboxes import records

if TYPE_CHECKING:
    from pathlib import Path

DAY_MS, HOUR_MS, MINUTE_MS = 86_400_000, 3_600_000, 60_000


def test_the_window_is_the_three_times_one_after_the_other() -> None:
    """Given as text or as timedelta; a value that does not apply is zero."""
    assert required_window(max_retention="4d", max_retry=timedelta(hours=1), max_network="1m") == Window(
        milliseconds=4 * DAY_MS + HOUR_MS + MINUTE_MS
    )
    assert required_window(max_retention="0s", max_retry="2m") == Window(minutes=2)
    assert cmq.lookup(max_retention="4d", max_retry="1h") == Lookup(
        id=header("dedup-id"), window=Window(days=4, hours=1)
    )


@pytest.mark.parametrize("length", ["", "4", "d", "4x", "5n", "1d+5n", "off", 5, None, timedelta(-1), "-1d"])
def test_what_is_no_length_of_time_is_refused(length: Any) -> None:
    """In one line with the setting or the text."""
    with pytest.raises(ConfigurationError):
        required_window(max_retention="4d", max_retry=length)


def test_a_window_of_nothing_is_refused() -> None:
    """It would remember nothing."""
    with pytest.raises(ConfigurationError, match="zero"):
        required_window(max_retention="0s", max_retry="0s")


def test_when_a_key_may_be_forgotten() -> None:
    """By its expiry, or by the earliest message that is stored; a key that tells no time stays."""
    assert (
        cmq.expiry_ms(1_000, max_retention="1d", max_retry="1h", max_network="1m")
        == 1_000 + DAY_MS + HOUR_MS + MINUTE_MS
    )
    before_ms = cmq.forgettable_before_ms(10 * DAY_MS, max_retry="1h", max_network="1m")
    assert before_ms == 10 * DAY_MS - HOUR_MS - MINUTE_MS
    made = b"10.0.0.5-1-1-0123456789abcdef-%d-1"
    assert cmq.is_forgettable(made % (before_ms - 1), before_ms)
    assert not cmq.is_forgettable(made % before_ms, before_ms)
    assert not cmq.is_forgettable(b"order-1", before_ms)


def test_a_key_is_never_forgotten_while_a_duplicate_may_come() -> None:
    """The last attempt of a message that is stored, after the longest retry and the slowest network, finds its key."""
    retry_ms, network_ms, first_ms = HOUR_MS, MINUTE_MS, 10 * DAY_MS
    stored_ms = first_ms + retry_ms + network_ms
    for earliest_ms in (first_ms, stored_ms):
        before_ms = cmq.forgettable_before_ms(earliest_ms, max_retry="1h", max_network="1m")
        assert not cmq.is_forgettable(b"a-1-1-0123456789abcdef-%d-1" % first_ms, before_ms)


def test_the_producer_makes_keys_of_its_address(tmp_path: Path) -> None:
    """In the header that the consumer looks for."""
    from dedup_sdk.testing import MockKafka

    with MockKafka() as kafka:
        kafka.create_topic("orders")
        with cmq.producer(
            {"bootstrap.servers": kafka.bootstrap}, outbox=tmp_path, address="10.0.0.5"
        ) as producer:
            producer.produce("orders", b"1")
        [record] = records(kafka.bootstrap, "orders")
    key = cmq.ProducerKey.read(record.dedup_id)
    assert key is not None
    assert key.address == "10.0.0.5"
    assert ProducerKeys("10.0.0.5")() != record.dedup_id
