from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from tests.cli.conftest import Dedup


def test_missing_data_is_said_before_anything_starts(dedup: Dedup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the flights the demo is one line that names the package to install, and no step was begun."""
    monkeypatch.setattr("dedup_sdk._demo.flights.DISTRIBUTION", "no-such-distribution-here")
    done = dedup("demo")
    assert (done.status, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "pip install 'dedup-sdk[demo]'" in line


def test_missing_spark_is_said_before_anything_starts(dedup: Dedup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PySpark the demo does not run into its fourth step to find out."""
    monkeypatch.setattr("dedup_sdk._demo.scenario.find_spec", lambda _: None)
    done = dedup("demo")
    assert (done.status, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line == "dedup: pyspark is not installed: pip install 'dedup-sdk[demo]'"
