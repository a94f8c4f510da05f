"""``dedup rewind``: sets a group's offsets so that every host recognises the change."""

import json
from contextlib import closing
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.table import Table

from dedup_sdk._admin.group_offsets import GroupOffsets
from dedup_sdk._admin.rewind import Move, Target, commits_of, plan_moves
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
from dedup_sdk._masking import counted, shown
from dedup_sdk.errors import ConfigurationError

ToOffset = Annotated[int | None, typer.Option("--to-offset", help="To this offset.", show_default=False)]
ToDatetime = Annotated[
    str | None,
    typer.Option(
        "--to-datetime",
        help="To the first record at or after this time (ISO 8601; UTC without a zone).",
        show_default=False,
    ),
]
ToEarliest = Annotated[bool, typer.Option("--to-earliest", help="To the beginning of the log.")]
By = Annotated[
    int | None, typer.Option("--by", help="By this many offsets; back when negative.", show_default=False)
]


def rewind(
    *,
    bootstrap: Bootstrap = None,
    group: OneGroup,
    topic: Topic,
    to_offset: ToOffset = None,
    to_datetime: ToDatetime = None,
    to_earliest: ToEarliest = False,
    by: By = None,
    partition: Partitions = None,
    client_config: ClientConfig = None,
    execute: Execute = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Set a group's offsets in a way that every host recognises.

    **Examples**

        dedup rewind --bootstrap localhost:9092 --group billing --topic orders --by -1000
        dedup rewind --bootstrap localhost:9092 --group billing --topic orders --to-datetime 2026-03-01T06:00 --execute

    Prints the committed and the new offset of each partition; only `--execute` commits them. Refused while
    the group has members. Within the history that the group has processed, records before the new offset
    still count as processed; records after it are handled again. An offset beyond an end of the log becomes
    that end.

    With `--json` one object, `{"group", "topic", "executed", "partitions": [...]}`.
    """
    target = Target(
        offset=to_offset,
        moment=None if to_datetime is None else _moment(to_datetime),
        earliest=to_earliest,
        by=by,
    )
    servers, settings = cluster_client(bootstrap, client_config)
    with closing(GroupOffsets(servers, group, topic, settings)) as offsets:
        offsets.refuse_members()
        moves = plan_moves(offsets, target, partition or ())
        changed = offsets.commit(commits_of(moves)) if execute else 0
    if json_output:
        report = {
            "group": group,
            "topic": topic,
            "executed": execute,
            "partitions": list(map(_listed, moves)),
        }
        typer.echo(json.dumps(report))
    else:
        print_table(_table(topic, moves))
    if not quiet:
        due = sum(move.changes for move in moves)
        said = (
            f"{counted(changed, 'partition')} of {topic} set"
            if execute
            else f"nothing was changed, {counted(due, 'partition')} would be; add --execute"
        )
        typer.echo(printable(f"group {group}: {said}"), err=True)


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"--to-datetime {shown(text)} is not a time in ISO 8601; give e.g. 2026-03-01T06:00+01:00"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _listed(move: Move) -> dict[str, object]:
    return {
        "partition": move.partition, "committed": move.committed, "offset": move.offset, "changes": move.changes,
        "low": None if move.metadata is None else move.metadata.low,
        "era": None if move.metadata is None else move.metadata.era, "note": move.note,
    }  # fmt: skip


def _table(topic: str, moves: list[Move]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("topic", "partition", "committed", "to", "by", "history from"):
        table.add_column(name, justify="left" if name == "topic" else "right")
    table.add_column("note")
    for move in moves:
        by = "" if move.committed is None else f"{move.offset - move.committed:+d}"
        committed = "none" if move.committed is None else str(move.committed)
        table.add_row(
            printable(topic),
            str(move.partition),
            committed,
            str(move.offset),
            by,
            "none" if move.metadata is None else str(move.metadata.low),
            move.note,
        )
    return table
