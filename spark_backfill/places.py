"""Folders of one run that may not lie in each other: those to read, and those to write."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from dedup_sdk._masking import is_url, shown
from dedup_sdk.errors import ConfigurationError
from spark_backfill.archive_options import KAFKA, TABLE, paths_are_elsewhere

_SAME_STORE: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
"""Other names of stores."""


def absolute(text: str) -> str:
    """Return a path that is found from any folder; a URL stays."""
    return text if is_url(text) else str(Path(text).absolute())


def absolute_source(text: str) -> str:
    """Return a source that is found from any folder.

    What may be no path here stays: the topic, tables, URIs (Hadoop's lack the slashes), and paths elsewhere.
    """
    return (
        text
        if text in ("", KAFKA) or ":" in text.partition("/")[0] or paths_are_elsewhere()
        else absolute(text)
    )


class Place(NamedTuple):
    """A folder, a URL or a pattern, as the option ``option`` gave it."""

    option: str
    text: str

    def __str__(self) -> str:
        """As it is written on the command line, without credentials."""
        return f"{self.option} {shown(self.text)}"

    def parts(self) -> tuple[str, ...]:
        """Return its path, from the store or the root on, links followed."""
        scheme, url, rest = self.text.partition("://")
        if not url or scheme in {"file", "local"}:
            here = rest if url else self.text.removeprefix("file:")
            try:
                return ("file:", *PurePosixPath(os.path.realpath(here)).parts)
            except ValueError:
                raise ConfigurationError(f"{self} is not a path: leave the NUL character out") from None
        authority, _, path = rest.partition("/")
        below = [part for part in path.split("/") if part]
        return (f"{_SAME_STORE.get(scheme, scheme)}://{authority.rpartition('@')[2]}", *below)

    def lies_in(self, other: Place) -> bool:
        """Whether it is the other one, or below it; a pattern has its matches below it."""
        mine, theirs = self.parts(), other.parts()
        return len(mine) >= len(theirs) and all(
            one == each or fnmatchcase(one, each) for one, each in zip(mine, theirs, strict=False)
        )


def check_places(output: str, *, sources: Sequence[str], report: str | None = None) -> None:
    """Refuse an output that would put a run's files among those that are read, or remove these by replacing it.

    Sources that only Spark knows where to look for (tables, bare paths on another file system) are left out.

    Raises:
        ConfigurationError: one line that names two places, one of which lies in the other.
    """
    to = Place("--output", output)
    pages = [] if report is None else [Place("--report", report)]
    read = [
        Place("--source", text)
        for text in sources
        if is_url(text) or not (text.startswith(TABLE) or paths_are_elsewhere())
    ]
    for place, source in product((to, *pages), read):
        if place.lies_in(source):
            raise ConfigurationError(
                f"{place} lies in {source}, and would be read as a part of it: choose a folder outside"
            )
    for place in (*pages, *read):
        if place.lies_in(to):
            raise ConfigurationError(
                f"{place} lies in {to}, which becomes a snapshot and nothing else: choose a folder beside it"
            )
