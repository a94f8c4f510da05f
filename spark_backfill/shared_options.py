"""The part of the command line that is about a memory that consumers share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, get_args

from dedup_sdk._rule_fingerprint import known_cluster
from dedup_sdk._window import Window
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.shared._scope import Scope, scope_name
from spark_backfill.option_rules import refuse_beside, refuse_without
from spark_backfill.shared_servers import SERVER_OPTIONS, SharedServer, add_server_options, read_server

_OF_SHARED: Final = ("shared_scope", "shared_cluster", "shared_prefix", "shared_origin")
_WITHOUT: Final = {
    "whole-topic": "consumers take all that is there for handled, and ask nobody; give --group GROUP",
    "compact": (
        "what the group has handled by now is not asked; give --group GROUP, with --base if that is to be "
        "read too"
    ),
    "partitions": "consumers of a shared memory find an ID wherever its record lies; leave --partitions out",
    "order": "a shared memory has IDs that are looked up; leave one of them out",
    "unit": "a unit lies in one partition, and what it leaves is not shared; leave one of them out",
}
"""The options that do not go together with a shared memory, and why."""
_OF_OUTPUT: Final = {
    "overwrite": "nothing is replaced; leave it out, or give --output DIR",
    "report": "the page is drawn of a snapshot; give --output DIR too",
}
"""Options that need a snapshot that stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """A shared memory to be rebuilt, and where in it: see the help of each option.

    ``cluster``: the name that stands for the cluster's ID, None: the ID. ``origin``: the topic whose scope counts,
    None: the topic itself.
    """

    server: SharedServer
    scope: Scope
    cluster: str | None
    prefix: str
    origin: str | None

    def scope_of(self, group: str, topic: str, partition: int, *, cluster: str, id_spec: str) -> bytes:
        """Return the name of the scope of a partition's records, as a consumer has it."""
        return scope_name(
            self.scope,
            id_spec=id_spec,
            cluster=known_cluster(cluster) if self.cluster is None else self.cluster,
            prefix=self.prefix,
            group=group,
            topic=self.origin or topic,
            partition=partition,
        )


def add_shared_options(add: Callable[..., Any]) -> None:
    """Tell a parser of the options; ``add`` is its ``add_argument``."""
    add(
        "--shared",
        metavar="URL",
        help="A memory that consumers share, to be rebuilt beside the snapshot, or without --output in its "
        "place: redis://HOST:PORT/DB (rediss://, unix://, of a cluster redis+cluster://, "
        "rediss+cluster://), postgresql+psycopg://HOST:PORT/DATABASE.",
    )
    add(
        "--shared-scope",
        choices=get_args(Scope),
        help="With --shared: the consumers' Shared(scope=...) [default: topic].",
    )
    add(
        "--shared-cluster",
        metavar="NAME",
        help="With --shared: the consumers' Shared(cluster=...) [default: the cluster's ID].",
    )
    add("--shared-prefix", metavar="TEXT", help="With --shared: the consumers' Shared(prefix=...).")
    add(
        "--shared-origin",
        metavar="TOPIC",
        help="With --shared: the topic whose scope this one shares, as in Shared(origins=...).",
    )
    add_server_options(add)


def read_shared_options(given: argparse.Namespace) -> SharedOptions | None:
    """Read the options; None: no shared memory is rebuilt.

    Raises:
        ConfigurationError: one line on options that are missing, do not go together, or cannot be rebuilt.
    """
    if given.shared is None:
        refuse_without(
            given,
            (*_OF_SHARED, *SERVER_OPTIONS),
            "--shared",
            "name the memory, e.g. --shared redis://localhost:6379/0",
        )
        return None
    refuse_beside(given, {name: why for name, why in _WITHOUT.items() if name != "whole-topic"}, "--shared")
    if given.whole_topic:
        raise ConfigurationError(f"--whole-topic and --shared do not go together: {_WITHOUT['whole-topic']}")
    if given.output is None:
        refuse_beside(given, _OF_OUTPUT, "--shared without --output")
    for option in ("shared_cluster", "shared_origin", "shared_keys", "shared_table", "shared_schema"):
        if getattr(given, option) == "":
            raise ConfigurationError(f"--{option.replace('_', '-')} is empty; give a value, or leave it out")
    return SharedOptions(
        server=read_server(given),
        scope=given.shared_scope or "topic",
        cluster=given.shared_cluster,
        prefix=given.shared_prefix or "",
        origin=given.shared_origin,
    )


def check_window(window: Window) -> None:
    """Refuse a window that a shared memory does not know.

    Raises:
        ConfigurationError: naming it.
    """
    if window.count is not None or window.time_ms is None:
        raise ConfigurationError(
            f"--window {window}: a shared memory forgets by time alone, and cannot be rebuilt for a window "
            "by count; give e.g. 7d"
        )
