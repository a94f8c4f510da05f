"""The switch ``DEDUP_TEST_REQUIRE=1``: tests that would be skipped fail, so that a green run has run everything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator


def nothing_may_be_skipped() -> bool:
    """Whether the switch is on."""
    return os.environ.get("DEDUP_TEST_REQUIRE") == "1"


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def fail_if_skipped(report: Report) -> Report:
    """Turn the report of a skip into one of a failure, where the switch is on. An expected failure is no skip."""
    if report.skipped and not hasattr(report, "wasxfail") and nothing_may_be_skipped():
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"skipped, and under DEDUP_TEST_REQUIRE=1 nothing may be: {reason}"
    return report


class Strictness:
    """The hooks; registered as a plugin."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """A test, its setup or its end."""
        report = yield
        return fail_if_skipped(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """A whole file that skips itself."""
        report = yield
        return fail_if_skipped(report)
