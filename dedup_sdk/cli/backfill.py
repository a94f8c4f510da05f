"""``dedup backfill``: rebuild a key store from a topic's history, with Spark."""

import sys

import typer
from rich.console import Console

from dedup_sdk.cli.backfill_progress import shown

_INTERRUPTED = 130


def backfill(context: typer.Context) -> None:
    r"""Rebuild a key store from a topic's history, with Spark.

    **Examples**

        dedup backfill --bootstrap localhost:9092 --topic orders --group billing \
            --id header:dedup-id --window 7d --output snapshot
        dedup backfill --bootstrap localhost:9092 --topic orders --group billing \
            --id header:dedup-id --window 7d --shared redis://localhost:6379/0
        dedup backfill --help

    Runs spark-submit of the installed PySpark with the Kafka connector of its version, and hands its exit status on. The
    snapshot is for `DedupConsumer(snapshot=...)` or `dedup restore`; a report (one JSON object) is the last line of stdout.
    Needs the extra `[spark]`. A terminal shows how far it is, a log gets a line now and then.
    """
    from spark_backfill.launch import run

    with shown(Console(stderr=True)) as watching:
        status = run(context.args, say=watching.say, watch=watching.watch)
    if status == _INTERRUPTED:
        sys.exit(status)  # that has been said already
    raise typer.Exit(status)
