"""Where a log parts from the one that was read, as the client says it."""

from __future__ import annotations

import pytest

from dedup_sdk._kafka.client.reader import diverged_at


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (
            "Partition log truncation detected at offset 6: broker end offset is 3 (offset leader epoch 0).",
            3,
        ),
        ("Partition log truncation detected at offset 6", 0),
        (
            "Partition log truncation detected at offset 6: broker end offset is -1 (offset leader epoch -1)",
            0,
        ),
        ("Broker: Offset out of range", None),
    ],
)
def test_the_reason_says_where(reason: str, expected: int | None) -> None:
    """An offset where the client tells one; the beginning where it only says that the log parts.

    None for anything else.
    """
    assert diverged_at(reason) == expected
