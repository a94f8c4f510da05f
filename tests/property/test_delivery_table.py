"""The table of the messages that are out, in any order of calls, against lists: each message is in one place."""

from __future__ import annotations

from collections import deque
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, Message

from dedup_sdk._core.flight import FRESH
from dedup_sdk._kafka.deliver.delivery import Delivery
from dedup_sdk._observe import by_partition, of_partition
from tests.support.fresh_seeds import histories
from tests.support.table import POLICIES, TOPIC, Record, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from dedup_sdk._core.flight import RecordRef
    from dedup_sdk._engine.partition import Partition
    from dedup_sdk._kafka.assign.commits import Coordinates

_WALKS = 600
_STEPS = 60


class Contended(deque[Any]):
    """A queue at which another thread polls once, if it is to, after this one has taken something."""

    polls = False
    polled: Any = None

    def pop(self) -> Any:  # type: ignore[override]
        """Take the last; the other thread takes the first then."""
        taken = super().pop()
        if self.polls and self:
            self.polls, self.polled = False, super().popleft()
        return taken


class Entry:
    """A record of the log, and where its message is."""

    def __init__(self, number: int, offset: int, name: str) -> None:
        self.number, self.offset, self.name = number, offset, name
        self.place = "unread"
        self.message: Any = None
        """None: unread; True: read, and its object is not known yet, or was hidden."""
        self.was_given = self.is_hidden = False

    def __repr__(self) -> str:
        return f"{self.number}@{self.offset}={self.name} {self.place}"


class Lists:
    """The model: lists of entries, and what each event does to them."""

    def __init__(self, policy: str) -> None:
        self.configured = policy
        self.session = False
        self.log: dict[int, list[Entry]] = {0: [], 1: []}
        self.ready: list[Entry] = []
        self.batch: list[Entry] = []
        self.queue: list[Any] = []
        """Entries and events; an entry that ended while it was queued stays, and is skipped."""
        self.aside: list[Entry] = []
        self.alone: list[Entry] = []
        self.last: list[Any] = []
        self.is_sure = True
        """Whether nothing was forgotten since the last call: else the table may know less of that than the model."""
        self.paused: set[int] = set()
        self.delivered = {0: 0, 1: 0}

    @property
    def policy(self) -> str:
        """The policy at work."""
        return "by name" if self.session else self.configured

    @property
    def is_over(self) -> bool:
        """See `Delivery.is_over`."""
        return not (self.batch or self.alone or self.queue)

    def all(self, *places: str) -> list[Entry]:
        """Return the entries in these places, by partition and offset."""
        return [each for log in self.log.values() for each in log if each.place in places]

    def waits(self, entry: Entry) -> bool:
        """See `Waiting`."""
        return entry in self.queue or entry in self.aside

    def read(self, order: Iterable[int]) -> list[Entry]:
        """Read the next records of these partitions; return those that are offered."""
        offered = []
        for number in order:
            unread = [each for each in self.log[number] if each.message is None]
            if unread:
                entry = unread[0]
                entry.message = True
                entry.is_hidden = entry.place == "done"
                before = self.log[number][: entry.offset]
                if not entry.is_hidden:
                    waits = any(each.name == entry.name and each.place != "done" for each in before)
                    entry.place = "held" if waits else "ready"
                    offered += [] if waits else [entry]
        return offered

    def fill(self, offered: list[Entry]) -> None:
        """Make these the batch."""
        self.batch, self.ready, self.last = list(offered), list(offered), []

    def give(self, entry: Entry, place: str) -> None:
        """Give an entry to the application."""
        entry.place, entry.was_given = place, True
        self.delivered[entry.number] += not self.session

    def take(self, most: int) -> list[Any]:
        """See `Delivery.take`."""
        out: list[Any] = []
        while self.queue and len(out) < most:
            each = self.queue.pop(0)
            if not isinstance(each, Entry):
                out.append(each)
            elif each.place != "done":
                self.give(each, "named" if self.policy == "by name" else "alone")
                self.alone += [] if self.policy == "by name" else [each]
                out.append(each)
        while self.ready and len(out) < most:
            out.append(self.poll())
        if out:
            self.last, self.is_sure = out, True
        return out

    def poll(self) -> Entry:
        """Take the first ready message, without the lock."""
        entry = self.ready.pop(0)
        self.give(entry, "given")
        self.last, self.is_sure = [entry], True
        return entry

    def put(self, entry: Entry, *, first: bool = False) -> None:
        """Queue an entry, or set it aside."""
        if self.waits(entry):
            return
        self.take_out([entry])
        if entry.number in self.paused:
            entry.place = "aside"
            self.aside.append(entry)
        else:
            entry.place = "queued"
            self.queue.insert(0 if first else len(self.queue), entry)

    def sort(self, numbers: set[int]) -> None:
        """Have what is queued of these partitions come first, by offset."""
        ours = [each for each in self.queue if isinstance(each, Entry) and each.number in numbers]
        others = [each for each in self.queue if each not in ours]
        self.queue = sorted(ours, key=lambda each: each.offset) + others

    def take_out(self, entries: Iterable[Entry]) -> None:
        """Exclude entries from their policy."""
        for entry in entries:
            self.alone = [each for each in self.alone if each is not entry]
            if entry.place in ("given", "alone"):
                entry.place = "named"

    def end(self, entries: Iterable[Entry]) -> list[Entry]:
        """Complete entries; return those that waited for them."""
        freed = []
        for entry in entries:
            if entry.place in ("done", "taken", "held"):
                continue
            entry.place = "done"
            held = (e for e in self.log[entry.number] if e.name == entry.name and e.place == "held")
            freed += [each for each in [next(held, None)] if each is not None]
        return freed

    def ask(self) -> list[Entry]:
        """A call for more."""
        freed = []
        if self.policy == "on next call":
            freed = self.end([*self.alone, *self.all("given")])
            self.alone = []
        if not self.ready:
            self.batch = []
        return freed

    def commit(self, below: dict[int, int | None], *, named: bool) -> list[Entry]:
        """Complete the messages given below these offsets."""
        if self.policy == "by name" or (self.policy == "only stored" and not named):
            return []
        due = [
            each
            for each in [*self.alone, *self.all("given")]
            if each.number in below and ((end := below[each.number]) is None or each.offset < end)
        ]
        self.alone = [each for each in self.alone if each not in due]
        return self.end(due)

    def withdraw(self, entries: list[Entry]) -> None:
        """Remove entries from what waits; those that were ready leave the batch, too."""
        self.batch = [each for each in self.batch if each not in entries or each not in self.ready]
        for waiting in (self.ready, self.queue, self.aside):
            waiting[:] = [each for each in waiting if each not in entries]

    def forget(self, number: int) -> None:
        """Forget what is out of a partition; the batch may complete what the application got of it no more."""
        gone = self.log[number]
        self.withdraw(gone)
        self.batch = [each for each in self.batch if each not in gone]
        self.alone = [each for each in self.alone if each not in gone]
        self.paused -= {number}
        self.is_sure = False
        for each in gone:
            each.place = "gone" if each.place in ("ready", "queued", "aside", "alone") else each.place

    def open_again(self, number: int) -> None:
        """Open a partition at the first record that is not done."""
        gone = self.log[number]
        high = next((each.offset for each in gone if each.place != "done"), len(gone))
        for each in gone:
            each.message = each.message if each.offset < high else None
            each.place = each.place if each.place == "done" else "unread"
            each.was_given = False


class Walk:
    """Calls, completions, releases, pauses, seeks, runs, and polls of another thread, as a seed says."""

    def __init__(self, seed: int, kind: type[Delivery] = Delivery) -> None:
        self.random = Random(seed)
        policy = self.random.choice(POLICIES)
        self.table, self.lists = Table(policy, kind), Lists(policy)
        self.delivery = self.table.delivery
        self.ready = self.delivery.batch.ready = Contended()
        self.of_message: dict[int, Entry] = {}
        self.events: list[Any] = []
        self.names = count()
        self.steps: list[str] = []
        self.before: list[Entry] = []
        """What the application had when the run began."""

    def go(self, steps: int) -> None:
        """Do some steps, and look after each of them."""
        often = [self.call, self.call, self.poll, self.let_through, self.resume, self.commit_below]
        ways = [
            *often, *often, self.one_comes, self.event, self.complete, self.release, self.put_back, self.take_out,
            self.commit_all, self.move, self.run, self.pause, self.take_back, self.leave, self.open_again,
        ]  # fmt: skip
        for _ in range(steps):
            step = self.random.choice(ways)
            self.steps.append(step.__name__)
            step()
            self.each_is_in_its_place()
            self.what_waits_is_known()
            self.each_delivery_is_counted()
            self.runs_are_as_one_by_one()

    def number(self) -> int:
        """Return a partition."""
        return self.random.randrange(2)

    def may(self) -> bool:
        """Return whether something that may happen does."""
        return self.random.random() < 0.3

    # --- calls for messages ----------------------------------------------------------------------------------------

    def read(self) -> Any:
        """Write records, some of which repeat an ID, and judge them."""
        order = [self.number() for _ in range(self.random.randint(1, 16))]
        for number in order:
            text = f"again{self.number()}" if self.may() else f"new{next(self.names)}"
            self.lists.log[number].append(Entry(number, len(self.lists.log[number]), text))
            self.table.write(Record(number, text))
        open_ = [each for each in order if each not in self.lists.paused]
        judged = self.table.read(open_)
        self.lists.fill(self.lists.read(open_))
        self.learn()
        return judged

    def learn(self) -> None:
        """Learn which object is the message of which record."""
        for number, log in self.lists.log.items():
            for chunk in self.table.partition(number).flight.chunks:
                for offset, item in zip(chunk.offsets, chunk.items, strict=True):
                    log[offset].message = item
                    self.of_message[id(item)] = log[offset]

    def entries(self, messages: Iterable[Any]) -> list[Any]:
        """Return the entries of messages; an event is itself."""
        return [each if each in self.events else self.of_message[id(each)] for each in messages]

    def call(self) -> None:
        """A call for messages, as `Poller` does it; or the error of a callback is raised instead."""
        most = self.random.choice([1, 1, 1, 2, 3, 50])
        self.delivery.policy.ask_for_more()
        self.freed(self.lists.ask())
        if self.take(most):
            return
        if not self.ready and not self.may():
            self.delivery.fill(self.read())
            if not self.may():
                self.take(most)

    def take(self, most: int) -> list[Any]:
        """Take messages, as the model does."""
        expected, got = self.lists.take(most), self.entries(self.delivery.take(most))
        assert got == expected
        return got

    def one_comes(self) -> None:
        """A call for messages at which one message comes, judged by itself."""
        number = self.number()
        self.delivery.policy.ask_for_more()
        self.freed(self.lists.ask())
        assert self.delivery.is_over == self.lists.is_over
        if not self.lists.is_over or number in self.lists.paused or not self.table_is_read(number):
            return
        text = f"new{next(self.names)}"
        entry = Entry(number, len(self.lists.log[number]), text)
        self.lists.log[number].append(entry)
        self.table.write(Record(number, text))
        if self.table.deliver_one(number):
            [entry] = self.lists.read([number])
            self.learn()
            self.lists.fill([entry])
            self.lists.poll()

    def table_is_read(self, number: int) -> bool:
        """Whether all records of a partition were read."""
        return self.table.partition(number).flight.position == len(self.table.log[number])

    def poll(self) -> None:
        """The quick way of `DedupConsumer.poll`."""
        for _ in range(min(len(self.ready), self.random.randint(1, 4))):
            assert self.entries([self.ready.popleft()]) == [self.lists.poll()]

    def event(self) -> None:
        """The client has an event for the application."""
        event = Message(error=KafkaError(KafkaError._ALL_BROKERS_DOWN))
        self.events.append(event)
        self.delivery.waiting.put_event(event)
        self.lists.queue.append(event)

    # --- how messages end ------------------------------------------------------------------------------------------

    def freed(self, freed: list[Entry]) -> None:
        """Queue what was freed, in the order in which the table did."""
        waiting = [each for each in self.entries(self.delivery.waiting.queue) if each in freed]
        order = [*waiting, *(each for each in freed if each not in waiting)]
        for each in order:
            self.lists.put(each)

    def picked(self, most: int = 1) -> list[Entry]:
        """Return some of the entries that the application has, or had."""
        known = [
            each
            for log in self.lists.log.values()
            for each in log
            if each.was_given and each.message is not None
        ]
        # Most that are not ended: of the others there are more and more.
        known = [each for each in known if each.place != "done"] or known
        return self.random.sample(known, min(len(known), self.random.randint(1, most)))

    def complete(self) -> None:
        """Messages end by name, some a second time, some by a thread that is late."""
        picked = self.picked(3)
        self.table.in_hand.complete([each.message for each in picked])
        self.lists.take_out(picked)
        self.freed(self.lists.end(picked))

    def release(self) -> None:
        """A message is to come again."""
        for entry in self.picked():
            self.table.in_hand.release(entry.message)
            self.lists.take_out([entry])
            if entry.place not in ("done", "taken"):
                self.lists.put(entry)

    def put_back(self) -> None:
        """Messages were not begun."""
        picked = self.picked(3)
        self.table.in_hand.deliver_again([each.message for each in picked])
        for entry in reversed(picked):
            self.lists.take_out([entry])
            if entry.place not in ("done", "taken"):
                self.lists.put(entry, first=True)
        self.lists.sort({each.number for each in picked})

    def take_out(self) -> None:
        """A message is to end by name."""
        for entry in self.picked():
            self.table.in_hand.take_out(entry.message)
            self.lists.take_out([entry])

    def commit_below(self) -> None:
        """A commit that names offsets."""
        chosen = [number for number in (0, 1) if self.may()]
        below = {each: self.random.randint(0, len(self.lists.log[each]) + 2) for each in chosen}
        self.table.in_hand.complete_below({(TOPIC, number): end for number, end in below.items()})
        self.freed(self.lists.commit(dict(below), named=True))

    def commit_all(self) -> None:
        """A commit that names nothing."""
        self.table.in_hand.complete_below(None)
        if self.lists.policy == "on next call":
            self.freed(self.lists.ask())
        else:
            self.freed(self.lists.commit({0: None, 1: None}, named=False))

    def move(self) -> None:
        """The application moves a partition while it has the messages of the last call."""
        self.delivery.policy.move()
        due = []
        if self.lists.policy == "on next call":
            due = [e for e in [*self.lists.alone, *self.lists.all("given")] if e not in self.lists.last]
        if not self.lists.is_sure:
            due = [each for each in due if self.is_done(each)]
        self.freed(self.lists.end(due))

    def is_done(self, entry: Entry) -> bool:
        """Whether the partition has completed a record."""
        return self.table.partition(entry.number).flight.is_completed(entry.offset)

    # --- runs ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """A run begins, or ends."""
        if self.lists.session:
            self.end_run()
        elif self.may():
            self.begin_run()

    def begin_run(self) -> None:
        """Handlers get the messages from here on."""
        self.table.in_hand.begin_explicit(None)
        self.freed(self.lists.ask())
        self.lists.session = True
        self.before = self.lists.all("given", "alone")

    def end_run(self) -> None:
        """The run ends, and with it all messages that handlers got."""
        out = [each for each in self.lists.all("given", "named") if each not in self.before]
        for entry in out:
            if entry.place == "done":
                continue
            way = self.random.randrange(3)
            self.lists.take_out([entry])
            if way == 0:
                self.table.in_hand.complete([entry.message])
                self.freed(self.lists.end([entry]))
            elif way == 1:
                self.table.in_hand.release(entry.message)
                self.lists.put(entry)
            else:
                self.table.in_hand.deliver_again([entry.message])
                self.lists.put(entry, first=True)
                self.lists.sort({entry.number})
        self.table.in_hand.end_explicit()
        self.lists.session = False

    # --- what is forgotten, or waits -------------------------------------------------------------------------------

    def beside(self, change: Callable[[], object]) -> None:
        """Make a change, in the middle of which another thread polls."""
        self.ready.polls, self.ready.polled = self.may(), None
        change()
        self.ready.polls = False
        if self.ready.polled is not None:
            assert self.entries([self.ready.polled]) == [self.lists.poll()]

    def pause(self) -> None:
        """A partition is paused."""
        number = self.number()
        self.beside(lambda: self.delivery.set_aside({(TOPIC, number)}))
        self.lists.paused.add(number)
        moved = [
            e for e in (*self.lists.ready, *self.lists.queue) if isinstance(e, Entry) and e.number == number
        ]
        self.lists.withdraw(moved)
        self.lists.aside += [each for each in moved if each not in self.lists.aside]
        for each in moved:
            each.place = "done" if each.place == "done" else "aside"

    def resume(self) -> None:
        """A partition is resumed."""
        number = self.number()
        self.delivery.waiting.bring_back({(TOPIC, number)})
        self.lists.paused.discard(number)
        back = sorted((e for e in self.lists.aside if e.number == number), key=lambda each: each.offset)
        self.lists.withdraw(back)
        self.lists.queue += back
        for each in back:
            each.place = "done" if each.place == "done" else "queued"

    def take_back(self) -> None:
        """Another consumer may have some of what waits."""
        third = self.random.randrange(3)

        def chosen(_: Partition, place: Any) -> bool:
            if place.offset % 3 != third:
                return False
            place.chunk.hold(place.row, "claimed")
            return True

        self.beside(lambda: self.delivery.take_back(chosen))
        gone = [e for e in self.lists.all("ready", "queued", "aside") if e.offset % 3 == third]
        self.lists.withdraw(gone)
        for each in gone:
            each.place = "taken"

    def let_through(self) -> None:
        """It has not."""
        taken = self.lists.all("taken")
        for entry in self.random.sample(taken, min(2, len(taken))):
            place = self.table.partition(entry.number).flight.place(entry.offset)
            assert place is not None
            place.chunk.judge(place.row, FRESH)
            place.chunk.unhold(place.row)
            self.delivery.offer([place])
            self.lists.put(entry)

    def leave(self) -> None:
        """A partition is moved; or revoked, and the application commits in the callback. It comes again."""
        number, is_revoked = self.number(), self.may()
        forget = self.delivery.release if is_revoked else self.delivery.purge
        self.beside(lambda: forget({(TOPIC, number)}))
        self.lists.forget(number)
        if is_revoked and self.lists.policy != "on next call":
            self.commit_all()
            self.each_is_in_its_place()
            # What was freed by the commit.
            self.delivery.purge({(TOPIC, number)})
            self.lists.forget(number)
        self.lists.open_again(number)
        self.table.reopen(number)

    def open_again(self) -> None:
        """All is forgotten, by an interruption; or by a close in whose callback the application commits."""
        closes, ends_block = self.number(), self.number()
        if closes and ends_block:
            self.table.in_hand.complete_given()
            self.freed(self.lists.ask())
        last = [each for each in self.lists.last if isinstance(each, Entry) and each.place != "done"]
        if closes:
            self.delivery.policy.close()
        self.beside(self.delivery.release_all)
        if closes:
            self.table.in_hand.complete_below(None)
            assert not any(map(self.is_done, last))
            due = self.lists.all("given") if self.lists.policy == "by offsets" else []
            self.lists.end(each for each in due if self.is_done(each))
            self.delivery.release_all()
        for number in self.lists.log:
            self.delivery.waiting.bring_back({(TOPIC, number)})
            self.lists.forget(number)
            self.lists.open_again(number)
            self.table.reopen(number)
        self.lists.queue.clear()
        self.lists.last = []

    # --- what must hold --------------------------------------------------------------------------------------------

    def each_is_in_its_place(self) -> None:
        """The queues, in order; and what is completed."""
        assert self.entries(self.ready) == self.lists.ready
        assert self.entries(self.delivery.waiting.queue) == self.lists.queue
        assert self.delivery.is_over == self.lists.is_over
        for log in self.lists.log.values():
            for each in log:
                if isinstance(each.message, Message):
                    assert self.is_done(each) == (each.place == "done"), each
                    assert (each.message in self.delivery.waiting) == self.lists.waits(each), each

    def what_waits_is_known(self) -> None:
        """By partition, for seeks and positions."""
        for number, log in self.lists.log.items():
            flight = self.table.partition(number).flight
            ready = [each.offset for each in self.lists.ready if each.number == number]
            alone = [each.offset for each in log if self.lists.waits(each)]
            assert self.delivery.first_waiting(TOPIC, number) == min([*ready, *alone], default=None)
            end = ready[0] if ready else flight.position
            if alone:
                got = ("given", "alone", "named", "done")
                delivered = [
                    each.offset + 1
                    for each in log[:end]
                    if each.place in got and not each.is_hidden and each.offset not in alone
                ]
                end = max([flight.high, min(end, *alone), *delivered])
            assert self.delivery.delivered_to(TOPIC, number, ()) == end

    def runs_are_as_one_by_one(self) -> None:
        """Which of some messages the application has no more, in any order, and named twice."""
        for log in self.lists.log.values():
            messages = [each.message for each in log if isinstance(each.message, Message)]
            some = [each for each in messages if self.random.random() < 0.8]
            if self.random.random() < 0.1 and some:
                some.append(self.random.choice(some))
            gone = list(map(id, self.delivery.not_in_hand(some))) if some else []
            one_by_one = [
                id(each)
                for each in some
                if self.delivery.in_flight(each) is None or each in self.delivery.waiting
            ]
            assert gone == one_by_one

    def each_delivery_is_counted(self) -> None:
        """Once, and of the right partition."""
        self.delivery.batch.count()
        delivered = {
            place[1]: each.delivered for place, each in by_partition(self.table.engine.counters).items()
        }
        assert {number: delivered.get(number, 0) for number in (0, 1)} == self.lists.delivered


def walks(fresh_seed: int, kind: type[Delivery] = Delivery) -> None:
    """Go some hundred ways; the first step at which the table differs from the lists fails."""
    for seed in histories(fresh_seed, _WALKS):
        walk = Walk(seed, kind)
        try:
            walk.go(_STEPS)
        except AssertionError as error:
            error.add_note(f"walk {seed}, {walk.lists.configured}: {' '.join(walk.steps)}")
            raise


def test_each_message_is_in_one_place(fresh_seed: int) -> None:
    """And ends by what names it, or by its policy: nothing is lost, stuck, doubled or miscounted."""
    walks(fresh_seed)


class CompletesWhatWaits(Delivery):
    """A commit completes the ready messages below its offset, which nobody got."""

    def complete_below(self, ends: Mapping[Coordinates, int | None]) -> Iterable[Partition]:
        """See `Delivery.complete_below`."""
        for of, end in ends.items():
            self.batch.withdraw(lambda each, of=of, end=end: is_below(each, of, end))  # type: ignore[misc]
        return super().complete_below(ends)


def is_below(message: Any, of: Coordinates, end: int | None) -> bool:
    """Whether a message is of a partition, and lies below an offset."""
    return (message.topic(), message.partition()) == of and (end is None or message.offset() < end)


class KeepsInPolicy(Delivery):
    """What is to end by name is completed by the policy, too."""

    def take_out(self, message: Any) -> bool:
        """See `Delivery.take_out`."""
        return self.in_flight(message) is not None


class ForgetsTheBatchOnly(Delivery):
    """Queued messages of a partition outlive its end."""

    def purge(self, gone: Collection[Coordinates]) -> None:
        """See `Delivery.purge`."""
        self.batch.forget(gone)


class LeavesReadyToCommits(Delivery):
    """What nobody got of a revoked partition ends with a commit of all messages."""

    def release(self, leaving: set[Coordinates]) -> None:
        """See `Delivery.release`."""
        self.purge(leaving)


class ForgetsTheLastCall(Delivery):
    """The messages of the last call count as handled."""

    def take_out_last(self) -> None:
        """See `Delivery.take_out_last`."""

    def complete_but_last(self) -> Iterable[Partition]:
        """See `Delivery.complete_but_last`."""
        return self.complete_given()


class CountsTwice(Delivery):
    """A queued message is counted where it is offered, too."""

    def offer(self, records: Iterable[RecordRef]) -> None:
        """See `Delivery.offer`."""
        records = list(records)
        super().offer(records)
        for chunk, row in records:
            of_partition(self.counters, TOPIC, chunk.items[row].partition()).delivered += 1


class TakesWaitingForGiven(Delivery):
    """A transaction may end messages that wait to come again."""

    def not_in_hand(self, messages: Sequence[Any]) -> Iterator[Any]:
        """See `Delivery.not_in_hand`."""
        return (each for each in messages if self.in_flight(each) is None)


TWINS = [
    CompletesWhatWaits, KeepsInPolicy, ForgetsTheBatchOnly, LeavesReadyToCommits, ForgetsTheLastCall, CountsTwice,
    TakesWaitingForGiven,
]  # fmt: skip


@pytest.mark.parametrize("twin", TWINS)
def test_a_table_that_skips_a_step_is_seen(twin: type[Delivery]) -> None:
    """Or the test above would say little."""
    with pytest.raises((AssertionError, LookupError)):
        walks(0, twin)
