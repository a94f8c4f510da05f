"""When a broker is ready, and topics that are ready when they are returned: for any broker that has an address."""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from dedup_sdk.errors import KafkaHelperError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from confluent_kafka.admin import ClusterMetadata, TopicMetadata

_PAUSE_S = 0.05
_REQUEST_TIMEOUT_S = 10.0

# ApiVersions, version 0: key 18, correlation 1, no client name. Every Kafka answers it to everybody.
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


def wait_until_ready(bootstrap: str, timeout_s: float, *, alive: Callable[[], bool] = lambda: True) -> None:
    """Return when the broker at `bootstrap` answers, is a member of its cluster, and all partitions have leaders.

    Args:
        bootstrap: ``host:port``.
        timeout_s: seconds, for all of it.
        alive: whether it is worth waiting on; asked now and then.

    Raises:
        KafkaHelperError: not in time, or no longer alive.
    """
    deadline = time.monotonic() + timeout_s
    # A socket first: a client that finds the port closed would log it, and wait longer and longer.
    while not _answers(bootstrap):
        _check(bootstrap, deadline, timeout_s, alive)
    admin = _admin(bootstrap)
    while not _serves(admin):
        _check(bootstrap, deadline, timeout_s, alive)


def create_topic(
    bootstrap: str,
    name: str,
    partitions: int = 1,
    config: Mapping[str, str] | None = None,
    timeout_s: float = 30,
) -> str:
    """Create a topic and return its name when every partition has a leader.

    Args:
        bootstrap: ``host:port``.
        name: the topic's name.
        partitions: how many, at least 1.
        config: topic settings.
        timeout_s: seconds, for all of it.

    Raises:
        KafkaHelperError: the broker refused it, or the partitions had no leader in time.
    """
    # The client is kept in a name while its future is waited for: without one it is torn down first.
    admin = _admin(bootstrap)
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
    try:
        admin.create_topics([topic], operation_timeout=timeout_s)[name].result(timeout_s)
    except KafkaException as error:
        raise KafkaHelperError(
            f"topic {name!r} was not created at {bootstrap}: {error.args[0].str()}"
        ) from None
    deadline = time.monotonic() + timeout_s
    while True:
        metadata = _metadata(admin, name)
        found = metadata.topics.get(name) if metadata else None
        if found is not None and len(found.partitions) == partitions and _led(found):
            return name
        _check(bootstrap, deadline, timeout_s, lambda: True)


def _admin(bootstrap: str) -> AdminClient:
    # Silent but for emergencies: to find a broker not yet there is what it is for.
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 500})


def _answers(bootstrap: str) -> bool:
    host, port = bootstrap.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout=1) as connection:
            connection.sendall(_API_VERSIONS)
            return len(connection.recv(8)) == len(struct.pack(">ii", 0, 1))
    except OSError:
        return False


def _serves(admin: AdminClient) -> bool:
    metadata = _metadata(admin)
    return (
        metadata is not None
        and bool(metadata.brokers)
        and all(_led(topic) for topic in metadata.topics.values())
    )


def _led(topic: TopicMetadata) -> bool:
    return topic.error is None and all(each.leader >= 0 for each in topic.partitions.values())


def _metadata(admin: AdminClient, topic: str | None = None) -> ClusterMetadata | None:
    try:
        if topic is None:
            return admin.list_topics(timeout=1)
        return admin.list_topics(topic=topic, timeout=_REQUEST_TIMEOUT_S)
    except KafkaException:
        return None


def _check(bootstrap: str, deadline: float, timeout_s: float, alive: Callable[[], bool]) -> None:
    if not alive():
        raise KafkaHelperError(f"the broker for {bootstrap} ended before it was ready")
    if time.monotonic() > deadline:
        raise KafkaHelperError(f"the broker at {bootstrap} was not ready within {timeout_s:g} s")
    time.sleep(_PAUSE_S)
