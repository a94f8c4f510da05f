"""Loopback ports that stay free while a broker is down, and that are given to one process only."""

from __future__ import annotations

import fcntl
import os
import random
import socket
from functools import cache
from typing import TYPE_CHECKING, BinaryIO

from dedup_sdk.errors import KafkaHelperError
from dedup_sdk.testing._cache import cache_folder

if TYPE_CHECKING:
    from typing import Final

LOOPBACK = "127.0.0.1"

# Below the range from which systems take the source ports of outgoing connections (32768 on Linux, 49152 elsewhere):
# a client that keeps trying a port of that range while the broker is down may in the end connect to itself, and
# the broker then finds its port taken.
_LOWEST, _HIGHEST = 20_000, 32_000
_ATTEMPTS = 200
_given: Final[set[int]] = set()


def free_ports(count: int) -> list[int]:
    """Return ``count`` different TCP ports on 127.0.0.1; see `free_port`."""
    return [free_port() for _ in range(count)]


def free_port() -> int:
    """Return a TCP port on 127.0.0.1 on which no process listens now.

    A broker needs seconds until it listens. Until this process ends, this function gives the port to no
    other caller, neither here nor in another process with the same `dedup_sdk.testing._cache.cache_folder`.

    Raises:
        KafkaHelperError: no free port was found.
    """
    source = random.SystemRandom()
    for _ in range(_ATTEMPTS):
        port = source.randrange(_LOWEST, _HIGHEST)
        if port not in _given and is_free(port) and _reserve(port):
            _given.add(port)
            return port
    raise KafkaHelperError(
        f"no free port on {LOOPBACK} between {_LOWEST} and {_HIGHEST}: stop the programs that listen there"
    )


def _reserve(port: int) -> bool:
    """Lock the port's byte in a file that processes with the same cache folder share.

    The lock ends with the process.
    """
    reservations = _reservations(os.getpid())
    try:
        fcntl.lockf(reservations, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):
        return False
    return True


@cache
def _reservations(process_id: int) -> BinaryIO:
    """Open the file, once in a process: closing it anywhere in the process would end all its locks."""
    del process_id
    path = cache_folder() / "ports.lock"
    try:
        return path.open("ab")
    except OSError as error:
        raise KafkaHelperError(f"ports are reserved in {path}, which does not open: {error}") from None


def is_free(port: int) -> bool:
    """Whether a TCP port of 127.0.0.1 can be listened on."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As brokers do, so that the port of a broker that just ended counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
