"""Apache ActiveMQ Artemis: its duplicate detection, on Kafka.

    dedup = artemis.duplicate_detection(addresses={"orders.#": 50_000, "audit": 0})
    dedup = artemis.from_broker_xml("broker.xml").lookup

Either is a `Lookup` for `DedupConsumer` or `Deduplicator`. An address is a topic, and a cache is one of a *partition*.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dedup_adapters.address_settings import Wildcards
from dedup_adapters.broker_file import BrokerSettings
from dedup_adapters.id_cache import Defaults, from_file, lookup
from dedup_sdk import IdSpec, Lookup, Unit, header

DUPLICATE_ID: Final = "_AMQ_DUPL_ID"
"""The property, here the header, that bears the ID of a message."""
ID_CACHE_SIZE: Final = 20_000
"""How many IDs an address remembers where nobody says."""

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
    """Return the strategy that answers as the broker's duplicate ID cache does.

    Args:
        id_cache_size: how many accepted IDs each partition remembers; 0 turns detection off.
        persist_id_cache: whether they outlive a restart; false: in memory only, and what was stored is deleted.
        addresses: sizes of topics that have another one, by match: ``{"orders.#": 50_000}``. The most
            specific match wins.
        id: which bytes are the ID.
        wildcards: the characters of matches, where they are not ``.``, ``#`` and ``*``.
        unit: what names a transaction (`Lookup`): one duplicate rejects it, and an ID that comes twice in
            it is none, as with the broker.

    Raises `ConfigurationError` for a size below 0, and a match that the broker does not take.
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
    """Read duplicate detection from a broker's ``broker.xml`` (extra ``[artemis]``).

    The result says what it did not carry over, and one line of the log does. Raises `ConfigurationError`,
    in one line, for a file that is missing, hostile or something else.
    """
    return from_file(path, _DEFAULTS, id, unit)
