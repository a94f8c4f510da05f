"""asyncio: the consumer for coroutines.

`AsyncDedupConsumer` has the arguments, verdicts and counters of `dedup_sdk.DedupConsumer`; its methods are awaited. To
cancel a call, a handler or the whole program loses no message and doubles none.
"""

from dedup_sdk.aio._consumer import AsyncDedupConsumer

__all__ = ["AsyncDedupConsumer"]
