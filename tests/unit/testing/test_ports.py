from __future__ import annotations

import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dedup_sdk.testing import _ports as ports
from dedup_sdk.testing import free_port

_DRAWN = """
import random, sys
from itertools import chain
from dedup_sdk.testing import free_port
mine = int(sys.argv[1])
draws = chain([mine, mine], range(mine + 1, 32_000), range(20_000, mine))
random.SystemRandom.randrange = lambda *_: next(draws)
print(free_port())
"""


def test_a_free_port_can_be_listened_on() -> None:
    """The port is free, and outside the range from which a waiting client could take it as its own."""
    port = free_port()

    with socket.create_server(("127.0.0.1", port)):
        pass
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range")
    lowest = int(ephemeral.read_text().split()[0]) if ephemeral.exists() else 32_768
    assert port < lowest


def test_a_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that listens twice on one port does not start.

    Nor one whose port another one was given that does not listen yet.
    """
    one = free_port()
    ascending = [*range(one, 32_000), *range(20_000, one)]
    draws = iter([port for port in ascending for _ in range(2)])
    monkeypatch.setattr(random.SystemRandom, "randrange", lambda *_: next(draws))
    other, third = ports.free_ports(2)
    assert len({one, other, third}) == 3


def test_another_process_is_given_another_port() -> None:
    """It is so long before the first one listens."""
    mine = free_port()
    theirs = subprocess.run(
        [sys.executable, "-c", _DRAWN, str(mine)], capture_output=True, text=True, check=True
    )
    assert 20_000 <= int(theirs.stdout) < 32_000
    assert int(theirs.stdout) != mine
