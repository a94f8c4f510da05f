"""One random history of a world, told by its seed."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import TopicPartition

from dedup_sdk._store.memory import MemoryStore
from tests.model.worlds.broker import TOPIC, Backup, Broker, Log
from tests.model.worlds.compared import Source
from tests.model.worlds.compared_oracle import ComparedOracle
from tests.model.worlds.disk import CrashError, Disk
from tests.model.worlds.exactly_once import Desk, TransactionRules
from tests.model.worlds.kept import kept
from tests.model.worlds.member import Member, Told
from tests.model.worlds.oracle import Oracle
from tests.model.worlds.quiet import quiet
from tests.model.worlds.world import FAR_FUTURE_MS, WALL_CLOCK_MS, World
from tests.support.broken_promise import BrokenPromiseError

if TYPE_CHECKING:
    from confluent_kafka import Message

    from dedup_sdk._store.protocol import KeyStore

_DRAIN_ROUNDS = 400
_TRIES = 3
Seat = tuple[str, int]
"""A group and a host."""


class Life:
    """A cluster, its groups, and their events; ``make_store`` makes the store of one host."""

    def __init__(
        self,
        world: World,
        seed: int,
        make_store: Callable[[], KeyStore] = MemoryStore,
        *,
        rules: TransactionRules | None = None,
    ) -> None:
        self.world, self.random = world, random.Random(seed)
        self.broker = Broker([Log() for _ in range(world.partitions)])
        self.oracle = (
            Oracle(world, self.broker) if world.compared is None else ComparedOracle(world, self.broker)
        )
        self.source = None if world.compared is None else Source(world.compared, self.random)
        common = make_store() if world.one_disk else None
        self.disks = {
            (group, host): Disk(
                make_store if common is None else lambda: common, partial(self.oracle.writes, (group, host))
            )
            for group in world.groups
            for host in range(world.hosts)
        }
        self.members: dict[Seat, Member] = {}
        self.owners: dict[tuple[str, int], Seat] = {}
        self.zombies: list[tuple[Seat, int]] = []
        self.durable: dict[Seat, set[int]] = defaultdict(set)
        self.ended: dict[Seat, set[int]] = defaultdict(set)
        self.poison: set[int] = set()
        self.tries: dict[int, int] = defaultdict(int)
        self.gone: set[int] = set()
        self.backup: Backup | None = None
        self.clock_ms = 1_000
        self.desk = Desk(self, rules or TransactionRules()) if world.exactly_once else None

    def chance(self, share: float) -> bool:
        """Whether something of this chance happens now."""
        return share > 0 and self.random.random() < share

    # --- the log -----------------------------------------------------------------------------------------------------

    def produce(self, ident: str | None = None) -> None:
        """Write a record; without ``ident`` it repeats an old one now and then."""
        number = self.random.randrange(self.world.partitions)
        self.clock_ms += self.random.choice([0, 1, 1, 2, 5])
        if ident is None and self.source is not None:
            ident = self.source.draw(repeats=self.chance(self.world.repeats))
        elif ident is None:
            again = self.random.choice("abcdef")
            ident = again if self.chance(self.world.repeats) else f"once-{self.broker.written}"
        hole = self.random.randrange(1, 4) if self.chance(self.world.holes) else 0
        aborted = self.chance(self.world.holes)
        entry = self.broker.append(number, ident, self._timestamp(), hole=hole, aborted=aborted)
        self.oracle.wrote(number, entry)
        if self.chance(self.world.poison):
            self.poison.add(entry.serial)

    def _timestamp(self) -> int:
        window_ms = self.world.window.time_ms or 40
        if self.world.times == "orderly" or self.chance(0.6):
            return self.clock_ms
        back = [1, window_ms - 1, window_ms, window_ms + 1, window_ms + window_ms // 16, 3 * window_ms]
        strange = [-1, -1, -500, 0, FAR_FUTURE_MS, WALL_CLOCK_MS, WALL_CLOCK_MS + 1]
        if self.chance(0.2):
            return self.random.choice(strange)
        return self.clock_ms - self.random.choice(back)

    def spoil(self) -> None:
        """Change a log like elections and retention."""
        log = self.random.choice(self.broker.logs)
        if self.chance(self.world.truncations) and log.end > log.start:
            log.truncate(max(log.start, log.end - self.random.randrange(1, 12)))
        if self.chance(self.world.retention) and log.end > log.start:
            number = self.broker.logs.index(log)
            held = (self.broker.committed.get((group, number)) for group in self.world.groups)
            # Records that nobody has read yet would be lost by the broker, not by us.
            safe = min((0 if tp is None else tp.offset for tp in held), default=0)
            log.delete_before(self.random.randrange(log.start, safe + 1) if safe >= log.start else log.start)

    # --- members -----------------------------------------------------------------------------------------------------

    def member(self, seat: Seat) -> Member:
        """The process of a group on a host, started if there is none."""
        if seat not in self.members:
            disk, world = self.disks[seat], self.world
            disk.reopen()
            if self.chance(world.lost_disks):
                disk.lose()
                self.durable[seat].clear()
                self.oracle.loses_its_disk(seat)
            self.members[seat] = Member(
                world, self.broker, seat[0], disk, recent_marks=self.random.choice(world.recent_marks),
                durability=self.random.choice(world.durability),
                impatient=self.chance(world.impatience),
                in_time=self.chance(world.in_time), tell=partial(self._told, seat),
            )  # fmt: skip
            if self.desk is not None:
                self.desk.started(seat)
        return self.members[seat]

    def _told(self, seat: Seat, member: Member, told: Told) -> None:
        self.oracle.told(member, told, self.durable[seat])

    def kill(self, seat: Seat) -> None:
        """End a process; of the commits on their way some arrive."""
        member = self.members.pop(seat)
        for _ in range(self.random.randint(0, len(member.client.unanswered))):
            self.arrive(member, heard=False)
        if self.desk is not None:
            self.desk.died(seat)
        member.die()
        self.ended[seat].clear()
        self.owners = {held: owner for held, owner in self.owners.items() if owner != seat}
        self.zombies = [(owner, number) for owner, number in self.zombies if owner != seat]

    @contextmanager
    def mortal(self, seat: Seat) -> Iterator[Member]:
        """Let a process do something that it may not survive."""
        member = self.member(seat)
        try:
            yield member
        except CrashError:
            self.kill(seat)
        else:
            self._note_durable(seat, member)

    def _note_durable(self, seat: Seat, member: Member) -> None:
        """Note the ended records that the disk knows by now: the engine holds nothing back of them."""
        for number in range(self.world.partitions):
            held = member.held(number)
            if held is None or held.writer.disk_full or held.flight.unwritten or held.writer.unwritten_steps:
                continue
            entries, high = self.oracle.entries[number], held.flight.high
            known = {
                s for s in self.ended[seat]
                if s in entries and (not self.world.follows_the_watermark or entries[s].offset < high)
            }  # fmt: skip
            self.durable[seat] |= known
            self.ended[seat] -= known

    def rebalance(self) -> None:
        """Give a partition to a member; who had it before may not hear of it for a while."""
        held = self.random.choice(self.world.groups), self.random.randrange(self.world.partitions)
        group, number = held
        seat = group, self.random.randrange(self.world.hosts)
        before = self.owners.pop(held, None)
        sleeper = None
        if before is not None:
            if before != seat and self.chance(self.world.zombies):
                self.zombies.append((before, number))
                sleeper = before
            else:
                with self.mortal(before) as member:
                    loses = not self.world.orderly and self.chance(0.2)
                    (member.lose if loses else self._give_back(member))(number)
                self._forget(before, number)
                self.oracle.end_seek(group, number)
        if (seat, number) in self.zombies:
            self.awake(seat, number)
        with self.mortal(seat) as member:
            if self.desk is not None:
                self.desk.rebalanced(seat, sleeper)
            self._take(member, seat, number)
            self.owners[held] = seat

    def _take(self, member: Member, seat: Seat, number: int) -> None:
        if (seat[0], number) not in self.broker.committed:
            self.oracle.goes_on(seat, number)
        if self.desk is not None:
            self.desk.wait(seat[0], number)
        member.take(number)

    def _give_back(self, member: Member) -> Callable[[int], None]:
        def give_back(number: int) -> None:
            before = self.broker.committed.get((member.group, number))
            member.give_back(number)
            if self.world.orderly:
                # The coordinator takes what a member sent before that joins again.
                for sent in member.client.unanswered:
                    member.client.arrive(sent)
            self.look_at_commit(member.group, number, before)

        return give_back

    def awake(self, seat: Seat, number: int) -> None:
        """Tell a zombie that its partition belongs to somebody else."""
        self.zombies.remove((seat, number))
        with self.mortal(seat) as member:
            member.lose(number)
        # A member joins again without any partition of its old life.
        if self.desk is not None and all(owner != seat for owner, _ in self.zombies):
            self.desk.awoken(seat)
        self._forget(seat, number)

    def _forget(self, seat: Seat, number: int) -> None:
        """An epoch is over: ended records that it did not write are not known to the disk."""
        self.ended[seat] -= self.oracle.entries[number].keys()

    # --- acts of a member --------------------------------------------------------------------------------------------

    def arrive(self, member: Member, *, heard: bool = True) -> None:
        """Have a commit arrive."""
        asked = member.client.unanswered[0].offsets if member.client.unanswered else []
        before = {tp.partition: self.broker.committed.get((member.group, tp.partition)) for tp in asked}
        member.arrive(heard=heard)
        for number, committed in before.items():
            self.look_at_commit(member.group, number, committed)

    def look_at_commit(self, group: str, number: int, before: TopicPartition | None) -> None:
        """Have the oracle judge a group's new commit."""
        now = self.broker.committed.get((group, number))
        if now is not None and now is not before:
            self.oracle.committed(group, before, now)

    def end(self, seat: Seat, member: Member, message: Message, *, surely: bool = False) -> None:
        """Have a handler end: mostly well."""
        value: Any = message.value()
        number: Any = message.partition()
        serial = int(value)
        entry = self.oracle.entries[number][serial]
        if not surely and self.chance(0.1):
            member.release(message)
            return
        dead = serial in self.poison
        self.tries[serial] += 1
        if dead and self.tries[serial] % _TRIES and not surely:
            member.release(message)
            return
        self.oracle.handle(member.group, number, serial)
        self.oracle.met(member.group, serial)
        if member.session.is_current(message) and member.held(number) is not None:
            self.ended[seat].add(serial)
        member.end(message, dead=dead)
        if dead and self.chance(self.world.resends):
            self.produce(entry.ident)

    def act(self) -> None:
        """Let one member do one thing."""
        if not self.members:
            return
        seat = self.random.choice(sorted(self.members))
        with self.mortal(seat) as member:
            what = self.random.random()
            if what < 0.25:
                member.work()
            elif what < 0.55:
                member.fetch(
                    self.random.randrange(self.world.partitions), self.random.choice([1, 1, 2, 5, 20])
                )
            elif what < 0.85:
                self._handle(seat, member)
            elif what < 0.9:
                if member.durability != "commit":
                    member.persist()
            elif what < 0.95:
                member.commit()
            else:
                self.arrive(member)
        self._look_at_memory(seat)

    def _handle(self, seat: Seat, member: Member) -> None:
        if self.desk is not None:
            self.desk.step(seat, member)
            return
        for _ in range(self.random.choice([1, 1, 2, 6])):
            if member.in_flight:
                self.end(seat, member, self.random.choice(member.in_flight))

    def _look_at_memory(self, seat: Seat) -> None:
        member = self.members.get(seat)
        if member is None or self.world.parking is None:
            return
        for number in range(self.world.partitions):
            held = member.held(number)
            # One batch may be judged before the next look.
            if held is not None and held.flight.kept > 4 * self.world.parking + 60:
                raise BrokenPromiseError("unbounded", f"{held.flight.kept} records are in memory")

    # --- a life ------------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Live through it; return ``ok`` or the promise that was broken."""
        try:
            with quiet(self.world):
                for _ in range(self.world.steps):
                    self._step()
                self._drain()
                for group in self.world.groups:
                    for number in range(self.world.partitions):
                        self.oracle.judge(group, number, self.gone)
        except BrokenPromiseError as broken:
            return str(broken)
        finally:
            for seat in list(self.members):
                self.kill(seat)
            for disk in self.disks.values():
                disk.inner.close()
        return "ok"

    def _step(self) -> None:
        world = self.world
        for _ in range(self.random.choice([0, 0, 1, 1, 3])):
            self.produce()
        self.spoil()
        if not self.owners or self.chance(world.rebalances):
            self.rebalance()
        if self.zombies and self.chance(0.05):
            self.awake(*self.random.choice(self.zombies))
        if self.members and self.chance(world.crashes):
            self.kill(self.random.choice(sorted(self.members)))
        disk = self.disks[self.random.choice(sorted(self.disks))]
        if self.chance(world.fuses):
            disk.fuse = self.random.randint(1, 12)
        if self.chance(world.full_disks):
            disk.full = not disk.full
        if self.chance(world.operators):
            self._operate()
        self._move_or_restore()
        for _ in range(3):
            self.act()

    def _move_or_restore(self) -> None:
        if self.owners and self.chance(self.world.seeks):
            self._seek(*self.random.choice(sorted(self.owners)))
        if self.chance(self.world.backups):
            self._back_up_or_restore()

    def _seek(self, group: str, number: int) -> None:
        """Have a member seek, often to where it is, and now and then leave right after that."""
        log = self.broker.logs[number]
        with self.mortal(self.owners[group, number]) as member:
            held = member.held(number)
            places = [self.random.randint(log.start, log.end)]
            if held is not None:
                high, position = held.flight.high, held.flight.position
                places += [position, high, self.random.randint(high, position)]
            target = self.random.choice(places)
            is_own = held is not None and held.flight.position == target
            forward = member.seek(number, target)
            if forward:
                self.oracle.pass_over(group, number, target)
            if not is_own:
                self.oracle.seek(group, number, target, forward=forward)
            for _ in range(self.random.randrange(3)):
                member.work()
        if self.chance(0.5):
            self.rebalance()

    def _operate(self) -> None:
        """Set a group's offset, or have a member seek: forward the records between are nobody's business any more."""
        held = self.random.choice(self.world.groups), self.random.randrange(self.world.partitions)
        group, number = held
        log, owner = self.broker.logs[number], self.owners.get(held)
        target = self.random.randint(log.start, log.end)
        if owner is not None and self.chance(self.world.seeks_by_operators):
            self.oracle.pass_over(group, number, target)
            with self.mortal(owner) as member:
                if (TOPIC, number) in member.session.assigned:
                    member.seek(number, target)
            return
        if owner is not None and self.chance(0.5):
            self.kill(owner)
        elif owner is not None:
            del self.owners[held]
            with self.mortal(owner) as member:
                self._give_back(member)(number)
                while member.client.unanswered:
                    self.arrive(member)
            self._forget(owner, number)
        if self.chance(0.3):
            # Nobody knows of a move any more but the hosts that took part in it.
            self.broker.committed.pop(held, None)
        else:
            deleted_at_once = self.chance(self.world.deleted_at_once)
            if deleted_at_once and held in self.broker.committed:
                target = self.random.randint(log.start, self.broker.committed[held].offset)
            self.oracle.pass_over(group, number, target)
            self.broker.committed[held] = TopicPartition(TOPIC, number, target)
            self.oracle.set_to(group, number, target)
            if deleted_at_once:
                del self.broker.committed[held]

    def _back_up_or_restore(self) -> None:
        """Copy the broker's disk, or put it back to the last copy.

        Its clients lose their partitions, or are restarted, too.
        """
        if self.backup is None or self.chance(0.5):
            self.backup = self.broker.back_up()
            return
        for (group, number), seat in list(self.owners.items()):
            if self.owners.get((group, number)) != seat:
                continue
            if self.chance(0.5):
                self.kill(seat)
                continue
            del self.owners[group, number]
            with self.mortal(seat) as member:
                member.lose(number)
            self._forget(seat, number)
        self.broker.restore(self.backup, logs_alone=self.chance(0.5))

    def _drain(self) -> None:
        """Put everything right that is wrong, and see that everything comes to an end."""
        for seat, number in list(self.zombies):
            if (seat, number) in self.zombies:
                self.awake(seat, number)
        for disk in self.disks.values():
            disk.full, disk.fuse = False, None
        for _ in range(_DRAIN_ROUNDS):
            left = [
                held
                for held in itertools.product(self.world.groups, range(self.world.partitions))
                if not self._drained(*held)
            ]
            if not left:
                return
            for seat in list(self.members):
                self._finish(seat)
        raise BrokenPromiseError("stuck", "what is left is never over")

    def _finish(self, seat: Seat) -> None:
        """Have a member handle all that there is."""
        with self.mortal(seat) as member:
            member.work()
            while member.client.unanswered:
                self.arrive(member)
            for number in range(self.world.partitions):
                member.fetch(number, 20)
            if self.desk is not None:
                self.desk.finish(seat, member)
            for message in list(member.in_flight):
                if message in member.in_flight:
                    self.end(seat, member, message, surely=True)
            member.persist()
            member.commit()

    def _drained(self, group: str, number: int) -> bool:
        owner = self.owners.get((group, number))
        if owner is None:
            self.owners[group, number] = owner = group, self.random.randrange(self.world.hosts)
            if self.desk is not None:
                self.desk.rebalanced(owner, None)
            self._take(self.member(owner), owner, number)
        held = self.members[owner].held(number)
        entries = self.broker.logs[number].read(0, len(self.oracle.entries[number]))
        end = entries[-1].offset + 1 if entries else 0
        committed = self.broker.committed.get((group, number))
        if held is None or committed is None or committed.offset < end or held.flight.high < end:
            return False
        left = kept(held.state)
        if any(left):
            raise BrokenPromiseError("unbounded", f"nothing is in flight, and yet something is kept: {left}")
        return True
