"""How fast the backfill rebuilds a key store, beside the obvious programs that do the same.

    python benchmarks/backfill.py
    python benchmarks/backfill.py --records 5000000 --rounds 3 --json
    python benchmarks/backfill.py --only client replay --bootstrap localhost:9092
    python benchmarks/backfill.py --only client --window 2s
    python benchmarks/backfill.py --only client parquet --report --quick
    python benchmarks/backfill.py --only spark --cluster spark://127.0.0.1:7077 --quick

``client`` is `dedup backfill` from Kafka; ``spark`` the same where Spark has to be used, as for a larger topic;
``cluster`` the same on the ``--cluster`` that is given; ``parquet`` the same job over an archive of the topic.
``replay`` is one Python process: consume, SHA-256 of the header, one `WriteBatch` into RocksDB a batch. ``naive`` is
the Spark job that one writes first (`naive_backfill.py`). Spark's own start is given apart. At the end the marks of the
backfill are compared with those of a consumer that lived through the topic and of one that replayed it (with a short
``--window`` IDs expire and are accepted again on the way). With ``--report`` each of ours runs once more with a report
about duplicates, as ``NAME+report``. The result goes to stdout, progress to stderr. Exit status 1: a contender failed,
or the marks differ; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from benchmarks.archive import generate_archive, write_archive
from benchmarks.arguments import at_least
from benchmarks.marks_of import fingerprint_of_lived, fingerprint_of_replayed, fingerprint_of_snapshot
from benchmarks.process_tree import TreeReading, run_tree
from benchmarks.recovery import replay
from benchmarks.rounds import ContenderError, orders
from benchmarks.workload import HEADER, TOPIC, Workload, WorkloadError, ensure_topic
from dedup_sdk import Window
from dedup_sdk.errors import ConfigurationError, DedupError
from dedup_sdk.testing import LocalKafka
from spark_backfill import launch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_QUIET = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
"""
CONTENDERS = ("replay", "client", "spark", "parquet", "naive")
_REPORTED = "+report"
_CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version('pyspark')}"
CLUSTER = "cluster"
_REPORTING = ("client", "spark", CLUSTER, "parquet")
"""Those that can make a report."""


@dataclass(slots=True)
class Runs:
    """The figures of one contender; seconds without Spark's start."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    start_seconds: list[float] = field(default_factory=list)
    peak_rss_mib: float = 0.0

    def add(self, tree: TreeReading, seconds: float, start_seconds: float = 0.0) -> None:
        """Note a run."""
        self.seconds.append(seconds)
        self.cpu_seconds.append(tree.cpu_seconds)
        self.start_seconds.append(start_seconds)
        self.peak_rss_mib = max(self.peak_rss_mib, tree.peak_rss_mib)


@dataclass(frozen=True, slots=True)
class Bench:
    """The topic, and where things are put."""

    bootstrap: str
    records: int
    folder: Path
    processors: str | None
    window: str
    masters: Mapping[str, str]
    """The master of Spark of those contenders that have to use one."""

    def run(self, name: str, turn: int, runs: Runs) -> dict[str, Any]:
        """Run a contender; return the backfill's report, nothing for the others."""
        place = self.folder / f"{name}-{turn}"
        if name == "replay":
            place.mkdir()
            arguments = json.dumps(
                [self.bootstrap, f"{name}-{turn}-{time.time_ns()}", str(place), self.records]
            )
            tree = run_tree([sys.executable, __file__, "--replay", arguments], processors=self.processors)
            runs.add(tree, float(tree.output))
            return {}
        if name == "naive":
            return self._naive(place, runs)
        tree = run_tree(
            [
                sys.executable,
                "-m",
                "dedup_sdk._cli",
                "backfill",
                *self._arguments(name.removesuffix(_REPORTED)),
                "--output",
                str(place),
                "--json",
                *(("--report", str(self.folder / f"page-{name}-{turn}")) if name.endswith(_REPORTED) else ()),
            ],
            processors=self.processors,
            environment=self._environment(name.removesuffix(_REPORTED)),
        )
        report: dict[str, Any] = json.loads(tree.output)
        runs.add(tree, report["seconds"], report["spark_start_seconds"])
        return report

    def _environment(self, name: str) -> dict[str, str] | None:
        if name not in self.masters:
            return None
        # Arguments of spark-submit have Spark used, also for what is read without it else.
        more = os.environ.get("DEDUP_SPARK_ARGS", "")
        return {**os.environ, "DEDUP_SPARK_ARGS": f"{more} --master {self.masters[name]}"}

    def _arguments(self, name: str) -> list[str]:
        where = (
            ["--bootstrap", self.bootstrap]
            if self.bootstrap
            else ["--cluster-id", "none", "--topic-id", "none"]
        )
        reader = (
            ()
            if name != "parquet"
            else (
                "--source",
                str(self.folder / "archive"),
                "--archive-isolation",
                "read_committed",
            )
        )
        return [
            *where, "--topic", TOPIC, "--id", f"header:{HEADER}", "--window", self.window,
            "--whole-topic", *reader,
        ]  # fmt: skip

    def _naive(self, place: Path, runs: Runs) -> dict[str, Any]:
        place.mkdir()
        logging = self.folder / "log4j2.properties"
        logging.write_text(_QUIET, encoding="ascii")
        arguments = [self.bootstrap, TOPIC, HEADER, str(place)]
        line = launch.command(
            arguments,
            packages=[_CONNECTOR],
            scratch=self.folder,
            job=Path(__file__).with_name("naive_backfill.py"),
        )
        environment = {
            **os.environ,
            **launch.environment(self.folder, [f"-Dlog4j2.configurationFile={logging.as_uri()}"]),
        }
        tree = run_tree(line, processors=self.processors, environment=environment, folder=place)
        found = json.loads(tree.output)
        runs.add(tree, found["seconds"])
        return {}


def compare(bench: Bench, names: Sequence[str], rounds: int) -> dict[str, Any]:
    """Run every contender ``rounds`` times, each round in another order; return medians and ratios."""
    seen = {name: Runs() for name in names}
    report: dict[str, Any] = {}
    for turn, order in enumerate(orders(names, rounds)):
        for name in order:
            found = bench.run(name, turn, seen[name])
            if name == "client" or not report:
                report = found or report
            rate = bench.records / seen[name].seconds[-1]
            cpu_us = seen[name].cpu_seconds[-1] / bench.records * 1e6
            print(
                f"round {turn + 1}/{rounds} {name}: {rate:,.0f} records/s, {cpu_us:.1f} us of CPU",
                file=sys.stderr,
            )
    result: dict[str, Any] = {
        "contenders": {
            name: {
                "records_per_second": round(bench.records / median(runs.seconds)),
                "cpu_us_per_record": round(median(runs.cpu_seconds) / bench.records * 1e6, 2),
                "spark_startup_seconds": round(median(runs.start_seconds), 2),
                "peak_rss_mib": round(runs.peak_rss_mib),
            }
            for name, runs in seen.items()
        },
        "records": bench.records,
        "rounds": rounds,
    }
    return result | _ratios(result["contenders"]) | _report_costs(result["contenders"]) | _size(report)


def _report_costs(found: dict[str, Any]) -> dict[str, Any]:
    """The CPU time with a report over that without, of each contender that ran with one."""
    return {
        f"{name.removesuffix(_REPORTED)}_report_cpu_ratio": round(
            each["cpu_us_per_record"] / found[name.removesuffix(_REPORTED)]["cpu_us_per_record"], 2
        )
        for name, each in found.items()
        if name.endswith(_REPORTED)
    }


def _ratios(found: dict[str, Any]) -> dict[str, Any]:
    rates = {name: each["records_per_second"] for name, each in found.items()}
    ours = rates.get("client")
    result: dict[str, Any] = {"records_per_second": ours}
    for name, key in (("replay", "python_replay"), ("naive", "naive_spark")):
        if name in rates:
            result[f"{key}_records_per_second"] = rates[name]
            if ours:
                result[f"ratio_to_{key}"] = round(ours / rates[name], 2)
            if "spark" in rates:
                result[f"spark_ratio_to_{key}"] = round(rates["spark"] / rates[name], 2)
    if "parquet" in rates and "replay" in rates:
        result["parquet_ratio_to_python_replay"] = round(rates["parquet"] / rates["replay"], 2)
    if CLUSTER in rates and "spark" in rates:
        result["cluster_ratio_to_spark"] = round(rates[CLUSTER] / rates["spark"], 2)
    for key in ("spark_startup_seconds", "peak_rss_mib"):
        if "client" in found:
            result[key] = found["client"][key]
    return result


def _size(report: dict[str, Any]) -> dict[str, Any]:
    if not report:
        return {}
    return {"bytes_per_id": round(report["bytes"] / report["marks"], 2), "fingerprint": report["fingerprint"]}


def main() -> int:
    """Measure, print, and return the exit status."""
    options = _options()
    if options.replay:
        bootstrap, group, folder, records = json.loads(options.replay)
        print(replay(bootstrap, group, Path(folder), records))
        return 0
    archive_only = list(options.only) == ["parquet"]
    try:
        kafka = nullcontext() if options.bootstrap or archive_only else LocalKafka()
        with kafka as started, tempfile.TemporaryDirectory(prefix="dedup-backfill-") as folder:
            bootstrap = (options.bootstrap or "") if started is None else started.bootstrap
            workload = Workload(records=options.records)
            if not archive_only:
                ensure_topic(bootstrap, TOPIC, workload)
            masters = {"spark": "local[*]"} | ({CLUSTER: options.cluster} if options.cluster else {})
            bench = Bench(
                bootstrap, options.records, Path(folder), options.processors, options.window, masters
            )
            if archive_only:
                generate_archive(TOPIC, bench.folder / "archive", workload)
            elif "parquet" in options.only:
                write_archive(bootstrap, TOPIC, bench.folder / "archive", options.records)
            plain = [*options.only, *([CLUSTER] if options.cluster else [])]
            names = [
                *plain,
                *(f"{name}{_REPORTED}" for name in plain if name in _REPORTING and options.report),
            ]
            result = compare(bench, names, options.rounds)
            if not options.quick and "bytes_per_id" in result and not archive_only:
                result["fingerprints_equal"] = _equal(bench, options.only)
    except (ContenderError, WorkloadError, DedupError, KafkaException, OSError) as error:
        print(f"backfill: {error}", file=sys.stderr)
        return 1
    _show(result, as_json=options.json)
    return 0 if result.get("fingerprints_equal", True) else 1


def _equal(bench: Bench, names: Sequence[str]) -> bool:
    window = Window.parse(bench.window)
    found = {
        name: fingerprint_of_snapshot(bench.folder / f"{name}-0", window)
        for name in names
        if name in _REPORTING
    }
    found["lived"] = fingerprint_of_lived(bench.bootstrap, TOPIC, bench.records, window)
    found["replayed"] = fingerprint_of_replayed(bench.bootstrap, TOPIC, bench.records, window)
    print(", ".join(f"{name} {each}" for name, each in found.items()), file=sys.stderr)
    return len(set(found.values())) == 1


def _show(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    print(f"{'contender':<16}{'records/s':>12}{'CPU us':>9}{'start s':>9}{'peak MiB':>10}")
    for name, each in result.pop("contenders").items():
        print(
            f"{name:<16}{each['records_per_second']:>12,}{each['cpu_us_per_record']:>9}"
            f"{each['spark_startup_seconds']:>9}{each['peak_rss_mib']:>10}"
        )
    for key, value in result.items():
        print(f"{key:<35}{value}")


def _window(text: str) -> str:
    try:
        Window.parse(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A key store, rebuilt by Spark and otherwise.")
    parser.add_argument("--records", type=at_least(1000), default=5_000_000, help="records in the topic")
    parser.add_argument(
        "--rounds", type=at_least(1), default=3, help="runs of each contender; medians are reported"
    )
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=CONTENDERS, help="these contenders")
    parser.add_argument("--cluster", metavar="URL", help="a master of Spark: run the job there, too")
    parser.add_argument("--window", default="7d", type=_window, help="how long IDs are remembered [7d]")
    parser.add_argument("--bootstrap", help="a broker that runs, instead of one that is started")
    parser.add_argument("--processors", help="pin every contender to these processors, e.g. 0 or 0,1")
    parser.add_argument(
        "--quick", action="store_true", help="do not compare the marks with lived and replayed ones"
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="run ours with a report about duplicates, too, and give its cost",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--replay", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
