"""The one real broker of a test run, from the first provider that has one."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from dedup_sdk.errors import DedupError
from dedup_sdk.testing import LocalKafka
from dedup_sdk.testing._local_kafka import create_topic
from tests.support.kafka_container import KafkaContainer, engine_trouble

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PATIENCE_S = 60.0
_NEVER_KILLED = {"broker.session.timeout.ms": "60000"}
"""No test ends this broker, so that a long session costs nothing.

A busy machine must not put it out of its own cluster.
"""


class NoBrokerError(Exception):
    """No provider has a broker; the text names each with its reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A running broker.

    Attributes:
        kind: ``address``, ``container`` or ``jars``.
        bootstrap: ``host:port``.
        why: which provider gave it, and why not an earlier one; one line.
    """

    kind: str
    bootstrap: str
    why: str

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create a topic and return its name when every partition has a leader."""
        return create_topic(self.bootstrap, name, partitions, config)


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic, and return when a broker has done so."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result(_PATIENCE_S)


def make_anew(bootstrap: str, topic: str, partitions: int = 1) -> None:
    """Delete a topic, and create it again once the broker has forgotten the old one."""
    delete_topic(bootstrap, topic)
    last: Exception | None = None
    for _ in range(50):
        try:
            create_topic(bootstrap, topic, partitions)
        except Exception as error:  # noqa: BLE001
            last = error
        else:
            return
    raise AssertionError(f"topic {topic} cannot be made anew: {last}")


@contextmanager
def real_broker(*, container_required: bool) -> Iterator[Broker]:
    """Yield the address in ``DEDUP_TEST_BOOTSTRAP``, else a container, else a broker from its published jars.

    Args:
        container_required: do not fall back to the jars.

    Raises:
        NoBrokerError: none is to be had.
    """
    if address := os.environ.get("DEDUP_TEST_BOOTSTRAP"):
        yield Broker(kind="address", bootstrap=address, why=f"{address}, named by DEDUP_TEST_BOOTSTRAP")
        return
    trouble = engine_trouble()
    if trouble is None:
        container = KafkaContainer(config=_NEVER_KILLED)
        try:
            container.__enter__()
        except Exception as error:  # noqa: BLE001 - an image that cannot be pulled has many faces
            trouble = f"{container.image} does not start ({' '.join(str(error).split())[:200]})"
        else:
            try:
                why = f"{container.image} in a container"
                yield Broker(kind="container", bootstrap=container.bootstrap, why=why)
            finally:
                container.stop()
            return
    if container_required:
        raise NoBrokerError(f"{trouble}, and under DEDUP_TEST_REQUIRE=1 nothing else will do")
    kafka = LocalKafka(config=_NEVER_KILLED)
    try:
        kafka.start()
    except DedupError as error:
        raise NoBrokerError(f"{trouble}; {error}") from None
    try:
        yield Broker(kind="jars", bootstrap=kafka.bootstrap, why=f"LocalKafka from its jars, for {trouble}")
    finally:
        kafka.stop()
