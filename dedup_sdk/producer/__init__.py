"""The producer kit: unique dedup keys, and an outbox that stores key and message before they are sent.

To write your own outbox, implement `Outbox`; its messages are `Outgoing`.
"""

from dedup_sdk.producer.outbox import Outbox, Step, Stored
from dedup_sdk.producer.outgoing import Outgoing, as_bytes, pack_headers, pairs, usable_id, why_unusable

__all__ = [
    "Outbox",
    "Outgoing",
    "Step",
    "Stored",
    "as_bytes",
    "pack_headers",
    "pairs",
    "usable_id",
    "why_unusable",
]
