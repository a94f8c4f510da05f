"""The part of the command line that says how a topic was widened."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from dedup_sdk._window import Window
from dedup_sdk.errors import ConfigurationError
from spark_backfill.column_map import NOWHERE, place_of
from spark_backfill.partitioner import PARTITIONERS
from spark_backfill.reshard import Reshard
from spark_backfill.source_options import SourceOptions

_MOST_PARTITIONS: Final = 100_000


def add_reshard_options(add: Callable[..., Any]) -> None:
    """Tell a parser of the options; ``add`` is its ``add_argument``."""
    add(
        "--partitions",
        type=int,
        metavar="N",
        help="Re-shard: the topic has N partitions now, so that IDs are also remembered in the partition "
        "where their record's key goes now; with --partitioner and --group.",
    )
    add(
        "--partitioner",
        choices=PARTITIONERS,
        help="With --partitions: how the topic's producers place keys; murmur2 is Java's default, "
        "consistent_random librdkafka's.",
    )


def read_reshard_options(given: argparse.Namespace, window: Window, sources: SourceOptions) -> Reshard | None:
    """Read the options; None: nothing is re-sharded.

    Raises:
        ConfigurationError: one line on options that are missing, or do not go together.
    """
    if given.partitions is None:
        if given.partitioner is not None:
            raise ConfigurationError(
                f"--partitioner {given.partitioner} needs --partitions: only to re-shard a topic are its "
                "keys placed anew"
            )
        return None
    if given.partitioner is None:
        raise ConfigurationError(
            f"--partitions {given.partitions} needs --partitioner: say how the producers place keys, "
            f"{' or '.join(PARTITIONERS)}"
        )
    if given.group is None or given.assume_processed:
        vouching = "--assume-processed" if given.assume_processed else "--whole-topic"
        raise ConfigurationError(
            f"--partitions {given.partitions} needs --group alone: marks go to other partitions, where "
            f"nobody sees how far a group is in theirs, so that with {vouching} messages that were never "
            f"handled may be hidden; leave {vouching} out"
            + (", and give --group GROUP" if given.group is None else "")
        )
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
    archive = sources.archive
    if archive is not None and place_of(archive.columns, "key").column == NOWHERE:
        raise ConfigurationError(
            f"--partitions {given.partitions} places records by their keys, and --columns key={NOWHERE} "
            "says that there are none: name the column of the keys"
        )
    return Reshard(partitions=given.partitions, partitioner=given.partitioner)
