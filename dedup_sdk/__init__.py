"""Change one line where the consumer is made, and the loop sees each logical message once.

    with DedupConsumer(
        {"bootstrap.servers": "localhost:9092", "group.id": "billing", "auto.offset.reset": "earliest"},
        dedup=Lookup(id=header("dedup-id"), window=Window(days=7)),
        store="var/dedup",
    ) as consumer:
        consumer.subscribe(["orders"])
        for message in consumer:
            charge(message)

What is not exported here may change between versions.
"""

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
from dedup_sdk.kafka.dead_letters import DeadLetter
from dedup_sdk.kafka.fields import ids_of
from dedup_sdk.observe import Counters, PartitionEvent, PartitionObserver, PartitionStatus, VerdictEvent
from dedup_sdk.producer.keys import ProducerKey, ProducerKeys, Uuid7Keys
from dedup_sdk.producer.producer import DedupProducer
from dedup_sdk.producer.required import required_window
from dedup_sdk.progress import Coverage
from dedup_sdk.record import Record, Settled, Verdict, VerdictKind
from dedup_sdk.shared.memory import MemoryClaimStore
from dedup_sdk.shared.protocol import Claim, ClaimKind, ClaimStore
from dedup_sdk.shared.scope import scope_name, scoped_ids
from dedup_sdk.shared.settings import Shared
from dedup_sdk.store.memory import MemoryStore
from dedup_sdk.store.rocks import RocksStore
from dedup_sdk.strategy import LastId, Lookup
from dedup_sdk.units.unit import Unit
from dedup_sdk.window import Window
from dedup_sdk.windows import Windows

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
    "py",
    "required_window",
    "scope_name",
    "scoped_ids",
    "value",
]
