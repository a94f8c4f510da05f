"""Dedup keys made of the producer's address, process, thread, a nonce, the time, and a count.

    shop-1-4711-140213-5f0c6a1b9d3e8274-1732291514123-42
    address pid thread nonce            time (ms)     increment

Each thread draws a nonce, and each process draws new ones after a fork. So a key is unique even if a
process has the ID of an earlier one (in a container it is always 1), the clock is set back, or two hosts
have the same name.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final
from uuid import UUID

from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError

KeyMaker = Callable[[], bytes]
"""Makes a unique key."""
_MOST_ADDRESS: Final = 128
_NO_ADDRESS: Final = re.compile(r"[^A-Za-z0-9._:-]")
_NONCE_BYTES: Final = 8
_FIELDS: Final = 6
_MOST_BYTES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerKey:
    """The fields of a key that `ProducerKeys` made.

    Attributes:
        address: the producer's address.
        process: the ID of its process.
        thread: the ID of its thread.
        nonce: drawn once a thread, 16 hexadecimal digits.
        made_ms: the time at which it was made, milliseconds since 1970, by the producer's clock.
        increment: the count of keys made by its thread, from 1.
    """

    address: str
    process: int
    thread: int
    nonce: str
    made_ms: int
    increment: int

    @classmethod
    def read(cls, key: bytes) -> ProducerKey | None:
        """Read a key; None for one that `ProducerKeys` did not make."""
        parts = key.decode("ascii", "replace").rsplit("-", _FIELDS - 1) if len(key) <= _MOST_BYTES else []
        if len(parts) != _FIELDS or not parts[0]:
            return None
        address, process, thread, nonce, made_ms, increment = parts
        numbers = (process, thread, made_ms, increment)
        if not all(part.isascii() and part.isdecimal() for part in numbers):
            return None
        if len(nonce) != 2 * _NONCE_BYTES or set(nonce) - set("0123456789abcdef"):
            return None
        return cls(
            address=address,
            process=int(process),
            thread=int(thread),
            nonce=nonce,
            made_ms=int(made_ms),
            increment=int(increment),
        )


class ProducerKeys:
    """Makes keys of the producer's address, process, thread, time and increment. Safe for threads, and across forks.

    Args:
        address: the name of this producer: 1 to 128 ASCII letters, digits and ``.``, ``_``, ``:``, ``-``;
            None: the host's name.
    """

    def __init__(self, address: str | None = None) -> None:
        given: object = (
            _NO_ADDRESS.sub("_", socket.gethostname())[:_MOST_ADDRESS] if address is None else address
        )
        if not isinstance(given, str) or not 0 < len(given) <= _MOST_ADDRESS or _NO_ADDRESS.search(given):
            raise ConfigurationError(
                f"address={shown(given)}: give 1 to {_MOST_ADDRESS} ASCII letters, digits and . _ : -, e.g. 'shop-1'"
            )
        self._address = given
        self._threads = threading.local()
        _MAKERS.add(self)

    def __call__(self) -> bytes:
        """Return the next key."""
        try:
            beginning, numbers = self._threads.state
        except AttributeError:
            beginning, numbers = self._threads.state = self._begin()
        return b"%b%d-%d" % (beginning, time.time_ns() // 1_000_000, next(numbers))

    def _begin(self) -> tuple[bytes, Iterator[int]]:
        nonce = secrets.token_hex(_NONCE_BYTES)
        beginning = f"{self._address}-{os.getpid()}-{threading.get_native_id()}-{nonce}-"
        return beginning.encode(), count(1)

    def _forget(self) -> None:
        self._threads = threading.local()


class Uuid7Keys:
    """Makes UUIDs of version 7 as text: ordered by time, and unique across forks.

    Needs Python 3.14 or the extra ``[uuid]``.
    """

    def __init__(self) -> None:
        self._make = _uuid7()

    def __call__(self) -> bytes:
        """Return the next key, 36 characters."""
        return str(self._make()).encode()


def _uuid7() -> Callable[[], object]:
    import uuid

    own: Callable[[], UUID] | None = getattr(uuid, "uuid7", None)
    if own is not None:
        return own
    try:
        from uuid_utils import uuid7
    except ImportError as error:
        raise ConfigurationError(
            "UUIDs of version 7 need Python 3.14 or uuid-utils, which is not installed: pip install 'dedup-sdk[uuid]'"
        ) from error
    return uuid7


def _after_fork() -> None:
    for maker in list(_MAKERS):
        maker._forget()  # noqa: SLF001 (of this module's own class)


_MAKERS: Final[weakref.WeakSet[ProducerKeys]] = weakref.WeakSet()
# The child would share the nonce and count of the parent's thread.
os.register_at_fork(after_in_child=_after_fork)
