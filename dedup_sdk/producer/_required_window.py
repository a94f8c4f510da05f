"""The window that covers the longest possible delay of a duplicate."""

from __future__ import annotations

from datetime import timedelta

from dedup_sdk._masking import shown
from dedup_sdk._window import Window
from dedup_sdk.errors import ConfigurationError

Length = timedelta | str
"""A length of time: ``timedelta(days=4)`` or ``"4d"``, as in `Window.parse`."""


def required_window(*, max_retention: Length, max_retry: Length, max_network: Length = "0s") -> Window:
    """Return the window that covers every duplicate: the sum of the three times.

    Args:
        max_retention: the longest time that a message waits in the topic before it is read: its
            ``retention.ms``, or the longest outage of a consumer. `DedupConsumer` compares record
            timestamps, so that this time does not count: give ``"0s"``. It counts for a memory that expires
            by the clock.
        max_retry: the longest time after its first attempt at which a message may be resent, restarts of
            the producer included.
        max_network: the longest time of one attempt.

    Raises `ConfigurationError` where one is not a length of time, or all of them are zero.
    """
    given = {"max_retention": max_retention, "max_retry": max_retry, "max_network": max_network}
    return Window(milliseconds=sum(length_ms(name, length) for name, length in given.items()))


def length_ms(name: str, length: object) -> int:
    """Return a length of time in milliseconds; ``name`` is the setting to name in an error."""
    if isinstance(length, timedelta) and length >= timedelta():
        return length // timedelta(milliseconds=1)
    if isinstance(length, str):
        if length.rstrip("dhms") == "0":
            return 0
        window = Window.parse(length)
        if window.time_ms is not None and window.count is None and not window.is_off:
            return window.time_ms
    raise ConfigurationError(
        f"{name}={shown(length)} is no length of time; give e.g. '4d' or timedelta(days=4)"
    )
