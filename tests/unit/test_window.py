"""Windows: accepted lengths, their texts, a window for each topic, the empty window, and strategies with a window."""

from __future__ import annotations

import pickle
import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk._strategy import LastId, Lookup
from dedup_sdk._time_text import time_text
from dedup_sdk._window import Window, Windows, length_text, one_unit_text
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.ids import key
from dedup_sdk.orders import integer


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
    """Zero, negative, endless and not a number end in one line with the text to write."""
    with pytest.raises(ConfigurationError, match=r"give e\.g\. Window\(") as caught:
        Window(**given_)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "d",
        "7x",
        "0d",
        "-7d",
        "7d+7d",
        "1.5d",
        "7 d",
        "7dd",
        "\u0667d",
        "7d+",
        "7d,3n",
        "3n+3n",
        "1d+12h",
        "12h1d",
        "1d1d",
        "P",
        "PT",
        "P7",
        "P1M",
        "P1DT",
        "P1H",
        "p7d",
        "1w2",
        "n",
        "+",
        "+3n",
        "1d+",
    ],
)
def test_a_text_that_is_no_window_is_refused(text: str) -> None:
    """The error names the text, or the fault of its number."""
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
        ("1w", Window(days=7)),
        ("1d12h", Window(hours=36)),
        ("1h30m", Window(minutes=90)),
        ("1m500ms", Window(milliseconds=60_500)),
        ("1m0s+5n", Window(minutes=1, count=5)),
        ("P7D", Window(days=7)),
        ("P1W", Window(days=7)),
        ("P1DT12H", Window(hours=36)),
        ("PT1H30M", Window(minutes=90)),
        ("PT90S+3n", Window(seconds=90, count=3)),
    ],
)
def test_texts_are_read(text: str, window: Window) -> None:
    """Each documented form has its meaning."""
    assert Window.parse(text) == window


@pytest.mark.parametrize(
    ("length_ms", "most_units", "text"),
    [
        (604_800_000, 5, "7 d"),
        (5_400_000, 5, "1 h 30 min"),
        (93_784_005, 5, "1 d 2 h 3 min 4 s 5 ms"),
        (93_784_005, 2, "1 d 2 h"),
        (86_400_000 + 59_000, 2, "1 d"),
        (86_400_000 + 59_000, 5, "1 d 59 s"),
        (3_599_999, 1, "59 min"),
        (999, 1, "999 ms"),
        (0, 1, "0 s"),
        (-1_500, 5, "\N{MINUS SIGN}1 s 500 ms"),
    ],
)
def test_a_length_has_units_for_people(length_ms: int, most_units: int, text: str) -> None:
    """Days, hours and minutes; so many neighbouring units, of which those of zero are left out."""
    assert length_text(length_ms, most_units=most_units) == text


@given(st.integers(1, 2**53 - 1))
def test_a_length_for_people_is_exact(length_ms: int) -> None:
    """Without a limit on its units nothing is cut off."""
    text = length_text(length_ms).replace("min", "m").replace(" ", "")
    assert Window.parse(text).time_ms == length_ms


def test_a_window_is_shown_as_it_is_written() -> None:
    """In a message, and wherever Python shows a value: its text, no count of milliseconds."""
    window = Window(days=7, count=20_000)
    assert (f"{window}", repr(window)) == ("7d+20000n", "Window.parse('7d+20000n')")
    assert eval(repr(window)) == window  # noqa: S307 (made on the line above)
    with pytest.raises(ConfigurationError, match="a window of 104249992 d 8 h 59 min 991 ms is longer"):
        Window(milliseconds=2**53 - 1, days=1)


def test_a_sum_of_times_is_told_apart_from_both() -> None:
    """`+` means that both hold: two times are no such thing, and the error says how to write their sum."""
    with pytest.raises(ConfigurationError, match=r"'7d\+1h': '\+' joins a time and a count, .* e\.g\. 1d12h"):
        Window.parse("7d+1h")


def test_a_length_of_time_is_a_window() -> None:
    """Of Python's own kind, wherever a window is given."""
    assert Lookup(id=key(), window=timedelta(days=7)).window == Window(days=7)
    assert Windows(default=timedelta(hours=1)).of("orders") == Window(hours=1)
    assert LastId(id=key(), order=integer(), window=timedelta(days=1)).window == Window(days=1)
    with pytest.raises(ConfigurationError):
        Lookup(id=key(), window=timedelta(0))


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (timedelta(days=-1), "timedelta(days=-1)"),
        (timedelta(hours=-1), "timedelta(hours=-1)"),
        (timedelta(days=-1, hours=-12), "timedelta(days=-1, hours=-12)"),
        (timedelta(seconds=-90, milliseconds=-5), "timedelta(minutes=-1, seconds=-30, milliseconds=-5)"),
        (timedelta(microseconds=-1), "datetime.timedelta(days=-1, seconds=86399, microseconds=999999)"),
    ],
)
def test_a_negative_length_is_named_as_it_was_written(length: timedelta, text: str) -> None:
    """The setting and the value, not a number of milliseconds."""
    with pytest.raises(
        ConfigurationError, match=rf"^window={re.escape(text)}: a window is a positive length"
    ):
        Lookup(id=key(), window=length)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1h30m", "1h30m"),
        ("90m", "1h30m"),
        ("36h", "1d12h"),
        ("1d12h", "1d12h"),
        ("1w", "7d"),
        ("24h", "1d"),
        ("61s", "1m1s"),
        ("1m500ms", "1m500ms"),
        ("90m+5n", "1h30m+5n"),
    ],
)
def test_a_window_is_shown_in_its_largest_units(text: str, shown: str) -> None:
    """However it was written."""
    assert str(Window.parse(text)) == shown


def test_the_text_in_a_fingerprint_has_one_unit() -> None:
    """Rules of windows that are shown in several units stay the same."""
    windows = ("1h30m", "36h", "7d+5n", "500ms", "off")
    assert [one_unit_text(Window.parse(text)) for text in windows] == ["90m", "36h", "7d+5n", "500ms", "off"]


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000+00:00"),
        (1_700_000_000_123, "2023-11-14T22:13:20.123+00:00"),
        (-1, "1969-12-31T23:59:59.999+00:00"),
        (1_700_000_000_000_000, "the year 55840"),
        (-(10**15), "the year -29719"),
    ],
)
def test_a_time_is_shown_in_utc(timestamp_ms: int, text: str) -> None:
    """Of a time that no calendar has, the year."""
    assert time_text(timestamp_ms) == text


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
    """A window by time and by count remembers the IDs that both remember."""
    by_time, by_count = Window(milliseconds=time_ms), Window(count=count)
    both = Window(milliseconds=time_ms, count=count)
    assert both.holds(age_ms, after) == (by_time.holds(age_ms, after) and by_count.holds(age_ms, after))


def test_the_window_that_holds_nothing() -> None:
    """It has a text, equals itself, travels, and is not to be had by a count of zero."""
    off = Window.off()
    assert off.is_off
    assert not off.holds(0, 0)
    assert not Window(count=1).is_off
    assert (str(off), Window.parse("off"), pickle.loads(pickle.dumps(off))) == ("off", off, off)  # noqa: S301
    with pytest.raises(ConfigurationError, match="count=0"):
        Window.parse("0n")


def test_a_topic_has_its_own_window_or_the_default() -> None:
    """By name, with texts for windows."""
    windows = Windows(default=Window(days=7), topics={"orders": "20000n", "audit": "off"})
    assert windows.of("orders") == Window(count=20_000)
    assert windows.of("audit").is_off
    assert windows.of("orders.eu") == Window(days=7)
    lookup = Lookup(id=key(), window=windows)
    assert (lookup.window_of("orders"), lookup.window_of("else")) == (Window(count=20_000), Window(days=7))
    forgets = [
        lookup.terms(lookup.window_of(topic), digest="", isolation="").ephemeral
        for topic in ("orders", "audit")
    ]
    assert forgets == [False, True]
    assert hash(lookup) == hash(Lookup(id=key(), window=windows))


def test_what_is_given_may_change_afterwards() -> None:
    """The windows are those of the moment."""
    topics = {"orders": Window(count=1)}
    windows = Windows(default=Window(days=7), topics=topics)
    topics.clear()
    assert windows.of("orders") == Window(count=1)


def test_a_function_says_which_window() -> None:
    """None stands for the default."""
    windows = Windows(
        default=Window(days=7), topics=lambda topic: Window(count=len(topic)) if topic else None
    )
    assert (windows.of("abc"), windows.of("")) == (Window(count=3), Window(days=7))


@pytest.mark.parametrize(
    "given",
    [
        {"default": 7},
        {"default": None},
        {"default": Window(days=1), "topics": None},
        {"default": Window(days=1), "topics": ["orders"]},
        {"default": Window(days=1), "topics": Window},
        {"default": Window(days=1), "topics": {"": Window(days=1)}},
        {"default": Window(days=1), "topics": {7: Window(days=1)}},
        {"default": Window(days=1), "topics": {"orders": 7}},
        {"default": Window(days=1), "topics": {"orders": "7x"}},
    ],
)
def test_windows_of_something_else_are_refused(given: dict[str, Any]) -> None:
    """In one line."""
    with pytest.raises(ConfigurationError) as caught:
        Windows(**given)
    assert "\n" not in str(caught.value)


def test_a_function_that_fails_is_named_with_the_topic() -> None:
    """Whatever it raises or returns is a mistake in the settings."""
    for function in (lambda _: 7, lambda topic: {}[topic]):
        windows = Windows(default=Window(days=1), topics=function)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="'orders'") as caught:
            windows.of("orders")
        assert "\n" not in str(caught.value)


def test_settings_that_a_strategy_refuses() -> None:
    """`LastId` has one window, by time; to persist is yes or no."""
    with pytest.raises(ConfigurationError, match="persist='no'"):
        Lookup(id=key(), window=Window(days=1), persist="no")  # type: ignore[arg-type]
    for window in (Window.off(), Windows(default=Window(days=1))):
        with pytest.raises(ConfigurationError, match="window="):
            LastId(id=key(), order=integer(), window=window)  # type: ignore[arg-type]
    last = LastId(id=key(), order=integer())
    assert not last.terms(last.window, digest="", isolation="").ephemeral
