"""``dedup demo``: a demonstration with a real Kafka and real data."""

import json
from typing import Annotated

import typer
from rich.console import Console

from dedup_sdk.cli.options import Json, Quiet

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

    Needs the extra `[demo]`. The broker's jars and Spark's connector are downloaded the first time, into `$DEDUP_CACHE`
    (default: `~/.cache/dedup`). Exit status 1 when a promise did not hold.
    """
    from dedup_sdk.demo.narrator import Narrator, last_line, result_table
    from dedup_sdk.demo.scenario import run_demo

    talk = Console(stderr=True, quiet=quiet)
    result = run_demo(Narrator(talk), records)
    summary = talk if json_output else Console()
    summary.print()
    summary.print(result_table(result))
    summary.print()
    summary.print(last_line(result), soft_wrap=True, highlight=False)
    if json_output:
        typer.echo(json.dumps(result.as_json()))
    if not result.passed:
        raise typer.Exit(1)
