"""Which leader epoch a partition remembers."""

from __future__ import annotations

import pytest

from dedup_sdk._core.lookup import LookupMemory
from dedup_sdk._core.state import PartitionState
from dedup_sdk._marks import Progress
from dedup_sdk._window import Window


def state(epoch: int | None) -> PartitionState:
    """A partition of which ten records are completed."""
    return PartitionState(LookupMemory(Window(hours=1), Progress(low=0, high=10, epoch=epoch)))


@pytest.mark.parametrize(("before", "told", "after"), [(None, 3, 3), (3, 5, 5), (5, 3, 5), (5, None, None)])
def test_the_highest_epoch_counts(before: int | None, told: int | None, after: int | None) -> None:
    """A record that comes again may be of an earlier one; an unknown epoch is not guessed."""
    one = state(before)
    one.flight.note_epoch(told)
    assert one.progress.epoch == after


@pytest.mark.parametrize(("before", "learned", "after"), [(None, 3, 3), (2, 3, 2), (None, None, None)])
def test_what_is_known_here_is_better(before: int | None, learned: int | None, after: int | None) -> None:
    """A commit's epoch is taken where the store has none."""
    one = state(before)
    one.flight.learn_epoch(learned)
    assert one.progress.epoch == after


@pytest.mark.parametrize(
    ("known", "offsets", "epochs", "another"),
    [
        (3, [8, 9], [3, 3], False),
        (3, [8, 9], [2, 3], False),
        (3, [8, 9, 10], [3, 4, 4], True),
        (3, [10, 11], [4, 4], True),
        (3, [12, 13], [4, 4], False),
        (3, [8, 9], [None, None], False),
        (None, [8, 9], [4, 4], False),
    ],
)
def test_what_comes_again_is_no_younger_than_when_it_was_completed(
    known: int | None, offsets: list[int], epochs: list[int | None], *, another: bool
) -> None:
    """A record at a completed offset, of a leader epoch after the noted one, is another record."""
    one = PartitionState(
        LookupMemory(Window(hours=1), Progress(low=0, high=9, done=((10, 12),), epoch=known))
    )
    assert one.flight.is_another_log(offsets, lambda: epochs) is another
