"""How long, and how many accepted IDs back, an ID is remembered; and a window for each topic, where they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from dedup_sdk.errors import ConfigurationError

_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000, "milliseconds": 1}
_SUFFIXES = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds", "ms": "milliseconds"}
_MAX_MS = 2**53
_MOST_DIGITS = 20


@dataclass(frozen=True, slots=True, init=False)
class Window:
    """A window by time, by count, or both (then an ID is remembered while *both* hold).

    - By time: ``days``, ``hours``, ``minutes``, ``seconds`` and ``milliseconds`` add up to ``time_ms``. An ID is
      remembered while the timestamp of a record is at most that much later than that of its last sighting;
      a duplicate is a sighting.
    - By count: ``count`` is the size of a circular cache of accepted IDs, as Apache ActiveMQ Artemis and HornetQ define
      it: an ID is remembered while fewer than ``count`` further IDs were accepted after it; a duplicate neither takes a
      slot nor refreshes one.

    `Window.off` is the empty window. Raises `ConfigurationError` when no length is given, or one is zero, negative
    or not a number.
    """

    time_ms: int | None
    count: int | None
    text: str = field(repr=False, compare=False)
    """The text that `parse` reads."""
    is_off: bool = field(repr=False, compare=False)
    """Whether this is the empty window."""

    def __init__(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: int = 0,
        count: int | None = None,
    ) -> None:
        parts = {
            "days": days,
            "hours": hours,
            "minutes": minutes,
            "seconds": seconds,
            "milliseconds": milliseconds,
        }
        for unit, amount in parts.items():
            given: object = amount  # what callers without a type checker pass
            if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < _MAX_MS:
                message = f"Window({unit}={amount!r}): a window is a positive length of time; give e.g. Window(days=7)"
                raise ConfigurationError(message)
        total = sum(round(amount * _MS[unit]) for unit, amount in parts.items())
        number: object = count
        if number is not None and (
            isinstance(number, bool) or not isinstance(number, int) or not 0 < number < _MAX_MS
        ):
            message = (
                f"Window(count={count!r}): a count is a whole number above 0; give e.g. Window(count=20_000)"
            )
            raise ConfigurationError(message)
        if total == 0 and (count is None or any(parts.values())):
            message = "a window of zero remembers nothing; give e.g. Window(days=7) or Window(count=20_000)"
            raise ConfigurationError(message)
        if total >= _MAX_MS:
            message = f"a window of {total} ms is longer than any log; give e.g. Window(days=7)"
            raise ConfigurationError(message)
        self._be(total or None, count)

    @classmethod
    def off(cls) -> Window:
        """Return the empty window: with it no ID is looked up or remembered."""
        window = object.__new__(cls)
        window._be(None, 0)
        return window

    def _be(self, time_ms: int | None, count: int | None) -> None:
        object.__setattr__(self, "time_ms", time_ms)
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "text", _text_of(time_ms, count))
        object.__setattr__(self, "is_off", count == 0)

    @classmethod
    def parse(cls, text: str) -> Window:
        """Read ``7d``, ``36h``, ``90m``, ``30s``, ``500ms``, ``20000n`` (a count), several joined by ``+``, each unit once, or ``off``.

        Raises `ConfigurationError` that names the text.
        """
        given: object = text  # what callers without a type checker pass
        if not isinstance(given, str):
            message = f"window {given!r} is {type(given).__name__}; write e.g. '7d'"
            raise ConfigurationError(message)
        if text == "off":
            return cls.off()
        settings: dict[str, float] = {}
        for part in text.split("+"):
            number = part.rstrip("dhmsn")
            unit = part[len(number) :]
            name = "count" if unit == "n" else _SUFFIXES.get(unit, "")
            if (
                not number.isascii()
                or not number.isdecimal()
                or len(number) > _MOST_DIGITS
                or not name
                or name in settings
            ):
                message = (
                    f"window {text!r} is not a window; write e.g. 7d, 36h, 90m, 30s, 20000n, or 7d+20000n"
                )
                raise ConfigurationError(message)
            settings[name] = int(number)
        return cls(**settings)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.text

    def holds(self, age_ms: int, accepted_after: int) -> bool:
        """Whether a mark of this age, with this many IDs accepted after it, is still remembered (a negative age is)."""
        return (self.time_ms is None or age_ms <= self.time_ms) and (
            self.count is None or accepted_after < self.count
        )


def _text_of(time_ms: int | None, count: int | None) -> str:
    if count == 0:
        return "off"
    parts = []
    if time_ms is not None:
        unit = next(unit for unit, name in _SUFFIXES.items() if time_ms % _MS[name] == 0)
        parts.append(f"{time_ms // _MS[_SUFFIXES[unit]]}{unit}")
    if count is not None:
        parts.append(f"{count}n")
    return "+".join(parts)


def window_of(name: str, given: object) -> Window:
    """Return a window, given as a `Window` or as its text; ``name`` is the setting to name in an error."""
    if isinstance(given, str):
        return Window.parse(given)
    if isinstance(given, Window):
        return given
    message = f"{name}={given!r} is not a window; give e.g. Window(days=7)"
    raise ConfigurationError(message)


ByTopic = Mapping[str, Window] | Callable[[str], Window | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """A window for every topic: its own where it has one, else ``default``.

    ``topics`` are windows by the topic's name, or a function of that name that returns a window, or None for the default; it must
    always return the same answer. A window may be given as text; with ``"off"`` or `Window.off` no ID is
    looked up. Raises `ConfigurationError` for anything else.
    """

    default: Window
    topics: ByTopic = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Accept texts for windows; refuse anything else in one line."""
        object.__setattr__(self, "default", window_of("default", self.default))
        given: object = self.topics  # what callers without a type checker pass
        if isinstance(given, Mapping):
            windows = {
                _topic_name(topic): window_of(f"topics[{topic!r}]", each) for topic, each in given.items()
            }
            object.__setattr__(self, "topics", MappingProxyType(windows))
        elif not callable(given) or isinstance(given, type):
            message = f"topics={given!r}: give windows by topic, e.g. {{'orders': Window(days=7)}}, or a function of a topic's name"
            raise ConfigurationError(message)

    def of(self, topic: str) -> Window:
        """Return the window of a topic; raises `ConfigurationError` if the function fails, or returns anything else."""
        if isinstance(self.topics, Mapping):
            return self.topics.get(topic, self.default)
        try:
            found: object = self.topics(topic)
        except Exception as error:
            cause = f"{type(error).__name__}: {error}".splitlines()[0]
            message = f"the function of windows failed for topic {topic!r} ({cause}); have it return a Window, or None for the default"
            raise ConfigurationError(message) from error
        return self.default if found is None else window_of(f"the window of topic {topic!r}", found)


def _topic_name(topic: object) -> str:
    if isinstance(topic, str) and topic:
        return topic
    message = f"topics has the key {topic!r}: give names of topics, e.g. {{'orders': Window(days=7)}}"
    raise ConfigurationError(message)
