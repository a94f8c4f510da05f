"""Settings by address, as in Apache ActiveMQ Artemis and HornetQ: patterns of which the most specific match wins.

address
    the name that messages are sent to in these brokers; here a topic.
match
    the key of a setting: an address, or a pattern. An address consists of words with a delimiter between
    them. ``*`` stands for one word, ``#`` at the end for any number of words, also none: ``orders.#``
    matches ``orders``, ``orders.eu`` and ``orders.eu.big``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dedup_sdk import ConfigurationError, Window
from dedup_sdk.errors import shown

_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wildcards:
    """The wildcard characters of a broker (``wildcard-addresses``).

    Raises `ConfigurationError` unless all three differ.
    """

    delimiter: str = "."
    any_words: str = "#"
    single_word: str = "*"

    def __post_init__(self) -> None:
        """Refuse characters that are not single or not distinct."""
        given: list[object] = [self.delimiter, self.any_words, self.single_word]
        if len({each for each in given if isinstance(each, str) and len(each) == 1}) != len(given):
            raise ConfigurationError(f"{shown(self)}: give three different characters, e.g. '.', '#' and '*'")


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """The window of each topic, by its most specific match; None where nothing matches. Made by `cache_sizes`."""

    sizes: tuple[tuple[str, int], ...]
    """Match and size, the most specific first."""
    wildcards: Wildcards
    _patterns: tuple[re.Pattern[str], ...] = field(repr=False, compare=False)

    def __call__(self, topic: str) -> Window | None:
        """Return the window of a topic."""
        for (_, size), pattern in zip(self.sizes, self._patterns, strict=True):
            if pattern.fullmatch(topic):
                return count_window(size)
        return None


def cache_sizes(addresses: Mapping[str, int], wildcards: Wildcards) -> CacheSizes:
    """Return the windows for a mapping of match to cache size.

    Raises `ConfigurationError` for an invalid match or size.
    """
    given: object = addresses  # what callers without a type checker pass
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"addresses={shown(given)}: give sizes by match, e.g. {{'orders.#': 50_000}}"
        )
    for match, size in given.items():
        if not isinstance(match, str) or not match:
            raise ConfigurationError(
                f"addresses has the match {shown(match)}: give an address, e.g. orders.eu or orders.#"
            )
        check_size(f"addresses[{shown(match)}]", size)
    order = sorted(addresses, key=lambda match: _rank(match, wildcards))
    patterns = tuple(_pattern(match, wildcards) for match in order)
    return CacheSizes(tuple((match, addresses[match]) for match in order), wildcards, patterns)


def check_size(name: str, size: object) -> None:
    """Raise `ConfigurationError` unless this is a valid cache size."""
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= _LARGEST:
        raise ConfigurationError(
            f"{name}={shown(size)}: a size is a whole number from 0 to {_LARGEST}, 0 turns detection off"
        )


def count_window(size: int) -> Window:
    """Return the count window that behaves as a cache of this size."""
    return Window(count=size) if size else Window.off()


def _rank(match: str, wildcards: Wildcards) -> tuple[int, int, tuple[bool, ...], str]:
    """Return a sort key that puts the most specific match first, as far as the broker defines it.

    First addresses without wildcards, then matches with ``*`` (a word before a wildcard, from the left),
    then matches with ``#``, the longer text first. For two matches with ``#`` of the same length the
    broker's choice is undefined; here the one with words where the other has ``*`` comes first.
    """
    words = tuple(word == wildcards.single_word for word in match.split(wildcards.delimiter))
    if wildcards.any_words in match:
        return 2, -len(match), words, match
    return (1 if wildcards.single_word in match else 0), 0, words, match


def _pattern(match: str, wildcards: Wildcards) -> re.Pattern[str]:
    delimiter, rest = re.escape(wildcards.delimiter), ""
    head = match
    if match == wildcards.any_words:
        head, rest = "", ".*"
    elif match.endswith(wildcards.any_words):
        head = match[: -len(wildcards.any_words)].removesuffix(wildcards.delimiter)
        rest = f"(?:{delimiter}.+)?"
    if wildcards.any_words in head:
        raise ConfigurationError(
            f"match {shown(match)} has {shown(wildcards.any_words)} before its end, which no broker accepts; write "
            "e.g. orders.*.eu or orders.#"
        )
    words = f"[^{delimiter}]+".join(map(re.escape, head.split(wildcards.single_word)))
    return re.compile(words + rest, re.DOTALL)
