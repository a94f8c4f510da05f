"""Work in the child of a fork."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

HANGS_S = 60
"""Seconds after which a child that waits for its parent's threads is ended by a signal."""


def in_a_child(work: Callable[[], str]) -> str:
    """Fork, work in the child, end it, and return its result."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HANGS_S)
        found = "failed"
        try:
            found = work()
        finally:
            os.write(writing, found.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        found = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return found
