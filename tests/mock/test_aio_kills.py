from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.consuming import PATIENCE_S
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Send

_IDS = [f"m{number}" for number in range(400)]


def _start(kafka: MockKafka, folder: Path, way: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            sys.executable, "-m", "tests.support.coroutine_worker", kafka.bootstrap, str(folder / "store"),
            str(folder / "notes"), way,
        ],
        cwd=ROOT,
    )  # fmt: skip


def _handled(folder: Path) -> Counter[str]:
    notes = folder / "notes"
    return Counter(notes.read_text(encoding="utf-8").split() if notes.exists() else ())


def _until_handled(folder: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE_S
    while len(_handled(folder)) < count:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("way", ["run", "for", "once"])
def test_a_killed_process_loses_nothing(kafka: MockKafka, send: Send, tmp_path: Path, way: str) -> None:
    """Killed in the middle, twice; then ended by SIGTERM: each message was handled."""
    send(*_IDS)
    for most, number in ((100, signal.SIGKILL), (250, signal.SIGKILL), (400, signal.SIGTERM)):
        process = _start(kafka, tmp_path, way)
        try:
            _until_handled(tmp_path, most, process)
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == (0 if number == signal.SIGTERM else -number)
        finally:
            process.kill()
    assert set(_handled(tmp_path)) == set(_IDS)


@pytest.mark.parametrize("way", ["run", "for", "once"])
def test_a_process_that_is_told_to_end_repeats_nothing(
    kafka: MockKafka, send: Send, tmp_path: Path, way: str
) -> None:
    """SIGTERM in the middle, twice; no message is handled again by the next process."""
    send(*_IDS)
    for most in (100, 250, 400):
        process = _start(kafka, tmp_path, way)
        try:
            _until_handled(tmp_path, most, process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
    assert _handled(tmp_path) == Counter(_IDS)


def test_ctrl_c_twice_ends_the_process(kafka: MockKafka, send: Send, tmp_path: Path) -> None:
    """The first one cancels the program, which closes in order; the second one does not make it hang."""
    send(*_IDS)
    process = _start(kafka, tmp_path, "run")
    try:
        _until_handled(tmp_path, 50, process)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) != 0
        process = _start(kafka, tmp_path, "run")
        _until_handled(tmp_path, 400, process)
    finally:
        process.kill()
        process.wait()
