"""A queue of Solace's on a real broker: compared with the last ID, through a kill and a fail-over to another origin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dedup_adapters import solace
from dedup_sdk import LastId, header
from tests.support.consuming import poll_quiet, values
from tests.support.killed_member import completed_before_a_kill

if TYPE_CHECKING:
    from tests.support.worlds import World

BROKER, MATE = 0x3B20225D86A922C7, 0x24C78197D007757C


def rgmid(message_id: int, spooler_id: int = BROKER) -> str:
    """The text of a message's ID."""
    return str(solace.ReplicationGroupMessageId(spooler_id, message_id))


@pytest.mark.parametrize(("disk", "commits"), [("same", "no"), ("lost", "no"), ("lost", "yes")])
def test_the_last_id_outlives_a_kill(world: World, disk: str, commits: str) -> None:
    """Messages completed before it are not processed again.

    A message that came late is, and one of another origin begins anew. Without its disk the group replays the
    committed part; where that is nothing but its beginning it handles everything again, and each message once.
    """
    world.send(*map(rgmid, [1, 2, 1, 4]))
    before = [rgmid(1), rgmid(2), rgmid(4)]
    strategy = "LastId(id=header('dedup-id'), order=solace.order())"
    assert completed_before_a_kill(world, strategy, 3, commits=commits) == before

    world.send(*map(rgmid, [4, 3, 3, 5, 2]))
    world.send(rgmid(1, MATE), rgmid(1, MATE), rgmid(2, MATE))
    dedup = LastId(id=header("dedup-id"), order=solace.order())
    new = [rgmid(3), rgmid(5), rgmid(1, MATE), rgmid(2, MATE)]
    with world.consumer(disk, dedup=dedup) as consumer:
        known = disk == "same" or commits == "yes"
        assert values(poll_quiet(consumer)) == (new if known else [*before, *new])
        assert consumer.counters.reasons["unverified.uncomparable"] == 1
    world.send(rgmid(2, MATE), rgmid(3, MATE))
    with world.consumer(disk, dedup=dedup) as consumer:
        assert values(poll_quiet(consumer)) == [rgmid(3, MATE)]
