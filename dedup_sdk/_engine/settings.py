"""What an engine is made with, as callers without a type checker pass it."""

from __future__ import annotations

from typing import Final

from dedup_sdk._checks import text
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.ids import IdSpec

MOST_OFFSET: Final = 2**63 - 1


def is_key_store(store: object) -> bool:
    """Whether an object has the attributes of a `KeyStore` that an engine reads at once."""
    return callable(getattr(store, "open", None)) and all(
        hasattr(store, name) for name in ("path", "recent_marks")
    )


def refuse_unusable(
    strategy: object, store: object, clock: object, *, cluster: str, group: str, isolation: str
) -> None:
    """Raise `ConfigurationError` for what is no setting of an engine."""
    if not isinstance(getattr(strategy, "id", None), IdSpec):
        raise ConfigurationError(
            f"strategy={strategy!r}: give e.g. Lookup(id=header('dedup-id'), window=Window(days=7))"
        )
    if store is not None and (isinstance(store, type) or not is_key_store(store)):
        raise ConfigurationError(f"store={store!r}: give a key store, e.g. RocksStore('var/dedup')")
    if not callable(clock):
        raise ConfigurationError(f"clock={clock!r}: give a function that returns seconds, e.g. time.time")
    for name, value in (("cluster", cluster), ("group", group), ("isolation", isolation)):
        text(name, value)
