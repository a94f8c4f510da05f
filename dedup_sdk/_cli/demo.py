"""``dedup demo``: a demonstration with a real Kafka and real data."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from dedup_sdk._cli.console import print_table
from dedup_sdk._cli.options import Json, Quiet

if TYPE_CHECKING:
    from dedup_sdk._demo.narrator import DemoResult

ALL_FLIGHTS = 336_776
LEAST_FLIGHTS = 1_000
Records = Annotated[
    int,
    typer.Option("--records", min=LEAST_FLIGHTS, max=ALL_FLIGHTS, help="How many flights to send."),
]


def demo(*, records: Records = ALL_FLIGHTS, json_output: Json = False, quiet: Quiet = False) -> None:
    """Show on a real Kafka that each flight is handled once.

    **Examples**

        dedup demo
        dedup demo --records 20000 --json

    Five steps: start Apache Kafka; send the flights of 2013 from New York through connections that break, so that the
    topic has duplicates; handle them in two processes, one of which gets a SIGKILL; rebuild the key store with
    spark-submit and compare; delete all stores, start again from the snapshot and resend a tenth. No flight may be
    lost, and none handled twice except those in hand at the SIGKILL. It takes less than three minutes on two cores.

    Needs the extra `[demo]`. The broker's jars are downloaded the first time, into `$DEDUP_CACHE`
    (default: `~/.cache/dedup`). Exit status 1 when a promise did not hold.
    """
    from dedup_sdk._demo.narrator import Narrator
    from dedup_sdk._demo.scenario import run_demo

    result = run_demo(Narrator(Console(stderr=True, quiet=quiet)), records)
    print_result(result, json_output=json_output, quiet=quiet)
    if not result.passed:
        raise typer.Exit(1)


def print_result(result: DemoResult, *, json_output: bool, quiet: bool) -> None:
    """Print the counts and the verdict on stdout; with ``json_output`` on stderr, unless ``quiet``."""
    from dedup_sdk._demo.narrator import last_line, result_table

    summary = Console(stderr=json_output)
    if not (json_output and quiet):
        summary.print()
        print_table(result_table(result), on_stderr=json_output)
        summary.print()
        summary.print(last_line(result), soft_wrap=True, highlight=False)
    if json_output:
        typer.echo(json.dumps(result.as_json()))
