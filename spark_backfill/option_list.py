"""The options of the job, as one list: of it are made the parser, the command's help, docs/cli.md, and most checks."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from dedup_sdk._admin.client_config import CLIENT_CONFIG_HELP
from dedup_sdk._strategy import IDLE_DAYS, REORDER_DEPTH
from dedup_sdk._units.unit import Repeats, Unit, UnitMode
from dedup_sdk.errors import ConfigurationError
from spark_backfill.archive_options import ISOLATIONS, KAFKA, TABLE
from spark_backfill.partitioner import PARTITIONERS

_UNIT: Final = Unit()
_NO_ORDER: Final = "it is an option of LastId; say how IDs compare, e.g. --order integer"
_NO_UNIT: Final = f"say what names a record's unit, e.g. --unit {_UNIT.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of the command line.

    - ``kind``: ``text``, ``number``, ``flag``, or ``list`` (texts, repeatable); ``choices``: the texts it may have.
    - ``needs``: options without which it is refused, each with the remedy; ``beside``: those with which it is, each
      with the reason.
    - ``default``: what it is where it is not given, and what it needs is (`set_defaults`); None: nothing, or the help
      says what.
    - ``reads``: it is about the history that is read, of which ``--compact`` reads none; ``archive``: it is about an
      archive.
    """

    name: str
    help: str
    metavar: str | None = None
    kind: str = "text"
    choices: tuple[str, ...] | None = None
    needs: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, str] = field(default_factory=dict)
    reads: bool = False
    archive: bool = False
    default: Any = None

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `argparse.ArgumentParser.add_argument` beside the name."""
        kinds: dict[str, dict[str, Any]] = {
            "number": {"type": int},
            "flag": {"action": "store_true"},
            "list": {"action": "append", "default": []},
        }
        help_text = (
            self.help if self.default is None else f"{self.help.removesuffix('.')} [default: {self.default}]."
        )
        settings = kinds.get(self.kind, {}) | {"help": help_text}
        if self.choices is not None:
            settings["choices"] = self.choices
        return settings if self.metavar is None else settings | {"metavar": self.metavar}

    def of(self, given: argparse.Namespace) -> Any:
        """Return its value, as the command line gave it."""
        return getattr(given, self.name.replace("-", "_"))

    def is_given(self, given: argparse.Namespace) -> bool:
        """Whether it was given."""
        value = self.of(given)
        return value is not None and value is not False and value != []


OPTIONS: Final = "Options"
"""The title of the group of options that most runs have."""
GROUPS: Final[Mapping[str, Sequence[Option]]] = {
    OPTIONS: (
        Option(
            name="bootstrap",
            metavar="HOST:PORT",
            help="Bootstrap servers of the cluster [default: bootstrap.servers of --client-config].",
            reads=True,
        ),
        Option(name="topic", help="The topic to read."),
        Option(
            name="id",
            metavar="SPEC",
            help="The ID spec, e.g. header:dedup-id, key, json:/order/id.",
        ),
        Option(
            name="window",
            help="How long an ID is remembered, e.g. 7d, 36h, 20000n (a count), 7d+20000n.",
        ),
        Option(
            name="output",
            metavar="DIR|URL",
            help="Where the snapshot goes, a new or an empty folder: a path that driver and workers share, or a URL, "
            "e.g. s3://bucket/snapshot (with the driver of fsspec on all of them).",
        ),
        Option(
            name="group",
            kind="list",
            metavar="GROUP",
            help="Whose history: up to what this group has committed, from where its own history begins; this or "
            "--whole-topic [default: the client config's group.id].",
            reads=True,
        ),
        Option(
            name="whole-topic",
            kind="flag",
            help="Instead of --group: all of the topic, up to its end; you vouch that whoever installs it has "
            "processed that.",
            beside={"group": "give --group, or vouch for all of the topic"},
            reads=True,
        ),
        Option(
            name="assume-processed",
            kind="flag",
            help="With --group: you vouch that the group processed everything before its committed offsets.",
            needs={"group": "with --whole-topic you vouch for everything anyway"},
            reads=True,
        ),
        Option(
            name="overwrite",
            kind="flag",
            help="Replace the snapshot that is there, when the new one is whole.",
        ),
        Option(
            name="client-config",
            kind="list",
            metavar="FILE|KEY=VALUE",
            help=CLIENT_CONFIG_HELP,
            reads=True,
        ),
    ),
    "Where history is read": (
        Option(
            name="source",
            kind="list",
            help=f"Where history is read: {KAFKA} (the topic itself: default), a path or URL of an archive, or "
            f"{TABLE}NAME of Spark's catalog; repeatable: what the topic still has counts from there.",
            reads=True,
        ),
        Option(
            name="format",
            help="Format of the archives: parquet (default), json (lines), text (a line is a value), delta, "
            "iceberg, avro, ...",
            reads=True,
            archive=True,
        ),
        Option(
            name="columns",
            kind="list",
            metavar="NAME=COLUMN[:FORM],...",
            help="Where Kafka's topic, partition, offset, timestamp, key, value, headers stand in an archive; "
            "e.g. offset=kafka_offset,timestamp=ts:ms,key=k:base64,header.dedup-id=event_id.",
            reads=True,
            archive=True,
        ),
        Option(
            name="read-option",
            kind="list",
            metavar="K=V",
            help="Option of Spark's reader of the archives; repeatable.",
            reads=True,
            archive=True,
        ),
        Option(
            name="archive-isolation",
            choices=ISOLATIONS,
            help="Whether who wrote the archive read committed records only; has to be said.",
            reads=True,
            archive=True,
        ),
        Option(
            name="allow-gap",
            kind="flag",
            help="Go on where offsets inside the window are nowhere; coverage begins behind them, and the "
            "manifest lists them.",
            reads=True,
        ),
        Option(
            name="packages",
            kind="list",
            metavar="GROUP:ARTIFACT:VERSION,...",
            help="What Spark needs to read the archives.",
            reads=True,
        ),
        Option(
            name="cluster-id",
            metavar="ID",
            help="Without --bootstrap: the cluster that the archive's offsets are of.",
            reads=True,
        ),
        Option(
            name="topic-id",
            metavar="ID",
            help="Without --bootstrap: the topic's ID there (kafka-topics --describe).",
            reads=True,
        ),
        Option(
            name="parallelism",
            kind="number",
            metavar="N",
            help="Cut the work for N tasks at a time, where a cluster grows with it [default: the cores that the "
            "cluster has when a stage begins].",
        ),
    ),
    "An earlier snapshot, and what is forgotten": (
        Option(
            name="base",
            metavar="SNAPSHOT",
            help="Folder or URL of an earlier snapshot of this history: only what came after it is read; "
            "--topic, --id and --window are taken from it where they are not given.",
        ),
        Option(
            name="resume",
            kind="flag",
            help="Go on where a run to this --output failed or was killed: partitions that it has finished are not "
            "read again. Whatever is asked for must be the same; say it only when that run is over.",
        ),
        Option(
            name="add",
            kind="flag",
            help="Add to the snapshot that is at --output what has come since, in files of its own: the files that are "
            "there stay. Where there is none, make it.",
            beside={
                "overwrite": "with --add the snapshot is added to, and not replaced",
                "base": "with --add the base is the snapshot at --output: leave out --base",
                "compact": "compact in a run of its own, without --add",
                "expire-before": "files that are there stay as they are; expire in a run with --base and --overwrite",
                "partitions": "where the keys of its records go is not known any more; make a new one, without --add",
                "order": "what a source remembers cannot be added to; rebuild in full without --add",
                "unit": "what a unit left depends on all that came before it; rebuild in full without --add",
            },
        ),
        Option(
            name="compact",
            kind="flag",
            help="With --base: add nothing; write it again as few sorted files, without what its window does not "
            "reach any more.",
            needs={"base": "the snapshot to be written again"},
        ),
        Option(
            name="expire-before",
            metavar="TIME",
            help="Leave out IDs last seen before that: 2024-05-01, 2024-05-01T12:00:00+02:00 (UTC unless it "
            "says), or an age, e.g. 30d.",
        ),
    ),
    "LastId": (
        Option(
            name="order",
            metavar="NAME",
            help="For LastId: how two IDs compare, e.g. integer, ulid, snowflake(epoch_ms=1420070400000), or "
            f"py:MODULE:NAME; --window is then how long a silent source is remembered ({IDLE_DAYS}d where "
            "it is not given).",
            beside={
                "base": "what a source remembers cannot be added to; rebuild in full without --base",
                "compact": "what a source remembers is folded from the history; rebuild in full without --compact",
                "partitions": "a source lies in one partition, and its IDs are not taken to another",
                "report": "its page is about IDs that are looked up; make it in a run without --order",
            },
        ),
        Option(
            name="source-id",
            metavar="SPEC",
            help="With --order: the ID of the source inside a partition, e.g. header:producer [default: the "
            "partition is one source].",
            needs={"order": _NO_ORDER},
        ),
        Option(
            name="reorder-depth",
            kind="number",
            metavar="N",
            help="With --order: how much below its last ID a source remembers.",
            default=REORDER_DEPTH,
            needs={"order": _NO_ORDER},
        ),
        Option(
            name="otherwise",
            metavar="SPEC",
            help="With --order: the ID that LastId(otherwise=Lookup(...)) looks up in doubt, e.g. "
            "header:order-id; every record leaves a mark for it.",
            needs={
                "order": _NO_ORDER,
                "otherwise-window": "give the window of the consumer's otherwise=Lookup(...), e.g. 7d",
            },
        ),
        Option(
            name="otherwise-window",
            metavar="WINDOW",
            help="With --otherwise: how long that ID is remembered, a length of time, e.g. 7d.",
            needs={
                "order": _NO_ORDER,
                "otherwise": "say which ID a second opinion looks up, e.g. --otherwise header:order-id",
            },
        ),
    ),
    "Units": (
        Option(
            name="unit",
            metavar="SPEC",
            help=f"For Lookup(unit=...): what names the unit of a record, e.g. {_UNIT.id}; records of one stand "
            "or fall together.",
            beside={
                "order": "a unit is judged by IDs that are looked up; leave one of them out",
                "base": "what a unit left depends on all that came before it; rebuild in full without --base",
                "compact": "units are folded from the history; rebuild in full without --compact",
                "partitions": "a unit lies in one partition, and its IDs are not taken to another",
                "report": "its page is about IDs that are looked up one by one; make it in a run without --unit",
            },
        ),
        Option(
            name="unit-size-header",
            metavar="NAME",
            help="With --unit: the header that says how many records a unit has.",
            default=_UNIT.size_header,
            needs={"unit": _NO_UNIT},
        ),
        Option(
            name="unit-end-header",
            metavar="NAME",
            help="With --unit: the header that marks a unit's last record.",
            default=_UNIT.end_header,
            needs={"unit": _NO_UNIT},
        ),
        Option(
            name="unit-mode",
            metavar="MODE",
            help=f"With --unit: {' or '.join(get_args(UnitMode))}.",
            default=get_args(UnitMode)[0],
            needs={"unit": _NO_UNIT},
        ),
        Option(
            name="unit-repeats",
            metavar="WHAT",
            help=f"With --unit: {' or '.join(get_args(Repeats))} a record whose ID an earlier one of its unit bears.",
            default=_UNIT.repeats,
            needs={"unit": _NO_UNIT},
        ),
        Option(
            name="unit-records",
            kind="number",
            metavar="N",
            help="With --unit: a unit with more records fails.",
            default=_UNIT.records,
            needs={"unit": _NO_UNIT},
        ),
    ),
    "A topic with more partitions than before": (
        Option(
            name="partitions",
            kind="number",
            metavar="N",
            help="Re-shard: the topic has N partitions now, so that IDs are also remembered in the partition "
            "where their record's key goes now; with --partitioner and --group.",
            needs={"partitioner": f"say how the producers place keys, {' or '.join(PARTITIONERS)}"},
            beside={
                "base": "where the keys of the base's records go is not known any more; rebuild in full without --base",
                "whole-topic": "marks go to other partitions, where nobody sees how far a group is in theirs, so that "
                "messages that were never handled may be hidden; give --group GROUP",
                "assume-processed": "marks go to other partitions, where nobody sees how far a group is in theirs, so "
                "that messages that were never handled may be hidden; leave it out",
            },
        ),
        Option(
            name="partitioner",
            choices=PARTITIONERS,
            help="With --partitions: how the topic's producers place keys; murmur2 is Java's default, "
            "consistent_random librdkafka's.",
            needs={"partitions": "only to re-shard a topic are its keys placed anew"},
        ),
    ),
    "The page about duplicates": (
        Option(
            name="report",
            metavar="DIR",
            help="Write a page about duplicates to this folder: how late they come, and which window hides them "
            "(extra [report]).",
            reads=True,
        ),
        Option(
            name="producer-header",
            metavar="NAME",
            help="With --report: the header that names a record's producer, to tell who sends duplicates.",
            needs={"report": "only the report tells producers apart"},
            reads=True,
        ),
    ),
}
_ALL: Final = {option.name: option for group in GROUPS.values() for option in group}


def check_given(given: argparse.Namespace) -> None:
    """Refuse options that contradict each other, lack one that they need, or are empty.

    Raises:
        ConfigurationError: one line on the first of them.
    """
    there = [option for option in _ALL.values() if option.is_given(given)]
    names = {option.name for option in there}
    for option in there:
        if other := next((other for other in option.beside if other in names), None):
            raise ConfigurationError(
                f"--{other} and --{option.name} do not go together: {option.beside[other]}"
            )
    for option in there:
        if other := next((other for other in option.needs if other not in names), None):
            raise ConfigurationError(f"--{option.name} needs --{other}: {option.needs[other]}")
    for option in there:
        _check_one(option, given, compact="compact" in names)


def _check_one(option: Option, given: argparse.Namespace, *, compact: bool) -> None:
    if compact and option.reads:
        raise ConfigurationError(
            f"--compact reads no history, and --{option.name} is about that: leave it out, or leave --compact out"
        )
    if option.archive and set(given.source) <= {KAFKA}:
        raise ConfigurationError(
            f"--{option.name} is about an archive, and none is given: give --source PATH"
        )
    if option.of(given) == "":
        raise ConfigurationError(f"--{option.name} is empty; give a value, see --help")


def set_defaults(given: argparse.Namespace) -> None:
    """Put in the defaults of options that are not given; not before `check_given`, which tells the two apart."""
    for option in _ALL.values():
        if option.default is not None and not option.is_given(given):
            setattr(given, option.name.replace("-", "_"), option.default)
