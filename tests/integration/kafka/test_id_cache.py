"""The caches of Artemis and HornetQ on a real broker, through a kill and two starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dedup_adapters import artemis, hornetq
from dedup_sdk import header
from tests.support.consuming import poll_quiet, values
from tests.support.killed_member import completed_before_a_kill

if TYPE_CHECKING:
    from types import ModuleType

    from tests.support.worlds import World


@pytest.mark.slow
@pytest.mark.parametrize("system", [artemis, hornetq], ids=["artemis", "hornetq"])
@pytest.mark.parametrize(("disk", "commits"), [("same", "no"), ("lost", "no"), ("lost", "yes")])
def test_a_ring_outlives_a_kill(world: World, system: ModuleType, disk: str, commits: str) -> None:
    """On the same disk it is as the broker's would be, in order.

    Without a disk it is folded from committed messages, and all else comes again. By hand, with a ring of three: a
    b c fill it, a and c are found, d takes the slot of a. Killed there, the ring is b c d: a is new and takes the
    slot of b, c is found, b is new and takes the slot of c, d is found, c is new and takes the slot of d.
    """
    world.send(*"abcacd")
    name = system.__name__.split(".")[1]
    dedup = f"{name}.duplicate_detection(id_cache_size=3, id=header('dedup-id'))"
    assert completed_before_a_kill(world, dedup, 4, commits=commits) == [*"abcd"]
    assert world.committed().offset in ((6,) if commits == "yes" else (0, 6))

    world.send(*"acbdc")
    strategy = system.duplicate_detection(id_cache_size=3, id=header("dedup-id"))
    with world.consumer(disk, dedup=strategy) as consumer:
        got = values(poll_quiet(consumer))
        unverified = consumer.counters.verdicts["unverified"]
    # Where nothing was committed but where the history begins, the group handles all again without its disk.
    known = disk == "same" or commits == "yes"
    assert got == (["a", "b", "c"] if known else [*"abcd", "a", "b", "c"])
    assert unverified == 0
    world.send("b", "a", "c", "d")
    with world.consumer(disk, dedup=strategy) as consumer:
        assert values(poll_quiet(consumer)) == ["d"]
        assert consumer.counters.verdicts["duplicate"] == 3
