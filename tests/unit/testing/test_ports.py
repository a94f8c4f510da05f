from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dedup_sdk.testing import free_port, ports


def test_a_free_port_can_be_listened_on() -> None:
    """The port is free, and outside the range from which a waiting client could take it as its own."""
    port = free_port()

    with socket.create_server(("127.0.0.1", port)):
        pass
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range")
    lowest = int(ephemeral.read_text().split()[0]) if ephemeral.exists() else 32_768
    assert port < lowest


def test_no_two_of_several_ports_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that listens twice on one port does not start."""
    drawn = iter([20_001, 20_001, 20_002, 20_001, 20_003])
    monkeypatch.setattr(ports, "free_port", lambda: next(drawn))
    assert ports.free_ports(3) == [20_001, 20_002, 20_003]
