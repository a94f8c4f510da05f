"""What a night costs: a run of the backfill that adds the last tenth of a topic, beside one that reads all of it.

    python benchmarks/delta.py
    python benchmarks/delta.py --records 5000000 --rounds 3 --json

Each round commits nine tenths of every partition for a group, makes its snapshot, commits the rest, and then has three
runs: ``--add`` (a layer for the last tenth), ``--base`` (a new snapshot on top of the first), and a full one. Their
seconds are without Spark's start, which is given apart. The merged marks of all three must be equal. The result goes to
stdout, progress to stderr. Exit status 1: a run failed, or the marks differ; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks.arguments import at_least
from benchmarks.marks_of import fingerprint_of_snapshot
from benchmarks.process_tree import TreeReading, run_tree
from benchmarks.rounds import ContenderError
from benchmarks.workload import HEADER, TOPIC, Workload, WorkloadError, ensure_topic
from dedup_sdk import Window
from dedup_sdk.errors import DedupError
from dedup_sdk.testing import LocalKafka

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP = "nightly"
WINDOW = "7d"
RUNS = ("first", "add", "base", "full")


def commit(bootstrap: str, tenths: int) -> None:
    """Commit so many tenths of every partition of the topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False})
    try:
        offsets = []
        for partition in consumer.list_topics(TOPIC).topics[TOPIC].partitions:
            _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=30)
            offsets.append(TopicPartition(TOPIC, partition, end * tenths // 10))
        consumer.commit(offsets=offsets, asynchronous=False)
    finally:
        consumer.close()


def run_backfill(
    bootstrap: str, output: Path, *more: str, environment: Mapping[str, str] | None = None
) -> tuple[TreeReading, dict[str, Any]]:
    """Run the command; return the cost of all its processes, and its report."""
    tree = run_tree(
        [
            sys.executable, "-m", "dedup_sdk._cli", "backfill", "--bootstrap", bootstrap, "--topic", TOPIC, "--id",
            f"header:{HEADER}", "--window", WINDOW, "--group", GROUP, "--assume-processed", "--output", str(output),
            "--json", *more,
        ],
        environment=environment,
    )  # fmt: skip
    report: dict[str, Any] = json.loads(tree.output)
    return tree, report


def snapshot(bootstrap: str, output: Path, *more: str) -> dict[str, Any]:
    """Run the command; return its report."""
    return run_backfill(bootstrap, output, *more)[1]


def night(bootstrap: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Make all snapshots once; return the reports."""
    commit(bootstrap, 9)
    found = {"first": snapshot(bootstrap, folder / "add", "--add")}
    shutil.copytree(folder / "add", folder / "first")
    commit(bootstrap, 10)
    found["add"] = snapshot(bootstrap, folder / "add", "--add")
    found["base"] = snapshot(bootstrap, folder / "base", "--base", str(folder / "first"))
    found["full"] = snapshot(bootstrap, folder / "full")
    window = Window.parse(WINDOW)
    marks = {name: fingerprint_of_snapshot(folder / name, window) for name in ("add", "base", "full")}
    if len(set(marks.values())) != 1:
        raise ContenderError(f"the marks differ: {marks}")
    return found


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description="What a night costs.")
    parser.add_argument("--records", type=at_least(1000), default=5_000_000, help="records in the topic")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="rounds [3]")
    parser.add_argument("--bootstrap", help="a broker that runs, instead of one that is started")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in RUNS}
    starts: list[float] = []
    try:
        with nullcontext() if options.bootstrap else LocalKafka() as started:
            bootstrap = options.bootstrap if started is None else started.bootstrap
            ensure_topic(bootstrap, TOPIC, Workload(records=options.records))
            for number in range(options.rounds):
                with tempfile.TemporaryDirectory(prefix="dedup-delta-") as folder:
                    found = night(bootstrap, Path(folder))
                for name, report in found.items():
                    seconds[name].append(report["seconds"])
                    starts.append(report["spark_start_seconds"])
                print(
                    f"round {number + 1}: { ({name: each[-1] for name, each in seconds.items()}) }",
                    file=sys.stderr,
                )
    except (ContenderError, WorkloadError, DedupError, KafkaException, OSError) as error:
        print(f"delta: {error}", file=sys.stderr)
        return 1
    result = {
        "seconds": {name: median(each) for name, each in seconds.items()},
        "spark_startup_seconds": median(starts),
        "add_to_full": _ratio(seconds["add"], seconds["full"]),
        "base_to_full": _ratio(seconds["base"], seconds["full"]),
    }
    print(
        json.dumps(result)
        if options.json
        else "\n".join(f"{key:<24}{value}" for key, value in result.items())
    )
    return 0


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return round(median(one / other for one, other in zip(ours, theirs, strict=True)), 3)


if __name__ == "__main__":
    sys.exit(main())
