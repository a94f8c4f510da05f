"""What the child of a fork has of its parent's clients: copies without threads, which nothing may take down there.

librdkafka waits for the threads of a client that it takes down. They are the parent's, so that the child hangs or dies of a segmentation
fault, as soon as nobody needs the client any more: also one that the parent had let go of, and not collected yet.
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
    """Have an object that is a client, or refers to one, never taken down in children of this process; return it."""
    _KEPT.add(ref(owner, _KEPT.discard))
    return owner


def _before_fork() -> None:
    # Already here: the child may collect garbage before its own turn comes.
    _HELD.append([each() for each in list(_KEPT)])


def _in_parent() -> None:
    _HELD.pop()


def _in_child() -> None:
    # For ever: at its end the interpreter empties the list.
    for owners in _HELD:
        for owner in owners:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
