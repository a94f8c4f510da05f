"""The part of the command line that says where history is read."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dedup_sdk._kafka.client_config import is_setting
from dedup_sdk._kafka.error_text import masked_text
from dedup_sdk.errors import ConfigurationError
from spark_backfill.archive_options import TABLE, ArchiveOptions, paths_are_elsewhere
from spark_backfill.client_config import read_options
from spark_backfill.column_map import parse_columns

KAFKA: Final = "kafka"
"""The source that is the topic itself."""
ISOLATIONS: Final = ("read_committed", "read_uncommitted")
_SESSIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
}
_OF_ARCHIVES: Final = ("format", "columns", "read_option", "archive_isolation")
_SETTINGS: Final = "--client-config"
_FILES: Final = ("--source", "--base", _SETTINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Where history is read.

    - ``kafka``: whether the topic itself is read; ``archive``: the archive to read, None: none.
    - ``allow_gap``: whether offsets that are nowhere may be left out; ``packages``: coordinates of packages that
      Spark needs to read.
    - ``cluster_id``, ``topic_id``: whose offsets these are where no broker is asked, else empty.
    """

    kafka: bool
    archive: ArchiveOptions | None
    allow_gap: bool
    packages: tuple[str, ...]
    cluster_id: str
    topic_id: str

    @property
    def isolation(self) -> str:
        """Which records are read, as a consumer's ``isolation.level``."""
        return ISOLATIONS[0] if self.archive is None else self.archive.isolation

    @property
    def session_settings(self) -> Mapping[str, str]:
        """The settings that a Spark session needs to read the archive."""
        return _SESSIONS.get(self.archive.format, {}) if self.archive is not None else {}

    def described(self) -> tuple[str, ...]:
        """Return the sources for a report, without credentials."""
        kafka = (KAFKA,) if self.kafka else ()
        if self.archive is None:
            return kafka
        return (*kafka, *(masked_text(place) for place in self.archive.places))


def add_source_options(add: Callable[..., Any]) -> None:
    """Tell a parser of the options; ``add`` is its ``add_argument``."""
    add(
        "--source",
        action="append",
        default=[],
        help=f"Where history is read: {KAFKA} (the topic itself: default), a path or URL of an archive, or {TABLE}NAME "
        "of Spark's catalog; repeatable: what the topic still has counts from there.",
    )
    add(
        "--format",
        help="Format of the archives: parquet (default), json (lines), text (a line is a value), delta, "
        "iceberg, avro, ...",
    )
    add(
        "--columns",
        action="append",
        default=[],
        metavar="NAME=COLUMN[:FORM],...",
        help="Where Kafka's topic, partition, offset, timestamp, key, value, headers stand in an archive; "
        "e.g. offset=kafka_offset,timestamp=ts:ms,key=k:base64.",
    )
    add(
        "--read-option",
        action="append",
        default=[],
        metavar="K=V",
        help="Option of Spark's reader of the archives; repeatable.",
    )
    add(
        "--archive-isolation",
        choices=ISOLATIONS,
        help="Whether who wrote the archive read committed records only; has to be said.",
    )
    add(
        "--allow-gap",
        action="store_true",
        help="Go on where offsets inside the window are nowhere; coverage begins behind them, and the "
        "manifest lists them.",
    )
    add(
        "--packages",
        action="append",
        default=[],
        metavar="GROUP:ARTIFACT:VERSION,...",
        help="What Spark needs to read the archives.",
    )
    add(
        "--cluster-id",
        metavar="ID",
        help="Without --bootstrap: the cluster that the archive's offsets are of.",
    )
    add(
        "--topic-id",
        metavar="ID",
        help="Without --bootstrap: the topic's ID there (kafka-topics --describe).",
    )


def read_source_options(given: argparse.Namespace) -> SourceOptions:
    """Read the options.

    Raises:
        ConfigurationError: one line on the option that is missing, or contradicts another.
    """
    sources: list[str] = given.source or [KAFKA]
    kafka = KAFKA in sources
    archive = _archive(given, [source for source in sources if source != KAFKA])
    packages = tuple(part for text in given.packages for part in text.split(",") if part)
    if kafka and archive is not None and archive.isolation != ISOLATIONS[0]:
        raise ConfigurationError(
            f"--archive-isolation {archive.isolation} and --source {KAFKA} do not go together: the topic is read with "
            f"{ISOLATIONS[0]}, so that the result would be of neither; read the archive alone"
        )
    _check_identity(given, kafka=kafka)
    return SourceOptions(
        kafka=kafka,
        archive=archive,
        allow_gap=given.allow_gap,
        packages=packages,
        cluster_id=given.cluster_id or "",
        topic_id=given.topic_id or "",
    )


def no_sources() -> SourceOptions:
    """Return the options of a run that reads no history."""
    return SourceOptions(kafka=False, archive=None, allow_gap=False, packages=(), cluster_id="", topic_id="")


def absolute_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line whose sources and files are found from any folder: those that are here become absolute.

    So do sources that are not here, patterns among them, unless they may be on another file system.
    """
    placed: list[str] = []
    option = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if option:
            placed.append(_placed(option, argument))
            option = ""
        elif name in _FILES and equals:
            placed.append(f"{name}={_placed(name, value)}")
        else:
            placed.append(argument)
            option = argument if argument in _FILES else ""
    return placed


def _placed(option: str, text: str) -> str:
    if option == _SETTINGS and is_setting(text):
        return text
    is_path = option == "--source" and text not in ("", KAFKA) and ":" not in text
    return str(Path(text).absolute()) if is_path and not paths_are_elsewhere() else _absolute(text)


def _absolute(text: str) -> str:
    try:
        return str(Path(text).absolute()) if Path(text).exists() else text
    except (OSError, ValueError):
        return text


def _archive(given: argparse.Namespace, places: Sequence[str]) -> ArchiveOptions | None:
    if not places:
        unused = [name for name in _OF_ARCHIVES if getattr(given, name)]
        if unused:
            raise ConfigurationError(
                f"--{unused[0].replace('_', '-')} is about an archive, and none is given: give --source PATH"
            )
        return None
    if any(not place.removeprefix(TABLE) for place in places):
        raise ConfigurationError("--source is empty; give a path, a URL, or table:NAME")
    if given.archive_isolation is None:
        raise ConfigurationError(
            f"does {places[0]!r} have records of aborted transactions? say --archive-isolation "
            "read_committed if who wrote it read committed records only (or nobody writes transactions to "
            "the topic), else read_uncommitted"
        )
    return ArchiveOptions(
        places=tuple(places),
        format=given.format or "parquet",
        columns=parse_columns(given.columns) if given.columns else {},
        read_options=read_options("--read-option", given.read_option),
        isolation=given.archive_isolation,
    )


def _check_identity(given: argparse.Namespace, *, kafka: bool) -> None:
    named = bool(given.cluster_id) + bool(given.topic_id)
    if given.bootstrap is not None:
        if named:
            raise ConfigurationError(
                "--cluster-id and --topic-id are asked of --bootstrap: give one or the other"
            )
        return
    if kafka:
        raise ConfigurationError(f"--source {KAFKA} needs --bootstrap HOST:PORT")
    if named < 2:  # noqa: PLR2004 (both)
        raise ConfigurationError(
            "whose offsets does the archive have? give --bootstrap HOST:PORT, or both --cluster-id and --topic-id"
        )
    if given.client_config:
        raise ConfigurationError(
            "--client-config is for clients of Kafka, and without --bootstrap there is none: leave it out, or give "
            "--bootstrap HOST:PORT"
        )
    if given.group is not None:
        raise ConfigurationError("--group needs --bootstrap HOST:PORT: what it has committed is asked there")
