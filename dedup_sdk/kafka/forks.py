"""Consumers in the child of a fork: their threads, connections and open stores are the parent's, and stay it.

A child has none of the client's threads, so that whoever waits for them waits for ever; and what it wrote to an open store would tear
the store of the parent, which does not know of it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NoReturn
from weakref import WeakSet

from dedup_sdk.fork_safety import keep_in_children

if TYPE_CHECKING:
    from dedup_sdk.kafka.consumer import DedupConsumer

_WITHOUT_EFFECT: Final = ("close", "stop")
_MADE: Final[WeakSet[DedupConsumer]] = WeakSet()


def keep_from_children(consumer: DedupConsumer) -> None:
    """Have every call of a consumer refused in children of this process, but `close` and `stop`, which do nothing there."""
    # RocksDB would write on its way out, too.
    _MADE.add(keep_in_children(consumer))


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError(
        "this consumer was made before the fork: its threads, connections and stores are its parent's; make one in each process"
    )


def _ignore(*_: Any, **__: Any) -> None:
    return None


def _after_fork() -> None:
    for consumer in list(_MADE):
        if not consumer.leave_to_parent():
            continue
        kind = type(consumer)
        for name in dir(kind):
            # On the object itself: the calls that nobody forks for stay as fast as they are.
            if not name.startswith("_") and callable(getattr(kind, name)):
                vars(consumer)[name] = _ignore if name in _WITHOUT_EFFECT else _refuse


os.register_at_fork(after_in_child=_after_fork)
