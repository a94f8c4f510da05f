"""A window by count, and records that were handled elsewhere and that nobody counts here.

They may have put any ID out of the window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import VerdictKind, Window
from tests.support.machine import Machine, lived
from tests.support.one_partition import Cluster, ListReader

if TYPE_CHECKING:
    from dedup_sdk._kafka.client.reader import TailReader

WINDOW = Window(count=3)
LOG: list[bytes | None] = [b"a", b"b", b"c", b"d", b"e"]
"""The first is handled here, the others elsewhere."""


class LaterReader(ListReader):
    """A reader of a log whose beginning retention has taken."""

    def bounds(self) -> tuple[int, int]:
        """See `TailReader`."""
        return 4, super().bounds()[1]


@pytest.mark.parametrize(
    "why",
    [{"timeout_s": 0.0}, {"begins_later": True}],
    ids=["no time", "retention"],
)
@pytest.mark.parametrize("again", [False, True])
def test_what_may_have_left_the_window_is_not_hidden(why: dict[str, Any], *, again: bool) -> None:
    """It is delivered in doubt, also by the next life; an ID certainly inside the window stays a duplicate."""
    cluster = Cluster(LOG[:1])
    memory = lived(cluster, WINDOW)
    cluster.log += LOG[1:]
    lived(cluster, WINDOW)

    machine = Machine(cluster, memory, window=WINDOW, timeout_s=why.get("timeout_s"))
    if "begins_later" in why:

        def tail_reader(topic: str, partition: int) -> TailReader:
            del topic, partition
            return LaterReader(cluster)

        machine.client.tail_reader = tail_reader  # type: ignore[method-assign]
    if again:
        machine.up_to_date()
        machine.leave()
        machine = Machine(cluster, memory, window=WINDOW)
    cluster.log += [b"a", b"x", b"a"]
    assert machine.handle_all() == [(5, VerdictKind.UNVERIFIED), (6, VerdictKind.UNVERIFIED)]
