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
from benchmarks.workload import Workload, WorkloadError
from dedup_sdk.errors import DedupError

_LEAST_RECORDS = 100


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
    except (ContenderError, WorkloadError, DedupError, KafkaException, OSError) as error:
        print(f"throughput: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(json.dumps(result) if options.json else report.text(result))
    return 1 if False in (result["exact"], result["poll_exact"]) else 0


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
