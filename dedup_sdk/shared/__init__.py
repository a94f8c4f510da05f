"""Duplicate detection across consumers: claims and completed IDs in a store that all of them use.

To write your own store, implement `ClaimStore`; `MemoryClaimStore` is one inside a process.
"""

from typing import TYPE_CHECKING, Final

from dedup_sdk._lazy_names import lazy_names

if TYPE_CHECKING:
    from dedup_sdk.errors import SharedStoreError
    from dedup_sdk.shared._memory import MemoryClaimStore
    from dedup_sdk.shared._protocol import Claim, ClaimKind, ClaimStore
    from dedup_sdk.shared._scope import scope_name, scoped_ids
    from dedup_sdk.shared._settings import Shared

__all__ = [
    "Claim",
    "ClaimKind",
    "ClaimStore",
    "MemoryClaimStore",
    "Shared",
    "SharedStoreError",
    "scope_name",
    "scoped_ids",
]

_MODULES: Final = {
    "dedup_sdk.errors": ("SharedStoreError",),
    "dedup_sdk.shared._memory": ("MemoryClaimStore",),
    "dedup_sdk.shared._protocol": ("Claim", "ClaimKind", "ClaimStore"),
    "dedup_sdk.shared._scope": ("scope_name", "scoped_ids"),
    "dedup_sdk.shared._settings": ("Shared",),
}

if not TYPE_CHECKING:  # a type checker reads the imports above
    __getattr__, __dir__ = lazy_names(__name__, _MODULES)
