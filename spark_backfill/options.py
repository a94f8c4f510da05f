"""The job's command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from dedup_sdk._kafka.client_config import CLIENT_CONFIG_HELP, client_settings
from dedup_sdk._kafka.error_text import masked_settings, masked_urls
from dedup_sdk._store.snapshot_source import is_url, redacted_url, require_driver
from dedup_sdk._window import Window
from dedup_sdk.errors import ConfigurationError, SnapshotError
from dedup_sdk.ids import IdSpec, id_spec
from spark_backfill.base_options import BaseOptions, add_base_options, check_expiry, read_base_options
from spark_backfill.client_config import refuse_ours, secrets_of, take_consumers_own
from spark_backfill.console import ERROR
from spark_backfill.last_id_options import add_last_id_options, read_last_id_spec
from spark_backfill.last_id_spec import LastIdSpec, OrderedSpec, Spec
from spark_backfill.places import check_places
from spark_backfill.reshard import Reshard
from spark_backfill.reshard_options import add_reshard_options, read_reshard_options
from spark_backfill.source_options import (
    SourceOptions,
    add_source_options,
    no_sources,
    read_source_options,
)
from spark_backfill.unit_options import add_unit_options, read_units
from spark_backfill.unit_spec import UnitSpec

USAGE_STATUS = 2
"""Exit status of wrong usage."""
OPTIONS = "Options"
"""The title of the group of options that most runs have."""
Add = Callable[..., Any]
"""Adds one option: takes the arguments of `argparse.ArgumentParser.add_argument`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a run; see the help of each.

    ``client_config`` goes to librdkafka. ``bootstrap`` is empty where no broker is asked.
    ``last_id``: how IDs are compared; None: they are looked up. ``units``: which records belong together; None:
    none do. ``url`` is the output where that is no folder, else empty. Without a ``group`` it is the history of
    nobody in particular.
    """

    bootstrap: str
    topic: str
    id: IdSpec
    window: Window
    output: Path
    url: str
    scratch: Path | None
    group: str | None
    assume_processed: bool
    overwrite: bool
    report: Path | None
    producer_header: str | None
    client_config: dict[str, str]
    sources: SourceOptions
    base: BaseOptions
    reshard: Reshard | None = None
    last_id: LastIdSpec | None = None
    units: UnitSpec | None = None

    @property
    def ordered(self) -> OrderedSpec | None:
        """The spec of a fold in offset order, from the beginning of the history; None: IDs are looked up one by one."""
        return self.last_id or self.units

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
    def shown_output(self) -> str:
        """Where the snapshot goes, without the secrets of a URL."""
        return redacted_url(self.url) if self.url else str(self.output)

    @property
    def client_settings(self) -> dict[str, str]:
        """The settings of a client that reads the topic."""
        return {**self.client_config, "bootstrap.servers": self.bootstrap}

    @property
    def secrets(self) -> frozenset[str]:
        """Values that no line may show."""
        archive = self.sources.archive
        return secrets_of(self.client_config, archive.read_options if archive is not None else {})


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line, where it is told to: `error` for argparse, `refuse` for us."""

    say: Callable[[str], None]

    def error(self, message: str) -> NoReturn:
        # Arguments that it does not know may be settings of a client.
        shown = masked_settings(message) if message.startswith("unrecognized") else message
        self.refuse(f"{shown}; see {self.prog} --help")

    def refuse(self, message: str) -> NoReturn:
        self.say(f"{ERROR}{masked_urls(message)}")
        sys.exit(USAGE_STATUS)


def parse_options(arguments: Sequence[str], say: Callable[[str], None]) -> Options:
    """Read the command line; when it is wrong, one line goes to ``say`` and the process ends with status 2."""
    parser = job_parser()
    parser.say = say
    given = parser.parse_args(arguments)
    try:
        client = _client(given)
    except ConfigurationError as error:
        parser.refuse(str(error))
    last_id, units = _ordered(parser, given)
    base = _base(parser, given)
    missing = [f"--{name}" for name in ("topic", "id", "window", "output") if getattr(given, name) is None]
    if missing:
        parser.error(f"the following arguments are required: {', '.join(missing)}")
    if given.producer_header is not None and given.report is None:
        parser.refuse("--producer-header needs --report: only the report tells producers apart")
    named = (
        "bootstrap",
        "topic",
        "output",
        "scratch",
        "cluster_id",
        "topic_id",
        "report",
    )
    for option in (*named, "producer_header"):
        if getattr(given, option) == "":
            parser.refuse(f"--{option.replace('_', '-')} is empty; give a value, see --help")
    try:
        group = _group(given)
        spec, window = id_spec(given.id), _window(given.window)
        reach = window if last_id is None else last_id.reach
        check_expiry(
            given.expire_before, reach, option="--window" if reach == window else "--otherwise-window"
        )
        sources = no_sources() if base.compact else read_source_options(given)
        reshard = None if base.compact else read_reshard_options(given, window, sources)
        url = _url(given)
        _refuse_urls(given)
        places = () if sources.archive is None else sources.archive.places
        check_places(given.output, sources=places, report=given.report, scratch=given.scratch)
    except ConfigurationError as error:
        parser.refuse(str(error))
    return Options(
        bootstrap=given.bootstrap or "",
        topic=given.topic,
        id=spec,
        window=window,
        output=Path(given.output),
        url=url,
        scratch=None if given.scratch is None else Path(given.scratch),
        group=group,
        assume_processed=given.assume_processed,
        overwrite=given.overwrite,
        producer_header=given.producer_header,
        report=None if given.report is None else Path(given.report),
        client_config=client,
        sources=sources,
        reshard=reshard,
        base=base,
        last_id=last_id,
        units=units,
    )


def _client(given: argparse.Namespace) -> dict[str, str]:
    """Return the settings of librdkafka.

    The servers among them are put into ``given.bootstrap``, the group into ``given.group``, where no option names any.
    """
    client = client_settings("--client-config", given.client_config)
    servers, group = take_consumers_own(client)
    if given.bootstrap is None:
        given.bootstrap = servers
    if group and not (given.group or given.whole_topic or given.compact):
        given.group = group
    refuse_ours("--client-config", client)
    return client


def _group(given: argparse.Namespace) -> str | None:
    """Read whose history it is; None where the user vouches for all of the topic."""
    group: str | None = given.group
    if group == "":
        raise ConfigurationError("--group is empty; give a value, see --help")
    if group is None and not given.whole_topic and not given.compact:
        raise ConfigurationError(
            "whose history? give --group GROUP (what that group has processed), or --whole-topic (you vouch "
            "that whoever installs the snapshot has processed all of the topic)"
        )
    if group is not None and given.whole_topic:
        raise ConfigurationError(
            f"--whole-topic and --group {group} exclude each other: give --group, or vouch for all of the topic"
        )
    if given.assume_processed and group is None:
        raise ConfigurationError(
            "--assume-processed needs --group; with --whole-topic you vouch for everything anyway"
        )
    return group


def _ordered(parser: _Parser, given: argparse.Namespace) -> tuple[LastIdSpec | None, UnitSpec | None]:
    try:
        units = read_units(given)
        return read_last_id_spec(given), units
    except ConfigurationError as error:
        parser.refuse(str(error))


def _base(parser: _Parser, given: argparse.Namespace) -> BaseOptions:
    if given.base == "":
        parser.refuse("--base is empty; give the folder or URL of a snapshot, see --help")
    try:
        return read_base_options(given)
    except ConfigurationError as error:
        parser.refuse(str(error))
    except SnapshotError as error:
        parser.say(f"{ERROR}{masked_urls(str(error))}")
        sys.exit(1)


def _window(text: str) -> Window:
    window = Window.parse(text)
    if window.is_off:
        raise ConfigurationError(
            "--window off: a consumer whose window is off takes no snapshot; give the window of one that does, e.g. 7d"
        )
    return window


def _refuse_urls(given: argparse.Namespace) -> None:
    for option, place in (("--report", given.report), ("--scratch", given.scratch)):
        if place is not None and is_url(place):
            raise ConfigurationError(
                f"{option} {redacted_url(place)} is a URL; give a folder that this machine sees"
            )


def _url(given: argparse.Namespace) -> str:
    output: str = given.output
    if not is_url(output):
        if given.scratch is not None:
            raise ConfigurationError(
                f"--scratch is for an output behind a URL: {output!r} is a folder, beside which the snapshot is made"
            )
        return ""
    if given.overwrite:
        raise ConfigurationError(
            f"--overwrite replaces a folder, and {redacted_url(output)} is a URL: a snapshot there is never "
            "overwritten, choose another"
        )
    require_driver(output)
    if not redacted_url(output).partition("://")[2].strip("/"):
        raise ConfigurationError(
            f"--output {redacted_url(output)} names no place: give e.g. s3://bucket/snapshot"
        )
    return output


def _add_history_options(add: Add) -> None:
    """Add the options that say whose history is folded."""
    add(
        "--group",
        metavar="GROUP",
        help="Whose history: up to what this group has committed, from where its own history begins; this or "
        "--whole-topic [default: the client config's group.id].",
    )
    add(
        "--whole-topic",
        action="store_true",
        help="Instead of --group: all of the topic, up to its end; you vouch that whoever installs it has "
        "processed that.",
    )
    add(
        "--assume-processed",
        action="store_true",
        help="With --group: you vouch that the group processed everything before its committed offsets.",
    )


def _add_report_options(add: Add) -> None:
    """Add the options of the page about duplicates."""
    add(
        "--report",
        metavar="DIR",
        help="Write a page about duplicates to this folder: how late they come, and which window hides them "
        "(extra [report]).",
    )
    add(
        "--producer-header",
        metavar="NAME",
        help="With --report: the header that names a record's producer, to tell who sends duplicates.",
    )


def add_job_options(group: Callable[[str], Add]) -> None:
    """Tell of every option of the job, in groups.

    ``group`` is called once for the title of each group, and returns what takes its options: ``add_argument`` of an
    `argparse.ArgumentParser`, or a function with the same arguments.
    """
    add = group(OPTIONS)
    add(
        "--bootstrap",
        metavar="HOST:PORT",
        help="Bootstrap servers of the cluster [default: bootstrap.servers of --client-config].",
    )
    add("--topic", help="The topic to read.")
    add("--id", metavar="SPEC", help="The ID spec, e.g. header:dedup-id, key, json:/order/id.")
    add(
        "--window",
        help="How long an ID is remembered, e.g. 7d, 36h, 20000n (a count), 7d+20000n.",
    )
    add(
        "--output",
        metavar="DIR|URL",
        help="Folder of the snapshot, which must not exist or be empty, and be no link; or a URL, e.g. "
        "s3://bucket/snapshot (extra [remote]).",
    )
    add(
        "--scratch",
        metavar="DIR",
        help="With a URL: where the snapshot is made before it is uploaded "
        "[default: the temporary folder]; on a cluster a folder that driver and workers share.",
    )
    _add_history_options(add)
    add("--overwrite", action="store_true", help="Replace the snapshot that is in DIR.")
    add(
        "--client-config",
        action="append",
        default=[],
        metavar="FILE|KEY=VALUE",
        help=CLIENT_CONFIG_HELP,
    )
    add_source_options(group("Where history is read"))
    add_base_options(group("An earlier snapshot, and what is forgotten"))
    add_last_id_options(group("LastId"))
    add_unit_options(group("Units"))
    add_reshard_options(group("A topic with more partitions than before"))
    _add_report_options(group("The page about duplicates"))


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
    add_job_options(
        lambda title: (
            parser.add_argument if title == OPTIONS else parser.add_argument_group(title).add_argument
        )
    )
    return parser
