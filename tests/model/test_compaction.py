"""A topic whose old records are compacted away."""

from __future__ import annotations

from tests.model.group_life import GroupLife
from tests.model.worlds.quiet import quiet
from tests.model.worlds.world import World


def test_what_compaction_took_is_delivered_again_where_the_store_is_gone() -> None:
    """A replay over holes ends, and hides nothing that it did not read; where the store is, it is still known."""
    for disk, verdict in (("here", "duplicate"), ("elsewhere", "fresh")):
        with quiet(World()):
            life = GroupLife()
            life.produce("abcd")
            life.start("here")
            life.handle()
            life.stop()
            life.log.entries = [entry for entry in life.log.entries if entry.ident not in "abd"]
            life.start(disk)
            [taken, kept] = life.produce("ac")
            life.handle()
            life.stop()
        assert (life.verdicts[taken.serial], life.verdicts[kept.serial]) == (verdict, "duplicate")
