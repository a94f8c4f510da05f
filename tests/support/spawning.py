"""Processes that are started, and interruptions in the middle of that."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil

from tests.support.interrupting import Interrupted

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


def running_children() -> set[psutil.Process]:
    """Return the descendants of this process that are not over."""
    found = set()
    for each in psutil.Process().children(recursive=True):
        try:
            if each.status() != psutil.STATUS_ZOMBIE:
                found.add(each)
        except psutil.NoSuchProcess:
            continue
    return found


@contextmanager
def interrupted_at_spawn(patch: pytest.MonkeyPatch, number: int) -> Iterator[None]:
    """Raise `Interrupted` right behind the n-th fork of `subprocess` (from 1).

    Then its process is there, and nobody has its number.
    """
    real, made = subprocess._fork_exec, 0  # type: ignore[attr-defined]  # the place itself

    def spawn(*arguments: Any) -> int:
        nonlocal made
        made += 1
        pid: int = real(*arguments)
        if made == number:
            raise Interrupted
        return pid

    with patch.context() as patched:
        patched.setattr(subprocess, "_fork_exec", spawn)
        yield
    assert made >= number, f"only {made} processes were started"
