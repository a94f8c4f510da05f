"""Options that several commands share, and the partitions that they select in a store's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dedup_sdk._admin.client_config import CLIENT_CONFIG_HELP, client_settings
from dedup_sdk._masking import shown
from dedup_sdk._store.paths import PartitionFolder, list_partitions
from dedup_sdk._store.rate_limit import RateLimit, parse_rate
from dedup_sdk.errors import ConfigurationError, StoreError

Store = Annotated[
    Path,
    typer.Option("--store", help="The folder that DedupConsumer(store=...) names.", show_default=False),
]
Topic = Annotated[str, typer.Option("--topic", help="The topic's name.", show_default=False)]
Group = Annotated[
    str | None,
    typer.Option(
        "--group", help="The consumer group; needed where the folder holds several.", show_default=False
    ),
]
OneGroup = Annotated[str, typer.Option("--group", help="The consumer group.", show_default=False)]
Partitions = Annotated[
    list[int] | None,
    typer.Option(
        "--partition", min=0, help="Only this partition; may be repeated [default: all].", show_default=False
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster", help="The cluster's ID; needed where the folder holds several.", show_default=False
    ),
]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        help="Bootstrap servers of the cluster, HOST:PORT [default: bootstrap.servers of --client-config].",
        show_default=False,
    ),
]
CLIENT_CONFIG = "--client-config"
ClientConfig = Annotated[
    list[str] | None,
    typer.Option(CLIENT_CONFIG, metavar="FILE|KEY=VALUE", help=CLIENT_CONFIG_HELP, show_default=False),
]
RATE_LIMIT = "--rate-limit"
RateLimitText = Annotated[
    str | None,
    typer.Option(
        RATE_LIMIT,
        metavar="RATE",
        help="Read the snapshot no faster, e.g. 50MB/s: bytes a second over all files at once.",
        show_default=False,
    ),
]
Execute = Annotated[bool, typer.Option("--execute", help="Make the change; without this nothing is changed.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, as the last line of stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors on stderr.")]


def rate_limit(text: str | None) -> RateLimit | None:
    """Return the limit that an option gives, None without one; raises `ConfigurationError` for other texts."""
    return None if text is None else RateLimit(parse_rate(RATE_LIMIT, text))


def stored_partitions(
    store: Path,
    *,
    topic: str | None = None,
    partition: int | None = None,
    group: str | None = None,
    cluster: str | None = None,
) -> list[PartitionFolder]:
    """Return the partitions under ``store`` that match every given value, ascending; at least one.

    Raises:
        StoreError: none matches; the message lists the values that exist.
    """
    found = list_partitions(store)
    if not found:
        raise StoreError(f"{store} holds no key store: give the folder that DedupConsumer(store=...) names")
    wanted = {"cluster": cluster, "group": group, "topic": topic, "partition": partition}
    for name, value in wanted.items():
        present = sorted({getattr(each, name) for each in found})
        found = [each for each in found if value is None or getattr(each, name) == value]
        if not found:
            there = ", ".join(str(each) for each in present)
            raise StoreError(f"{store} holds nothing of {name} {shown(value)}: it has {there}")
    return found


def of_one_group(found: list[PartitionFolder]) -> list[PartitionFolder]:
    """Return the partitions unchanged if all belong to one group on one cluster.

    Raises:
        typer.BadParameter: they belong to several; the message names the option to give, and its choices.
    """
    for name in ("cluster", "group"):
        present = sorted({getattr(each, name) for each in found})
        if len(present) > 1:
            raise typer.BadParameter(
                f"the folder holds several: {', '.join(present)}", param_hint=f"--{name}"
            )
    return found


def cluster_client(bootstrap: str | None, texts: list[str] | None) -> tuple[str, dict[str, str]]:
    """Return the bootstrap servers, and the other settings of the client.

    Raises:
        ConfigurationError: no servers are named, or the settings cannot be read; no value is shown.
    """
    settings = client_settings(CLIENT_CONFIG, texts or [])
    servers = settings.pop("bootstrap.servers", "") if bootstrap is None else bootstrap
    if not servers.strip():
        raise ConfigurationError(
            f"no cluster is named; give --bootstrap HOST:PORT, or bootstrap.servers in {CLIENT_CONFIG}"
        )
    settings.pop("bootstrap.servers", None)
    return servers, settings
