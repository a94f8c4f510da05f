"""Texts for people."""

from __future__ import annotations

import pytest

from dedup_sdk._cli.console import size_text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1_023, "1023 B"),
        (1_024, "1.0 KiB"),
        (1_288_490_189, "1.2 GiB"),
        (1_023 * 2**40, "1,023.0 TiB"),
        (2**70, "1,048,576.0 PiB"),
    ],
)
def test_sizes_have_units(size_bytes: int, text: str) -> None:
    """Binary ones, with one digit behind the point, from none at all to more than there is."""
    assert size_text(size_bytes) == text
