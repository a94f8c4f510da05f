"""The producer kit: keys that no other message has, and an outbox that holds key and message before they are sent.

What an outbox of your own has to be is `Outbox`; its messages are `Outgoing`.
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
