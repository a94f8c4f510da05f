from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.brokers import delete_topic

if TYPE_CHECKING:
    from tests.support.brokers import Broker

ROOT = Path(__file__).parents[3]
EXAMPLE = "examples/billing.py"


def test_the_example_of_the_compose_file_charges_each_order_once_and_a_second_time_none(
    broker: Broker,
) -> None:
    """As `docker compose up` runs it, twice: the second time all is replayed from the topic, and no order is charged.

    It names topic and group itself, so that an earlier run's are removed first: no other test uses these names here.
    """
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert "BOOTSTRAP_SERVERS: kafka:19092\n" in compose
    assert f"python /dedup-sdk/{EXAMPLE}" in compose
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    with suppress(KafkaException):
        delete_topic(broker.bootstrap, "orders")
    with suppress(KafkaException):
        admin.delete_consumer_groups(["billing"])["billing"].result(60)

    first, second = (_run(broker.bootstrap) for _ in range(2))

    assert [line.partition(":")[0] for line in first[:-1]] == [
        "charge order-1",
        "charge order-2",
        "charge order-3",
    ]
    assert first[-1] == "6 records, 3 of them duplicates"
    assert second == ["6 records, 6 of them duplicates"]


def _run(bootstrap: str) -> list[str]:
    """The lines that the example prints."""
    done = subprocess.run(
        [sys.executable, ROOT / EXAMPLE],
        env={**os.environ, "BOOTSTRAP_SERVERS": bootstrap},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
