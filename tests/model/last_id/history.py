"""Random histories of compare-with-the-last-one: one partition, one group, two hosts.

Logs are in disorder inside the reorder depth or beyond it, of one origin or of several. Records are completed in
any order, released and given up; processes die between completion, write and commit, commits lag or are made
unheard, disks are lost, the partition goes to another host, which replays the tail; retention takes committed
records, and operators set offsets.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.model.last_id.host import Beginning, Commit, LastIdHost, Said
from tests.model.last_id.log import Manners, draw_log
from tests.model.last_id.oracle import Oracle
from tests.model.last_id.rule import LastIdRule
from tests.support.broken_promise import BrokenPromiseError

LOG_LENGTH = 120
_MOST_STEPS = 20_000
_MOST_OPERATIONS = 3
MakeHost = Callable[[LastIdRule], LastIdHost]
MakeRule = Callable[..., LastIdRule]


class LastIdHistory:
    """One history, told by ``seed``."""

    def __init__(self, seed: int, make_host: MakeHost = LastIdHost, make_rule: MakeRule = LastIdRule) -> None:
        chooser = self.random = random.Random(seed)
        depth = chooser.choice([0, 1, 2, 4])
        wild = self._chance(0.3)
        manners = Manners(
            depth=depth, sources=chooser.choice([1, 2, 3]), origins=chooser.choice([1, 1, 2, 3]),
            malformed=chooser.choice([0.0, 0.0, 0.1]), wild=wild,
        )  # fmt: skip
        self.log = draw_log(chooser, LOG_LENGTH, manners)
        below_floor = chooser.choice(["deliver", "deliver", "discard"])
        rule = make_rule(reorder_depth=depth, below_floor=below_floor)
        self.hosts = [make_host(rule), make_host(rule)]
        self.oracle = Oracle(self.log, rule, orderly=not wild)
        self.meddling = self._chance(0.3)
        self.retention = self._chance(0.3)
        self.first, self.end, self.steps, self.operations = 0, 20, 0, 0
        self.commit: Commit | None = None

    def _chance(self, share: float) -> bool:
        return self.random.random() < share

    def run(self) -> str:
        """Live through it; return ``ok`` or the first broken promise."""
        try:
            while self.commit is None or self.commit.offset < LOG_LENGTH:
                self._assign()
                for _ in range(self.random.randrange(1, 40)):
                    if not self._step():
                        break
                else:
                    if self._chance(0.3):
                        self._write_and_commit()
                self._meddle()
                if self.steps > _MOST_STEPS:
                    return "stuck"
        except BrokenPromiseError as error:
            return str(error)
        return "ok"

    # --- a member is assigned the partition ------------------------------------------------------------------------

    def _assign(self) -> None:
        self.host = self.random.choice(self.hosts)
        if self._chance(0.1):
            self.host.disk = None
        new = self.commit is None
        if self.commit is None:
            start = self.random.choice([self.first, self.end] if self.operations else [0, 0, 10])
            self.commit = Commit(start, start)
        self.host.assign(Beginning(log=self.log, first=self.first, commit=self.commit, new=new))
        self.start = self.position = self.commit.offset
        self.in_flight: list[int] = []
        self._commit(self.commit.offset)
        self.oracle.kept(self.host.live)

    def _commit(self, offset: int) -> None:
        self.oracle.committed(self.start, offset)
        self.commit = Commit(offset, self.host.live.low, self.host.complete)

    def _write_and_commit(self) -> bool:
        """Do the durable steps in their order; False when the process dies in between."""
        self.host.write()
        self.oracle.kept(self.host.live)
        if self._chance(0.1):
            return False
        if self._chance(0.5):
            offset = self.host.to_commit
            self._commit(offset)
            if self._chance(0.1):
                return False
            self.host.note_committed(offset)
            if self.retention and self._chance(0.2):
                self.first = self.random.randrange(self.first, offset + 1)
                self.oracle.exact = False
        return True

    # --- it reads, handles in any order, and writes now and then -----------------------------------------------------

    def _step(self) -> bool:
        """Do one thing; False when the process dies of it."""
        self.steps += 1
        if self._chance(0.55) and self.position < self.end:
            offset, self.position = self.position, self.position + 1
            if self.host.is_redelivered(offset):
                self.oracle.redelivered(offset)
            else:
                said = self.host.admit(offset)
                if said is not None:
                    self._take(said)
        elif self.in_flight:
            self._end(self.random.choice(self.in_flight))
        elif self._may_jump() and self._chance(0.05):
            self._jump()
        if self._chance(0.2):
            self.end = min(LOG_LENGTH, self.end + self.random.randrange(8))
        if self._chance(0.02):
            return False
        return not self._chance(0.3) or self._write_and_commit()

    def _may_jump(self) -> bool:
        return self.meddling and self.operations < _MOST_OPERATIONS and self.position < self.end - 3

    def _jump(self) -> None:
        self._operation()
        self.position = self.start = self.random.randrange(self.position + 1, self.end)
        self.host.jump(self.position)
        self._commit(self.position)
        self.host.note_committed(self.position)

    def _end(self, offset: int) -> None:
        if self._chance(0.15):
            return  # released: it is offered again, and its twins wait on
        self.in_flight.remove(offset)
        self.oracle.ended(offset)
        for said in self.host.end(offset):
            self._take(said)

    def _take(self, said: Said) -> None:
        offset = said.offset
        disk = self.host.disk
        on_disk = disk is not None and (disk.low <= offset < disk.high or offset in disk.ahead)
        self.oracle.answered(said, on_disk=on_disk)
        if self.host.rule.delivers(said.answer):
            self.in_flight.append(offset)

    # --- between assignments, an operator -----------------------------------------------------------------------------

    def _operation(self) -> None:
        self.operations += 1
        self.oracle.exact, self.oracle.meddled = False, True

    def _meddle(self) -> None:
        if (
            not self.meddling
            or self.commit is None
            or self.operations >= _MOST_OPERATIONS
            or self._chance(0.8)
        ):
            return
        self._operation()
        what = self.random.choice(["rewind", "skip", "forget"])
        if what == "rewind":
            self.commit = Commit(self.random.randrange(self.first, self.commit.offset + 1))
        elif what == "skip":
            self.commit = Commit(self.random.randrange(self.commit.offset, self.end + 1))
        else:
            self.commit = None
