"""Callables that the tests name by ``py:``."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dedup_sdk._record import Record

NOT_A_CALLABLE = 5

ANSWERS: dict[bytes, object] = {
    b"text": "order-1",
    b"blank": "",
    b"int": 5,
    b"none": None,
    b"bool": True,
    b"float": 5.0,
    b"bytes": b"order-1",
    b"huge": 2**63,
    b"surrogate": "\ud800",
}


class Orders:
    """A place for a callable that is not at the top of its module."""

    @staticmethod
    def offset(record: Record) -> int:
        """Return the record's offset."""
        return record.offset


class Guarded:
    """A callable that cannot be pickled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, record: Record) -> int:
        """Return the record's offset."""
        with self._lock:
            return record.offset


GUARDED = Guarded()


def answer(record: Record) -> object:
    """Return the answer that the record's key asks for; raise `KeyError` for anything else."""
    return ANSWERS[record.key or b""]
