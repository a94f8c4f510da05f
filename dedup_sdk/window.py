"""How long, and how many accepted IDs back, an ID is remembered."""

from __future__ import annotations

from dataclasses import dataclass

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

    `Window.off` is the window that holds nothing. Raises `ConfigurationError` when nothing is given, or anything is zero, negative
    or not a number.
    """

    time_ms: int | None
    count: int | None

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
        object.__setattr__(self, "time_ms", total or None)
        object.__setattr__(self, "count", count)

    @classmethod
    def off(cls) -> Window:
        """Return the window that holds nothing: what has it looks no ID up, and remembers none."""
        window = object.__new__(cls)
        object.__setattr__(window, "time_ms", None)
        object.__setattr__(window, "count", 0)
        return window

    @property
    def is_off(self) -> bool:
        """Whether it holds nothing."""
        return self.count == 0

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
        """The text that `parse` reads."""
        if self.is_off:
            return "off"
        parts = []
        if self.time_ms is not None:
            unit, size = next(
                (unit, _MS[name]) for unit, name in _SUFFIXES.items() if self.time_ms % _MS[name] == 0
            )
            parts.append(f"{self.time_ms // size}{unit}")
        if self.count is not None:
            parts.append(f"{self.count}n")
        return "+".join(parts)

    def holds(self, age_ms: int, accepted_after: int) -> bool:
        """Whether a mark that old, with so many IDs accepted after it, is still remembered (a negative age is)."""
        return (self.time_ms is None or age_ms <= self.time_ms) and (
            self.count is None or accepted_after < self.count
        )


def window_of(name: str, given: object) -> Window:
    """Return a window that is given as one, or as its text; ``name`` is the setting that an error tells."""
    if isinstance(given, str):
        return Window.parse(given)
    if isinstance(given, Window):
        return given
    message = f"{name}={given!r} is not a window; give e.g. Window(days=7)"
    raise ConfigurationError(message)
