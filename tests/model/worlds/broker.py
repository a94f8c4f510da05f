"""A cluster in memory: logs with holes that may be cut back, groups whose commits are fenced, and backups of its disk.

Every record that was ever written has a number of its own (``serial``), because an offset may be written twice:
once before a truncation or a restored backup, once after it. Offsets are "the next one" where they are watermarks.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from confluent_kafka import Message, TopicPartition

from tests.model.worlds.compared import headers_of

TOPIC = "t"
Held = tuple[str, int]
"""A group and a partition."""


class Entry(NamedTuple):
    """A record: its offset, name and time (ms), and in which leader epoch.

    ``aborted``: its transaction was.
    """

    serial: int
    offset: int
    ident: str
    timestamp_ms: int
    epoch: int
    aborted: bool = False

    def message(self, partition: int) -> Message:
        """The client's message of it."""
        return Message(
            topic=TOPIC, partition=partition, offset=self.offset, key=self.ident.encode(), value=b"%d" % self.serial,
            headers=headers_of(self.ident), timestamp=(1, self.timestamp_ms), leader_epoch=self.epoch,
        )  # fmt: skip


@dataclass
class Log:
    """One partition: ``entries`` ascending by offset; offsets from ``start`` to ``end`` without one are holes."""

    entries: list[Entry] = field(default_factory=list)
    start: int = 0
    end: int = 0
    epoch: int = 0
    begins: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """Leader epochs, and the offsets where they begin."""

    def read(self, offset: int, count: int, *, aborted: bool = False) -> list[Entry]:
        """Return some records from an offset on, without those of aborted transactions unless these are wanted."""
        at = bisect_left(self.entries, offset, key=lambda entry: entry.offset)
        return [entry for entry in self.entries[at:] if aborted or not entry.aborted][:count]

    def end_of(self, epoch: int) -> int:
        """Return the offset where records up to this leader epoch end."""
        return min((begin for later, begin in self.begins if later > epoch), default=self.end)

    def truncate(self, offset: int) -> None:
        """Cut the log back, as the election of a replica that lags does: new records are of another epoch."""
        del self.entries[bisect_left(self.entries, offset, key=lambda entry: entry.offset) :]
        self.end, self.epoch = offset, self.epoch + 1
        self.begins = [(epoch, begin) for epoch, begin in self.begins if begin < offset or epoch == 0]
        self.begins.append((self.epoch, offset))

    def delete_before(self, offset: int) -> None:
        """Forget the beginning, as retention does."""
        self.start = max(self.start, min(offset, self.end))
        del self.entries[: bisect_left(self.entries, self.start, key=lambda entry: entry.offset)]

    def copy(self) -> Log:
        """Return a backup of it."""
        return replace(self, entries=[*self.entries], begins=[*self.begins])

    def become(self, other: Log) -> None:
        """Become the log of a backup; the leader epoch is the one it had then."""
        self.entries, self.begins = [*other.entries], [*other.begins]
        self.start, self.end, self.epoch = other.start, other.end, other.epoch


class Backup(NamedTuple):
    """The contents of the disk: the logs, and the groups' offsets."""

    logs: list[Log]
    committed: dict[Held, TopicPartition]


@dataclass
class Broker:
    """The cluster.

    ``generations`` says which assignment of a partition is the group's newest: only that one may commit.
    """

    logs: list[Log]
    committed: dict[Held, TopicPartition] = field(default_factory=dict)
    generations: dict[Held, int] = field(default_factory=dict)
    written: int = 0
    topic_id: str = "first"

    def append(
        self, partition: int, ident: str, timestamp_ms: int, *, hole: int = 0, aborted: bool = False
    ) -> Entry:
        """Write a record behind ``hole`` offsets that bear none."""
        log = self.logs[partition]
        entry = Entry(self.written, log.end + hole, ident, timestamp_ms, log.epoch, aborted)
        log.entries.append(entry)
        log.end, self.written = entry.offset + 1, self.written + 1
        return entry

    def grant(self, group: str, partition: int) -> int:
        """Give a partition to a member: whoever had it before is fenced."""
        held = group, partition
        self.generations[held] = self.generations.get(held, 0) + 1
        return self.generations[held]

    def commit(self, group: str, generation: int, asked: TopicPartition) -> bool:
        """Take a commit of the newest assignment; False for any other."""
        held = group, asked.partition
        if generation != self.generations.get(held):
            return False
        self.committed[held] = asked
        return True

    def back_up(self) -> Backup:
        """Copy the disk."""
        return Backup([log.copy() for log in self.logs], dict(self.committed))

    def restore(self, backup: Backup, *, logs_alone: bool) -> None:
        """Put the disk back to the backup; who had a partition is not known any more.

        ``logs_alone``: the groups' offsets were on another broker. Offsets of lost records are not kept even so.
        """
        for log, kept in zip(self.logs, backup.logs, strict=True):
            log.become(kept)
        beyond = any(tp.offset > self.logs[partition].end for (_, partition), tp in self.committed.items())
        if beyond or not logs_alone:
            self.committed = dict(backup.committed)
        self.generations = {held: generation + 1 for held, generation in self.generations.items()}
