"""A window for each topic, the window that holds nothing, and strategies that have one."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from dedup_sdk.errors import ConfigurationError
from dedup_sdk.ids import key
from dedup_sdk.orders import integer
from dedup_sdk.strategy import LastId, Lookup
from dedup_sdk.window import Window
from dedup_sdk.windows import Windows


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
    windows = Windows(default=Window(days=7), topics={"orders": "20000n", "audit": "off"})  # type: ignore[dict-item]
    assert windows.of("orders") == Window(count=20_000)
    assert windows.of("audit").is_off
    assert windows.of("orders.eu") == Window(days=7)
    lookup = Lookup(id=key(), window=windows)
    assert (lookup.window_of("orders"), lookup.window_of("else")) == (Window(count=20_000), Window(days=7))
    assert (lookup.forgets("orders"), lookup.forgets("audit")) == (False, True)
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
    """A lane of compared IDs has one window, by time; to persist is yes or no."""
    with pytest.raises(ConfigurationError, match="persist='no'"):
        Lookup(id=key(), window=Window(days=1), persist="no")  # type: ignore[arg-type]
    for window in (Window.off(), Windows(default=Window(days=1))):
        with pytest.raises(ConfigurationError, match="window="):
            LastId(id=key(), order=integer(), window=window)  # type: ignore[arg-type]
    assert not LastId(id=key(), order=integer()).forgets("orders")
