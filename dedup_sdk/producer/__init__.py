"""The producer kit: unique dedup keys, and an outbox that stores key and message before they are sent.

To write your own outbox, implement `Outbox`; its messages are `Outgoing`.
"""

from typing import TYPE_CHECKING, Final

from dedup_sdk._lazy_names import lazy_names

if TYPE_CHECKING:
    from dedup_sdk.errors import OutboxDamagedError, OutboxError, OutboxFullError, OutboxLockedError
    from dedup_sdk.producer._keys import ProducerKey, ProducerKeys, Uuid7Keys
    from dedup_sdk.producer._outbox import Outbox, Step, Stored
    from dedup_sdk.producer._outgoing import Outgoing, as_bytes, pack_headers, pairs, usable_id, why_unusable
    from dedup_sdk.producer._producer import DedupProducer

__all__ = [
    "DedupProducer",
    "Outbox",
    "OutboxDamagedError",
    "OutboxError",
    "OutboxFullError",
    "OutboxLockedError",
    "Outgoing",
    "ProducerKey",
    "ProducerKeys",
    "Step",
    "Stored",
    "Uuid7Keys",
    "as_bytes",
    "pack_headers",
    "pairs",
    "usable_id",
    "why_unusable",
]

_MODULES: Final = {
    "dedup_sdk.errors": ("OutboxDamagedError", "OutboxError", "OutboxFullError", "OutboxLockedError"),
    "dedup_sdk.producer._keys": ("ProducerKey", "ProducerKeys", "Uuid7Keys"),
    "dedup_sdk.producer._outbox": ("Outbox", "Step", "Stored"),
    "dedup_sdk.producer._outgoing": (
        "Outgoing",
        "as_bytes",
        "pack_headers",
        "pairs",
        "usable_id",
        "why_unusable",
    ),
    "dedup_sdk.producer._producer": ("DedupProducer",),
}

if not TYPE_CHECKING:  # a type checker reads the imports above
    __getattr__, __dir__ = lazy_names(__name__, _MODULES)
