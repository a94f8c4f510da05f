"""A pytest that runs inside a test, in the same process, leaves nothing behind for the tests after it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def test_a_pytest_inside_a_test_takes_no_signal(pytester: pytest.Pytester) -> None:
    """A plugin that handles SIGTERM would keep loops of later tests from listening to it."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    pytester.makepyfile("def test_it(): pass")
    try:
        pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
        assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before
    finally:
        signal.signal(signal.SIGTERM, before[signal.SIGTERM])
