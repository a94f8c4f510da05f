"""The runs of which `benchmarks.plan_60g` takes its costs: real ones, with a broker of their own."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import event_log
from benchmarks.delta import commit, run_backfill
from benchmarks.process_tree import run_tree
from benchmarks.rounds import ContenderError
from benchmarks.workload import TOPIC, Workload, ensure_topic
from dedup_sdk._store.manifest import read_manifest
from dedup_sdk.testing import LocalKafka
from spark_backfill import launch
from spark_backfill.slots import ROWS_PER_SLOT

if TYPE_CHECKING:
    from benchmarks.planned_size import Size

KINDS: Final = ("full", "night", "anew")
"""All records; a layer on top; the same on a base that is written anew."""
_FOLDER: Final = Path(__file__).parent
_QUIET: Final = "rootLogger.level = off\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The cost of a run.

    - ``rows``: records that it read, and marks of a base that it read; ``ids``: marks that it wrote.
    - ``cpu_seconds``, ``peak_rss_mib``: of all its processes; ``cores``: tasks that ran at a time.
    - ``slot_rows``: marks of the largest file.
    - ``read_result_bytes``, ``write_result_bytes``: those of a task, at most.
    """

    kind: str
    rows: int
    ids: int
    cpu_seconds: float
    seconds: float
    peak_rss_mib: float
    cores: int
    slot_rows: int
    shuffle_bytes: int
    output_bytes: int
    read_result_bytes: int
    write_result_bytes: int


def measure(records: int, rounds: int) -> list[dict[str, Any]]:
    """Run the job over topics of so many records, and restore a partition of as many IDs; return all runs."""
    found: list[dict[str, Any]] = []
    with LocalKafka() as kafka:
        ensure_topic(kafka.bootstrap, TOPIC, Workload(records=records))
        for turn in range(rounds):
            with tempfile.TemporaryDirectory(prefix="dedup-plan-") as folder:
                found += map(asdict, _runs(kafka.bootstrap, Path(folder)))
            _say(f"{records:,} records, round {turn + 1}/{rounds}", found[-len(KINDS) :])
    return [*found, install(records, rounds)]


def driver_cost(size: Size) -> dict[str, Any]:
    """Return the result of `benchmarks.driver_cost`."""
    with tempfile.TemporaryDirectory(prefix="dedup-plan-") as folder:
        logging = Path(folder) / "log4j2.properties"
        logging.write_text(_QUIET, encoding="ascii")
        line = launch.command(
            [json.dumps(asdict(size))],
            scratch=Path(folder),
            job=_FOLDER / "driver_cost.py",
        )
        environment = {
            **os.environ,
            **launch.environment(Path(folder), [f"-Dlog4j2.configurationFile={logging.as_uri()}"]),
        }
        tree = run_tree(line, environment=environment, folder=Path(folder))
    found: dict[str, Any] = json.loads(tree.output)
    return found


def _runs(bootstrap: str, folder: Path) -> list[Run]:
    commit(bootstrap, 9)
    full = _run("full", bootstrap, folder / "added", "--add")
    shutil.copytree(folder / "added", folder / "base")
    commit(bootstrap, 10)
    night = _run("night", bootstrap, folder / "added", "--add", before=full)
    anew = _run("anew", bootstrap, folder / "anew", "--base", str(folder / "base"))
    return [full, night, anew]


def _run(kind: str, bootstrap: str, output: Path, *more: str, before: Run | None = None) -> Run:
    """Run the job; ``before``: the run that made the snapshot at the output."""
    logs = output.with_name(f"log-{kind}")
    logs.mkdir()
    arguments = f"{os.environ.get('DEDUP_SPARK_ARGS', '')} {event_log.settings(logs)}"
    tree, report = run_backfill(
        bootstrap, output, *more, environment={**os.environ, "DEDUP_SPARK_ARGS": arguments}
    )
    log = next(logs.iterdir(), None)
    if log is None:
        raise ContenderError(
            f"Spark wrote no event log into {logs}: is $DEDUP_SPARK_ARGS for another machine?"
        )
    with log.open(encoding="utf-8") as lines:
        tasks = event_log.read_tasks(lines)
    manifest = read_manifest(output)
    files = [file for entry in manifest.partitions for file in entry.files]
    newest = max(file.layer for file in files)
    return Run(
        kind=kind,
        rows=report["records"] + (0 if before else report["base_marks"]),
        ids=manifest.marks - (before.ids if before else 0),
        cpu_seconds=tree.cpu_seconds,
        seconds=report["seconds"],
        peak_rss_mib=tree.peak_rss_mib,
        cores=os.cpu_count() or 1,
        slot_rows=max(file.marks for file in files if file.layer == newest),
        shuffle_bytes=tasks.shuffle_bytes,
        output_bytes=manifest.bytes - (before.output_bytes if before else 0),
        read_result_bytes=tasks.read_result_bytes,
        write_result_bytes=tasks.write_result_bytes,
    )


def install(ids: int, rounds: int) -> dict[str, Any]:
    """Restore a partition of so many IDs, a few times at least; return the medians."""
    files = -(-ids // ROWS_PER_SLOT)
    # One takes a second, and times of the disk vary.
    arguments = ["--ids", str(ids), "--files", str(files), "--rounds", str(max(rounds, 5)), "--json"]
    tree = run_tree([sys.executable, str(_FOLDER / "restore.py"), *arguments])
    found = json.loads(tree.output)
    _say(f"{ids:,} IDs", [run := {"kind": "install", **found, "peak_rss_mib": tree.peak_rss_mib}])
    return run


def _say(what: str, runs: list[dict[str, Any]]) -> None:
    for run in runs:
        seconds = run.get("cpu_seconds", run.get("restore_seconds"))
        print(f"{what}, {run['kind']}: {seconds:.1f} s", file=sys.stderr)
