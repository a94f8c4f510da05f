from __future__ import annotations

import pytest

from dedup_sdk._kafka.recover.session import summarise


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        ([], []),
        ([("orders", 3)], ["orders[3]"]),
        ([("orders", 0), ("orders", 1), ("orders", 2), ("orders", 7)], ["orders[0-2,7]"]),
        ([("orders", 1), ("pairs", 0), ("pairs", 1)], ["orders[1]", "pairs[0-1]"]),
    ],
)
def test_many_partitions_are_named_in_short(partitions: list[tuple[str, int]], expected: list[str]) -> None:
    """Partitions in a row are a range, so that the line about 64 of them can be read."""
    assert list(summarise(partitions)) == expected
