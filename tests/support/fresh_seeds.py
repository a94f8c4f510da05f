"""Seeds of random tests: others in each run, told at the top of the run and with each failure.

A test that takes the argument ``fresh_seed`` runs once for each seed of the run. ``DEDUP_TEST_SEED=7`` gives the first
one, and ``DEDUP_TEST_SEEDS=20`` how many follow each other; without them it is one seed that chance draws.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

SEED: Final = "DEDUP_TEST_SEED"
"""The environment variable with the first seed."""
TITLE: Final = "how to repeat it"
"""The title of the section of a report with the command that repeats the test."""
_SEEDS: Final = "DEDUP_TEST_SEEDS"
_ARGUMENT: Final = "fresh_seed"
_DRAWN: Final = 1_000_000


def histories(fresh_seed: int, count: int) -> range:
    """Return the seeds of a test that plays ``count`` histories for each seed of the run, none for two of them."""
    return range(count * fresh_seed, count * (fresh_seed + 1))


class FreshSeeds:
    """The pytest plugin that gives tests their seeds, and tells how to repeat them."""

    def __init__(self) -> None:
        self.first = int(os.environ.get(SEED) or random.SystemRandom().randrange(1, _DRAWN))
        self._count = int(os.environ.get(_SEEDS) or 1)

    def pytest_report_header(self) -> str:
        """Say at the top which seed the run has."""
        return f"dedup: random tests begin with the seed {self.first}; {SEED}={self.first} repeats them"

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a random test once for each seed."""
        if _ARGUMENT in metafunc.fixturenames:
            metafunc.parametrize(_ARGUMENT, range(self.first, self.first + self._count))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put the command that repeats a random test beside its failure."""
        report = yield
        if report.failed and _ARGUMENT in getattr(item, "fixturenames", ()):
            chosen = f"{SEED}={self.first} {_SEEDS}={self._count}"
            report.sections.append((TITLE, f"{chosen} .venv/bin/pytest '{item.nodeid}'"))
        return report
