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
What is not exported here may change between versions.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

__version__: str

if TYPE_CHECKING:
    from dedup_sdk.bridge.bridge import Bridge
    from dedup_sdk.bridge.counters import BridgeCounters
    from dedup_sdk.engine.deduplicator import Deduplicator
    from dedup_sdk.errors import (
        BridgeError,
        ConfigurationError,
        DeadLetterError,
        DedupError,
        ForeignStoreError,
        IdSpecError,
        KafkaHelperError,
        MissingIdError,
        OutboxDamagedError,
        OutboxError,
        OutboxFullError,
        OutboxLockedError,
        RecoveryError,
        SharedStoreError,
        SnapshotError,
        StoreCorruptError,
        StoreError,
        StoreLockedError,
        StoreUnavailableError,
    )
    from dedup_sdk.ids import IdSpec, cloudevents, header, id_spec, json, key, py, value
    from dedup_sdk.kafka.consumer import DedupConsumer
    from dedup_sdk.kafka.fields import ids_of
    from dedup_sdk.marks import Coverage
    from dedup_sdk.observe import Counters, PartitionEvent, PartitionObserver, PartitionStatus, VerdictEvent
    from dedup_sdk.producer.keys import ProducerKey, ProducerKeys, Uuid7Keys
    from dedup_sdk.producer.producer import DedupProducer
    from dedup_sdk.producer.required_window import required_window
    from dedup_sdk.record import Record, Settled, Verdict, VerdictKind
    from dedup_sdk.runner.dead_letters import DeadLetter, original_headers
    from dedup_sdk.shared.memory import MemoryClaimStore
    from dedup_sdk.shared.protocol import Claim, ClaimKind, ClaimStore
    from dedup_sdk.shared.scope import scope_name, scoped_ids
    from dedup_sdk.shared.settings import Shared
    from dedup_sdk.store.memory import MemoryStore
    from dedup_sdk.store.rocks import RocksStore
    from dedup_sdk.strategy import LastId, Lookup
    from dedup_sdk.units.unit import Unit
    from dedup_sdk.window import Window, Windows

__all__ = [
    "Bridge",
    "BridgeCounters",
    "BridgeError",
    "Claim",
    "ClaimKind",
    "ClaimStore",
    "ConfigurationError",
    "Counters",
    "Coverage",
    "DeadLetter",
    "DeadLetterError",
    "DedupConsumer",
    "DedupError",
    "DedupProducer",
    "Deduplicator",
    "ForeignStoreError",
    "IdSpec",
    "IdSpecError",
    "KafkaHelperError",
    "LastId",
    "Lookup",
    "MemoryClaimStore",
    "MemoryStore",
    "MissingIdError",
    "OutboxDamagedError",
    "OutboxError",
    "OutboxFullError",
    "OutboxLockedError",
    "PartitionEvent",
    "PartitionObserver",
    "PartitionStatus",
    "ProducerKey",
    "ProducerKeys",
    "Record",
    "RecoveryError",
    "RocksStore",
    "Settled",
    "Shared",
    "SharedStoreError",
    "SnapshotError",
    "StoreCorruptError",
    "StoreError",
    "StoreLockedError",
    "StoreUnavailableError",
    "Unit",
    "Uuid7Keys",
    "Verdict",
    "VerdictEvent",
    "VerdictKind",
    "Window",
    "Windows",
    "cloudevents",
    "header",
    "id_spec",
    "ids_of",
    "json",
    "key",
    "original_headers",
    "py",
    "required_window",
    "scope_name",
    "scoped_ids",
    "value",
]

_MODULES: Final = {
    "dedup_sdk.bridge.bridge": ("Bridge",),
    "dedup_sdk.bridge.counters": ("BridgeCounters",),
    "dedup_sdk.engine.deduplicator": ("Deduplicator",),
    "dedup_sdk.errors": (
        "BridgeError",
        "ConfigurationError",
        "DeadLetterError",
        "DedupError",
        "ForeignStoreError",
        "IdSpecError",
        "KafkaHelperError",
        "MissingIdError",
        "OutboxDamagedError",
        "OutboxError",
        "OutboxFullError",
        "OutboxLockedError",
        "RecoveryError",
        "SharedStoreError",
        "SnapshotError",
        "StoreCorruptError",
        "StoreError",
        "StoreLockedError",
        "StoreUnavailableError",
    ),
    "dedup_sdk.ids": ("IdSpec", "cloudevents", "header", "id_spec", "json", "key", "py", "value"),
    "dedup_sdk.kafka.consumer": ("DedupConsumer",),
    "dedup_sdk.kafka.fields": ("ids_of",),
    "dedup_sdk.observe": (
        "Counters",
        "PartitionEvent",
        "PartitionObserver",
        "PartitionStatus",
        "VerdictEvent",
    ),
    "dedup_sdk.producer.keys": ("ProducerKey", "ProducerKeys", "Uuid7Keys"),
    "dedup_sdk.producer.producer": ("DedupProducer",),
    "dedup_sdk.producer.required_window": ("required_window",),
    "dedup_sdk.marks": ("Coverage",),
    "dedup_sdk.record": ("Record", "Settled", "Verdict", "VerdictKind"),
    "dedup_sdk.runner.dead_letters": ("DeadLetter", "original_headers"),
    "dedup_sdk.shared.memory": ("MemoryClaimStore",),
    "dedup_sdk.shared.protocol": ("Claim", "ClaimKind", "ClaimStore"),
    "dedup_sdk.shared.scope": ("scope_name", "scoped_ids"),
    "dedup_sdk.shared.settings": ("Shared",),
    "dedup_sdk.store.memory": ("MemoryStore",),
    "dedup_sdk.store.rocks": ("RocksStore",),
    "dedup_sdk.strategy": ("LastId", "Lookup"),
    "dedup_sdk.units.unit": ("Unit",),
    "dedup_sdk.window": ("Window", "Windows"),
}
"""The public names of each module; the same pairs as in the imports above, which only type checkers read."""
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # a type checker reads the imports above, and would take any name for one of these

    def __getattr__(name: str) -> Any:
        """Load a public name from its module, and keep it here; ``__version__`` is that of the installed package."""
        if name == "__version__":
            from importlib.metadata import version

            return version("dedup-sdk")
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
