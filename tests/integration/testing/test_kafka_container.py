from __future__ import annotations

import pytest

from dedup_sdk.testing._local_kafka import create_topic
from tests.support.kafka_container import KafkaContainer
from tests.support.producing import produce, with_ids

pytestmark = [pytest.mark.broker, pytest.mark.container, pytest.mark.slow]


def test_a_killed_container_comes_back_under_its_address() -> None:
    """The address is known before the start and stays the same after kill and start; the data too."""
    container = KafkaContainer()
    bootstrap = container.bootstrap
    with container:
        topic = create_topic(bootstrap, "survives")
        produce(bootstrap, topic, with_ids("a"))

        container.kill()
        container.start_again()

        assert container.bootstrap == bootstrap
        assert produce(bootstrap, topic, with_ids("b")) == 1


def test_the_broker_listens_on_loopback_only() -> None:
    """Nothing of a test run can be reached from outside the machine."""
    with KafkaContainer() as container:
        published = container.get_wrapped_container().ports
        hosts = {binding["HostIp"] for bindings in published.values() for binding in bindings or []}

    assert hosts == {"127.0.0.1"}
