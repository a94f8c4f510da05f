"""The folder of a group's snapshot, where a run makes those of several."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from dedup_sdk.store.manifest import MANIFEST_NAME
from dedup_sdk.store.paths import escape

_MOST_CHARACTERS: Final = 255
_KEPT_CHARACTERS: Final = 180


def group_folder(group: str) -> str:
    """Return a folder's name for any group, another one for every other: as in a store's path, but always one that snapshots are found in.

    Raises `ConfigurationError` for half a surrogate pair, which UTF-8 cannot write.
    """
    name = escape(group)
    # Whoever looks for snapshots in a folder passes hidden ones over, and takes one with a manifest for a snapshot.
    if not name.startswith(".") and name.lower() != MANIFEST_NAME:
        return name
    shown = name.replace(".", "%2E", 1)
    if len(shown) <= _MOST_CHARACTERS:
        return shown
    return f"{shown[:_KEPT_CHARACTERS]}%{sha256(group.encode()).hexdigest()[:32]}"
