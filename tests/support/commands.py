"""Commands that end together with the process that started them."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def end_by_signals() -> None:
    """Let SIGTERM interrupt the main thread, as SIGINT does: `timeout` and `kill` signal this process alone."""
    signal.signal(signal.SIGTERM, _interrupt)


def run(command: Sequence[str], variables: Mapping[str, str], folder: Path | None = None) -> int:
    """Run a command and return its status; an interruption ends the command first, and goes on then."""
    # The pipes of make's job server must be open in the command, too.
    process = subprocess.Popen(command, env=variables, cwd=folder, close_fds=False)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
