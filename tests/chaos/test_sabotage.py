"""The broken twins: each has to break something that is there."""

from __future__ import annotations

from multiprocessing import get_context

import pytest

from tests.chaos.sabotage import BROKEN, sabotage


@pytest.mark.parametrize("name", BROKEN)
def test_a_sabotage_finds_the_part_that_it_breaks(name: str) -> None:
    """Else the twin ends with an error of its own, and proves nothing. In a child, whose parts stay broken."""
    child = get_context("fork").Process(target=sabotage, args=(name,))
    child.start()
    child.join()
    assert child.exitcode == 0
