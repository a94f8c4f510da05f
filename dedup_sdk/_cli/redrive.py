"""``dedup redrive``: sends dead letters back to their topics; the group that failed handles them once more."""

import json
import time
from collections.abc import Callable
from contextlib import closing
from typing import Annotated

import typer

from dedup_sdk._cli.console import printable
from dedup_sdk._cli.options import Bootstrap, ClientConfig, Execute, Json, Quiet, cluster_client
from dedup_sdk._masking import counted, shown
from dedup_sdk._runner.redrive import Redrive, Redriven, redrive_group

_REPORT_S = 2.0
_LONGEST_NAME = 249
From = Annotated[str, typer.Option("--from", help="The dead-letter topic.", show_default=False)]
To = Annotated[
    str | None,
    typer.Option(
        "--to", help="The topic to send to [default: the topic of each message].", show_default=False
    ),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", min=1, help="Send at most this many [default: all].", show_default=False),
]
Again = Annotated[
    bool, typer.Option("--again", help="Start at the beginning of the topic, not where the last run ended.")
]


def redrive(
    *,
    bootstrap: Bootstrap = None,
    source: From,
    target: To = None,
    limit: Limit = None,
    again: Again = False,
    client_config: ClientConfig = None,
    execute: Execute = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Send dead letters back to their topics; the group that failed handles them once more.

    **Examples**

        dedup redrive --bootstrap localhost:9092 --from billing.dead-letters
        dedup redrive --bootstrap localhost:9092 --from billing.dead-letters --limit 10 --execute

    Without `--execute` it only counts them. With it each dead letter is sent, with its key, value and
    headers, to the partition of the message that failed. The header `dedup-redrive` makes it a new message
    for the group that failed; for all other groups it is a duplicate. A dead letter that is sent twice is
    handled once. The consumer group `TOPIC.redrive` commits the position, and the next run continues there;
    `--again` starts from the beginning of the topic.

    Dead letters of a topic that the broker does not have are left where they are, counted, and passed; the
    exit status is 1. Make the topic, or name another one with `--to`, and start again with `--again`.

    With `--json` one object, `{"from", "to", "executed", "letters", "topics", "stranded", "others", "read", "total"}`.
    """
    servers, settings = cluster_client(bootstrap, client_config)
    with closing(Redrive(servers, source, target, settings)) as letters:
        report = (lambda _: None) if quiet else _report_now_and_then()
        done = letters.run(execute=execute, again=again, limit=limit, report=report)
    if json_output:
        told = {
            "from": source, "to": target, "executed": execute, "letters": done.count, "topics": dict(done.letters),
            "stranded": dict(done.stranded), "others": done.others, "read": done.read, "total": done.total,
        }  # fmt: skip
        typer.echo(json.dumps(told))
    else:
        for topic, count in sorted(done.letters.items()):
            typer.echo(printable(f"{topic}: {counted(count, 'dead letter')}"))
    for topic, count in sorted(done.stranded.items()):
        name = topic if len(topic) <= _LONGEST_NAME else f"{topic[:_LONGEST_NAME]}..."
        line = (
            f"redrive: left {counted(count, 'dead letter')} of topic {shown(name)}, which the broker does not have: "
            "create it, or give --to, and add --again"
        )
        typer.echo(printable(line), err=True)
    if not quiet:
        typer.echo(
            printable(f"{source}: {_said(done, execute=execute, group=redrive_group(source))}"), err=True
        )
    if done.stranded:
        raise typer.Exit(1)


def _said(done: Redriven, *, execute: bool, group: str) -> str:
    others = (
        f", {counted(done.others, 'record')} passed over as no dead letters of this SDK"
        if done.others
        else ""
    )
    if execute:
        return f"{counted(done.count, 'dead letter')} sent back{others}; group {group} has committed the position"
    return f"nothing was sent, {counted(done.count, 'dead letter')} would be{others}; add --execute"


def _report_now_and_then() -> Callable[[Redriven], object]:
    told = time.monotonic()

    def report(done: Redriven) -> None:
        nonlocal told
        if time.monotonic() - told > _REPORT_S:
            told = time.monotonic()
            typer.echo(
                f"redrive: {counted(done.count, 'dead letter')}, {done.read:,} of {done.total:,} offsets",
                err=True,
            )

    return report
