"""The duplicate ID cache that Artemis and HornetQ share, as a `Lookup`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dedup_adapters._address_settings import Wildcards, cache_sizes, check_size, count_window
from dedup_adapters._broker_file import BrokerSettings, read_broker_file
from dedup_sdk import ConfigurationError, IdSpec, Lookup, Unit, Windows
from dedup_sdk.errors import shown


@dataclass(frozen=True, slots=True)
class Defaults:
    """A broker's defaults: the ID's header, the cache size, name and XML namespace of its configuration file."""

    id: IdSpec
    id_cache_size: int
    file_name: str
    namespace: str


def lookup(
    id_cache_size: int,
    addresses: Mapping[str, int],
    wildcards: Wildcards | None,
    dedup_id: IdSpec,
    *,
    persist_id_cache: bool,
    unit: Unit | IdSpec | None = None,
) -> Lookup:
    """Return the strategy of such a cache; raises `ConfigurationError` for settings that no broker accepts.

    ``unit`` is the spec of the transaction ID. IDs of one transaction are not duplicates of each other, as
    with the brokers.
    """
    check_size("id_cache_size", id_cache_size)
    given: object = persist_id_cache  # what callers without a type checker pass
    if not isinstance(given, bool):
        raise ConfigurationError(f"persist_id_cache={shown(given)}: give True or False")
    characters: object = Wildcards() if wildcards is None else wildcards
    if not isinstance(characters, Wildcards):
        raise ConfigurationError(
            f"wildcards={shown(characters)}: give Wildcards(delimiter='/', ...) of dedup_adapters.artemis"
        )
    sizes = cache_sizes(addresses, characters)
    windows = Windows(default=count_window(id_cache_size), topics=sizes)
    found = Lookup(
        id=dedup_id, window=windows if sizes.sizes else windows.default, persist=persist_id_cache, unit=unit
    )
    return (
        replace(found, unit=replace(found.unit, repeats="deliver")) if isinstance(found.unit, Unit) else found
    )


def from_file(
    path: str | Path, defaults: Defaults, dedup_id: IdSpec, unit: Unit | IdSpec | None
) -> BrokerSettings:
    """Read a broker's file; settings that it lacks have the broker's defaults."""
    found = read_broker_file(path, defaults.file_name, defaults.namespace)
    size = defaults.id_cache_size if found.id_cache_size is None else found.id_cache_size
    persist = True if found.persist_id_cache is None else found.persist_id_cache
    return BrokerSettings(
        id_cache_size=size,
        persist_id_cache=persist,
        addresses=found.addresses,
        wildcards=found.wildcards,
        lookup=lookup(size, found.addresses, found.wildcards, dedup_id, persist_id_cache=persist, unit=unit),
        not_carried_over=found.not_carried_over,
    )
