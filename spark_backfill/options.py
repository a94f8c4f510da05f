"""The job's command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from dedup_sdk.errors import ConfigurationError
from dedup_sdk.ids import IdSpec, id_spec
from dedup_sdk.window import Window

USAGE_STATUS = 2
"""Exit status of wrong usage."""

SOURCES = ("kafka-client", "kafka-jvm")
NEEDS_CONNECTOR = frozenset({"kafka-jvm"})
"""Sources that want Spark's Kafka connector."""

_OURS = {
    "auto.offset.reset": "the job resolves every offset itself",
    "bootstrap.servers": "give --bootstrap",
    "enable.auto.commit": "the job commits nothing",
    "group.id": "give --group",
    "isolation.level": "the job reads read_committed, or IDs of aborted records would be taken for seen",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a run is asked for; see the help of each option.

    ``reader_config`` goes to the Java client inside Spark's connector, ``admin_config`` to librdkafka in the driver; what
    ``--kafka-config`` gives is in both.
    """

    bootstrap: str
    topic: str
    id: IdSpec
    window: Window
    output: Path
    source: str
    group: str | None
    assume_processed: bool
    dead_letters: str | None
    overwrite: bool
    reader_config: dict[str, str]
    admin_config: dict[str, str]

    @property
    def vouched(self) -> bool:
        """Whether the user vouches for the history, instead of the group's own commits."""
        return self.group is None or self.assume_processed


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, where it is told to."""

    say: Callable[[str], None]

    def error(self, message: str) -> NoReturn:
        self.say(f"error: {message}")
        sys.exit(USAGE_STATUS)


def parse_options(arguments: Sequence[str], say: Callable[[str], None]) -> Options:
    """Read the command line; when it is wrong, one line goes to ``say`` and the process ends with status 2."""
    parser = _parser()
    parser.say = say
    given = parser.parse_args(arguments)
    if given.group is None and not given.whole_topic:
        parser.error(
            "whose history? give --group GROUP (what that group has processed), or --whole-topic (you vouch that whoever "
            "installs the snapshot has processed all of the topic)"
        )
    if given.group is not None and given.whole_topic:
        parser.error(
            f"--whole-topic and --group {given.group} exclude each other: give --group, or vouch for all of the topic"
        )
    if given.assume_processed and given.group is None:
        parser.error("--assume-processed needs --group; with --whole-topic you vouch for everything anyway")
    if given.dead_letters is not None and given.group is None:
        parser.error("--dead-letters needs --group: a dead letter says which group gave its message up")
    if given.reader_config and given.source not in NEEDS_CONNECTOR:
        parser.error(
            f"--reader-config is for --source kafka-jvm, and the source is {given.source}: give --kafka-config"
        )
    for option in ("bootstrap", "topic", "output", "group", "dead_letters"):
        if getattr(given, option) == "":
            parser.error(f"--{option.replace('_', '-')} is empty; give a value, see --help")
    try:
        spec, window = id_spec(given.id), Window.parse(given.window)
        both = _settings("--kafka-config", given.kafka_config)
        reader = both | _settings("--reader-config", given.reader_config)
        admin = both | _settings("--admin-config", given.admin_config)
    except ConfigurationError as error:
        parser.error(str(error))
    return Options(
        bootstrap=given.bootstrap,
        topic=given.topic,
        id=spec,
        window=window,
        output=Path(given.output),
        source=given.source,
        group=given.group,
        assume_processed=given.assume_processed,
        dead_letters=given.dead_letters,
        overwrite=given.overwrite,
        reader_config=reader,
        admin_config=admin,
    )


def _parser() -> _Parser:
    parser = _Parser(
        prog="dedup backfill",
        description="Rebuild a key store from a topic's history, as a snapshot that DedupConsumer installs.",
        epilog="Example: --bootstrap localhost:9092 --topic orders --id header:dedup-id --window 7d --group billing "
        "--output snapshot",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--bootstrap", required=True, metavar="HOST:PORT", help="bootstrap servers of the cluster")
    add("--topic", required=True, help="the topic to read")
    add("--id", required=True, metavar="SPEC", help="the ID spec, e.g. header:dedup-id, key, json:/order/id")
    add(
        "--window",
        required=True,
        help="how long an ID is remembered, e.g. 7d, 36h, 20000n (a count), 7d+20000n",
    )
    add(
        "--output", required=True, metavar="DIR", help="folder of the snapshot; it must not exist or be empty"
    )
    add(
        "--source",
        choices=SOURCES,
        default=SOURCES[0],
        help="how Kafka is read: by confluent-kafka in Spark's Python workers (default), or by Spark's own connector",
    )
    add(
        "--group",
        help="whose history: up to what this group has committed, from where its own history begins; this or --whole-topic",
    )
    add(
        "--whole-topic",
        action="store_true",
        help="instead of --group: all of the topic, up to its end; you vouch that whoever installs it has processed that",
    )
    add(
        "--assume-processed",
        action="store_true",
        help="with --group: you vouch that the group processed everything before its committed offsets",
    )
    add(
        "--dead-letters",
        metavar="TOPIC",
        help="with --group: where its dead letters are, which are not remembered (default: GROUP.dead-letters, if there)",
    )
    add("--overwrite", action="store_true", help="replace the snapshot that is in DIR")
    add(
        "--kafka-config",
        action="append",
        default=[],
        metavar="K=V",
        help="setting of every Kafka client; repeatable",
    )
    add(
        "--reader-config",
        action="append",
        default=[],
        metavar="K=V",
        help="setting of the Java client in Spark, with --source kafka-jvm",
    )
    add(
        "--admin-config",
        action="append",
        default=[],
        metavar="K=V",
        help="setting of librdkafka, in the driver and with --source kafka-client in the tasks",
    )
    return parser


def _settings(option: str, texts: Sequence[str]) -> dict[str, str]:
    settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigurationError(
                f"{option} {text!r} is no setting; write e.g. {option} security.protocol=SSL"
            )
        if name in _OURS:
            raise ConfigurationError(f"{option} {name} cannot be set: {_OURS[name]}")
        settings[name] = value
    return settings
