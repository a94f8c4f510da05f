"""Random histories of one partition, one group and two hosts, and an oracle.

Each history is random: crashes, clean hand-overs, takeovers, lost disks, recovery by the tail or by a snapshot, rewinds,
forward jumps (with and without metadata), forgotten commits, handlers that fail for a while (released) or for good (dead
letters), completion in any order, commits that lag. The oracle then asks of every offset that the group processed:

lost
    it was judged a duplicate, and no earlier record with its ID was handled; or a record was passed by, or a commit went
    past one, that nobody settled.
leaked
    it was delivered without doubt, although the group had processed a record of its ID within the window before it
    (handling one offset twice around a crash is allowed).
repeated
    a host that still has its disk delivered again what it had completed itself.

Zombies, transactions, truncation, two groups and count windows are in `tests.model.worlds`, comparing with the last ID in
`tests.model.last_id`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.model.design import Rules
from tests.model.host import WINDOW_MS, Assignment, Commit, Host, Outcome, Row

LOG_LENGTH = 120
_MOST_STEPS = 20_000
_MOST_OPERATIONS = 3


@dataclass
class History:
    """One history, told by ``seed``; ``disorder_ms`` is how far timestamps may run back."""

    seed: int
    make_host: Callable[[], Host]
    rules: Rules = field(default_factory=Rules)
    disorder_ms: int = 0

    def __post_init__(self) -> None:
        """Draw the log."""
        self.random = random.Random(self.seed)
        self.hosts = {name: self.make_host() for name in "AB"}
        now_ms, distinct = 100, self.random.choice([3, 6, 12])
        self.log: list[Row] = []
        for offset in range(LOG_LENGTH):
            now_ms += self.random.choice([0, 1, 1, 2])
            ident = self.random.randrange(distinct) if self._chance(0.5) else 1000 + offset
            self.log.append(Row(ident, now_ms - self.random.randint(0, self.disorder_ms)))
        self.poison = {offset for offset in range(LOG_LENGTH) if self._chance(0.03)}
        self.end, self.steps, self.operations = 20, 0, 0
        self.commit: Commit | None = None
        self.dead: set[int] = set()
        self.handled: list[int] = []
        self.doubtful: set[int] = set()
        self.judged: set[int] = set()
        self.settled: set[int] = set()
        self.on_disk: dict[str, set[int]] = {name: set() for name in self.hosts}
        self.verdict = ""

    def _chance(self, share: float) -> bool:
        return self.random.random() < share

    def run(self) -> str:
        """Live through it; return ``ok`` or what went wrong first."""
        while self.commit is None or self.commit.offset < LOG_LENGTH:
            self._assign()
            for _ in range(self.random.randrange(1, 40)):
                self._step()
                if self.verdict:
                    return self.verdict
            if self._chance(0.3):
                self._commit()
                self.host.stop(killed=False)
            else:
                self.host.stop(killed=True)
            if self.verdict:
                return self.verdict
            self._operate()
            if self.steps > _MOST_STEPS:
                return "stuck"
        return self._oracle()

    # --- a member is assigned the partition ------------------------------------------------------------------------

    def _assign(self) -> None:
        self.name = self.random.choice("AB")
        self.host = self.hosts[self.name]
        if self._chance(0.1):
            self.host.lose_disk()
            self.on_disk[self.name].clear()
        new = self.commit is None
        if self.commit is None:
            start = self.random.choice([0, self.end] if self.operations else [0, 0, 10])
            self.commit = Commit(start, start)
        cut = self.random.choice([0.0, 1.0, self.random.random()])
        dead = frozenset(self.dead)
        self.host.assign(
            Assignment(log=self.log, commit=self.commit, new=new, end=self.end, cut=cut, dead=dead)
        )
        self.start = self.position = self.commit.offset
        self.in_flight: list[int] = []
        self._state(self.commit.offset)

    def _state(self, offset: int) -> None:
        """Commit an offset together with where the host says that the history begins."""
        self.commit = Commit(offset, self.host.low, self.host.complete)
        self.host.note_committed(offset)

    def _commit(self) -> None:
        offset = self.position if self.rules.commit_the_position else self.host.high
        if not self.settled.issuperset(range(self.start, offset)):
            self.verdict = "lost"
        self._state(offset)

    # --- it reads, handles in any order, commits now and then --------------------------------------------------------

    def _step(self) -> None:
        self.steps += 1
        idle = not self.in_flight and self.operations < _MOST_OPERATIONS and self.position < self.end - 3
        if idle and self._chance(0.02):
            self.operations += 1
            self.position = self.start = self.random.randrange(self.position + 1, self.end)
            self.host.jump(self.position)
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
        self.settled.add(offset)
        self.on_disk[self.name].add(offset)
        if offset in self.poison:
            self.dead.add(offset)
        else:
            self.handled.append(offset)
        for twin, outcome in self.host.end(offset, dead=offset in self.poison):
            self._take(twin, outcome)

    def _take(self, offset: int, outcome: Outcome) -> None:
        if outcome is Outcome.REDELIVERED:
            if offset not in self.settled:
                self.verdict = "lost"
        elif outcome is Outcome.DUPLICATE:
            self.judged.add(offset)
            self.settled.add(offset)
        elif outcome is not Outcome.PARKED:
            self.in_flight.append(offset)
            if outcome is Outcome.DOUBTFUL:
                self.doubtful.add(offset)
            if offset in self.on_disk[self.name] and not self.operations:
                self.verdict = "repeated"

    # --- between assignments, an operator -----------------------------------------------------------------------------

    def _operate(self) -> None:
        if self.commit is None or self.operations >= _MOST_OPERATIONS or not self._chance(0.06):
            return
        self.operations += 1
        what = self.random.choice(["rewind", "skip", "forget"])
        if what == "rewind":
            self.commit = Commit(self.random.randrange(self.commit.offset + 1))
        elif what == "skip":
            self.commit = Commit(self.random.randrange(self.commit.offset, self.end + 1))
        else:
            self.commit = None

    # --- the oracle ------------------------------------------------------------------------------------------------

    def _oracle(self) -> str:
        offsets = set(self.handled)
        for offset in self.judged - offsets:
            if not any(earlier in offsets for earlier in self._earlier(offset)):
                return "lost"
        if self.operations or self.disorder_ms:
            return "ok"
        processed = offsets | self.judged
        for offset in offsets - self.doubtful:
            since_ms = self.log[offset].timestamp_ms - WINDOW_MS
            if any(
                earlier in processed and self.log[earlier].timestamp_ms >= since_ms
                for earlier in self._earlier(offset)
            ):
                return "leaked"
        return "ok"

    def _earlier(self, offset: int) -> list[int]:
        return [earlier for earlier in range(offset) if self.log[earlier].ident == self.log[offset].ident]
