"""The size of a backfill of 60 billion IDs: tasks, bytes, memory, hours, money; from costs of small runs.

    python benchmarks/plan_60g.py
    python benchmarks/plan_60g.py --ids 60000000000 --partitions 1000 --cores 160 --dollars-per-core-hour 0.05
    python benchmarks/plan_60g.py --sizes 1000000 4000000 --json > measured.json
    python benchmarks/plan_60g.py --measured measured.json --partitions 500

The job runs over topics of ``--sizes`` records: as a full run, as a layer for the last tenth, and on a base that is
written anew. The smallest and the largest size tell a fixed cost from one for each record; sizes in between show how
far off the line is. The job's own planner cuts the large topic, and tasks with its functions are started.
``--measured`` takes the runs of earlier results instead.

Each line is `measured`, `planned` (by the job's own planner), or `extrapolated`: a measured cost times a planned size.
The result goes to stdout, progress to stderr. Exit status 1: something failed; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from benchmarks.arguments import at_least
from benchmarks.plan_figures import ASSUMPTIONS, Figure, cost_lines, costs_of, figures_of
from benchmarks.plan_runs import driver_cost, measure
from benchmarks.planned_size import Size
from benchmarks.rounds import ContenderError
from benchmarks.workload import WorkloadError
from dedup_sdk.errors import DedupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_DAYS = 365


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, plan, print, and return the exit status."""
    options = _options(arguments)
    size = Size(
        records=options.ids,
        partitions=options.partitions,
        cores=options.cores,
        nightly=max(round(options.ids * options.nightly_share), 1),
    )
    try:
        if options.measured:
            runs = [run for path in options.measured for run in read_runs(path)]
        else:
            runs = [run for records in options.sizes for run in measure(records, options.rounds)]
        costs = costs_of(runs)
        print("planning, and starting tasks", file=sys.stderr)
        driver = driver_cost(size)
        figures = figures_of(
            costs,
            driver,
            partitions=size.partitions,
            cores=size.cores,
            dollars=options.dollars_per_core_hour,
        )
    except (KeyError, TypeError) as error:
        print(f"plan_60g: a run lacks something ({error}): measure again", file=sys.stderr)
        return 1
    except (ContenderError, WorkloadError, DedupError, KafkaException, OSError, ValueError) as error:
        print(f"plan_60g: {error}", file=sys.stderr)
        return 1
    if options.json:
        result = {
            "figures": [each._asdict() for each in figures],
            "costs": {name: asdict(each) for name, each in costs.lines.items()},
            "assumptions": ASSUMPTIONS,
            "driver": driver,
            "runs": runs,
        }
        print(json.dumps(result))
    else:
        for line in [*cost_lines(costs), "", *table(figures)]:
            print(line)
        print("\nassumed:")
        for assumption in ASSUMPTIONS:
            print(f"- {assumption}")
    return 0


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Return the runs in the JSON of an earlier result; raises `ValueError`, which names the file, for none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}): give the output of --json") from None
    runs = content.get("runs") if isinstance(content, dict) else None
    if not isinstance(runs, list) or not all(isinstance(run, dict) and "kind" in run for run in runs):
        raise ValueError(f"{path} has no runs: give the output of --json")
    return runs


def table(figures: Iterable[Figure]) -> list[str]:
    """Return the lines of a table, with a head for each part."""
    lines: list[str] = []
    part = None
    for figure in figures:
        if figure.part != part:
            part = figure.part
            lines += ["", part] if lines else [part]
        lines.append(f"  {figure.name:<44}{figure.text:>18}  {figure.kind}")
    return lines


def _number(fits: Callable[[float], bool], named: str) -> Callable[[str], float]:
    """Return a reader of numbers that fit, which ``named`` describes, as a ``type`` of argparse."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = 0.0
        if not fits(number):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {named}")
        return number

    return read


_share = _number(lambda number: 0 < number <= 1, "above 0 and up to 1")
_positive = _number(lambda number: 0 < number < float("inf"), "above 0")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The size of a large backfill, from costs of small ones.")
    parser.add_argument("--ids", type=at_least(1), default=60_000_000_000, help="IDs in all [60000000000]")
    parser.add_argument("--partitions", type=at_least(1), default=1_000, help="of the topic [1000]")
    parser.add_argument("--cores", type=at_least(1), default=160, help="tasks that run at a time [160]")
    parser.add_argument(
        "--nightly-share", type=_share, default=1 / _DAYS, help="records of a night, of all [1/365]"
    )
    parser.add_argument(
        "--dollars-per-core-hour", type=_positive, help="the price of a core and its memory [none]"
    )
    parser.add_argument(
        "--sizes", type=at_least(1000), nargs="+", default=[1_000_000, 2_000_000, 4_000_000, 8_000_000],
        help="records of the topics that are measured [1000000 2000000 4000000 8000000]",
    )  # fmt: skip
    parser.add_argument("--rounds", type=at_least(1), default=1, help="runs of each; medians count [1]")
    parser.add_argument("--measured", type=Path, nargs="+", help="take the runs of these results of --json")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args(arguments)
    if not options.measured and len(set(options.sizes)) == 1:
        parser.error("--sizes needs two sizes, to tell a fixed cost from one a record")
    return options


if __name__ == "__main__":
    sys.exit(main())
