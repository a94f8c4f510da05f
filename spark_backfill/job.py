"""The program that ``spark-submit`` runs.

    spark-submit spark_backfill/job.py \
        --bootstrap localhost:9092 --topic orders --group billing --id header:dedup-id --window 7d --output snapshot

The last line of stdout is a JSON report; lines on stderr tell a person the same. Exit status 0: the snapshot is there;
1: it failed; 2: wrong usage, also an archive without offsets; 130, 143, 129: it was asked to end by Ctrl-C, SIGTERM,
SIGHUP. Unless it is 0, one line on stderr says why, and where the snapshot is there nevertheless, or may be, also that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial

from pyspark.sql import SparkSession

from dedup_sdk.errors import ConfigurationError
from spark_backfill.backfill import backfill
from spark_backfill.console import ERROR, FOLDER, Console
from spark_backfill.ending import EndedError, end_in_order, ending_in_order
from spark_backfill.errors import as_told
from spark_backfill.on_spark import on_spark
from spark_backfill.options import USAGE_STATUS, parse_options
from spark_backfill.report import summary
from spark_backfill.session import make_session


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return its exit status; wrong usage ends the process with status 2."""
    console = Console()
    if console.launched:
        try:
            os.chdir(os.environ[FOLDER])
        except OSError as error:
            console.say(f"{ERROR}{error}; start the command in another folder")
            return USAGE_STATUS
    options = parse_options(sys.argv[1:] if arguments is None else arguments, console.say)
    try:
        session = partial(_session, options.session_settings, console.say)
        with ending_in_order():
            report = backfill(options, on_spark(session, console.progress), say=console.say)
    except (EndedError, Exception) as error:  # noqa: BLE001 (whatever failed, Spark and the JVM included, is one line)
        told = as_told(error, options.secrets)
        if isinstance(told, EndedError):
            console.end(told)
            return told.status
        console.say(f"{ERROR}{told}")
        return USAGE_STATUS if isinstance(told, ConfigurationError) else 1
    if not console.launched:
        for line in summary(asdict(report)):
            console.say(line)
    sys.stdout.write(f"{report}\n")
    return 0


def _session(settings: Mapping[str, str], say: Callable[[str], None]) -> SparkSession:
    session = make_session(settings, say)
    # A new session takes SIGINT for itself, and asks a JVM to cancel that may be on its way out too.
    end_in_order()
    return session


if __name__ == "__main__" and (status := main()):
    # Not with 0: some services take any SystemExit for a failure.
    sys.exit(status)
