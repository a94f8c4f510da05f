"""Whose memory a store is, as it stands inside the store.

JSON under the key ``identity``::

    {"format": 4, "cluster": ..., "group": ..., ... (the fields of `Identity`), "window": "7d", "numbered": false}

Every field of `Identity` must be equal for a store to be opened, an empty one too: a topic whose ID becomes known is not
assumed to be the one that was seen before. ``window`` is that of the last owner and may change. ``numbered``: every mark bears
an acceptance number; a window by count cannot be opened on marks without them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Final

from dedup_sdk.errors import ForeignStoreError, StoreCorruptError
from dedup_sdk.store.fields import Fields
from dedup_sdk.store.protocol import Identity
from dedup_sdk.window import Window

FORMAT: Final = 4


def encode_identity(identity: Identity, window: Window, *, numbered: bool = True) -> bytes:
    """Return the bytes to store. ``numbered``: whether all marks bear numbers until now; one that is off adds none."""
    more = {"window": str(window), "numbered": numbered if window.is_off else window.count is not None}
    return json.dumps({"format": FORMAT, **asdict(identity), **more}, sort_keys=True).encode()


def decode_identity(data: bytes, folder: Path) -> tuple[Identity, bool]:
    """Return the identity and whether the store's marks are numbered.

    Raises `ForeignStoreError` for another format version and `StoreCorruptError` for what cannot be read.
    """
    remedy = "move it away and rebuild it"
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        message = f"store {folder} has an identity that is not JSON ({error}); {remedy}"
        raise StoreCorruptError(message) from None
    read = Fields(f"store {folder}", "identity.", content, error=StoreCorruptError, remedy=remedy)
    version = read.integer("format", least=1)
    if version != FORMAT:
        message = (
            f"store {folder} has format {version}, this version reads {FORMAT}; use the version that wrote it"
        )
        raise ForeignStoreError(message, field="format")
    texts = {entry.name: read.string(entry.name) for entry in fields(Identity) if entry.name != "partition"}
    return Identity(partition=read.integer("partition", least=0), **texts), read.flag("numbered")


def decode_window(data: bytes, folder: Path) -> str:
    """Return the text of the window that the store was opened with last, of an identity that `decode_identity` takes."""
    return Fields(
        f"store {folder}",
        "identity.",
        json.loads(data),
        error=StoreCorruptError,
        remedy="move it away and rebuild it",
    ).text("window")


def check_identity(stored: Identity, wanted: Identity, where: str) -> None:
    """Raise `ForeignStoreError` naming the first field that differs, and both values."""
    for entry in fields(Identity):
        old, new = getattr(stored, entry.name), getattr(wanted, entry.name)
        if old != new:
            message = f"{where} belongs to {entry.name}={old!r}, not {new!r}; give this consumer another store, or move that one away"
            raise ForeignStoreError(message, field=entry.name)


def check_numbered(*, stored: bool, window: Window, where: str) -> None:
    """Raise `ForeignStoreError` when a count window is opened on marks that bear no acceptance numbers."""
    if window.count and not stored:
        message = f"{where} has marks without acceptance numbers, a window of {window} needs them; rebuild it or drop the count"
        raise ForeignStoreError(message, field="window")
