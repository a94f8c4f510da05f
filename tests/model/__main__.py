"""Long runs: `python -m tests.model WORLD|all --seeds N --first SEED` lives through histories and names what broke."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial

from tests.model.design import DesignHost, Rules
from tests.model.history import History
from tests.model.last_id.history import LastIdHistory
from tests.model.worlds.life import Life
from tests.model.worlds.world import WORLDS, World


def _live(world: World, seed: int) -> str:
    return Life(world, seed).run()


def _follow(seed: int) -> str:
    rules = Rules()
    return History(seed, lambda: DesignHost(rules), rules).run()


HISTORIES: dict[str, Callable[[int], str]] = {
    "design": _follow,
    **{name: partial(_live, world) for name, world in WORLDS.items()},
    "last-id": lambda seed: LastIdHistory(seed).run(),
}
"""Everything that can be lived through, by name: a seed becomes ``ok`` or the broken promise."""


def main() -> int:
    """Run; exit status 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("world", choices=["all", *HISTORIES])
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    broken = 0
    for name, live in HISTORIES.items():
        if asked.world not in ("all", name):
            continue
        seen: Counter[str] = Counter()
        for seed in range(asked.first, asked.first + asked.seeds):
            outcome = live(seed)
            seen[outcome.partition(":")[0]] += 1
            if outcome != "ok":
                broken += 1
                sys.stdout.write(f"{name}, seed {seed}: {outcome}\n")
        sys.stdout.write(f"{name}: {dict(seen)}\n")
        sys.stdout.flush()
    return min(broken, 1)


if __name__ == "__main__":
    sys.exit(main())
