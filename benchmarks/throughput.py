"""Throughput of the deduplicating consumer beside bare loops, on a real broker.

    python benchmarks/throughput.py
    python benchmarks/throughput.py --records 5000000 --ids 10000000 --json
    python benchmarks/throughput.py --only bare_tuned dedup_consume --rounds 5

The figures are explained in benchmarks/README.md. The result goes to stdout, everything else to stderr. Exit status
1: a contender failed, or lost or doubled a record; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from confluent_kafka import KafkaException

from benchmarks import report
from benchmarks.arguments import at_least
from benchmarks.broker import broker_at
from benchmarks.comparison import Comparison
from benchmarks.contender import LOOPS
from benchmarks.rounds import ContenderError
from benchmarks.steady import SteadyError, one_round, summary
from benchmarks.workload import Workload, WorkloadError
from dedup_sdk.errors import DedupError

_LEAST_RECORDS = 100
RATE = 1_000
"""Messages a second of the steady rate."""
STEADY = frozenset({"bare_tuned_poll", "dedup_poll"})
"""With both of them the CPU time at a steady rate is measured, too."""


def main() -> int:
    """Measure, print, and return the exit status."""
    options = _options()
    try:
        with (
            broker_at(options.bootstrap) as bootstrap,
            tempfile.TemporaryDirectory(prefix="dedup-benchmark-") as folder,
        ):
            comparison = Comparison(bootstrap, Workload(records=options.records), Path(folder), options.ids)
            result = comparison.run(options.only, options.rounds)
            if options.steady_seconds and STEADY.issubset(options.only):
                result |= cpu_at_a_steady_rate(
                    bootstrap, Path(folder), seconds=options.steady_seconds, rounds=options.rounds
                )
    except (SteadyError, ContenderError, WorkloadError, DedupError, KafkaException, OSError) as error:
        print(f"throughput: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(json.dumps(result) if options.json else report.text(result))
    return 1 if False in (result["exact"], result["poll_exact"]) else 0


def cpu_at_a_steady_rate(bootstrap: str, folder: Path, *, seconds: int, rounds: int) -> dict[str, float]:
    """Measure both ``poll()`` loops side by side at `RATE` messages a second; see `benchmarks.steady`."""
    result = summary([one_round(bootstrap, folder, RATE, seconds) for _ in range(rounds)])
    return {
        f"bare_cpu_us_at_{RATE}_per_s": result["bare"]["thread_us"],
        f"cpu_us_at_{RATE}_per_s": result["dedup"]["thread_us"],
        f"cpu_ratio_at_{RATE}_per_s": result["thread_us_ratio"],
        f"process_cpu_ratio_at_{RATE}_per_s": result["process_us_ratio"],
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Throughput of the deduplicating consumer beside bare loops."
    )
    parser.add_argument(
        "--records", type=at_least(_LEAST_RECORDS), default=1_000_000, help="records in the topic"
    )
    parser.add_argument(
        "--ids", type=at_least(0), default=0, help="other IDs that the key store knows beforehand"
    )
    parser.add_argument(
        "--rounds", type=at_least(1), default=3, help="runs of each contender; medians are reported"
    )
    parser.add_argument(
        "--steady-seconds",
        type=at_least(0),
        default=10,
        help=f"seconds of each round at {RATE} messages a second (10; 0: leave it out)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument(
        "--only", nargs="+", choices=LOOPS, default=list(LOOPS), metavar="NAME", help=", ".join(LOOPS)
    )
    parser.add_argument(
        "--bootstrap", help="a running broker; its topic is kept and used again (default: start one)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
