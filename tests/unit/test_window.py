"""Windows: what is refused, what is remembered, and the text that stands for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk.errors import ConfigurationError
from dedup_sdk.window import Window


def test_units_add_up() -> None:
    """Every unit of time counts, also in fractions."""
    window = Window(days=1, hours=1, minutes=1, seconds=1, milliseconds=1)
    assert window.time_ms == 86_400_000 + 3_600_000 + 60_000 + 1_000 + 1
    assert Window(hours=0.5).time_ms == 1_800_000
    assert Window(count=5).time_ms is None


@pytest.mark.parametrize(
    "given_",
    [
        {},
        {"days": 0},
        {"days": -1},
        {"days": float("nan")},
        {"days": float("inf")},
        {"days": True},
        {"days": "7"},
        {"days": 10**15},
        {"milliseconds": 2**53 - 1, "days": 1},
        {"milliseconds": 2**53 - 86_400_000, "days": 1},
        {"count": 0},
        {"count": -1},
        {"count": 1.5},
        {"count": True},
        {"count": 2**53},
        {"milliseconds": 0.2},
        {"milliseconds": 0.2, "count": 5},
    ],
)
def test_a_window_of_nothing_is_refused(given_: dict[str, object]) -> None:
    """Zero, negative, endless and what is not a number end in one line that says what to write."""
    with pytest.raises(ConfigurationError, match=r"give e\.g\. Window\(") as caught:
        Window(**given_)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "7", "d", "7x", "0d", "-7d", "7d+7d", "1.5d", "7 d", "7dd", "\u0667d", "7d+", "7d,3n", "3n+3n"],
)
def test_a_text_that_is_no_window_is_refused(text: str) -> None:
    """The error names the text, or what is wrong with its number."""
    with pytest.raises(ConfigurationError, match="window"):
        Window.parse(text)


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("7d", Window(days=7)),
        ("36h", Window(hours=36)),
        ("90m", Window(minutes=90)),
        ("30s", Window(seconds=30)),
        ("500ms", Window(milliseconds=500)),
        ("20000n", Window(count=20_000)),
        ("7d+20000n", Window(days=7, count=20_000)),
        ("20000n+7d", Window(days=7, count=20_000)),
        ("1d+12h", Window(hours=36)),
    ],
)
def test_texts_are_read(text: str, window: Window) -> None:
    """Each documented form means what it says."""
    assert Window.parse(text) == window


@given(st.integers(0, 2**53 - 1), st.none() | st.integers(1, 2**53 - 1))
def test_the_text_of_a_window_is_read_back(time_ms: int, count: int | None) -> None:
    """Whatever window is printed, reading the text gives an equal one."""
    if time_ms == 0 and count is None:
        count = 1
    days, rest_ms = divmod(time_ms, 86_400_000)
    window = Window(days=days, milliseconds=rest_ms, count=count)
    assert Window.parse(str(window)) == window


@given(st.integers(-(10**6), 10**6), st.integers(0, 10), st.integers(1, 10**6), st.integers(1, 10))
def test_both_hold_is_each_holds(age_ms: int, after: int, time_ms: int, count: int) -> None:
    """A window by time and by count remembers what both remember."""
    by_time, by_count = Window(milliseconds=time_ms), Window(count=count)
    both = Window(milliseconds=time_ms, count=count)
    assert both.holds(age_ms, after) == (by_time.holds(age_ms, after) and by_count.holds(age_ms, after))
