"""Every way that a group's ``low`` moves: the rows of the table in ``lows.md``, lived through.

Each begins with the same group: new at offset 4 of a log that had four records (``a`` to ``d``), it has handled
offsets 4 to 11 since (``e`` to ``l``), and committed 12. Then something happens. The group goes on where its store
is, or elsewhere without one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dedup_sdk._admin.rewind import moved
from tests.model.group_life import GROUP, GroupLife
from tests.model.worlds.broker import Log

if TYPE_CHECKING:
    from collections.abc import Callable

BEFORE, LIVED, UNREAD = "abcd", "efghijkl", "mnop"
KNOWN, NEW = "e", "z"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way: ``happens`` is done to the group, or, without a ``past``, to a topic that it never read.

    ``settings`` are those of its consumers from then on; ``vouched`` are IDs that its user says were handled,
    ``skipped`` those of records that are passed over by choice.
    """

    name: str
    happens: Callable[[GroupLife], None]
    past: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    vouched: str = ""
    skipped: str = ""


def row_of(way: Way) -> str:
    """Return the line of the table: the outcome where the store is, and the differences elsewhere."""
    here, elsewhere = _outcome(way, "here"), _outcome(way, "elsewhere")
    cells = [a if a == b else f"{a}; elsewhere {b}" for a, b in zip(here, elsewhere, strict=True)]
    return f"| {' | '.join([way.name, *cells])} |"


def _outcome(way: Way, disk: str) -> list[str]:
    """Lead a group through it; return the next commit's text, the offsets handled again, two verdicts, and events.

    The verdicts are those of another record with the ID that was handled at offset 4, and of one with an ID that
    is new.
    """
    life = GroupLife()
    life.produce(BEFORE)
    if way.past:
        life.start("here", reset="latest")
        life.handle()
    life.produce(LIVED)
    if way.past:
        life.handle()
        life.stop()
    life.settings, life.vouched = way.settings, set(way.vouched)
    way.happens(life)
    life.start(disk)
    life.handle()
    passed_over = {e.ident for e in life.log.entries if e.serial not in life.verdicts}
    assert passed_over <= {*BEFORE, *way.vouched, *way.skipped}, "lost: they were never judged"
    # Whatever nobody handled has to be delivered when it comes again; the life sees to it.
    never = {*BEFORE, *LIVED, *UNREAD} - {*life.handled.values(), *way.vouched}
    life.produce("".join(sorted(never - {KNOWN})))
    known, new = life.produce(KNOWN + NEW)
    life.handle()
    life.stop()
    _, text = life.commit
    assert text is not None
    return [
        f"`low={text.low} complete={int(text.complete)}`",
        f"{life.again[0]} to {life.again[-1]}" if life.again else "-",
        life.verdicts[known.serial],
        life.verdicts[new.serial],
        ", ".join(f"`{event}`" for event in life.events) or "-",
    ]


# --- events ----------------------------------------------------------------------------------------------------------


def nothing(life: GroupLife) -> None:
    """The next start finds the state that the last one left."""


def crash(life: GroupLife) -> None:
    """The process dies with four messages handled that it has not committed."""
    life.produce(UNREAD)
    life.start("here")
    life.handle(up_to=16)
    life.kill()


def adopted(life: GroupLife) -> None:
    """Another client committed for this group."""
    life.set_commit(12)


def dedup_rewind(life: GroupLife, *, offset: int) -> None:
    """The command sets the group's offset."""
    life.produce(UNREAD)
    committed, text = life.commit
    life.set_commit(offset, moved(committed, text, offset, "feed"))


def reset_tool(life: GroupLife, *, offset: int) -> None:
    """A tool sets the group's offset, without the text."""
    life.produce(UNREAD)
    life.set_commit(offset)


def came_late(life: GroupLife) -> None:
    """An older commit of the group's own arrives after its last one."""
    _, text = life.commit
    life.set_commit(8, text)


def on_assign(life: GroupLife, *, offset: int) -> None:
    """The application's callback sets the offset."""
    life.produce(UNREAD)
    life.start("here", offset)
    life.handle()
    life.stop()


def crash_and_on_assign(life: GroupLife, *, offset: int) -> None:
    """The process dies with four messages handled that it has not committed; then the callback sets the offset."""
    crash(life)
    life.start("here", offset)
    life.handle()
    life.stop()


def seek(life: GroupLife, *, offset: int) -> None:
    """The application seeks, before it has read on."""
    life.start("here")
    life.handle(up_to=12)
    life.produce(UNREAD)
    life.member.seek(0, offset)
    life.handle()
    life.stop()


def overtaken(life: GroupLife) -> None:
    """Retention takes two records that the group has not read."""
    life.produce(UNREAD)
    life.log.delete_before(14)
    life.start("here")
    life.handle()
    life.stop()


def shortened(life: GroupLife) -> None:
    """Retention takes handled records up to offset 8."""
    life.log.delete_before(8)


def forgotten(life: GroupLife) -> None:
    """The group's offsets expire, or are deleted."""
    del life.broker.committed[GROUP, 0]


def deleted_and_on_assign(life: GroupLife) -> None:
    """The group's offsets are deleted; then the callback sets one."""
    forgotten(life)
    life.start("here", 6)
    life.handle()
    life.stop()


def made_anew(life: GroupLife, *, offsets_stay: bool = False) -> None:
    """The topic is deleted, and made again with four other records."""
    life.broker.logs[0], life.broker.topic_id = Log(), "second"
    if not offsets_stay:
        del life.broker.committed[GROUP, 0]
    life.produce(UNREAD)


def truncated(life: GroupLife, *, offset: int) -> None:
    """An election loses the log's end, while nobody reads."""
    life.log.truncate(offset)


def truncated_while_reading(life: GroupLife, *, offset: int) -> None:
    """An election loses the log's end, under a member."""
    life.start("here")
    life.handle()
    life.log.truncate(offset)
    life.produce(UNREAD)
    life.handle()
    life.stop()


def copied(life: GroupLife) -> None:
    """A mirror copies the group to another cluster, with its offset and its text."""
    _, text = life.commit
    assert text is not None
    life.set_commit(12, replace(text, log="deadbeef"))


def partition_added(life: GroupLife) -> None:
    """The topic gets another partition, which nobody has read."""
    life.broker.logs.append(Log())
    life.number = 1
    life.produce(UNREAD)


# --- the table -------------------------------------------------------------------------------------------------------

_ASSUME = {"history": "assume-processed"}
_LATEST = {"reset": "latest"}

WAYS = [
    Way(name="first start, `earliest`", happens=nothing, past=False),
    Way(name="first start, `latest`", happens=nothing, past=False, settings=_LATEST, skipped=LIVED),
    Way(name="a partition is added", happens=partition_added),
    Way(name="restart, rebalance", happens=nothing),
    Way(name="SIGKILL with 12 to 15 handled, not committed", happens=crash),
    Way(name="`Recovery(timeout=)` passes", happens=nothing, settings={"impatient": True}),
    Way(name="retention deletes offsets before 8", happens=shortened),
    Way(
        name="another client committed 12 before the first start", happens=adopted, past=False, skipped=LIVED
    ),
    Way(
        name='the same, `Recovery(history="assume-processed")`',
        happens=adopted,
        past=False,
        settings=_ASSUME,
        vouched=BEFORE + LIVED,
    ),
    Way(name="the group is copied from another cluster", happens=copied),
    Way(name="`dedup rewind` to 6", happens=partial(dedup_rewind, offset=6)),
    Way(name="`dedup rewind` to 2", happens=partial(dedup_rewind, offset=2)),
    Way(name="`dedup rewind` to 14", happens=partial(dedup_rewind, offset=14), skipped="mn"),
    Way(name="a reset tool to 6", happens=partial(reset_tool, offset=6)),
    Way(name="a reset tool to 2", happens=partial(reset_tool, offset=2)),
    Way(name="a reset tool to 14", happens=partial(reset_tool, offset=14), skipped="mn"),
    Way(
        name='a reset tool to 14, `Recovery(history="assume-processed")`',
        happens=partial(reset_tool, offset=14),
        settings=_ASSUME,
        vouched=BEFORE + LIVED + "mn",
    ),
    Way(name="a commit of 8 arrives after that of 12", happens=came_late),
    Way(name="`on_assign` sets 6", happens=partial(on_assign, offset=6)),
    Way(name="`on_assign` sets 2", happens=partial(on_assign, offset=2)),
    Way(name="`on_assign` sets 14", happens=partial(on_assign, offset=14), skipped="mn"),
    Way(name="the same SIGKILL, then `on_assign` sets 12", happens=partial(crash_and_on_assign, offset=12)),
    Way(name="the same SIGKILL, then `on_assign` sets 14", happens=partial(crash_and_on_assign, offset=14)),
    Way(name="the offsets are deleted, then `on_assign` sets 6", happens=deleted_and_on_assign),
    Way(name="`seek()` to 6", happens=partial(seek, offset=6)),
    Way(name="`seek()` to 2", happens=partial(seek, offset=2)),
    Way(name="`seek()` to 14", happens=partial(seek, offset=14), skipped="mn"),
    Way(name="retention deletes unread records before 14, `earliest`", happens=overtaken, skipped="mn"),
    Way(name="the same, `latest`", happens=overtaken, settings=_LATEST, skipped=UNREAD),
    Way(name="the group's offsets are deleted, `earliest`", happens=forgotten),
    Way(name="the group's offsets are deleted, `latest`", happens=forgotten, settings=_LATEST),
    Way(name="the topic is deleted and created again", happens=made_anew),
    Way(name="the same, the group's offset stays", happens=partial(made_anew, offsets_stay=True)),
    Way(name="the log is truncated to 9 while no consumer runs", happens=partial(truncated, offset=9)),
    Way(name="the log is truncated to 2 while no consumer runs", happens=partial(truncated, offset=2)),
    Way(
        name="the log is truncated to 9, and grows, under a consumer",
        happens=partial(truncated_while_reading, offset=9),
    ),
    Way(
        name="the log is truncated to 2, and grows, under a consumer",
        happens=partial(truncated_while_reading, offset=2),
    ),
]
"""In the order of ``lows.md``."""
