"""The duplicate detection of Apache ActiveMQ Artemis, on Kafka.

    dedup = artemis.duplicate_detection(addresses={"orders.#": 50_000, "audit": 0})
    dedup = artemis.from_broker_xml("broker.xml").lookup

Both are a `Lookup` for `DedupConsumer` or `Deduplicator`. An address is a topic; each *partition* has its
own cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dedup_adapters._address_settings import Wildcards
from dedup_adapters._broker_file import BrokerSettings
from dedup_adapters._id_cache import Defaults, from_file, lookup
from dedup_sdk import IdSpec, Lookup, Unit, header

__all__ = [
    "DUPLICATE_ID",
    "ID_CACHE_SIZE",
    "BrokerSettings",
    "Wildcards",
    "duplicate_detection",
    "from_broker_xml",
]

DUPLICATE_ID: Final = "_AMQ_DUPL_ID"
"""The header that contains the ID of a message; in the broker it is a property."""
ID_CACHE_SIZE: Final = 20_000
"""The broker's default number of IDs for each address."""

_DEFAULTS = Defaults(header(DUPLICATE_ID), ID_CACHE_SIZE, "broker.xml", "urn:activemq")


def duplicate_detection(
    *,
    id_cache_size: int = ID_CACHE_SIZE,
    persist_id_cache: bool = True,
    addresses: Mapping[str, int] | None = None,
    id: IdSpec = _DEFAULTS.id,  # noqa: A002 (as `Lookup` has it)
    wildcards: Wildcards | None = None,
    unit: Unit | IdSpec | None = None,
) -> Lookup:
    """Return the strategy that gives the same answers as the broker's duplicate ID cache.

    Args:
        id_cache_size: the number of accepted IDs that each partition remembers; 0 turns detection off.
        persist_id_cache: whether IDs survive a restart; false: they are kept in memory only, and stored IDs
            are deleted.
        addresses: the sizes of topics that differ from ``id_cache_size``, by match: ``{"orders.#":
            50_000}``. The most specific match wins.
        id: the ID spec.
        wildcards: the wildcard characters of matches, if they are not ``.``, ``#`` and ``*``.
        unit: the spec of the transaction ID (see `Lookup`): one duplicate rejects the whole transaction,
            and an ID that occurs twice in one transaction is not a duplicate, as with the broker.

    Raises `ConfigurationError` for a size below 0, and a match that the broker does not accept.
    """
    return lookup(
        id_cache_size,
        {} if addresses is None else addresses,
        wildcards,
        id,
        persist_id_cache=persist_id_cache,
        unit=unit,
    )


def from_broker_xml(
    path: str | Path,
    *,
    id: IdSpec = _DEFAULTS.id,  # noqa: A002 (as `Lookup` has it)
    unit: Unit | IdSpec | None = None,
) -> BrokerSettings:
    """Read the settings of duplicate detection from a broker's ``broker.xml`` (extra ``[artemis]``).

    The result lists the settings that are not carried over, and one log line names them. Raises
    `ConfigurationError`, in one line, for a file that is missing, unsafe or not a broker's configuration.
    """
    return from_file(path, _DEFAULTS, id, unit)
