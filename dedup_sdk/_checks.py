"""Checks of settings, for callers without a type checker: each returns the value, or raises `ConfigurationError`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from operator import index
from pathlib import Path
from typing import Any, Final

from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
MOST: Final = 2**53
"""A larger whole number is a mistake; as a float it equals its neighbour."""
MOST_SECONDS: Final = 1_000_000_000.0
"""Thirty years: a longer time is a mistake, and clocks cannot wait for a much longer one."""


def scheme_of_url(path: str | Path) -> str:
    """Return the scheme of a URL, "" for a path; the `Path` of a URL, which lacks a slash, counts as one."""
    found = _URL.match(str(path))
    return "" if found is None else found[1]


def why_unusable(path: str | Path) -> str | None:
    """Return why the file system cannot use a path, None when it can."""
    if "\0" in str(path):
        return "has a NUL character"
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    return None


def local_path(name: str, value: str | Path, *, advice: str) -> Path:
    """Return a path of this machine; ``name`` stands before the value in the error, ``advice`` is the next step.

    Raises `ConfigurationError` for a URL, for an empty path, and for one that the file system cannot use.
    """
    why = "is empty" if not str(value) else why_unusable(value)
    if scheme_of_url(value):
        why = "is a URL, and must be a path of this machine"
    if why:
        raise ConfigurationError(f"{name}{shown(value)} {why}; {advice}")
    return Path(value)


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


def configuration(name: str, value: object, *, client: str) -> dict[str, Any]:
    """Return a copy of a client's configuration. The error names its type alone: it may have a password anywhere."""
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"{name} is of type {type(value).__name__}; give the dictionary that confluent_kafka.{client} takes"
        )
    return dict(value)


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


def runs_on_loop(function: Any) -> bool:
    """Whether this is a coroutine function, or an object that is called as one."""
    asks = inspect.iscoroutinefunction
    return asks(function) or asks(getattr(function, "__call__", None))  # noqa: B004


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
