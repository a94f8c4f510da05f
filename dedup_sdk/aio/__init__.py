"""asyncio: the consumer for coroutines.

`AsyncDedupConsumer` has the arguments, verdicts and counters of `dedup_sdk.DedupConsumer`; its methods are awaited. To
cancel a call, a handler or the whole program loses no message and doubles none.
"""

from typing import TYPE_CHECKING, Final

from dedup_sdk._lazy_names import lazy_names

if TYPE_CHECKING:
    from dedup_sdk.aio._consumer import AsyncDedupConsumer

__all__ = ["AsyncDedupConsumer"]

_MODULES: Final = {"dedup_sdk.aio._consumer": ("AsyncDedupConsumer",)}

if not TYPE_CHECKING:  # a type checker reads the imports above
    __getattr__, __dir__ = lazy_names(__name__, _MODULES)
