from __future__ import annotations

import re
from pathlib import Path

import pytest

CONFTEST = """
from tests.support.strictness import Strictness
def pytest_configure(config):
    config.pluginmanager.register(Strictness(), "strictness")
"""

SKIPPING = """
import pytest
def test_runs():
    pass
@pytest.mark.skip(reason="by mark")
def test_marked():
    pass
@pytest.fixture
def nothing():
    pytest.skip("by fixture")
def test_fixture(nothing):
    pass
def test_inside():
    pytest.skip("by itself")
@pytest.mark.xfail(reason="known")
def test_expected():
    assert False
"""

SKIPPING_FILE = """
import pytest
pytest.importorskip("no_such_package")
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A test run of its own, with the switch's plugin, and files that skip in every way."""
    monkeypatch.delenv("DEDUP_TEST_REQUIRE", raising=False)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_skipping=SKIPPING, test_file=SKIPPING_FILE)
    return pytester


def test_a_skip_is_a_skip_without_the_switch(run: pytest.Pytester) -> None:
    """On a developer's machine tests of missing parts are skipped."""
    result = run.runpytest_inprocess()

    result.assert_outcomes(passed=1, skipped=4, xfailed=1)
    assert result.ret == 0


def test_a_skip_is_a_failure_with_the_switch(run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under DEDUP_TEST_REQUIRE=1 each way to skip fails the run and gives its reason; an expected failure does not."""
    monkeypatch.setenv("DEDUP_TEST_REQUIRE", "1")

    result = run.runpytest_inprocess("--continue-on-collection-errors")

    outcomes = result.parseoutcomes()
    assert outcomes.get("skipped", 0) == 0
    assert outcomes["failed"] + outcomes["errors"] == 4
    assert (outcomes["passed"], outcomes["xfailed"]) == (1, 1)
    assert result.ret != 0
    for reason in ("by mark", "by fixture", "by itself", "no_such_package"):
        result.stdout.fnmatch_lines([f"*nothing may be*{reason}*"])


def test_a_slow_test_is_marked_in_its_own_file() -> None:
    """`make test-long` reads the files alone that have this text: a mark given elsewhere would leave its test out."""
    texts = {path: path.read_text(encoding="utf-8") for path in Path(__file__).parents[1].rglob("*.py")}
    marking = [path.name for path, text in texts.items() if re.search(r"mark\.slow", text)]
    assert len(marking) > 50
    assert [name for name in marking if not name.startswith("test_")] == []
