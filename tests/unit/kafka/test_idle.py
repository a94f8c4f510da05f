"""When silence ends a loop."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk._kafka.deliver.idle import JOINING_S, IdleClock

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A clock that the test sets."""
    clock = SimpleNamespace(now=1_000.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


def session(**state: bool) -> Any:
    """A session that places and recovers as told."""
    return SimpleNamespace(**({"recovering": False, "has_assignment": True} | state))


def test_silence_ends_a_loop(clock: SimpleNamespace) -> None:
    """After the limit, counted from the last message."""
    quiet = IdleClock(session(), 2.0)
    clock.now += 1.9
    assert not quiet.is_up
    quiet.heard()
    clock.now += 1.9
    assert not quiet.is_up
    clock.now += 0.2
    assert quiet.is_up


def test_a_recovery_is_no_silence(clock: SimpleNamespace) -> None:
    """The time that it takes does not count, and the limit is whole again afterwards."""
    here = session(recovering=True)
    quiet = IdleClock(here, 2.0)
    clock.now += 500
    assert not quiet.is_up
    here.recovering = False
    clock.now += 1.9
    assert not quiet.is_up
    clock.now += 0.2
    assert quiet.is_up


def test_who_has_not_been_given_anything_waits_for_the_group(clock: SimpleNamespace) -> None:
    """Joining may take longer than the limit; a group that never answers ends the loop all the same."""
    here = session(has_assignment=False)
    quiet = IdleClock(here, 2.0)
    clock.now += JOINING_S - 1
    assert not quiet.is_up
    clock.now += 2
    assert not quiet.is_up
    clock.now += 2
    assert quiet.is_up


def test_no_limit_is_no_end(clock: SimpleNamespace) -> None:
    """None: the loop goes on for ever."""
    quiet = IdleClock(session(), None)
    clock.now += 1e9
    assert not quiet.is_up
