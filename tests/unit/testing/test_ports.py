from __future__ import annotations

import socket
from pathlib import Path

from dedup_sdk.testing import free_port


def test_a_free_port_can_be_listened_on() -> None:
    """The port is free, and outside the range from which a waiting client could take it as its own."""
    port = free_port()

    with socket.create_server(("127.0.0.1", port)):
        pass
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range")
    lowest = int(ephemeral.read_text().split()[0]) if ephemeral.exists() else 32_768
    assert port < lowest
