"""Loopback ports that stay free while a broker is down."""

from __future__ import annotations

import random
import socket

from dedup_sdk.errors import KafkaHelperError

LOOPBACK = "127.0.0.1"

# Below the range from which systems take the source ports of outgoing connections (32768 on Linux, 49152 elsewhere):
# a client that keeps trying a port of that range while the broker is down may in the end connect to itself, and
# the broker then finds its port taken.
_LOWEST, _HIGHEST = 20_000, 32_000
_ATTEMPTS = 200


def free_ports(count: int) -> list[int]:
    """Return so many TCP ports on 127.0.0.1, no two alike; see `free_port`."""
    ports: list[int] = []
    while len(ports) < count:
        port = free_port()
        if port not in ports:
            ports.append(port)
    return ports


def free_port() -> int:
    """Return a TCP port on 127.0.0.1 that nobody listens on now.

    Raises:
        KafkaHelperError: no free port was found.
    """
    source = random.SystemRandom()
    for _ in range(_ATTEMPTS):
        port = source.randrange(_LOWEST, _HIGHEST)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # As a broker does it, so that a port of a broker that just ended counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise KafkaHelperError(
        f"no free port on {LOOPBACK} between {_LOWEST} and {_HIGHEST}: stop what listens there"
    )
