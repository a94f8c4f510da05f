"""Prevents the child of a fork from destroying its copies of the parent's Kafka clients.

librdkafka waits for the threads of a client that it destroys. They exist in the parent only, so that the
child would hang or crash as soon as it no longer refers to the client; also a client that the parent had
released, and not collected yet.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final, TypeVar
from weakref import ref

_Kept = TypeVar("_Kept")
_KEPT: Final[set[ref[Any]]] = set()
_HELD: Final[list[list[Any]]] = []


def keep_in_children(owner: _Kept) -> _Kept:
    """Keep a client, or an object that refers to one, from being destroyed in children of this process; return it."""
    _KEPT.add(ref(owner, _KEPT.discard))
    return owner


def _before_fork() -> None:
    # In the parent: the child may collect garbage before `_in_child` runs.
    _HELD.append([each() for each in list(_KEPT)])


def _in_parent() -> None:
    _HELD.pop()


def _in_child() -> None:
    # An extra reference: the interpreter empties the list when it ends.
    for owners in _HELD:
        for owner in owners:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
