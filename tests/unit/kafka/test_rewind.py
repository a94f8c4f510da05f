from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dedup_sdk._admin.rewind import Target, moved
from dedup_sdk._commit_text import CommitMetadata
from dedup_sdk.errors import ConfigurationError

OURS = CommitMetadata(low=100, era="a", complete=True, epoch=7)


@pytest.mark.parametrize(
    ("offset", "told"),
    [
        (150, CommitMetadata(low=100, era="b", complete=True, epoch=7)),
        (100, CommitMetadata(low=100, era="b", complete=True, epoch=7)),
        (90, CommitMetadata(low=90, era="b", complete=True)),
        (250, CommitMetadata(low=250, era="a")),
    ],
)
def test_what_a_rewound_commit_says(offset: int, told: CommitMetadata) -> None:
    """Back inside the history it stays, in a new era; before it, or ahead of it, the history begins at the offset."""
    assert moved(200, OURS, offset, "b") == told


@pytest.mark.parametrize("committed", [None, 200])
def test_a_commit_without_our_text_vouches_for_nothing(committed: int | None) -> None:
    """An offset that another tool committed, or nobody, gets no text: the history begins where it is set."""
    assert moved(committed, None, 150, "b") is None


def test_exactly_one_target_is_given() -> None:
    """None, two, or an offset that is none are refused in one line that names the choices."""
    for wrong in (
        {},
        {"offset": 1, "by": -1},
        {"earliest": True, "moment": datetime.now(UTC)},
        {"offset": -1},
    ):
        with pytest.raises(ConfigurationError, match="--to-offset"):
            Target(**wrong)
