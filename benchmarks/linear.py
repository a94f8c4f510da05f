"""A cost as a fixed part and a part for each unit, from runs of different sizes: pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Line:
    """``fixed + each * size``.

    ``off_by`` is the largest relative distance of a size in between from the line, None where none was measured:
    +0.1 says that it cost a tenth more than the line says. ``most`` is the largest size that was measured.
    """

    fixed: float
    each: float
    off_by: float | None
    most: float

    def at(self, size: float) -> float:
        """Return the cost of a size."""
        return self.fixed + self.each * size


def fit(points: Iterable[tuple[float, float]]) -> Line:
    """Return the line through the smallest and the largest size; of runs of one size the median counts.

    A cost that falls with the size is taken as fixed, at its highest. Raises `ValueError` for fewer than two sizes.
    """
    by_size: dict[float, list[float]] = defaultdict(list)
    for size, cost in points:
        by_size[size].append(cost)
    costs = {size: median(found) for size, found in sorted(by_size.items())}
    if len(costs) < 2:  # noqa: PLR2004 (a line has two ends)
        raise ValueError(
            f"runs of two sizes are needed, to tell a fixed cost from one a record; there are {len(costs)}"
        )
    least, *between, most = costs
    each = (costs[most] - costs[least]) / (most - least)
    fixed = costs[least] - each * least
    if each < 0:
        fixed, each = max(costs.values()), 0.0
    ratios = [costs[size] / (fixed + each * size) - 1 for size in between]
    return Line(fixed, each, max(ratios, key=abs, default=None), most)
