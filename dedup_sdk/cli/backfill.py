"""``dedup backfill``: rebuild a key store from a topic's history, with Spark."""

import typer


def backfill(context: typer.Context) -> None:
    r"""Rebuild a key store from a topic's history, with Spark.

    **Examples**

        dedup backfill --bootstrap localhost:9092 --topic orders --group billing \
            --id header:dedup-id --window 7d --output snapshot
        dedup backfill --help

    Runs spark-submit of the installed PySpark with the Kafka connector of its version, and hands its exit status on. The
    snapshot is for `DedupConsumer(snapshot=...)` or `dedup restore`; a report (one JSON object) is the last line of stdout.
    Needs the extra `[spark]`.
    """
    from spark_backfill.launch import run

    raise typer.Exit(run(context.args))
