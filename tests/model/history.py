"""Random histories of one partition, one group and two hosts, and an oracle.

Each history is random: crashes, clean hand-overs, takeovers, lost disks, recovery by the tail or by a snapshot,
rewinds and forward jumps by every kind of tool (without a text, with one copied from another offset, with
`dedup rewind`), commits that come late or are forgotten, another ID spec, a broker restored from a backup of its
disk (at the same leader epoch, with or without the group's offsets), handlers that fail for a while (released) or
for good (dead letters, an end like any other), completion in any order, commits that lag. The oracle then asks of
every record that the group processed:

lost
    it was judged a duplicate, and no earlier record with its ID, as the ID was read then, was handled or
    dead-lettered; or a record was passed by, or a commit went past one, that nobody settled.
doubled
    it was handled again although it was completed before an orderly hand-over, and nobody moved the group.
leaked
    it was delivered without doubt, although the last record of its ID that the group had processed lies in its window
    (handling one offset twice around a crash is allowed).
unfounded
    a log was taken for another one, and nobody changed it.
repeated
    a host that still has its disk delivered again its own completions.
hidden late
    it was judged a duplicate, although no earlier record with its ID lies in its window, which is measured between the
    timestamps of records.
judged otherwise
    two hosts, or one host twice, called it fresh and a duplicate, although nobody moved the group: a verdict follows
    from the log, not from the time at which a host judges.

Zombies, transactions, truncation, two groups and count windows are in `tests.model.worlds`, comparing with the
last ID in `tests.model.last_id`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.model.design import Rules
from tests.model.host import WINDOW_MS, Assignment, Commit, Host, Outcome, Row

LOG_LENGTH = 120
_MOST_STEPS = 20_000
_MOST_OPERATIONS = 3
_OPERATIONS = ("rewind", "skip", "dedup rewind", "late", "forget", "rule", "restore", "restore")
FORGETTING = ("rewind", "forget")
"""The operations of a group that is set back, and whose commits are deleted, or expire, while hosts remember."""
_LATE = 6
"""So many commits back one may come late."""


@dataclass
class History:
    """One history, told by ``seed``.

    ``disorder_ms`` is how far timestamps may run back, ``ahead_ms`` how far the clock of a producer may be ahead.
    """

    seed: int
    make_host: Callable[[], Host]
    rules: Rules = field(default_factory=Rules)
    disorder_ms: int = 0
    ahead_ms: int = 0
    restores: bool = True
    """Whether the broker's disk may be restored: only the design has the part of the Kafka side that notices it."""
    tools: tuple[str, ...] = _OPERATIONS
    """What operators and brokers do."""
    names: str = "AB"
    """The hosts, a letter each."""
    operating: float = 0.12
    """The chance between two assignments that operators and brokers do something."""
    names_recur: bool = True
    """Whether records that come in place of lost ones bear the same IDs."""

    def __post_init__(self) -> None:
        """Draw the log."""
        self.random = random.Random(self.seed)
        self.hosts = {name: self.make_host() for name in self.names}
        self.distinct = self.random.choice([3, 6, 12])
        self.rows: list[Row] = []
        """Every record that was ever written, by serial number."""
        self._first_name = 0
        self.written_ms: list[int] = []
        """When each was written."""
        self.poison: set[int] = set()
        self.log: list[Row] = []
        self._write(LOG_LENGTH, 100)
        self.end, self.steps, self.operations, self.rule = 20, 0, 0, 0
        self.calm = self._chance(0.4)
        """Whether nobody moves the group, nor the log."""
        self.commit: Commit | None = None
        self.commits: list[Commit] = []
        """Those of the group since it was moved last."""
        self.backup: tuple[int, Commit | None] | None = None
        """Where the log ended, and the commit, when the broker's disk was copied."""
        self.restored = False
        self.moved = False
        """Whether the group was moved, or its rule was changed: then the log alone does not give the verdicts."""
        self.handed_over: set[int] = set()
        # The sets below go by serial numbers; ``judged`` are the duplicates, with the ID spec by which they were
        # judged.
        self.handled: list[int] = []
        self.dead: set[int] = set()
        self.doubtful: set[int] = set()
        self.judged: dict[int, int] = {}
        self.settled: set[int] = set()
        self.ends: set[int] = set()
        """Handled, or dead-lettered, and not to be handled again since a tool set the group back."""
        self.once: tuple[set[int], dict[int, int]] = set(), {}
        """What was ever an end, or judged: facts, which a move forward brings back."""
        self.counted: dict[str, set[int]] = {}
        """What counted as done when a host stopped last: where the group's commits are gone, its disk goes on so."""
        self.told: dict[int, Outcome] = {}
        self.on_disk: dict[str, set[int]] = {name: set() for name in self.hosts}
        self.verdict = ""
        self.unlike_the_log = ""
        """A verdict that does not follow from the log; to lose a record is worse, and is told first."""

    def _chance(self, share: float) -> bool:
        return self.random.random() < share

    def _write(self, count: int, now_ms: int) -> None:
        for _ in range(count):
            now_ms += self.random.choice([0, 1, 1, 2])
            serial = len(self.rows)
            one, other = (
                self._first_name + self.random.randrange(self.distinct)
                if self._chance(0.5)
                else 1000 + serial
                for _ in range(2)
            )
            stamp_ms = now_ms - self.random.randint(0, self.disorder_ms)
            if self.ahead_ms and self._chance(0.2):
                stamp_ms += self.random.randint(1, self.ahead_ms)
            row = Row((one, other), stamp_ms, serial)
            self.log.append(row)
            self.rows.append(row)
            self.written_ms.append(now_ms)
            if self._chance(0.06):
                self.poison.add(serial)

    def run(self) -> str:
        """Live through it; return ``ok`` or the first broken promise."""
        while self.commit is None or self.commit.offset < LOG_LENGTH:
            self._assign()
            for _ in range(self.random.randrange(1, 40)):
                self._step()
                if self.verdict:
                    return self.verdict
            if self._chance(0.3):
                self._hand_over()
            else:
                self.host.stop(killed=True)
            if self.verdict:
                return self.verdict
            self.counted[self.name] = self.ends | self.judged.keys()
            self._operate()
            if self.steps > _MOST_STEPS:
                return "stuck"
        return self._oracle()

    def _serials(self, offsets: Iterable[int]) -> set[int]:
        return {self.log[offset].serial for offset in offsets}

    # --- a member is assigned the partition ------------------------------------------------------------------------

    def _assign(self) -> None:
        self.name = self.random.choice(self.names)
        self.host = self.hosts[self.name]
        if self._chance(0.1):
            self.host.lose_disk()
            self.on_disk[self.name].clear()
            self.counted.pop(self.name, None)
        new = self.commit is None
        if new:
            # Nobody knows of a move any more but the hosts that took part in it.
            self._remember(self.counted.get(self.name, set()))
        if self.commit is None:
            start = self.random.choice([0, self.end] if self.operations else [0, 0, 10])
            self.commit = Commit(start)
        cut = self.random.choice([0.0, 1.0, self.random.random()])
        assignment = Assignment(
            log=self.log,
            commit=self.commit,
            new=new,
            end=self.end,
            cut=cut,
            clock=self._now_ms,
            rule=self.rule,
        )
        self.start = self.position = self.host.assign(assignment)
        self.in_flight: list[int] = []
        self._state(self.start)

    def _now_ms(self) -> int:
        """Return the time: the last record was written just now."""
        return self.written_ms[self.log[self.end - 1].serial]

    def _state(self, offset: int) -> None:
        """Commit an offset together with the host's text."""
        self.commit = Commit(offset, self.host.text(offset))
        self.commits.append(self.commit)
        self.host.note_committed(offset)

    def _commit(self) -> None:
        offset = self.position if self.rules.commit_the_position else self.host.high
        passed = self._serials(range(self.start, offset)) - self.settled
        if passed and not self.restored:
            self.verdict = "lost"
        for serial in passed:
            self._hide(serial)
        self._state(offset)

    def _hand_over(self) -> None:
        """Have the member leave in order."""
        self._commit()
        self.handed_over = self._serials([*range(self.host.high), *self.host.completed_above(self.host.high)])
        self.host.stop(killed=False)

    # --- it reads, handles in any order, commits now and then --------------------------------------------------------

    def _step(self) -> None:
        self.steps += 1
        idle = not self.in_flight and self._may_operate() and self.position < self.end - 3
        if idle and self._chance(0.02):
            self.operations += 1
            self.moved = True
            self.position = self.start = self.random.randrange(self.position + 1, self.end)
            self.host.jump(self.position)
            self._remember(self._serials(range(self.position)))
            self.commits.clear()
            self._state(self.position)
        elif self._chance(0.6) and self.position < self.end:
            offset, self.position = self.position, self.position + 1
            self._take(offset, self.host.admit(offset))
        elif self.in_flight:
            self._end(self.random.choice(self.in_flight))
        if self._chance(0.3):
            self._commit()
        if self._chance(0.2):
            self.end = min(LOG_LENGTH, self.end + self.random.randrange(8))

    def _end(self, offset: int) -> None:
        self.in_flight.remove(offset)
        if self._chance(0.1):
            self.in_flight += self.host.release(offset)
            return
        serial = self.log[offset].serial
        self.settled.add(serial)
        self.ends.add(serial)
        self.once[0].add(serial)
        self.on_disk[self.name].add(serial)
        if self.calm and serial in self.handed_over:
            self.verdict = "doubled"
        dead = serial in self.poison
        if dead:
            self.dead.add(serial)
        else:
            self.handled.append(serial)
        for twin, outcome in self.host.end(offset, dead=dead):
            self._take(twin, outcome)

    def _take(self, offset: int, outcome: Outcome) -> None:
        serial = self.log[offset].serial
        self._compare(serial, outcome)
        if outcome is Outcome.ANOTHER_LOG:
            if not self.restored:
                self.verdict = "unfounded"
            self.position, self.in_flight = self.host.high, []
        elif outcome is Outcome.REDELIVERED:
            if serial not in self.settled and self.restored:
                outcome = Outcome.DUPLICATE  # of a record of the log before
            elif serial not in self.settled:
                self.verdict = "lost"
        elif outcome in (Outcome.FRESH, Outcome.DOUBTFUL):
            self.in_flight.append(offset)
            if outcome is Outcome.DOUBTFUL:
                self.doubtful.add(serial)
            if serial in self.on_disk[self.name] and not self.operations:
                self.verdict = "repeated"
        if outcome is Outcome.DUPLICATE:
            self._hide(serial)

    def _compare(self, serial: int, outcome: Outcome) -> None:
        """Hold a verdict against the log, and against what was said of the record before."""
        if outcome is Outcome.DUPLICATE and not self._inside(serial, self.rule):
            self.unlike_the_log = "hidden late"
        if outcome not in (Outcome.FRESH, Outcome.DUPLICATE) or self.operations:
            return
        if self.told.setdefault(serial, outcome) is not outcome:
            self.unlike_the_log = "judged otherwise"

    def _hide(self, serial: int) -> None:
        """Note that nobody handles a record because its ID was completed; whether that is so the oracle asks."""
        self.judged[serial] = self.once[1][serial] = self.rule
        self.settled.add(serial)

    # --- between assignments, an operator, or a broken broker
    # -----------------------------------------------------------

    def _may_operate(self) -> bool:
        return self.operations < _MOST_OPERATIONS and not self.calm

    def _operate(self) -> None:
        if self.commit is None or not self._may_operate():
            return
        if self._chance(0.3):
            self.backup = self.end, self.commit
        if not self._chance(self.operating):
            return
        self.operations += 1
        what = self.random.choice(self.tools)
        self.moved |= what != "restore"
        if what == "late":
            self.commit = self.random.choice(self.commits[-_LATE:])
        elif what == "restore":
            if self.backup is not None and self.restores:
                self._restore(*self.backup)
        elif what == "rule":
            self.rule = 1 - self.rule
        else:
            self._move(self.commit, what)

    def _move(self, commit: Commit, what: str) -> None:
        """Set the group elsewhere, as an operator's tools do."""
        self.commits.clear()
        committed, text = commit
        # Some tools write the old text back.
        copied = self.random.choice([None, text])
        if what == "rewind":
            self.commit = Commit(self.random.randrange(committed + 1), copied)
        elif what == "skip":
            self.commit = Commit(self.random.randrange(committed, self.end + 1), copied)
        elif what == "dedup rewind":
            target = self.random.randrange(committed + 1)
            self.commit = Commit(target, self.host.rewind(text, committed, target))
        else:
            self.commit = None
        if self.commit is not None and self.commit != commit:
            self._set_to(self.commit.offset)

    def _set_to(self, offset: int) -> None:
        """Note that whoever has handled a record from an offset on must handle it again."""
        again = self._serials(range(offset, len(self.log)))
        self.settled -= again
        self.ends -= again
        self.judged = {serial: rule for serial, rule in self.judged.items() if serial not in again}
        self._remember(self._serials(range(offset)))

    def _remember(self, serials: set[int]) -> None:
        """Note that records count as done again, if ever they were: nobody is to handle them again."""
        ends, judged = self.once
        self.ends |= ends & serials
        self.judged |= {serial: rule for serial, rule in judged.items() if serial in serials}
        self.settled |= serials & (ends | judged.keys())

    def _restore(self, end: int, commit: Commit | None) -> None:
        """Put the broker's disk back to its backup: other records come in place of those that are gone."""
        if end >= LOG_LENGTH:
            return
        assert self.commit is not None
        if self.commit.offset > end or self._chance(0.5):
            # With the group's offsets: nobody knows of a move since the backup.
            self.commit = commit
            self._remember({row.serial for row in self.rows})
        del self.log[end:]
        self._first_name += 0 if self.names_recur else 100
        self._write(LOG_LENGTH - end, self.rows[-1].timestamp_ms)
        self.end = self.random.randrange(end, LOG_LENGTH + 1)
        self.restored = True
        self.commits.clear()
        self.backup = None

    # --- the oracle ------------------------------------------------------------------------------------------------

    def _oracle(self) -> str:
        ends = self.ends
        for serial, rule in self.judged.items():
            if serial not in ends and not any(earlier in ends for earlier in self._earlier(serial, rule)):
                return "lost"
        moved = self.moved or (self.restored and self.names_recur)
        if self.unlike_the_log or moved or self.disorder_ms:
            return self.unlike_the_log or "ok"
        # Where the broker was restored, only handled records of the present log show a leak: another host does not know
        # the lost ones.
        seen = self.ends & {row.serial for row in self.log} if self.restored else self.settled
        for serial in set(self.handled) - self.doubtful:
            # The last sighting counts: a clock that is ahead may have stamped one before it with a later time.
            last = max(seen.intersection(self._earlier(serial, 0)), default=None)
            if last is not None and last in self._inside(serial, 0):
                return "leaked"
        return "ok"

    def _inside(self, serial: int, rule: int) -> list[int]:
        """The earlier records with its ID that are at most a window older, by their timestamps."""
        since_ms = self.rows[serial].timestamp_ms - WINDOW_MS
        return [each for each in self._earlier(serial, rule) if self.rows[each].timestamp_ms >= since_ms]

    def _earlier(self, serial: int, rule: int) -> list[int]:
        ident = self.rows[serial].idents[rule]
        return [earlier for earlier in range(serial) if self.rows[earlier].idents[rule] == ident]
