"""How long an ID is remembered: by time, by the number of later IDs, or both; a window for each topic; their texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError

_MS = {
    "weeks": 604_800_000,
    "days": 86_400_000,
    "hours": 3_600_000,
    "minutes": 60_000,
    "seconds": 1_000,
    "milliseconds": 1,
}
_SUFFIXES = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds", "ms": "milliseconds"}
_MAX_MS = 2**53
_LENGTH = re.compile(
    r"(?:(?P<weeks>\d{1,20})w)?(?:(?P<days>\d{1,20})d)?(?:(?P<hours>\d{1,20})h)?(?:(?P<minutes>\d{1,20})m(?!s))?"
    r"(?:(?P<seconds>\d{1,20})s)?(?:(?P<milliseconds>\d{1,20})ms)?",
    re.ASCII,
)
_ISO_8601 = re.compile(
    r"P(?:(?P<weeks>\d{1,20})W)?(?:(?P<days>\d{1,20})D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d{1,20})H)?(?:(?P<minutes>\d{1,20})M)?(?:(?P<seconds>\d{1,20})S)?)?",
    re.ASCII,
)
_COUNT = re.compile(r"\d{1,20}n", re.ASCII)
_SHOWN_MS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))


def length_text(length_ms: int, *, most_units: int = len(_SHOWN_MS)) -> str:
    """Return a length of time for people, e.g. ``7 d`` or ``1 h 30 min``; ``0 s`` for none.

    ``most_units``: show at most so many units, from the largest one of this length on; smaller ones are cut off.
    """
    parts, rest_ms = list[str](), abs(length_ms)
    for unit, unit_ms in [each for each in _SHOWN_MS if each[1] <= rest_ms][:most_units]:
        count, rest_ms = divmod(rest_ms, unit_ms)
        if count:
            parts.append(f"{count} {unit}")
    return "\N{MINUS SIGN}" * (length_ms < 0) + (" ".join(parts) or "0 s")


@dataclass(frozen=True, init=False, repr=False)
class Window:
    """A window by time, by count, or both (then an ID is remembered while *both* hold).

    - By time: ``weeks``, ``days``, ``hours``, ``minutes``, ``seconds`` and ``milliseconds`` add up to ``time_ms``. An
      ID is remembered while the timestamp of a record is at most ``time_ms`` later than the timestamp of the ID's last
      sighting; a duplicate is a sighting.
    - By count: ``count`` is the size of a circular cache of accepted IDs, as Apache ActiveMQ Artemis and HornetQ define
      it: an ID is remembered while fewer than ``count`` further IDs were accepted after it; a duplicate neither takes a
      slot nor refreshes one.

    `Window.off` is the empty window. Raises `ConfigurationError` when no length is given, or one is zero, negative
    or not a number.
    """

    time_ms: int | None
    count: int | None

    def __init__(
        self,
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: int = 0,
        count: int | None = None,
    ) -> None:
        parts = {
            "weeks": weeks,
            "days": days,
            "hours": hours,
            "minutes": minutes,
            "seconds": seconds,
            "milliseconds": milliseconds,
        }
        for unit, amount in parts.items():
            given: object = amount  # what callers without a type checker pass
            if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < _MAX_MS:
                message = (
                    f"Window({unit}={shown(amount)}): a window is a positive length of time; give e.g. "
                    f"Window(days=7)"
                )
                raise ConfigurationError(message)
        total = sum(round(amount * _MS[unit]) for unit, amount in parts.items())
        number: object = count
        if number is not None and (
            isinstance(number, bool) or not isinstance(number, int) or not 0 < number < _MAX_MS
        ):
            message = f"Window(count={shown(count)}): a count is a whole number above 0; give e.g. Window(count=20_000)"
            raise ConfigurationError(message)
        if total == 0 and (count is None or any(parts.values())):
            message = "a window of zero remembers nothing; give e.g. Window(days=7) or Window(count=20_000)"
            raise ConfigurationError(message)
        if total >= _MAX_MS:
            message = f"a window of {length_text(total)} is longer than any log; give e.g. Window(days=7)"
            raise ConfigurationError(message)
        object.__setattr__(self, "time_ms", total or None)
        object.__setattr__(self, "count", count)
        self.text  # noqa: B018 (worked out here, where no partition waits for it)

    @classmethod
    def off(cls) -> Window:
        """Return the empty window: with it no ID is looked up or remembered."""
        window = object.__new__(cls)
        object.__setattr__(window, "time_ms", None)
        object.__setattr__(window, "count", 0)
        return window

    @cached_property
    def is_off(self) -> bool:
        """Whether this is the empty window."""
        return self.count == 0

    @cached_property
    def text(self) -> str:
        """The text that `parse` reads, a time in its largest units, e.g. ``1h30m``."""
        return _text_of(self, _units_text)

    @classmethod
    def parse(cls, text: str) -> Window:
        """Read a length of time, a count (``20000n``), or ``off``.

        Lengths are ``7d``, ``1w``, ``1h30m``, ``500ms``, or ISO 8601: ``P7D``, ``PT1H30M``. Units are
        ``w``, ``d``, ``h``, ``m``, ``s``, ``ms``, the longer ones first. ``+`` joins a time and a count: an
        ID is remembered while *both* hold. Raises `ConfigurationError` that names the text.
        """
        given: object = text  # what callers without a type checker pass
        if not isinstance(given, str):
            message = f"window {shown(given)} is of type {type(given).__name__}; write e.g. '7d'"
            raise ConfigurationError(message)
        if text == "off":
            return cls.off()
        parts = text.split("+")
        counts = [part for part in parts if part.endswith("n")]
        times = [_milliseconds(part) for part in parts if part not in counts]
        count = int(counts[0][:-1]) if counts and _COUNT.fullmatch(counts[0]) else None
        if None in times or len(counts) > 1 or (counts and count is None):
            message = (
                f"window {shown(text)} is not a window; write e.g. 7d, 1h30m, 30s, 20000n (a count), or 7d+20000n "
                "(both)"
            )
            raise ConfigurationError(message)
        if len(times) > 1:
            message = (
                f"window {shown(text)}: '+' joins a time and a count, and both must hold; write a sum of times "
                "without it, e.g. 1d12h"
            )
            raise ConfigurationError(message)
        return cls(milliseconds=sum(filter(None, times)), count=count)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Window.parse({self.text!r})"

    def holds(self, age_ms: int, accepted_after: int) -> bool:
        """Whether a mark of this age, with this many IDs accepted after it, is still remembered (a negative age is)."""
        return (self.time_ms is None or age_ms <= self.time_ms) and (
            self.count is None or accepted_after < self.count
        )


def one_unit_text(window: Window) -> str:
    """Return a text that `Window.parse` reads, a time in one unit, e.g. ``90m``.

    Rules have it in their fingerprints, so that it must stay the same.
    """
    return _text_of(window, _one_unit_text)


def _text_of(window: Window, text_of_time: Callable[[int], str]) -> str:
    if window.is_off:
        return "off"
    parts = [] if window.time_ms is None else [text_of_time(window.time_ms)]
    return "+".join(parts if window.count is None else [*parts, f"{window.count}n"])


def _units_text(length_ms: int) -> str:
    parts = _split(length_ms, [_MS[name] for name in _SUFFIXES.values()])
    return "".join(f"{amount}{suffix}" for suffix, amount in zip(_SUFFIXES, parts, strict=True) if amount)


def _one_unit_text(length_ms: int) -> str:
    suffix, unit_ms = next(
        (suffix, _MS[name]) for suffix, name in _SUFFIXES.items() if length_ms % _MS[name] == 0
    )
    return f"{length_ms // unit_ms}{suffix}"


def _split(length_ms: int, units_ms: Iterable[int]) -> Iterator[int]:
    """Yield how many of each unit a length has, the longest unit first."""
    for unit_ms in units_ms:
        amount, length_ms = divmod(length_ms, unit_ms)
        yield amount


def _milliseconds(text: str) -> int | None:
    """Return a length of time, None if the text is not one."""
    form = _LENGTH.fullmatch(text) or _ISO_8601.fullmatch(text)
    if form is None or not any(form.groups()):
        return None
    return sum(int(form[unit] or 0) * of_one for unit, of_one in _MS.items() if unit in form.groupdict())


def window_of(name: str, given: object) -> Window:
    """Return a window, given as a `Window`, a length of time or its text.

    ``name`` is the setting to name in an error.
    """
    if isinstance(given, str):
        return Window.parse(given)
    if isinstance(given, timedelta):
        if given < timedelta():
            written = _timedelta_text(given)
            message = f"{name}={written}: a window is a positive length of time; give e.g. timedelta(days=7)"
            raise ConfigurationError(message)
        return Window(milliseconds=given // timedelta(milliseconds=1))
    if isinstance(given, Window):
        return given
    advice = "Windows(default='7d', topics={...})" if isinstance(given, Mapping) else "Window(days=7)"
    message = f"{name}={shown(given)} is not a window; give e.g. {advice}"
    raise ConfigurationError(message)


def _timedelta_text(negative: timedelta) -> str:
    """Return a negative length as it is written: Python's own text of -1 h has -1 d and 82,800 s."""
    names = _SUFFIXES.values()
    amounts = _split(-negative // timedelta(milliseconds=1), [_MS[name] for name in names])
    parts = [f"{name}=-{amount}" for name, amount in zip(names, amounts, strict=True) if amount]
    return f"timedelta({', '.join(parts)})" if parts else shown(negative)


ByTopic = Mapping[str, Window] | Callable[[str], Window | None]
Given = Window | timedelta | str
"""The types that a window may be given as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """A window for every topic: its own where it has one, else ``default``.

    ``topics`` are windows by the topic's name, or a function of that name that returns a window, or None
    for the default; it must always return the same answer. A window may be given as text; with ``"off"`` or
    `Window.off` no ID is looked up. Raises `ConfigurationError` for anything else.
    """

    default: Window
    topics: ByTopic = field(default_factory=dict, hash=False)

    if TYPE_CHECKING:
        # The constructor accepts more types than the fields have.
        def __init__(
            self, *, default: Given, topics: Mapping[str, Given] | Callable[[str], Given | None] = ...
        ) -> None: ...

    def __post_init__(self) -> None:
        """Accept texts for windows; refuse anything else in one line."""
        object.__setattr__(self, "default", window_of("default", self.default))
        given: object = self.topics  # what callers without a type checker pass
        if isinstance(given, Mapping):
            windows = {
                _topic_name(topic): window_of(f"topics[{shown(topic)}]", each)
                for topic, each in given.items()
            }
            object.__setattr__(self, "topics", MappingProxyType(windows))
        elif not callable(given) or isinstance(given, type):
            message = (
                f"topics={shown(given)}: give windows by topic, e.g. {{'orders': Window(days=7)}}, or a function of a "
                "topic's name"
            )
            raise ConfigurationError(message)

    def of(self, topic: str) -> Window:
        """Return the window of a topic; raises `ConfigurationError` if the function fails, or returns anything else."""
        if isinstance(self.topics, Mapping):
            return self.topics.get(topic, self.default)
        try:
            found: object = self.topics(topic)
        except Exception as error:
            cause = f"{type(error).__name__}: {error}".splitlines()[0]
            message = (
                f"the function of windows failed for topic {shown(topic)} ({cause}); have it return a Window, or None "
                "for the default"
            )
            raise ConfigurationError(message) from error
        return self.default if found is None else window_of(f"the window of topic {shown(topic)}", found)


def _topic_name(topic: object) -> str:
    if isinstance(topic, str) and topic:
        return topic
    message = f"topics has the key {shown(topic)}: give names of topics, e.g. {{'orders': Window(days=7)}}"
    raise ConfigurationError(message)
