"""A run that ends by itself, and logs that never get that far again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dedup_sdk.bridge import _source as module
from dedup_sdk.bridge._source import GONE_S, EndOffsets
from tests.support.set_clock import SetClock

if TYPE_CHECKING:
    from dedup_sdk.bridge._source_log import PartitionId

A, B = ("a", 0), ("b", 0)


class Logs:
    """Where logs end, and how far they are copied."""

    has_joined = True

    def __init__(self, now: dict[PartitionId, int | None], copied: dict[PartitionId, int]) -> None:
        self.now, self.copied, self.looks = now, copied, 0

    def ends_now(self, places: set[PartitionId]) -> dict[PartitionId, int | None]:
        """See `dedup_sdk.bridge._source.Logs`."""
        self.looks += 1
        return {place: self.now[place] for place in places}

    def reached(self, ends: dict[PartitionId, int]) -> set[PartitionId]:
        """See `dedup_sdk.bridge._source.Logs`."""
        return {place for place, end in ends.items() if self.copied[place] >= end}


@pytest.fixture(autouse=True)
def _looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENDS_EVERY_S", 0.0)


def test_an_end_that_went_back_is_copied_up_to_where_it_is() -> None:
    """Once two looks agree; a log that has nothing any more is waited for no longer."""
    logs = Logs({A: 2, B: 0}, {A: 0, B: 0})
    ends = EndOffsets({A: 9, B: 5})
    assert not ends.are_reached(logs)
    assert not ends.are_reached(logs)
    logs.copied[A] = 2
    assert ends.are_reached(logs)


def test_an_end_that_stays_is_waited_for() -> None:
    """Also where one look found it lower, and where the log has grown."""
    logs = Logs({A: 2, B: 9}, {A: 2, B: 0})
    ends = EndOffsets({A: 9, B: 5})
    assert not ends.are_reached(logs)
    logs.now[A] = 9
    for _ in range(3):
        assert not ends.are_reached(logs)
    logs.copied = {A: 9, B: 5}
    assert ends.are_reached(logs)
    assert logs.looks == 4


def test_a_log_that_is_not_listed_is_waited_for_until_it_is_surely_gone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a run would be over, and say so, because a broker lists a topic late; a break begins the time anew."""
    clock = SetClock()
    monkeypatch.setattr(module, "time", clock)
    logs = Logs({A: None, B: 5}, {A: 0, B: 5})
    ends = EndOffsets({A: 9, B: 5})
    assert not ends.are_reached(logs)
    clock.now_s += GONE_S - 1
    assert not ends.are_reached(logs)
    logs.now[A] = 9
    assert not ends.are_reached(logs)
    logs.now[A] = None
    assert not ends.are_reached(logs)
    clock.now_s += GONE_S - 1
    assert not ends.are_reached(logs)
    assert caplog.text == ""
    clock.now_s += 1
    assert ends.are_reached(logs)
    assert "a[0] had records up to 9" in caplog.text


def test_a_member_that_has_not_joined_does_not_leave() -> None:
    """Its client may wait for long then."""
    logs = Logs({}, {})
    logs.has_joined = False
    assert not EndOffsets({}).are_reached(logs)
