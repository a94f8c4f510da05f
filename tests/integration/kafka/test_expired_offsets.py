"""A group whose offsets a broker has let expire, as it does with groups without a member; by default after a week."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_INVALID, Producer

from dedup_sdk import Recovery
from dedup_sdk.testing import LocalKafka
from tests.support.consuming import committed, make_consumer, poll_quiet, poll_some, values

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.broker, pytest.mark.slow]

EXPIRING = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
"""The shortest time that a broker takes."""
LONGEST_S = 150.0


def send(kafka: LocalKafka, *ids: str) -> None:
    """Send records whose value is their ID."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for each in ids:
        producer.produce("orders", each, headers={"dedup-id": each}, partition=0)
    assert producer.flush(30) == 0


def handle(kafka: LocalKafka, group: str, store: Path, recovery: Recovery | None = None) -> list[str]:
    """Handle what comes, and leave."""
    with make_consumer(kafka.bootstrap, group, store, recovery=recovery or Recovery()) as consumer:
        consumer.subscribe(["orders"])
        got = poll_some(consumer, 1)
        return values(got + poll_quiet(consumer))


@pytest.mark.timeout(300)
def test_offsets_that_expired_move_nobody_but_who_wants_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A host goes on where its store ends, with a warning; by choice, or without a store, all comes again."""
    with LocalKafka(config=EXPIRING) as kafka:
        kafka.create_topic("orders")
        send(kafka, "a", "b")
        groups = ("resumes", "resets", "forgot")
        for group in groups:
            assert handle(kafka, group, tmp_path / group) == ["a", "b"]
            assert committed(kafka.bootstrap, group, "orders").offset == 2
        until = time.monotonic() + LONGEST_S
        while any(committed(kafka.bootstrap, group, "orders").offset != OFFSET_INVALID for group in groups):
            assert time.monotonic() < until
            time.sleep(1)
        send(kafka, "a", "c")

        with caplog.at_level(logging.WARNING, "dedup_sdk"):
            assert handle(kafka, "resumes", tmp_path / "resumes") == ["c"]
        assert "orders[0]: the group's commits are gone" in caplog.text
        assert committed(kafka.bootstrap, "resumes", "orders").offset == 4
        reset = Recovery(without_commit="reset")
        assert handle(kafka, "resets", tmp_path / "resets", reset) == ["a", "b", "c"]
        assert handle(kafka, "forgot", tmp_path / "anew") == ["a", "b", "c"]
