"""Long runs: `python -m tests.model WORLD|all --seeds N --first SEED` lives through histories and names what broke."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.model.worlds.life import Life
from tests.model.worlds.world import WORLDS


def main() -> int:
    """Run; exit status 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("world", choices=["all", *WORLDS])
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    worlds = WORLDS if asked.world == "all" else {asked.world: WORLDS[asked.world]}
    broken = 0
    for name, world in worlds.items():
        seen: Counter[str] = Counter()
        for seed in range(asked.first, asked.first + asked.seeds):
            outcome = Life(world, seed).run()
            seen[outcome.partition(":")[0]] += 1
            if outcome != "ok":
                broken += 1
                sys.stdout.write(f"{name}, seed {seed}: {outcome}\n")
        sys.stdout.write(f"{name}: {dict(seen)}\n")
        sys.stdout.flush()
    return min(broken, 1)


if __name__ == "__main__":
    sys.exit(main())
