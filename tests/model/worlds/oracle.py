"""The promises in every world, told from the handlers' work and not from the code's verdicts.

The verdicts that follow from a log it takes from the naive log.

lost
    a record was called a duplicate, or redelivered, or passed by a commit, and nobody handled its message.
doubled
    a record was delivered without doubt, although the log says that it is a duplicate.
    Where nothing fails: a handled record came again, and no seek that brought any record asked for it.
repeated
    a record was delivered on a disk that knew of its completion.
went back
    a commit lies before the one before, and nobody asked for that.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from dedup_sdk._commit_text import parse_metadata
from dedup_sdk._record import VerdictKind
from tests.support.broken_promise import BrokenPromiseError
from tests.support.naive_log import End, read_log
from tests.support.naive_log import Entry as LogEntry

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

    from dedup_sdk._marks import Progress
    from tests.model.worlds.broker import Broker, Entry
    from tests.model.worlds.member import Member, Told
    from tests.model.worlds.world import World


class Oracle:
    """The fate of every record, for each group, by its serial number."""

    def __init__(self, world: World, broker: Broker) -> None:
        self._world, self._broker = world, broker
        self.entries: dict[int, dict[int, Entry]] = defaultdict(dict)
        self.handled: dict[str, set[int]] = defaultdict(set)
        self.ever_handled: dict[str, set[int]] = defaultdict(set)
        self.excused: dict[str, set[int]] = defaultdict(set)
        self.last: dict[tuple[str, int], VerdictKind] = {}
        self.doubted: set[tuple[str, int]] = set()
        self._sought: dict[str, set[int]] = defaultdict(set)
        self._seeking: dict[tuple[str, int], int] = {}
        self._idents: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._duplicates: set[tuple[str, int]] = set()
        self._known: dict[tuple[tuple[str, int], int], tuple[set[int], set[int]]] = {}

    def wrote(self, partition: int, entry: Entry) -> None:
        """Note a record of the log."""
        self.entries[partition][entry.serial] = entry

    def handle(self, group: str, partition: int, serial: int) -> None:
        """Note that a handler did its work."""
        self.handled[group].add(serial)
        self.ever_handled[group].add(serial)
        self._idents[group, partition] |= self.names(self.entries[partition][serial])

    def names(self, entry: Entry) -> set[str]:
        """The names by which a record is known to be the same message as another."""
        return {entry.ident}

    def is_known(self, group: str, partition: int, entry: Entry) -> bool:
        """Whether a record of the same message was handled."""
        return not self.names(entry).isdisjoint(self._idents[group, partition])

    def may_be_duplicate(self, group: str, partition: int, entry: Entry) -> bool:
        """Whether nobody is missed where it is not handled."""
        return self.is_known(group, partition, entry)

    def settled(self, group: str, partition: int, serial: int) -> bool:
        """Whether nobody has to care for a record any more."""
        if serial in self.handled[group] or serial in self.excused[group]:
            return True
        if self._world.exact:
            return (group, serial) in self._duplicates
        return self.is_known(group, partition, self.entries[partition][serial])

    def pass_over(self, group: str, partition: int, offset: int) -> None:
        """Note that a group goes on at an offset by choice: nobody misses a record below, and what was handled is."""
        below = {serial for serial, entry in self.entries[partition].items() if entry.offset < offset}
        self.excused[group] |= below
        for serial in below & self.ever_handled[group]:
            self.handle(group, partition, serial)

    def set_to(self, group: str, partition: int, offset: int) -> None:
        """Note that a tool set a group to an offset: what was handled before it stays handled, all else must be again.

        What was handled once stays a fact: a later move forward makes it count again.
        """
        entries = self.entries[partition]
        self.excused[group] -= {serial for serial, entry in entries.items() if entry.offset >= offset}
        self.handled[group] -= entries.keys()
        before = {s: e for s, e in entries.items() if e.offset < offset and s in self.ever_handled[group]}
        self.handled[group] |= before.keys()
        self._idents[group, partition] = {name for entry in before.values() for name in self.names(entry)}

    def writes(self, seat: tuple[str, int], partition: int, progress: Progress) -> None:
        """Note what a host's disk knows once it is written: what counts, and lies within its progress.

        The first write of a start is recovery's, before anything is delivered: the disk has the group's last move then.
        """
        if not self._world.operators:
            return
        within = {
            serial for serial, entry in self.entries[partition].items()
            if entry.offset < progress.high or any(first <= entry.offset < end for first, end in progress.done)
        }  # fmt: skip
        self._known[seat, partition] = self.handled[seat[0]] & within, self.excused[seat[0]] & within

    def loses_its_disk(self, seat: tuple[str, int]) -> None:
        """Note that a host knows nothing any more."""
        self._known = {held: known for held, known in self._known.items() if held[0] != seat}

    def goes_on(self, seat: tuple[str, int], partition: int) -> None:
        """Note that a host gets a partition without a commit: its disk goes on, which knows of its own moves alone."""
        handled, excused = self._known.get((seat, partition), (set(), set()))
        self.excused[seat[0]] |= excused
        for serial in handled:
            self.handle(seat[0], partition, serial)

    # --- seeks -------------------------------------------------------------------------------------------------------

    def seek(self, group: str, partition: int, target: int, *, forward: bool) -> None:
        """Note that a member seeks: once it has read a record there, those from there on may come again.

        A seek ``forward`` counts at once: the group's history begins anew at its target.
        """
        self._seeking[group, partition] = target
        if forward:
            self._ask_for(group, partition, target)

    def end_seek(self, group: str, partition: int) -> None:
        """Note that the partition goes: a seek that has brought no record is forgotten."""
        self._seeking.pop((group, partition), None)

    def met(self, group: str, serial: int) -> None:
        """Note that a record was handled: a seek before that asks for it no more."""
        self._sought[group].discard(serial)

    def _ask_for(self, group: str, partition: int, target: int) -> None:
        """Records from a place on may come again, until they are handled again."""
        self._sought[group] |= {s for s, entry in self.entries[partition].items() if entry.offset >= target}

    def _judge_repeat(self, group: str, partition: int, entry: Entry) -> None:
        held = group, partition
        if held in self._seeking:
            self._ask_for(group, partition, self._seeking.pop(held))
        if entry.serial in self.handled[group] - self._sought[group]:
            raise BrokenPromiseError("doubled", f"{entry} comes again, and nobody sought it")

    # --- as it happens -----------------------------------------------------------------------------------------------

    def told(self, member: Member, told: Told, durable: set[int]) -> None:
        """Judge a verdict; ``durable`` are the records that its disk knows to be completed."""
        group, serial, kind = member.group, told.serial, told.verdict.kind
        if kind is VerdictKind.HELD:
            return
        entry = self.entries[told.partition][serial]
        if self._world.orderly and told.verdict.deliver and told.verdict.attempt == 1:
            self._judge_repeat(group, told.partition, entry)
        if kind is VerdictKind.REDELIVERED:
            if not self.settled(group, told.partition, serial):
                raise BrokenPromiseError("lost", f"{entry} is taken for completed, and nobody completed it")
            return
        self.last[group, serial] = kind
        if kind is VerdictKind.DUPLICATE:
            if not self.may_be_duplicate(group, told.partition, entry):
                raise BrokenPromiseError("lost", f"{entry} is a duplicate of what nobody handled")
            self._duplicates.add((group, serial))
        elif kind is VerdictKind.UNVERIFIED or self._was_recognised(group, serial):
            self.doubted.add((group, serial))
        # A duplicate with an old time takes its ID's mark out of the window; a restart then takes its log for
        # another one, to lose nothing.
        knows = self._world.exact and self._world.times == "orderly"
        if told.verdict.deliver and serial in durable and knows and told.verdict.attempt == 1:
            raise BrokenPromiseError("repeated", f"{entry} comes again, and the disk knew it")

    def _was_recognised(self, group: str, serial: int) -> bool:
        """Whether a record with a strange time comes again that was known for a duplicate before.

        Its log was taken for another one since. Then a later mark of its ID may have outlived the completion
        before it, and says nothing of the record.
        """
        return self._world.times != "orderly" and (group, serial) in self._duplicates

    def committed(self, group: str, before: TopicPartition | None, now: TopicPartition) -> None:
        """Judge a commit that the coordinator took."""
        if not self._world.exact:
            return
        if before is not None and before.offset > now.offset:
            raise BrokenPromiseError("went back", f"from {before.offset} to {now.offset}")
        metadata = parse_metadata(now.metadata, committed=now.offset)
        assert metadata is not None
        for serial, entry in self.entries[now.partition].items():
            if metadata.low <= entry.offset < now.offset and not (
                entry.aborted or self.settled(group, now.partition, serial)
            ):
                raise BrokenPromiseError("lost", f"the commit of {now.offset} passes {entry}")

    # --- at the end --------------------------------------------------------------------------------------------------

    def judge(self, group: str, partition: int, gone: set[int]) -> None:
        """Ask of every record whether it is over, and whether its verdict is the one that follows from the log.

        ``gone`` are records that the log lost before anybody read them.
        """
        entries = {s: e for s, e in self.entries[partition].items() if not e.aborted}
        for entry in self._broker.logs[partition].read(0, len(entries)):
            if not self.settled(group, partition, entry.serial):
                raise BrokenPromiseError("lost", f"{entry} was never handled")
        if self._world.exact:
            self.judge_verdicts(group, entries, gone)

    def judge_verdicts(self, group: str, entries: dict[int, Entry], gone: set[int]) -> None:
        """Compare the last verdicts on the records of a log with those that follow from it."""
        log = [
            LogEntry(
                entry.offset, entry.ident, entry.timestamp_ms,
                End.HANDLED,
                self.last.get((group, serial)) is VerdictKind.UNVERIFIED,
            )
            for serial, entry in entries.items() if serial not in gone
        ]  # fmt: skip
        window = self._world.window
        duplicates = read_log(log, window.time_ms, window.count).duplicates
        # A record delivered in doubt takes a number, so that ranks depend on the marks a store happened to have.
        certain = window.count is None or not any(s in entries for g, s in self.doubted if g == group)
        for serial, entry in entries.items():
            last = self.last.get((group, serial))
            if not certain or (group, serial) in self.doubted:
                continue
            if last is VerdictKind.FRESH and entry.offset in duplicates:
                raise BrokenPromiseError("doubled", f"{entry} is a duplicate of {duplicates[entry.offset]}")
            if last is VerdictKind.DUPLICATE and entry.offset not in duplicates:
                raise BrokenPromiseError("lost", f"{entry} was called a duplicate, and is none")
