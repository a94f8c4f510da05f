from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup_adapters.sql import InboxError, OutOfOrderError
from dedup_adapters.sql._offsets import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence


class Database:
    """The next offset of a partition, as transactions leave it, and the messages handled for good."""

    def __init__(self, begin: int) -> None:
        self.kept = begin
        self.handled: list[int] = []


def transact(
    database: Database,
    progress: Progress,
    batches: Sequence[Sequence[int]],
    *,
    commits: bool,
    told: bool = True,
) -> list[int]:
    """Handle batches in one transaction, as `KeptOffsets` does; return the new ones.

    A transaction that is not told seems to have failed.
    """
    transaction, now, new = object(), database.kept, []
    for batch in batches:
        offsets = list(batch)
        step = progress.hopeful(offsets)
        if step is None or step.before != now:
            step = progress.step(offsets, now)
            assert step.before == now
        now = step.after
        progress.note(step, offsets, transaction)
        new += [offset for offset in offsets if offset not in step.handled]
    if commits:
        database.kept = now
        database.handled += new
    return new if told else []


def test_in_order_each_is_new_once() -> None:
    """Batches, holes, and single ones."""
    database, progress = Database(5), Progress("orders", 0, "", 5)
    assert transact(database, progress, [[5, 6, 9]], commits=True) == [5, 6, 9]
    assert transact(database, progress, [[10], [12]], commits=True) == [10, 12]
    assert (database.kept, database.handled) == (13, [5, 6, 9, 10, 12])


def test_what_was_rolled_back_comes_first() -> None:
    """A later message is refused until it has come again."""
    database, progress = Database(0), Progress("orders", 0, "", 0)
    transact(database, progress, [[0, 1], [2]], commits=False)
    with pytest.raises(
        OutOfOrderError, match=r"orders\[0\]: offset 3 came, but 0 was rolled back and comes first"
    ):
        transact(database, progress, [[3]], commits=True)
    assert transact(database, progress, [[0], [1, 2, 3]], commits=True) == [0, 1, 2, 3]


def test_a_commit_that_seemed_to_fail_is_recognised() -> None:
    """Its messages that come again were handled, though nobody was told."""
    database, progress = Database(0), Progress("orders", 0, "", 0)
    transact(database, progress, [[0, 1]], commits=True, told=False)
    assert transact(database, progress, [[0, 1, 2]], commits=True) == [2]
    assert transact(database, progress, [[3]], commits=True) == [3]


def test_what_another_owner_handled_is_handled() -> None:
    """An owner that the partition left, or came to too early, follows the database."""
    database = Database(0)
    zombie, owner = Progress("orders", 0, "", 0), Progress("orders", 0, "", 0)
    assert transact(database, owner, [[0, 1, 2]], commits=True) == [0, 1, 2]
    assert transact(database, zombie, [[0, 1]], commits=True) == []
    assert transact(database, zombie, [[2, 3]], commits=True) == [3]
    assert transact(database, owner, [[3, 4]], commits=True) == [4]


def test_a_message_below_is_refused() -> None:
    """Messages passed over by a later one would be lost by a restart; so it is said while it is not."""
    database, progress = Database(0), Progress("orders", 0, "", 0)
    transact(database, progress, [[1]], commits=True)
    with pytest.raises(OutOfOrderError, match="offset 0 came after all messages below 2 were handled"):
        transact(database, progress, [[0]], commits=True)


def test_an_offset_that_was_set_back_or_removed_is_said() -> None:
    """Somebody else's doing: the partition has to begin anew."""
    progress = Progress("orders", 0, "", 7)
    with pytest.raises(InboxError, match="set back to 3"):
        progress.step([7], 3)
    with pytest.raises(InboxError, match="no longer in the database"):
        progress.step([7], None)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.lists(st.integers(1, 3), min_size=1, max_size=3),
            st.booleans(),
            st.booleans(),
        ),
        max_size=25,
    )
)
def test_nothing_is_lost_or_doubled(turns: list[tuple[int, list[int], bool, bool]]) -> None:
    """Two owners of one partition, who go on where they believe to be: whatever fails, and whether they hear of it."""
    database = Database(0)
    owners = [Progress("orders", 0, "", 0), Progress("orders", 0, "", 0)]
    places = [0, 0]
    for which, sizes, commits, told in turns:
        begin, batches = places[which], []
        for size in sizes:
            batches.append(range(begin, begin + size))
            begin += size
        transact(database, owners[which], batches, commits=commits)
        if commits and told:
            places[which] = begin
    assert database.handled == list(range(database.kept))
