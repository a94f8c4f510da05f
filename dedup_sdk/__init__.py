"""Change one line where the consumer is made, and the loop sees each logical message once.

    with DedupConsumer(
        {"bootstrap.servers": "localhost:9092", "group.id": "billing", "auto.offset.reset": "earliest"},
        dedup=Lookup(id=header("dedup-id"), window=Window(days=7)),
        store="var/dedup",
    ) as consumer:
        consumer.subscribe(["orders"])
        for message in consumer:
            charge(message)

A public name is loaded when it is first used: ``import dedup_sdk`` alone loads neither a Kafka client nor a store.
More public names are in `dedup_sdk.bridge`, `dedup_sdk.errors`, `dedup_sdk.ids`, `dedup_sdk.orders`,
`dedup_sdk.producer`, `dedup_sdk.shared` and `dedup_sdk.testing`. All other names may change between versions.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from dedup_sdk._log_fields import set_log_fields

if sys.platform == "win32":
    raise ImportError("dedup-sdk runs on Linux and macOS: on Windows use it in WSL, or in a container")

__version__: str
set_log_fields()

if TYPE_CHECKING:
    from dedup_sdk._engine.deduplicator import Deduplicator
    from dedup_sdk._kafka.client.fields import ids_of
    from dedup_sdk._kafka.consumer import DedupConsumer
    from dedup_sdk._kafka.recover.settings import Recovery
    from dedup_sdk._marks import Coverage
    from dedup_sdk._metrics import METRICS, Metric, Metrics, Sample
    from dedup_sdk._observe import (
        Counters,
        Health,
        Histogram,
        PartitionEvent,
        PartitionObserver,
        PartitionStatus,
        VerdictEvent,
    )
    from dedup_sdk._record import Record, Settled, Verdict, VerdictKind
    from dedup_sdk._runner.dead_letters import DeadLetter, original_headers
    from dedup_sdk._store.memory import MemoryStore
    from dedup_sdk._store.rocks import RocksStore
    from dedup_sdk._strategy import LastId, Lookup
    from dedup_sdk._units.unit import Unit
    from dedup_sdk._window import Window, Windows
    from dedup_sdk.errors import (
        ConfigurationError,
        DeadLetterError,
        DedupError,
        MissingIdError,
        RecoveryError,
        StoreError,
    )
    from dedup_sdk.ids import IdSpec, cloudevents, header, id_spec
    from dedup_sdk.producer._required_window import required_window

__all__ = [  # noqa: RUF022 (as Python sorts them)
    "ConfigurationError",
    "Counters",
    "Coverage",
    "DeadLetter",
    "DeadLetterError",
    "DedupConsumer",
    "DedupError",
    "Deduplicator",
    "Health",
    "Histogram",
    "IdSpec",
    "LastId",
    "Lookup",
    "METRICS",
    "MemoryStore",
    "Metric",
    "Metrics",
    "MissingIdError",
    "PartitionEvent",
    "PartitionObserver",
    "PartitionStatus",
    "Record",
    "Recovery",
    "RecoveryError",
    "RocksStore",
    "Sample",
    "Settled",
    "StoreError",
    "Unit",
    "Verdict",
    "VerdictEvent",
    "VerdictKind",
    "Window",
    "Windows",
    "cloudevents",
    "header",
    "id_spec",
    "ids_of",
    "original_headers",
    "required_window",
]

_MODULES: Final = {
    "dedup_sdk._engine.deduplicator": ("Deduplicator",),
    "dedup_sdk.errors": (
        "ConfigurationError",
        "DeadLetterError",
        "DedupError",
        "MissingIdError",
        "RecoveryError",
        "StoreError",
    ),
    "dedup_sdk.ids": ("IdSpec", "cloudevents", "header", "id_spec"),
    "dedup_sdk._kafka.consumer": ("DedupConsumer",),
    "dedup_sdk._kafka.client.fields": ("ids_of",),
    "dedup_sdk._kafka.recover.settings": ("Recovery",),
    "dedup_sdk._metrics": ("METRICS", "Metric", "Metrics", "Sample"),
    "dedup_sdk._observe": (
        "Counters",
        "Health",
        "Histogram",
        "PartitionEvent",
        "PartitionObserver",
        "PartitionStatus",
        "VerdictEvent",
    ),
    "dedup_sdk.producer._required_window": ("required_window",),
    "dedup_sdk._marks": ("Coverage",),
    "dedup_sdk._record": ("Record", "Settled", "Verdict", "VerdictKind"),
    "dedup_sdk._runner.dead_letters": ("DeadLetter", "original_headers"),
    "dedup_sdk._store.memory": ("MemoryStore",),
    "dedup_sdk._store.rocks": ("RocksStore",),
    "dedup_sdk._strategy": ("LastId", "Lookup"),
    "dedup_sdk._units.unit": ("Unit",),
    "dedup_sdk._window": ("Window", "Windows"),
}
"""The public names of each module; the same pairs as in the imports above, which only type checkers read."""
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}
_MOVED: Final = {
    "dedup_sdk.bridge": ("Bridge", "BridgeCounters", "BridgeError"),
    "dedup_sdk.errors": (
        "ForeignStoreError",
        "IdSpecError",
        "KafkaHelperError",
        "SnapshotError",
        "StoreCorruptError",
        "StoreLockedError",
        "StoreUnavailableError",
    ),
    "dedup_sdk.ids": ("json", "key", "py", "value"),
    "dedup_sdk.producer": (
        "DedupProducer",
        "OutboxDamagedError",
        "OutboxError",
        "OutboxFullError",
        "OutboxLockedError",
        "ProducerKey",
        "ProducerKeys",
        "Uuid7Keys",
    ),
    "dedup_sdk.shared": (
        "Claim",
        "ClaimKind",
        "ClaimStore",
        "MemoryClaimStore",
        "Shared",
        "SharedStoreError",
        "scope_name",
        "scoped_ids",
    ),
}
"""Names that moved to another package: they are still found here, with a warning, in this version."""
_PLACE_OF: Final = {name: place for place, names in _MOVED.items() for name in names}

if not TYPE_CHECKING:  # a type checker reads the imports above, and would take any name for one of these

    def __getattr__(name: str) -> Any:
        """Load a public name from its module, and keep it here; ``__version__`` is that of the installed package.

        A name that moved is not kept, so that each place that imports it is warned of.
        """
        if name == "__version__":
            from importlib.metadata import version

            return version("dedup-sdk")
        if name in _PLACE_OF:
            from warnings import warn

            place = _PLACE_OF[name]
            message = (
                f"dedup_sdk.{name} moved to {place}: write 'from {place} import {name}'; the next version does not "
                "have the old name"
            )
            warn(message, DeprecationWarning, stacklevel=2)
            return getattr(import_module(place), name)
        if name not in _MODULE_OF:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        found = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
