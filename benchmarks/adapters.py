"""The cost of the ties to other systems, each beside the plain way.

    python benchmarks/adapters.py
    python benchmarks/adapters.py --only outbox --records 500000 --rounds 7 --json

Every contender runs in a process of its own, in an order that begins with another one each round; the median of
the rounds counts. The result goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
from statistics import median
from typing import TYPE_CHECKING

from benchmarks import bridge, inbox, outbox, shared
from benchmarks.arguments import at_least

if TYPE_CHECKING:
    from collections.abc import Callable

Figures = dict[str, float]
PARTS: dict[str, Callable[[int, int], dict[str, list[Figures]]]] = {
    "outbox": outbox.rounds_of,
    "bridge": bridge.rounds_of,
    "inbox": inbox.rounds_of_new,
    "inbox-halved": inbox.rounds_of_halved,
    "shared": shared.rounds_of,
}
"""Each takes records and rounds, and returns the figures of each round of each contender; the plain one comes first."""


def measure(part: str, records: int, rounds: int) -> dict[str, Figures]:
    """Return the medians of each contender, with its records a second over those of the plain one."""
    found = PARTS[part](records, rounds)
    medians = {
        name: {figure: median(each[figure] for each in readings) for figure in readings[0]}
        for name, readings in found.items()
    }
    plain = next(iter(medians.values()))["records_per_second"]
    return {
        name: {**figures, "ratio": figures["records_per_second"] / plain} for name, figures in medians.items()
    }


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description="What the ties to other systems cost.")
    parser.add_argument("--only", choices=[*PARTS], help="one of them")
    parser.add_argument("--records", type=at_least(1), default=300_000, help="records of each contender")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="the median counts")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    parts = [options.only] if options.only else [*PARTS]
    found = {part: measure(part, options.records, options.rounds) for part in parts}
    if options.json:
        print(
            json.dumps(
                {
                    part: {name: _rounded(each) for name, each in result.items()}
                    for part, result in found.items()
                }
            )
        )
        return 0
    for part, result in found.items():
        names = list(next(iter(result.values())))
        width = max(map(len, result))
        print(f"{part.ljust(width)}  " + "  ".join(f"{name:>22}" for name in names))
        for name, figures in result.items():
            print(f"{name.ljust(width)}  " + "  ".join(f"{figures[each]:>22,.2f}" for each in names))
    return 0


def _rounded(figures: Figures) -> Figures:
    return {name: round(value, 2) for name, value in figures.items()}


if __name__ == "__main__":
    sys.exit(main())
