"""Checks of settings, for callers without a type checker: each returns the value, or raises `ConfigurationError`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from operator import index
from typing import Any, Final

from dedup_sdk.errors import ConfigurationError

_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
_MOST_SHOWN: Final = 100
"""Characters of a value in an error; the rest is cut off."""
_MOST_ERROR_SHOWN: Final = 300
"""Characters of an exception's text in a log line; the rest is cut off."""
MOST: Final = 2**53
"""A larger whole number is a mistake; as a float it equals its neighbour."""
MOST_SECONDS: Final = 1_000_000_000.0
"""Thirty years: a longer time is a mistake, and clocks cannot wait for a much longer one."""


def shown(value: object) -> str:
    """Return a value for an error: its `repr`, but functions and classes by name, without module or address."""
    if isinstance(value, type):
        return f"<class {value.__name__}>"
    if inspect.isroutine(value):
        return f"<function {getattr(value, '__name__', type(value).__name__)}>"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - an error's text must not be another error
        text = ""
    if not text or _ADDRESS.search(text):
        return f"<{type(value).__name__}>"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def error_shown(error: BaseException) -> str:
    """Return the type and the text of an exception in one printable line, cut to a few hundred characters."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - as above
        text = ""
    try:
        kind = str(type(error).__name__)
    except Exception:  # noqa: BLE001 - as above
        kind = "an exception"
    return f"{one_line(kind)}: {one_line(text)}" if text else one_line(kind)


def one_line(text: str) -> str:
    """Return other people's text in one printable line, cut to a few hundred characters."""
    return "".join(each if each.isprintable() else "?" for each in text[:_MOST_ERROR_SHOWN])


def choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Check that a setting is one of some words."""
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        raise ConfigurationError(f"{name}={shown(value)}: choose {', '.join(known[:-1])} or {known[-1]}")


def whole(name: str, value: object, *, advice: str, least: int = 1, most: int = MOST) -> int:
    """Return a whole number from ``least`` to ``most``; ``advice`` is the next step in the error."""
    if not isinstance(value, bool):
        try:
            number = index(value)  # type: ignore[arg-type]  # the check itself
        except TypeError:
            number = least - 1
        if least <= number <= most:
            return number
    raise ConfigurationError(f"{name}={shown(value)}: {advice}")


def seconds(name: str, value: object) -> float:
    """Return a length of time in seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_SECONDS:
        raise ConfigurationError(f"{name}={shown(value)}: give seconds, e.g. 30")
    return float(value)


def flag(name: str, value: object) -> None:
    """Check that a setting is True or False: the text ``"false"`` would count as true."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name}={shown(value)}: give True or False")


def text(name: str, value: object) -> None:
    """Check that a setting is text."""
    if not isinstance(value, str):
        raise ConfigurationError(f"{name}={shown(value)}: give text")


def callables(name: str, value: object) -> list[Callable[..., Any]]:
    """Return functions of one argument as a list."""
    functions: list[Any] = list(value) if isinstance(value, Iterable) else [None]
    if not all(map(callable, functions)) or isinstance(value, str | bytes):
        raise ConfigurationError(f"{name}={shown(value)}: give a list of functions, e.g. [print]")
    for each in functions:
        unfit = unfit_arguments(each, 1)
        if unfit is not None:
            raise ConfigurationError(
                f"{name}: {shown(each)} cannot be called with one event, as its arguments are {unfit}; give functions "
                "of one event"
            )
    return functions


def unfit_arguments(function: Callable[..., Any], count: int) -> str | None:
    """Return the arguments of a function that cannot be called with ``count`` of them; None if it can be."""
    try:
        # A decorator's own arguments, not those of the function that it wraps.
        signature = inspect.signature(function, follow_wrapped=False)
    except Exception:  # noqa: BLE001 - functions written in C, mocks and proxies do not tell, in many ways
        return None
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return f"({', '.join(signature.parameters)})"
    return None
