"""The page's diff, from a transactional loop of the plain client to this package: both sides run on a real broker."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.integration.kafka.test_transactions import seen
from tests.support.bridging import until
from tests.support.consuming import numbers
from tests.support.forks import FORKS

if TYPE_CHECKING:
    from tests.support.worlds import World

PAGE: Final = Path(__file__).parents[3] / "docs" / "transactions.md"


def program(side: str) -> str:
    """The program of one side of the diff: ``-`` before, ``+`` after."""
    [diff] = re.findall(r"^```diff$(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = diff.splitlines()
    return "\n".join(line[1:] for line in lines if line[:1] in ("", " ", side))


def live(source: str, folder: str) -> None:
    """Run a program in a folder of its own, until it is killed."""
    os.chdir(folder)
    exec(compile(source, "diff", "exec"), {})  # noqa: S102 (the page's own)


@pytest.mark.parametrize(("side", "doubled"), [("-", 10), ("+", 0)])
def test_each_message_is_there_once_after_all_are_sent_again(
    world: World, tmp_path: Path, side: str, doubled: int
) -> None:
    """The plain loop writes them again."""
    out = world.create_topic(f"{world.topic}-bills")
    source = program(side)
    for name, own in {
        "localhost:9092": world.bootstrap, '"orders"': repr(world.topic), '"bills"': repr(out),
        '"copies"': repr(world.group), "copies-1": f"{world.group}-1",
    }.items():  # fmt: skip
        assert name in source
        source = source.replace(name, own)
    world.send(*numbers(0, 10))
    process = FORKS.Process(target=live, args=(source, str(tmp_path)))
    process.start()
    try:
        until(lambda: len(seen(world, out)) == 10)
        world.send(*numbers(0, 10), "last")
        until(lambda: "last" in seen(world, out))
    finally:
        process.kill()
        process.join()
    assert len(seen(world, out)) == 11 + doubled
