"""The part of the command line that is about an earlier snapshot, and about the marks to leave out."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from dedup_sdk._core.reach import GRACE
from dedup_sdk._core.source_keys import source_spec_of
from dedup_sdk._units.keys import spec_in_units
from dedup_sdk._window import Window
from dedup_sdk.errors import ConfigurationError, IdSpecError
from dedup_sdk.ids import id_spec
from spark_backfill.base import open_base

_FROM_BASE: Final = ("topic", "id", "window")
"""Options that a base gives where the user does not."""
_OF_READING: Final = (
    "client_config", "bootstrap", "group", "whole_topic", "assume_processed", "source", "format", "columns",
    "read_option",
    "archive_isolation", "allow_gap", "packages", "cluster_id", "topic_id", "report", "producer_header",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseOptions:
    """An earlier snapshot to add to, and the marks to leave out.

    - ``place``: its folder or URL, None: there is none; ``compact``: nothing is added to it.
    - ``expire_before_ms``: marks last seen before this timestamp (ms) are left out, None: none are for that.
    """

    place: str | None = None
    compact: bool = False
    expire_before_ms: int | None = None


def add_base_options(add: Callable[..., Any]) -> None:
    """Tell a parser of the options; ``add`` is its ``add_argument``."""
    add(
        "--base",
        metavar="SNAPSHOT",
        help="Folder or URL of an earlier snapshot of this history: only what came after it is read; "
        "--topic, --id and --window are taken from it where they are not given.",
    )
    add(
        "--compact",
        action="store_true",
        help="With --base: add nothing; write it again as few sorted files, without what its window does not "
        "reach any more.",
    )
    add(
        "--expire-before",
        metavar="TIME",
        help="Leave out IDs last seen before that: 2024-05-01, 2024-05-01T12:00:00+02:00 (UTC unless it "
        "says), or an age, e.g. 30d.",
    )


def read_base_options(given: argparse.Namespace) -> BaseOptions:
    """Read the options, and put those of the base into ``given`` where they are not given.

    Raises:
        ConfigurationError: one line on the option that is missing, or contradicts another.
        SnapshotError: the base cannot be read.
    """
    expire_before_ms = None if given.expire_before is None else parse_time(given.expire_before)
    if given.base is None:
        if given.compact:
            raise ConfigurationError("--compact needs --base SNAPSHOT: the snapshot to be written again")
        return BaseOptions(expire_before_ms=expire_before_ms)
    if given.partitions is not None:
        raise ConfigurationError(
            "--partitions and --base do not go together: where the keys of the base's records go is not "
            "known any more; rebuild in full without --base"
        )
    if given.compact:
        useless = [name for name in _OF_READING if getattr(given, name)]
        if useless:
            raise ConfigurationError(
                f"--compact reads no history, and --{useless[0].replace('_', '-')} is about that: leave it "
                "out, or leave --compact out"
            )
    if any(getattr(given, name) is None for name in _FROM_BASE):
        told = open_base(given.base).manifest
        if given.id is None:
            _refuse_others(given.base, told.id_spec)
        said = {"topic": told.topic, "id": told.id_spec, "window": told.window}
        for name in _FROM_BASE:
            if getattr(given, name) is None:
                setattr(given, name, said[name])
    return BaseOptions(place=given.base, compact=given.compact, expire_before_ms=expire_before_ms)


def _refuse_others(base: str, id_text: str) -> None:
    """Refuse a base whose marks are more than last sightings, and an ID spec that names code.

    A file must not decide which code runs here.
    """
    if source_spec_of(id_text) is not None:
        raise ConfigurationError(
            f"base {base!r} is of LastId: what it remembers cannot be added to: rebuild in full with "
            "--id and --order, without --base"
        )
    if spec_in_units(id_text) is not None:
        raise ConfigurationError(
            f"base {base!r} has marks of units, and nothing can be added to these: rebuild in full with "
            "--id and --unit, without --base"
        )
    try:
        id_spec(id_text, imports=False)
    except IdSpecError as error:
        raise ConfigurationError(
            f"base {base!r} cannot say which ID spec to use: {error}, with --id SPEC"
        ) from None


def check_expiry(text: str | None, window: Window, *, option: str = "--window") -> None:
    """Refuse an age to forget at that the window never reaches; a date is not refused, since it grows older by itself.

    ``option``: which one gave the window.

    Raises:
        ConfigurationError: naming both.
    """
    age_ms = None if text is None else _age_ms(text)
    if age_ms is None or window.time_ms is None or age_ms < window.time_ms + window.time_ms // GRACE:
        return
    raise ConfigurationError(
        f"--expire-before {text} is longer than {option} {window}, after which IDs are forgotten anyway: "
        "give a shorter age, or leave it out"
    )


def _age_ms(text: str) -> int | None:
    """The age (ms) that a text names; None: it names none."""
    try:
        return None if text.endswith("n") else Window.parse(text).time_ms
    except ConfigurationError:
        return None


def parse_time(text: str) -> int:
    """Return the time that a text names, in ms since 1970: a date or a time in ISO's form, or how long ago it was.

    Raises:
        ConfigurationError: it is neither, or lies in the future.
    """
    now_ms = time.time_ns() // 1_000_000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        age_ms = _age_ms(text)
        if age_ms is None:
            raise ConfigurationError(
                f"--expire-before {text!r} is no time: give e.g. 2024-05-01, 2024-05-01T12:00:00+02:00, or "
                "an age such as 30d"
            ) from None
        return max(now_ms - age_ms, 0)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    found_ms = round(moment.timestamp() * 1_000)
    if found_ms > now_ms:
        raise ConfigurationError(
            f"--expire-before {text!r} lies in the future: everything would be forgotten; give an earlier time"
        )
    return max(found_ms, 0)
