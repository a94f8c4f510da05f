"""``dedup adopt``: lets the messages before a group's commits count as handled."""

import json
from contextlib import closing
from typing import Annotated, Literal

import typer
from rich.table import Table

from dedup_sdk._admin.adopt import Adoption, commits_of, plan_adoption
from dedup_sdk._admin.group_offsets import GroupOffsets
from dedup_sdk._cli.console import print_table, printable
from dedup_sdk._cli.options import (
    Bootstrap,
    ClientConfig,
    Execute,
    Json,
    OneGroup,
    Partitions,
    Quiet,
    Topic,
    cluster_client,
)
from dedup_sdk._masking import counted
from dedup_sdk._store.protocol import DIGEST_NAME
from dedup_sdk._strategy import Lookup

_ISOLATION = "isolation.level"
OfId = Annotated[
    str,
    typer.Option(
        "--id", metavar="SPEC", help="The consumer's ID spec, e.g. header:dedup-id.", show_default=False
    ),
]
OfWindow = Annotated[
    str, typer.Option("--window", help="The consumer's window, e.g. 7d, 20000n.", show_default=False)
]
Isolation = Annotated[
    Literal["read_committed", "read_uncommitted"] | None,
    typer.Option(
        "--isolation-level",
        help="The consumer's isolation.level [default: of --client-config, else read_committed].",
        show_default=False,
    ),
]


def adopt(
    *,
    bootstrap: Bootstrap = None,
    group: OneGroup,
    topic: Topic,
    id_spec: OfId,
    window: OfWindow,
    isolation_level: Isolation = None,
    partition: Partitions = None,
    client_config: ClientConfig = None,
    execute: Execute = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    r"""Let the messages that a group committed without this package count as handled.

    **Examples**

        dedup adopt --bootstrap localhost:9092 --group billing --topic orders --id header:dedup-id --window 7d
        dedup adopt --bootstrap localhost:9092 --group billing --topic orders --id header:dedup-id --window 7d \
            --execute

    Prints for each partition which offsets would count as handled, from the beginning of the log to the
    committed offset, and the text that the commit has now; only `--execute` writes new texts. No offset
    moves. A consumer with the same ID, kind of window and isolation level then hides copies of these messages,
    and needs no `Recovery(history=...)`. **You vouch that the group has handled all of them: the copy of one
    that it has not is lost.**

    Refused while the group has members. A commit whose text has another rule stays as it is, because the
    messages that the other rule hid were never handled. For `LastId` and units use
    `Recovery(history="assume-processed")`.

    With `--json` one object, `{"group", "topic", "executed", "partitions": [...]}`.
    """
    servers, settings = cluster_client(bootstrap, client_config)
    settings[_ISOLATION] = isolation_level or settings.get(_ISOLATION, "read_committed")
    strategy = Lookup(id=id_spec, window=window)
    terms = strategy.terms(strategy.window_of(topic), digest=DIGEST_NAME, isolation=settings[_ISOLATION])
    with closing(GroupOffsets(servers, group, topic, settings)) as offsets:
        offsets.refuse_members()
        adoptions = plan_adoption(offsets, terms.rule, partition or ())
        written = offsets.commit(commits_of(adoptions)) if execute else 0
    if json_output:
        report = {
            "group": group,
            "topic": topic,
            "executed": execute,
            "partitions": [*map(_listed, adoptions)],
        }
        typer.echo(json.dumps(report))
    else:
        print_table(_table(topic, adoptions))
    if not quiet:
        due = len(commits_of(adoptions))
        said = (
            f"texts written for {counted(written, 'partition')} of {topic}"
            if execute
            else f"nothing was changed, {counted(due, 'partition')} would get a text; add --execute"
        )
        typer.echo(printable(f"group {group}: {said}"), err=True)


def _listed(adoption: Adoption) -> dict[str, object]:
    stands, metadata = adoption.stands, adoption.metadata
    return {
        "partition": stands.partition, "committed": stands.committed, "changes": metadata is not None,
        "low": None if metadata is None else metadata.low, "offsets": adoption.offsets, "text": adoption.text,
        "note": adoption.note,
    }  # fmt: skip


def _table(topic: str, adoptions: list[Adoption]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("topic", "partition", "from", "committed", "offsets", "text now"):
        table.add_column(name, justify="left" if name in ("topic", "text now") else "right")
    table.add_column("note")
    for adoption in adoptions:
        stands, metadata = adoption.stands, adoption.metadata
        table.add_row(
            printable(topic),
            str(stands.partition),
            "-" if metadata is None else str(metadata.low),
            "none" if stands.committed is None else str(stands.committed),
            f"{adoption.offsets:,}",
            adoption.text,
            adoption.note,
        )
    return table
