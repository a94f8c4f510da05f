"""The bridge: copies records between topics, and gives each one dedup ID that stays the same in every resend."""

from typing import TYPE_CHECKING, Final

from dedup_sdk._lazy_names import lazy_names

if TYPE_CHECKING:
    from dedup_sdk.bridge._bridge import Bridge
    from dedup_sdk.bridge._counters import BridgeCounters
    from dedup_sdk.errors import BridgeError

__all__ = ["Bridge", "BridgeCounters", "BridgeError"]

_MODULES: Final = {
    "dedup_sdk.bridge._bridge": ("Bridge",),
    "dedup_sdk.bridge._counters": ("BridgeCounters",),
    "dedup_sdk.errors": ("BridgeError",),
}

if not TYPE_CHECKING:  # a type checker reads the imports above
    __getattr__, __dir__ = lazy_names(__name__, _MODULES)
