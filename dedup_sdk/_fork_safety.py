"""Keeps the child of a fork from destroying its copies of the parent's Kafka clients, and from using its consumers.

librdkafka waits for the threads of a client that it destroys. They exist in the parent only, so that the
child would hang or crash as soon as it no longer refers to the client; also a client that the parent had
released, and not collected yet. A wait of the child for these threads never ends, and a write of the child to an open
store would corrupt the parent's store. So a child never closes its parent's consumers.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final, NoReturn, Protocol, TypeVar
from weakref import WeakSet, ref

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


_WITHOUT_EFFECT: Final = ("close", "stop")


class LeftToParent(Protocol):
    """A consumer in a forked child: it belongs to the parent process."""

    def leave_to_parent(self) -> bool:
        """Give everything up that the parent has; return False if the consumer was closed before the fork."""


_MADE: Final[WeakSet[LeftToParent]] = WeakSet()


def keep_from_children(consumer: LeftToParent) -> None:
    """Make every call of a consumer raise in forked children, except `close` and `stop`, which do nothing there.

    This includes the calls of the plain client, which would wait for threads that only the parent has. They are
    replaced on the object itself, so that no call has to check for a fork.
    """
    # Kept alive in children: RocksDB would also write when it is destroyed.
    _MADE.add(keep_in_children(consumer))


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError(
        "this consumer was made before the fork: its threads, connections and stores belong to the parent process; "
        "make one in each process"
    )


def _ignore(*_: Any, **__: Any) -> None:
    return None


def _after_fork() -> None:
    for consumer in list(_MADE):
        if not consumer.leave_to_parent():
            continue
        kind = type(consumer)
        for name in dir(kind):
            # On the object itself, so that calls in processes without a fork cost nothing more.
            if not name.startswith("_") and callable(getattr(kind, name)):
                vars(consumer)[name] = _ignore if name in _WITHOUT_EFFECT else _refuse


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
os.register_at_fork(after_in_child=_after_fork)
