"""A replay's lines."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dedup_sdk._kafka.recover.replay import ReplayWatch

if TYPE_CHECKING:
    import pytest


def test_a_line_says_rate_and_time_to_go(caplog: pytest.LogCaptureFixture) -> None:
    """Every five seconds, no more often; where nothing comes it says so."""
    times_s = iter([0.0, 1.0, 5.0, 9.0, 10.0, 11.0])
    watch = ReplayWatch("t[0]", 100, 1100, clock=lambda: next(times_s))
    with caplog.at_level(logging.INFO, "dedup_sdk"):
        for offset in (150, 100, 400, 600, 700):
            watch.note(offset)
    assert [record.getMessage() for record in caplog.records] == [
        "t[0]: replayed up to offset 100 of 1100, 0 offsets a second, nothing has come yet",
        "t[0]: replayed up to offset 600 of 1100, 50 offsets a second, 10 s to go",
    ]


def test_a_long_time_to_go_has_units_for_people(caplog: pytest.LogCaptureFixture) -> None:
    """Hours and minutes, no thousands of seconds."""
    times_s = iter([0.0, 10.0])
    watch = ReplayWatch("t[0]", 0, 55_000, clock=lambda: next(times_s))
    with caplog.at_level(logging.INFO, "dedup_sdk"):
        watch.note(100)
    assert caplog.messages == [
        "t[0]: replayed up to offset 100 of 55000, 10 offsets a second, 1 h 31 min to go"
    ]
