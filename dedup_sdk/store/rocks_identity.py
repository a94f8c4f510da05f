"""Whose database it is that was opened."""

from __future__ import annotations

from pathlib import Path

from rocksdict import Rdict, WriteBatch, WriteOptions

from dedup_sdk.errors import StoreCorruptError
from dedup_sdk.store.database import IDENTITY, STATE
from dedup_sdk.store.generations import State
from dedup_sdk.store.identity import check_identity, check_numbered, decode_identity, encode_identity
from dedup_sdk.store.protocol import Identity
from dedup_sdk.window import Window


def recognise(
    database: Rdict,
    folder: Path,
    identity: Identity,
    window: Window,
    write_options: WriteOptions,
    *,
    is_new: bool,
) -> State:
    """Return the state of the database in ``folder``; one that ``is_new`` becomes that of the identity.

    Raises `ForeignStoreError` where it is another's, or has no acceptance numbers for a window by count, and `StoreCorruptError` where
    it does not say.
    """
    where = f"store {folder}"
    identity_bytes, state_bytes = database.get(IDENTITY), database.get(STATE)
    if identity_bytes is None and state_bytes is None and is_new:
        batch = WriteBatch(raw_mode=True)
        batch.put(IDENTITY, encode_identity(identity, window))
        batch.put(STATE, State().encode())
        database.write(batch, write_options)
        return State()
    if identity_bytes is None or state_bytes is None:
        message = f"{where} has lost its identity or its state; move it away and rebuild it from a snapshot or the topic"
        raise StoreCorruptError(message)
    stored, numbered = decode_identity(identity_bytes, folder)
    check_identity(stored, identity, where)
    check_numbered(stored=numbered, window=window, where=where)
    current = encode_identity(identity, window, numbered=numbered)
    if current != identity_bytes:
        database.put(IDENTITY, current, write_options)
    return State.decode(state_bytes, where)
