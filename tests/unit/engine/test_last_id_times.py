"""Sources and odd timestamps: one record without a time, of the past or of the future takes nothing from a source."""

from __future__ import annotations

import pytest

from dedup_sdk import Deduplicator, LastId, Lookup, Record, Window, header, orders

WINDOW_MS = 1_000
NOW_MS = 1_000_000
FUTURE_MS = 10**15
CENTURY_18_MS = -(10**15)


class Lived:
    """An engine that has handled the IDs 0 to 9 of a source, now."""

    def __init__(self, *, second: bool = False) -> None:
        window = Window(milliseconds=WINDOW_MS)
        other = Lookup(id=header("other"), window=window) if second else None
        strategy = LastId(
            id=header("seq"),
            order=orders.integer(),
            reorder_depth=2 if second else 20,
            window=window,
            otherwise=other,
        )
        self.engine = Deduplicator(strategy, clock=lambda: (NOW_MS + 10 * WINDOW_MS) / 1000)
        self.count = 0
        for number in range(10):
            assert self.said(number) == "fresh"

    def said(self, *numbers: int, at_ms: int = NOW_MS, other: str = "") -> str:
        """Let records come at once and be handled; return the verdict of the last."""
        records = [
            Record(
                "t", 0, self.count + at, at_ms,
                headers=[("seq", b"%d" % number), ("other", (other or f"{number}").encode())],
            )
            for at, number in enumerate(numbers)
        ]  # fmt: skip
        self.count += len(records)
        told = self.engine.admit(records)
        self.engine.complete([each for each, verdict in zip(records, told, strict=True) if verdict.deliver])
        return told[-1].reason or told[-1].kind.value


@pytest.mark.parametrize("odd_ms", [-1, CENTURY_18_MS, 0, FUTURE_MS])
@pytest.mark.parametrize("numbers", [(10,), (10, 11, 12, 13, 14, 15)])
def test_an_odd_time_takes_nothing_from_a_source(odd_ms: int, numbers: tuple[int, ...]) -> None:
    """IDs handled before it are duplicates after it; new ones are fresh."""
    lived = Lived()
    assert lived.said(*numbers, at_ms=odd_ms) == "fresh"
    assert lived.said(3) == "duplicate"
    assert lived.said(numbers[-1]) == "duplicate"
    assert lived.said(16) == "fresh"


@pytest.mark.parametrize("odd_ms", [-1, 0, FUTURE_MS])
def test_after_an_odd_time_a_source_is_silent_as_before(odd_ms: int) -> None:
    """The window counts from its newest record that has a time."""
    lived = Lived()
    lived.said(10, at_ms=odd_ms)
    assert lived.said(3, at_ms=NOW_MS + WINDOW_MS + 1) == "fresh"


def test_a_second_opinion_knows_what_came_from_the_future() -> None:
    """It goes by the times of the records: one from the future is no older than later records."""
    lived = Lived(second=True)
    lived.said(10, at_ms=FUTURE_MS, other="one")
    assert lived.said(-1, other="one") == "duplicate"
