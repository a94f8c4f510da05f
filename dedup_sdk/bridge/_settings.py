"""The configurations of source and target: refuses settings that lose records, sets those that the bridge needs.

Set here unless you set them: at the source ``auto.offset.reset=earliest``, so that no record is skipped
(``error`` skips none either), and ``partition.assignment.strategy=cooperative-sticky``; at the target
``transaction.timeout.ms=15000``, because readers of the target wait that long for a bridge that was killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dedup_sdk._kafka.client.settings import refuse_unwritable
from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.producer._settings import DEFAULT_PARTITIONER, checked_partitioner

_NO: Final = ("false", "0")
_RESETS: Final = ("earliest", "smallest", "beginning", "error")
_OURS: Final = ("on_delivery", "dr_cb", "delivery.report.only.error")
_INTERNAL_TOPICS: Final = "^__.*"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """The settings read from the target's configuration.

    ``client`` is the configuration of librdkafka, passwords included.
    """

    client: dict[str, Any] = field(repr=False)
    transactional_id: str
    """Yours; empty: the bridge makes one."""
    scatters_empty_keys: bool
    """Whether the client chooses a random partition for an empty key, as it does without a key."""


def source_settings(config: Mapping[str, Any], group: str, *, reports_ends: bool) -> dict[str, Any]:
    """Return the configuration of the source's client.

    ``reports_ends``: whether the client reports that a partition has no more records for now. Raises
    `ConfigurationError` for a setting that would lose records, or copy aborted ones.
    """
    client = dict(config)
    if str(client.get("enable.auto.commit", "false")).lower() not in _NO:
        raise ConfigurationError(
            "enable.auto.commit=true commits records that are not copied yet, and they would be lost; leave it out"
        )
    if str(client.get("isolation.level", "read_committed")).lower() != "read_committed":
        raise ConfigurationError(
            f"isolation.level={shown(client['isolation.level'])} would copy aborted records; leave it out"
        )
    reset = str(client.setdefault("auto.offset.reset", "earliest")).lower()
    if reset not in _RESETS:
        raise ConfigurationError(
            f"auto.offset.reset={shown(client['auto.offset.reset'])} would skip records that were read and not "
            "copied when a bridge ends before its first "
            "commit; leave it out. To skip the existing records set the group's offsets to the end before "
            "(kafka-consumer-groups --reset-offsets --to-latest)"
        )
    if str(client.get("group.protocol", "classic")).lower() != "consumer":
        client.setdefault("partition.assignment.strategy", "cooperative-sticky")
    # A pattern may match internal topics, which must not be copied.
    client.setdefault("topic.blacklist", _INTERNAL_TOPICS)
    client |= {"group.id": group, "enable.auto.commit": False, "enable.partition.eof": reports_ends}
    refuse_unwritable(client)
    return client


def target_settings(config: Mapping[str, Any]) -> TargetSettings:
    """Read the target's configuration.

    Raises `ConfigurationError` for a setting that would lose, duplicate or reorder records.
    """
    client = dict(config)
    partitioner = checked_partitioner(client)
    if str(client.get("enable.idempotence", "true")).lower() in _NO:
        raise ConfigurationError(
            "enable.idempotence=false lets records of a key be reordered and duplicated; leave it out"
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
        scatters_empty_keys=partitioner == DEFAULT_PARTITIONER,
    )
