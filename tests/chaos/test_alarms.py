"""A short play of `tests.chaos.alarms` on each protocol, side by side; the night, or a release, plays more and longer.

Environment: ``DEDUP_TEST_SEED=1 DEDUP_TEST_SEEDS=20 DEDUP_TEST_ALARMS_S=60`` plays the seeds 1 to 20, for 60 s each;
without them each run plays a seed of its own for a short time (`tests.support.fresh_seeds`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.chaos.options import PROTOCOLS

if TYPE_CHECKING:
    from tests.support.brokers import Broker

_SECONDS = int(os.environ.get("DEDUP_TEST_ALARMS_S") or 12)
_MOST_S = 400

pytestmark = pytest.mark.broker


def play(bootstrap: str, seed: int, seconds: int, broken: str = "") -> dict[str, tuple[int, str]]:
    """Play a seed on all protocols at once; return the exit status of each, and what it printed."""
    command = [sys.executable, "-m", "tests.chaos.alarms", "--bootstrap", bootstrap, "--seed", str(seed)]
    command += ["--seconds", str(seconds), "--broken", broken]
    processes = {
        protocol: subprocess.Popen(
            [*command, "--protocol", protocol], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for protocol in PROTOCOLS
    }
    played: dict[str, tuple[int, str]] = {}
    try:
        for protocol, process in processes.items():
            printed, _ = process.communicate(timeout=_MOST_S)
            played[protocol] = process.returncode, printed
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    return played


@pytest.mark.timeout(2 * _MOST_S)
def test_random_alarms_lose_nothing_and_leave_nothing_stuck(broker: Broker, fresh_seed: int) -> None:
    """Whatever the alarms struck: afterwards each partition delivers, `close` ends, and each ID was handled."""
    for protocol, (status, printed) in play(broker.bootstrap, fresh_seed, _SECONDS).items():
        assert status == 0, f"{protocol}: {printed[-4_000:]}"


@pytest.mark.slow
@pytest.mark.timeout(2 * _MOST_S)
def test_the_broken_twin_is_found_out(broker: Broker) -> None:
    """A partition that is forgotten while others are opened again never delivers."""
    played = play(broker.bootstrap, 1, _SECONDS, "forget-while-reopening")
    assert any(status == 1 and "did not come in time" in printed for status, printed in played.values()), (
        played
    )
