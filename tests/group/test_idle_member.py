"""A group with more members than partitions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk._kafka.assign import health
from tests.group.conftest import MEMBERS
from tests.support.consuming import PATIENCE_S

if TYPE_CHECKING:
    from tests.support.worlds import World


@pytest.mark.parametrize(("pair_world", "protocol"), MEMBERS, indirect=True)
def test_a_member_without_a_partition_is_ready(
    pair_world: World, protocol: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the client makes no callback for an empty assignment."""
    monkeypatch.setattr(health, "LOOK_EVERY_S", 0.3)
    members = [pair_world.consumer(str(number), config=protocol) for number in range(3)]
    until = time.monotonic() + PATIENCE_S
    while not (
        all(member.health().ready for member in members)
        and sorted(len(member.partition_statuses) for member in members) == [0, 1, 1]
    ):
        assert time.monotonic() < until, [member.health() for member in members]
        for member in members:
            member.poll(0.05)
