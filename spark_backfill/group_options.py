"""The part of the command line that says whose history it is."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from dedup_sdk.errors import ConfigurationError
from spark_backfill.group_folder import group_folder

_OF_ONE: Final = {
    "partitions": "a topic is re-sharded group by group",
    "base": "a base is the snapshot of one group",
    "report": "its page is about the history of one group",
    "assume_processed": "a snapshot that is vouched for does not say whose it is",
}
"""What several groups cannot have together, and why."""


def add_group_options(add: Callable[..., Any]) -> None:
    """Tell a parser of the options; ``add`` is its ``add_argument``."""
    add(
        "--group",
        action="append",
        help="whose history: up to what this group has committed, from where its own history begins; this or --whole-topic; repeatable: "
        "the history is read once for all, and each group's snapshot is a folder of its name in the output",
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
        help="with --group: where its dead letters are, which are not remembered (default: GROUP.dead-letters, if there); with "
        "several groups those of all are there",
    )


def read_groups(given: argparse.Namespace) -> tuple[str, ...]:
    """Read which groups were given, none where the user vouches for all of the topic.

    Raises:
        ConfigurationError: one line on what is missing, or does not go together.
    """
    groups: tuple[str, ...] = tuple(given.group or ())
    if not groups and not given.whole_topic and not given.compact:
        raise ConfigurationError(
            "whose history? give --group GROUP (what that group has processed), or --whole-topic (you vouch that whoever "
            "installs the snapshot has processed all of the topic)"
        )
    if groups and given.whole_topic:
        raise ConfigurationError(
            f"--whole-topic and --group {groups[0]} exclude each other: give --group, or vouch for all of the topic"
        )
    if given.assume_processed and not groups:
        raise ConfigurationError(
            "--assume-processed needs --group; with --whole-topic you vouch for everything anyway"
        )
    if given.dead_letters is not None and not groups:
        raise ConfigurationError(
            "--dead-letters needs --group: a dead letter says which group gave its message up"
        )
    if "" in groups:
        raise ConfigurationError("--group is empty; give a value, see --help")
    for number, group in enumerate(groups):
        if group in groups[:number]:
            raise ConfigurationError(f"--group {group!r} is given twice; name each group once")
    if len(groups) > 1:
        _check_several(given, groups)
    return groups


def _check_several(given: argparse.Namespace, groups: tuple[str, ...]) -> None:
    for name, why in _OF_ONE.items():
        if getattr(given, name):
            raise ConfigurationError(
                f"--{name.replace('_', '-')} and {len(groups)} groups do not go together: {why}; run once for each group"
            )
    for group in groups:
        # What has no folder is known before anything is asked.
        group_folder(group)
