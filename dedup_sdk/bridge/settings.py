"""The configurations of a bridge's two ends: what would lose or double records is refused, and what a promise hangs on is set.

Set by us unless the user says otherwise: at the source ``auto.offset.reset=earliest``, so that nothing is left out (``error`` leaves out nothing
either), and ``partition.assignment.strategy=cooperative-sticky``; at the target ``transaction.timeout.ms=15000``, because readers of the target wait that long
for a bridge that was killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dedup_sdk.errors import ConfigurationError
from dedup_sdk.kafka.settings import refuse_unwritable

_DEFAULT_PARTITIONER: Final = "consistent_random"
_NO: Final = ("false", "0")
_RESETS: Final = ("earliest", "smallest", "beginning", "error")
_OURS: Final = ("on_delivery", "dr_cb", "delivery.report.only.error")
_INTERNAL_TOPICS: Final = "^__.*"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """What is read from the target's configuration; ``client`` is what librdkafka gets, passwords included."""

    client: dict[str, Any] = field(repr=False)
    transactional_id: str
    """The user's; empty: the bridge makes one."""
    scatters_empty_keys: bool
    """Whether the client would put an empty key anywhere, as it does without a key."""


def source_settings(config: Mapping[str, Any], group: str, *, told_of_ends: bool) -> dict[str, Any]:
    """Return what the source's client gets; ``told_of_ends``: whether it is to say that a partition has no more for now."""
    client = dict(config)
    if str(client.get("enable.auto.commit", "false")).lower() not in _NO:
        raise ConfigurationError(
            "enable.auto.commit=true commits what is not copied yet, and it would be lost; leave it out"
        )
    if str(client.get("isolation.level", "read_committed")).lower() != "read_committed":
        raise ConfigurationError(
            f"isolation.level={client['isolation.level']!r} would copy what was aborted; leave it out"
        )
    reset = str(client.setdefault("auto.offset.reset", "earliest")).lower()
    if reset not in _RESETS:
        raise ConfigurationError(
            f"auto.offset.reset={client['auto.offset.reset']!r} would pass over what was read and not copied yet when a bridge ends before its first "
            "commit; leave it out, and to leave out what is there set the group's offsets to the end before (kafka-consumer-groups --reset-offsets --to-latest)"
        )
    if str(client.get("group.protocol", "classic")).lower() != "consumer":
        client.setdefault("partition.assignment.strategy", "cooperative-sticky")
    # A pattern may fit them, and what a broker writes for itself is nobody's to copy.
    client.setdefault("topic.blacklist", _INTERNAL_TOPICS)
    client |= {"group.id": group, "enable.auto.commit": False, "enable.partition.eof": told_of_ends}
    refuse_unwritable(client)
    return client


def target_settings(config: Mapping[str, Any]) -> TargetSettings:
    """Read the target's configuration; raises `ConfigurationError` for what would lose records, or leave them without a place."""
    client = dict(config)
    for name in ("acks", "request.required.acks"):
        if str(client.get(name, "all")) not in ("all", "-1"):
            raise ConfigurationError(
                f"{name}={client[name]!r} lets the target lose what it has confirmed; leave it out"
            )
    if str(client.get("enable.idempotence", "true")).lower() in _NO:
        raise ConfigurationError(
            "enable.idempotence=false lets records of a key change places, and come twice; leave it out"
        )
    partitioner = str(client.get("partitioner", _DEFAULT_PARTITIONER))
    if partitioner == "random":
        raise ConfigurationError(
            "partitioner='random' sends a record again to another partition, where nobody knows it; choose e.g. consistent_random or murmur2_random"
        )
    for name in _OURS:
        if client.pop(name, None) is not None:
            raise ConfigurationError(f"{name}: a bridge reads the delivery reports itself; leave it out")
    transactional_id = str(client.pop("transactional.id", "") or "")
    client.setdefault("enable.idempotence", True)
    client.setdefault("transaction.timeout.ms", 15_000)
    refuse_unwritable({**client, "group.id": "bridge", "transactional.id": transactional_id})
    return TargetSettings(
        client=client,
        transactional_id=transactional_id,
        scatters_empty_keys=partitioner == _DEFAULT_PARTITIONER,
    )
