"""The job's command line (`spark_backfill.option_list`), read into values."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Final, NoReturn

from dedup_sdk._admin.client_config import client_settings
from dedup_sdk._checks import local_path, scheme_of_url, why_unusable
from dedup_sdk._core.reach import GRACE
from dedup_sdk._core.source_keys import source_spec_of
from dedup_sdk._masking import (
    is_url,
    masked_settings,
    masked_urls,
    redacted_url,
    shown,
    shown_location,
)
from dedup_sdk._store.output_folder import OutputFolder
from dedup_sdk._store.snapshot_source import require_driver
from dedup_sdk._strategy import IDLE_DAYS
from dedup_sdk._units.keys import spec_in_units
from dedup_sdk._window import Window
from dedup_sdk.errors import ConfigurationError, IdSpecError, SnapshotError
from dedup_sdk.ids import IdSpec, id_spec
from spark_backfill.archive_options import ISOLATIONS, KAFKA, TABLE, ArchiveOptions
from spark_backfill.base import open_base
from spark_backfill.client_config import files_of, read_options, secrets_of, take_consumers_own
from spark_backfill.column_map import NOWHERE, parse_columns, place_of
from spark_backfill.console import ERROR, FOLDER
from spark_backfill.option_list import GROUPS, OPTIONS, check_given, set_defaults
from spark_backfill.ordered_spec import CountSpec, LastIdSpec, OrderedSpec, Spec, UnitSpec
from spark_backfill.parallelism import checked_parallelism
from spark_backfill.places import absolute, absolute_source, check_places
from spark_backfill.publish import IfExists
from spark_backfill.reshard import Reshard

USAGE_STATUS: Final = 2
"""Exit status of wrong usage."""
_SESSIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
}
_UNKNOWN: Final = re.compile(r"--[a-z-]+")
_ALIKE: Final = 0.75
_OF_SPARK_SUBMIT: Final = frozenset({
    "--master", "--deploy-mode", "--conf", "--jars", "--repositories", "--exclude-packages", "--py-files", "--files",
    "--archives", "--properties-file", "--driver-memory", "--driver-cores", "--driver-java-options",
    "--driver-library-path", "--driver-class-path", "--executor-memory", "--executor-cores", "--num-executors",
    "--total-executor-cores", "--proxy-user", "--principal", "--keytab", "--queue", "--name", "--verbose",
})  # fmt: skip
_FROM_BASE: Final = ("topic", "id", "window")
"""Options that a base gives where the user does not."""
_MOST_PARTITIONS: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a run; see the help of each.

    - ``output``: a URL, or a path. ``bootstrap`` is empty where no broker is asked; then
      ``cluster_id`` and ``topic_id`` say whose offsets these are, else they are empty.
    - ``client_config`` goes to librdkafka. Without a ``group`` it is the history of nobody in particular.
    - ``reads_topic``: whether the topic itself is read; ``archive``: the archive to read, None: none; ``packages``:
      coordinates of packages that Spark needs for it.
    - ``existing``: what becomes of a snapshot at the output; ``resume``: parts that an earlier run has kept there are
      taken over.
    - ``base``: folder or URL of an earlier snapshot, that at the output where it is added to; None: there is none.
      ``compact``: nothing is added to it.
      ``expire_before_ms``: marks last seen before this timestamp (ms) are left out, None: none are for that;
      ``expire_before`` is its text.
    - ``last_id``: how IDs are compared; None: they are looked up. ``units``: which records belong together; None:
      none do.
    - ``parallelism``: for how many tasks at a time stages are cut; None: for the cluster's cores.
    """

    bootstrap: str
    topic: str
    id: IdSpec
    window: Window
    output: str
    group: str | None
    assume_processed: bool
    existing: IfExists
    resume: bool
    report: Path | None
    producer_header: str | None
    client_config: dict[str, str]
    reads_topic: bool
    archive: ArchiveOptions | None
    allow_gap: bool
    packages: tuple[str, ...]
    cluster_id: str
    topic_id: str
    base: str | None
    compact: bool
    expire_before: str | None
    expire_before_ms: int | None
    reshard: Reshard | None
    last_id: LastIdSpec | None
    units: UnitSpec | None
    parallelism: int | None = None

    @property
    def ordered(self) -> OrderedSpec | None:
        """The spec of a fold in offset order, from the beginning of the history; None: the last sighting counts."""
        counts = CountSpec(str(self.id), str(self.window)) if self.window.count is not None else None
        return self.last_id or self.units or counts

    @property
    def reach(self) -> Window:
        """How far back sightings are of use: the window, or that of a second opinion where it is longer."""
        return self.window if self.last_id is None else self.last_id.reach

    @property
    def spec(self) -> Spec:
        """The keys read of a record."""
        return self.ordered or self.id

    @property
    def vouched(self) -> bool:
        """Whether the user vouches for the history, instead of the group's own commits."""
        return self.group is None or self.assume_processed

    @property
    def isolation(self) -> str:
        """Which records are read, as a consumer's ``isolation.level``."""
        return ISOLATIONS[0] if self.archive is None else self.archive.isolation

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources for a report, without credentials."""
        places = () if self.archive is None else self.archive.places
        return (*([KAFKA] if self.reads_topic else []), *map(masked_urls, places))

    @property
    def session_settings(self) -> Mapping[str, str]:
        """The settings that a Spark session needs to read the archive."""
        return {} if self.archive is None else _SESSIONS.get(self.archive.format, {})

    @property
    def client_settings(self) -> dict[str, str]:
        """The settings of a client that reads the topic."""
        return {**self.client_config, "bootstrap.servers": self.bootstrap}

    @property
    def shown_output(self) -> str:
        """Where the snapshot goes, without the secrets of a URL."""
        return shown_location(self.output)

    @property
    def secrets(self) -> frozenset[str]:
        """Values that no line may show."""
        return secrets_of(self.client_config, {} if self.archive is None else self.archive.read_options)


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line, where it is told to: `error` for argparse, `refuse` for us."""

    say: Callable[[str], None]

    def error(self, message: str) -> NoReturn:
        if not message.startswith("unrecognized"):
            self.refuse(f"{message}; see {self.prog} --help")
        # Arguments that it does not know may be settings of a client.
        told, hint = masked_settings(message), "; "
        unknown = _UNKNOWN.search(message)
        if unknown and unknown[0] in _OF_SPARK_SUBMIT:
            hint = f": {unknown[0]} is an option of spark-submit: put it into $DEDUP_SPARK_ARGS; "
        elif unknown and (
            close := get_close_matches(unknown[0], self._option_string_actions, n=1, cutoff=_ALIKE)
        ):
            hint = f"; did you mean {close[0]}? "
        self.refuse(f"{told}{hint}see {self.prog} --help")

    def refuse(self, message: str, status: int = USAGE_STATUS) -> NoReturn:
        self.say(f"{ERROR}{masked_urls(message)}")
        sys.exit(status)


def job_parser() -> _Parser:
    """Return the parser of the job's options."""
    parser = _Parser(
        prog="dedup backfill",
        description="Rebuild a key store from a topic's history, as a snapshot that DedupConsumer installs.",
        epilog="Example: --bootstrap localhost:9092 --topic orders --id header:dedup-id --window 7d --group billing "
        "--output snapshot. Exit status: 0 done; 1 failed; 2 wrong usage; 130, 143 and 129 after Ctrl-C, SIGTERM and "
        "SIGHUP.",
        allow_abbrev=False,
    )
    for title, options in GROUPS.items():
        group = parser if title == OPTIONS else parser.add_argument_group(title)
        for option in options:
            group.add_argument(f"--{option.name}", **option.settings)
    return parser


def parse_options(arguments: Sequence[str], say: Callable[[str], None]) -> Options:
    """Read the command line.

    When it is wrong, one line goes to ``say`` and the process ends with status 2; with 1 where the base cannot be read.
    """
    parser = job_parser()
    parser.say = say
    given = parser.parse_args(arguments)
    try:
        given.group = _one_group(given.group)
        client = _client(given)
        check_given(given)
        set_defaults(given)
        _fill(given)
        missing = [f"--{name}" for name in (*_FROM_BASE, "output") if getattr(given, name) is None]
        if missing:
            parser.error(f"the following arguments are required: {', '.join(missing)}")
        return _options(given, client)
    except ConfigurationError as error:
        parser.refuse(str(error))
    except SnapshotError as error:
        parser.refuse(str(error), 1)


def _one_group(names: Sequence[str]) -> str | None:
    """Return the group whose history is read: of two, one would be left out in silence."""
    if len(set(names)) > 1:
        raise ConfigurationError("--group is given more than once: make a snapshot for each")
    return names[0] if names else None


def _client(given: argparse.Namespace) -> dict[str, str]:
    """Return the settings of librdkafka.

    The servers among them are put into ``given.bootstrap``, the group into ``given.group``, where no option names any.
    """
    client = client_settings("--client-config", given.client_config)
    servers, group = take_consumers_own(client)
    if not given.compact:
        given.bootstrap = servers if given.bootstrap is None else given.bootstrap
        if group and not given.group and not given.whole_topic:
            given.group = group
    # Tasks open them in other folders. Who submits the job without us sends files along, or has Spark find them.
    return client | (files_of(client) if FOLDER in os.environ else {})


def _fill(given: argparse.Namespace) -> None:
    """Put into ``given`` the options that a base, or the strategy, gives where the user does not."""
    if given.add and given.output is not None and OutputFolder(given.output).manifest() is not None:
        given.base = given.output
    given.base = given.base and absolute(given.base)
    if given.order is not None and given.window is None:
        given.window = f"{IDLE_DAYS}d"
    if given.base is None or not any(getattr(given, name) is None for name in _FROM_BASE):
        return
    told = open_base(given.base).manifest
    if given.id is None:
        _refuse_others(given.base, told.id_spec)
    for name, value in zip(_FROM_BASE, (told.topic, told.id_spec, told.window), strict=True):
        if getattr(given, name) is None:
            setattr(given, name, value)


def _options(given: argparse.Namespace, client: dict[str, str]) -> Options:
    units, last_id = _units(given), _last_id(given)
    spec, window = id_spec(given.id), Window.parse(given.window)
    if window.is_off:
        raise ConfigurationError(
            "--window off: a consumer whose window is off takes no snapshot; give the window of one that does, e.g. 7d"
        )
    if given.group is None and not given.whole_topic and not given.compact:
        raise ConfigurationError(
            "whose history? give --group GROUP (what that group has processed), or --whole-topic (you vouch "
            "that whoever installs the snapshot has processed all of the topic)"
        )
    reach = window if last_id is None else last_id.reach
    expire_before_ms = None
    if given.expire_before is not None:
        option = "--window" if reach == window else "--otherwise-window"
        expire_before_ms = _expiry_ms(given.expire_before, reach, option)
    sources = given.source or ([] if given.compact else [KAFKA])
    places = [source for source in sources if source != KAFKA]
    archive = _archive(given, places)
    reads_topic = KAFKA in sources
    if not given.compact:
        _check_sources(given, archive, reads_topic=reads_topic)
    output = _output(given)
    if given.report is not None:
        local_path("--report ", given.report, advice="give a folder that this machine sees")
    check_places(given.output, sources=places, report=given.report)
    return Options(
        bootstrap=given.bootstrap or "",
        topic=given.topic,
        id=spec,
        window=window,
        output=output,
        group=given.group,
        assume_processed=given.assume_processed,
        existing=_existing(given),
        resume=given.resume,
        report=None if given.report is None else Path(given.report),
        producer_header=given.producer_header,
        client_config=client,
        reads_topic=reads_topic,
        archive=archive,
        allow_gap=given.allow_gap,
        packages=tuple(part for text in given.packages for part in text.split(",") if part),
        cluster_id=given.cluster_id or "",
        topic_id=given.topic_id or "",
        base=given.base,
        compact=given.compact,
        expire_before=given.expire_before,
        expire_before_ms=expire_before_ms,
        reshard=_reshard(given, window, archive),
        last_id=last_id,
        units=units,
        parallelism=checked_parallelism(given.parallelism),
    )


def _existing(given: argparse.Namespace) -> IfExists:
    if given.add:
        return IfExists.ADDED_TO
    return IfExists.REPLACED if given.overwrite else IfExists.REFUSED


def _units(given: argparse.Namespace) -> UnitSpec | None:
    """Return the spec of units; None: no record belongs to one."""
    if given.unit is None:
        return None
    spec = UnitSpec(
        id=given.id,
        unit=given.unit,
        size_header=given.unit_size_header,
        end_header=given.unit_end_header,
        mode=given.unit_mode,
        repeats=given.unit_repeats,
        window=given.window,
        records=given.unit_records,
    )
    # Whatever is wrong is told before anything is asked.
    _ = spec.keys
    return spec


def _last_id(given: argparse.Namespace) -> LastIdSpec | None:
    """Return how IDs are compared; None: they are looked up."""
    if given.order is None:
        return None
    if Window.parse(given.window).count is not None:
        raise ConfigurationError(
            f"--window {given.window}: with --order it is how long a silent source is remembered; give a "
            f"length of time alone, e.g. {IDLE_DAYS}d"
        )
    if given.otherwise_window is not None and Window.parse(given.otherwise_window).count is not None:
        raise ConfigurationError(
            f"--otherwise-window {given.otherwise_window}: a second opinion's window is a length of time "
            "alone; give e.g. 7d"
        )
    return LastIdSpec(
        id=given.id,
        order=given.order,
        source=given.source_id,
        window=given.window,
        reorder_depth=given.reorder_depth,
        otherwise=given.otherwise,
        otherwise_window=given.otherwise_window,
    ).canonical()


def _archive(given: argparse.Namespace, places: Sequence[str]) -> ArchiveOptions | None:
    """Return the archive to read; None: there is none."""
    if not places:
        return None
    if any(not place.removeprefix(TABLE) for place in places):
        raise ConfigurationError("--source is empty; give a path, a URL, or table:NAME")
    if given.archive_isolation is None:
        raise ConfigurationError(
            f"does {shown(places[0])} have records of aborted transactions? say --archive-isolation "
            "read_committed if who wrote it read committed records only (or nobody writes transactions to "
            "the topic), else read_uncommitted"
        )
    return ArchiveOptions(
        places=tuple(map(absolute_source, places) if FOLDER in os.environ else places),
        format=given.format or "parquet",
        columns=parse_columns(given.columns) if given.columns else {},
        read_options=read_options(given.read_option),
        isolation=given.archive_isolation,
    )


def _check_sources(given: argparse.Namespace, archive: ArchiveOptions | None, *, reads_topic: bool) -> None:
    """Refuse sources that do not go together, and those of which nobody knows whose offsets they have."""
    if reads_topic and archive is not None and archive.isolation != ISOLATIONS[0]:
        raise ConfigurationError(
            f"--archive-isolation {archive.isolation} and --source {KAFKA} do not go together: the topic is read with "
            f"{ISOLATIONS[0]}, so that the result would be of neither; read the archive alone"
        )
    named = bool(given.cluster_id) + bool(given.topic_id)
    if given.bootstrap is not None:
        if named:
            raise ConfigurationError(
                "--cluster-id and --topic-id are asked of --bootstrap: give one or the other"
            )
        return
    if reads_topic:
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


def _reshard(given: argparse.Namespace, window: Window, archive: ArchiveOptions | None) -> Reshard | None:
    """Return how the topic was widened; None: nothing is re-sharded."""
    if given.partitions is None:
        return None
    if not 0 < given.partitions <= _MOST_PARTITIONS:
        raise ConfigurationError(
            f"--partitions {given.partitions}: a topic has 1 to {_MOST_PARTITIONS} partitions; give the "
            "number that it has now"
        )
    if window.count is not None:
        raise ConfigurationError(
            f"--window {window} cannot be re-sharded: a count is one of a partition's own records; give a "
            "window by time alone"
        )
    if archive is not None and place_of(archive.columns, "key").column == NOWHERE:
        raise ConfigurationError(
            f"--partitions {given.partitions} places records by their keys, and --columns key={NOWHERE} "
            "says that there are none: name the column of the keys"
        )
    return Reshard(partitions=given.partitions, partitioner=given.partitioner)


def _output(given: argparse.Namespace) -> str:
    """Return the output, a URL or a path."""
    output: str = given.output
    if not is_url(output):
        if scheme := scheme_of_url(output):
            raise ConfigurationError(
                f"--output {scheme}:/*** is a URL that lacks a slash: give {scheme}://..."
            )
        if why := why_unusable(output):
            raise ConfigurationError(f"--output {shown(output)} {why}: give another folder")
        return absolute(output)
    require_driver(output, "--output ")
    scheme, _, path = redacted_url(output).partition("://")
    if scheme in {"file", "local"} and not path.startswith("/"):
        raise ConfigurationError(
            f"--output {scheme}://{path} is no absolute path: give {scheme}:///srv/snapshot, or a path"
        )
    if not path.strip("/"):
        raise ConfigurationError(
            f"--output {redacted_url(output)} names no place: give e.g. s3://bucket/snapshot"
        )
    return output


def _refuse_others(base: str, id_text: str) -> None:
    """Refuse a base whose marks are more than last sightings, and an ID spec that names code.

    A file must not decide which code runs here.
    """
    if source_spec_of(id_text) is not None:
        raise ConfigurationError(
            f"base {shown(base)} is of LastId: what it remembers cannot be added to: rebuild in full with "
            "--id and --order, without --base"
        )
    if spec_in_units(id_text) is not None:
        raise ConfigurationError(
            f"base {shown(base)} has marks of units, and nothing can be added to these: rebuild in full with "
            "--id and --unit, without --base"
        )
    try:
        id_spec(id_text, imports=False)
    except IdSpecError as error:
        raise ConfigurationError(
            f"base {shown(base)} cannot say which ID spec to use: {error}, with --id SPEC"
        ) from None


def _expiry_ms(text: str, reach: Window, option: str) -> int:
    """Return the time (ms since 1970) before which IDs are forgotten: a date or time in ISO's form, or an age.

    ``reach``: after which they are forgotten anyway; ``option``: which one gave it.

    Raises:
        ConfigurationError: it is neither, lies in the future, or is an age that is never reached.
    """
    now_ms = time.time_ns() // 1_000_000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return max(now_ms - _age_ms(text, reach, option), 0)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    found_ms = round(moment.timestamp() * 1_000)
    if found_ms > now_ms:
        raise ConfigurationError(
            f"--expire-before {shown(text)} lies in the future: everything would be forgotten; give an earlier time"
        )
    return max(found_ms, 0)


def _age_ms(text: str, reach: Window, option: str) -> int:
    try:
        age_ms = None if text.endswith("n") else Window.parse(text).time_ms
    except ConfigurationError:
        age_ms = None
    if age_ms is None:
        raise ConfigurationError(
            f"--expire-before {shown(text)} is no time: give e.g. 2024-05-01, 2024-05-01T12:00:00+02:00, or "
            "an age such as 30d"
        )
    # A date that is as long ago is not refused: it grows older by itself.
    if reach.time_ms is not None and age_ms >= reach.time_ms + reach.time_ms // GRACE:
        raise ConfigurationError(
            f"--expire-before {text} is longer than {option} {reach}, after which IDs are forgotten anyway: "
            "give a shorter age, or leave it out"
        )
    return age_ms
