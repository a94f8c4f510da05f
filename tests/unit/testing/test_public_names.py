from __future__ import annotations

import subprocess
import sys

import pytest

import dedup_sdk.testing


def test_the_public_names_are_these() -> None:
    """Nothing becomes public by accident, and what is public can be had."""
    assert dedup_sdk.testing.__all__ == ["CuttingProxy", "LocalKafka", "MockKafka", "free_port"]
    for name in dedup_sdk.testing.__all__:
        assert getattr(dedup_sdk.testing, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    """`hasattr` and tab completion work as for any module."""
    with pytest.raises(AttributeError, match="no attribute 'Kafka'"):
        dedup_sdk.testing.Kafka  # noqa: B018


def test_importing_the_package_imports_no_helper() -> None:
    """The names cost nothing until they are used."""
    code = (
        "import sys, dedup_sdk.testing;print([m for m in sys.modules if m.startswith('dedup_sdk.testing.')])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
