"""``dedup top``: the partitions of a store beside its consumer, from the store's files and the group's offsets."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Annotated, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dedup_sdk._admin.group_offsets import GroupOffsets
from dedup_sdk._cli.console import print_table, printable
from dedup_sdk._cli.options import (
    Bootstrap,
    ClientConfig,
    Cluster,
    Json,
    Store,
    cluster_client,
    stored_partitions,
)
from dedup_sdk._cli.options import Group as OfGroup
from dedup_sdk._cli.stores import AnyTopic, disk_bytes, record_time
from dedup_sdk._store.paths import PartitionFolder
from dedup_sdk._store.read_only import read_partition
from dedup_sdk.errors import DedupError, RecoveryError
from spark_backfill.report_page.wording import size_text

_RATES_OVER_S: Final = 30.0
"""Seconds over which a rate is taken, as far as there was a look so long ago."""
Once = Annotated[bool, typer.Option("--once", help="Print the table once, and end.")]
Every = Annotated[
    float, typer.Option("--every", min=0.2, max=3600, help="Seconds between two looks at the files.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLook:
    """One partition at one moment, as the store's files and the group have it.

    ``completed``: the offset up to which all is completed; ``above``: the number of offsets completed above it.
    ``committed`` is the group's, or without ``--bootstrap`` the last that the store knows. ``lag`` goes from there to
    the log's end.
    """

    cluster: str
    group: str
    topic: str
    partition: int
    completed: int | None
    above: int
    committed: int | None
    lag: int | None
    rate: float | None
    newest_ms: int | None
    disk_bytes: int

    @property
    def place(self) -> tuple[str, str, str, int]:
        """The names by which it is found again at the next look."""
        return self.cluster, self.group, self.topic, self.partition


def top(
    *,
    store: Store,
    topic: AnyTopic = None,
    group: OfGroup = None,
    cluster: Cluster = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
    every: Every = 2.0,
    once: Once = False,
    json_output: Json = False,
) -> None:
    """Watch the key stores in a folder, beside the running consumer.

    **Examples**

        dedup top --store var/dedup
        dedup top --store var/dedup --bootstrap localhost:9092
        dedup top --store var/dedup --bootstrap localhost:9092 --once --json

    One line a partition: the offset up to which all is completed, completions a second, the group's commit,
    the size on disk and the time of the newest record; with `--bootstrap` also the lag. Only files are read,
    so that the consumer is not disturbed, and nothing is changed; what its process knows alone (state,
    verdicts) is on the pages of `dedup_adapters.health`. A rate needs two looks.

    The table is renewed until Ctrl-C. With `--once`, and where stdout is no terminal, it is printed once; with
    `--json` one object, `{"store", "partitions": [...]}`.
    """
    asked = bootstrap is not None or bool(client_config)
    servers = cluster_client(bootstrap, client_config) if asked else None

    def found() -> list[PartitionFolder]:
        return stored_partitions(store, topic=topic, group=group, cluster=cluster)

    if json_output or once or not sys.stdout.isatty():
        looks = [_look(each) for each in found()]
        if servers is not None:
            looks = list(_with_offsets(looks, *servers))
        if json_output:
            typer.echo(json.dumps({"store": str(store), "partitions": [asdict(each) for each in looks]}))
        else:
            print_table(_table(looks))
        return
    rates = _Rates()
    # Names are untrusted: they must not be read as markup.
    console = Console(markup=False, emoji=False, highlight=False)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(
                _screen(store_name=str(store), found=found(), servers=servers, rates=rates), refresh=True
            )
            time.sleep(every)


def _screen(
    *,
    store_name: str,
    found: Sequence[PartitionFolder],
    servers: tuple[str, dict[str, str]] | None,
    rates: _Rates,
) -> Group:
    looks, trouble = [], ""
    for each in found:
        try:
            looks.append(_look(each))
        except DedupError as error:  # its consumer makes or removes it just now
            trouble = str(error)
    if servers is not None:
        try:
            looks = list(_with_offsets(looks, *servers))
        except RecoveryError as error:
            trouble = str(error)
    head = Text(printable(f"{store_name}  {time.strftime('%H:%M:%S')}  Ctrl-C ends"), style="dim")
    return Group(head, _table(rates.added(looks)), Text(printable(trouble), style="yellow"))


class _Rates:
    """The completed offsets of earlier looks."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, Mapping[tuple[str, str, str, int], int]]] = []

    def added(self, looks: Sequence[PartitionLook]) -> list[PartitionLook]:
        """Return looks with rates since the oldest that is kept."""
        now = time.monotonic()
        self._seen.append((now, {each.place: each.completed for each in looks if each.completed is not None}))
        while len(self._seen) > 1 and now - self._seen[1][0] > _RATES_OVER_S:
            del self._seen[0]
        since, before = self._seen[0]
        if now <= since:
            return list(looks)
        return [
            replace(each, rate=max(0, each.completed - before[each.place]) / (now - since))
            if each.completed is not None and each.place in before
            else each
            for each in looks
        ]


def _look(found: PartitionFolder) -> PartitionLook:
    with read_partition(found.path) as opened:
        identity, progress = opened.identity, opened.progress
    return PartitionLook(
        cluster=identity.cluster,
        group=identity.group,
        topic=identity.topic,
        partition=identity.partition,
        completed=progress.high if progress else None,
        above=sum(end - start for start, end in progress.done) if progress else 0,
        committed=progress.committed if progress else None,
        lag=None,
        rate=None,
        newest_ms=progress.known.newest_ms if progress else None,
        disk_bytes=disk_bytes(found.path),
    )


def _with_offsets(
    looks: Sequence[PartitionLook], servers: str, client: dict[str, str]
) -> Iterator[PartitionLook]:
    """Yield looks with the group's commits; raises `RecoveryError` if a broker does not answer."""
    for (group, topic), those in groupby(looks, key=lambda each: (each.group, each.topic)):
        of_topic = list(those)
        offsets = GroupOffsets(servers, group, topic, client)
        try:
            commits = {each.partition: each for each in offsets.read(each.partition for each in of_topic)}
        finally:
            offsets.close()
        for each in of_topic:
            commit = commits[each.partition]
            committed = commit.committed
            lag = max(0, commit.end - (commit.first if committed is None else committed))
            yield replace(each, committed=committed, lag=lag)


def _table(looks: Sequence[PartitionLook]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("partition")
    table.add_column("group")
    for name in ("completed", "above", "per second", "committed", "lag", "size"):
        table.add_column(name, justify="right")
    table.add_column("newest record")
    for each in looks:
        table.add_row(
            f"{printable(each.topic)}[{each.partition}]",
            printable(each.group),
            _number(each.completed),
            _number(each.above),
            _number(each.rate),
            _number(each.committed),
            _number(each.lag),
            size_text(each.disk_bytes),
            record_time(each.newest_ms),
        )
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
