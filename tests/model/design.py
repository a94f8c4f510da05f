"""The design's rules as a host whose store is a dictionary, and the ways in which they can be broken."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.model.host import WINDOW_MS, Assignment, Commit, Outcome, Row

Sighting = tuple[int, int]
"""Offset and timestamp (ms) of a mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The design, and one way of breaking each of its rules; some do harm only in pairs."""

    commit_the_position: bool = False
    trust_a_snapshot_as_completed: bool = False
    snapshot_beyond_the_commit: bool = False
    equal_offset_is_redelivered: bool = False
    keep_marks_of_the_dead: bool = False
    mark_before_completion: bool = False
    release_promotes_a_twin: bool = False
    ignore_dead_letters: bool = False
    duplicates_do_not_refresh: bool = False
    low_never_rises: bool = False
    metadata_is_optional: bool = False


@dataclass(slots=True)
class _Disk:
    """``done`` are the completed offsets above ``high``; ``committed`` is the last offset known to be committed."""

    low: int
    high: int
    marks: dict[int, Sighting] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    committed: int | None = None


class DesignHost:
    """A host that follows the rules to the letter."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._disk: _Disk | None = None
        self._log: list[Row] = []
        self._in_flight: dict[int, int] = {}
        self._parked: dict[int, list[int]] = {}
        self.complete = False

    @property
    def disk(self) -> _Disk:
        """The disk of a host that has the partition."""
        assert self._disk is not None
        return self._disk

    @property
    def high(self) -> int:
        """See `Host`."""
        return self.disk.high

    @property
    def low(self) -> int:
        """See `Host`."""
        return self.disk.low

    def lose_disk(self) -> None:
        """See `Host`."""
        self._disk = None

    def stop(self, *, killed: bool) -> None:
        """See `Host`; what was completed is on the disk either way."""

    def note_committed(self, offset: int) -> None:
        """See `Host`."""
        self.disk.committed = offset

    # --- coming up to date ---------------------------------------------------------------------------------------

    def assign(self, assignment: Assignment) -> None:
        """See `Host`."""
        self._log, self._in_flight, self._parked = assignment.log, {}, {}
        at, low = assignment.commit.offset, self._begin(assignment.commit)
        dead = frozenset() if self._rules.ignore_dead_letters else assignment.dead
        disk = None if assignment.new else self._disk
        if disk is not None and disk.committed is not None and at < disk.committed:  # rewound
            disk.marks = self._fold(low, at, dead)
            disk.low, disk.high, disk.done = low, at, set()
        elif disk is not None and low < disk.low:
            disk = None  # the group's history begins earlier than this disk knows
        elif disk is not None and low > disk.low and not self._rules.low_never_rises:
            disk.low, disk.high = low, max(low, disk.high)
            disk.done = {offset for offset in disk.done if offset >= low}
        if disk is None:
            disk = self._anew(assignment, low, dead)
        elif at > disk.high:
            self._replay(disk, at, dead)
        self._disk = disk
        self.complete = assignment.new or assignment.commit.complete
        self._advance()

    def _begin(self, commit: Commit) -> int:
        if commit.low is not None:
            return commit.low
        if self._rules.metadata_is_optional:
            return min(self._disk.low if self._disk else 0, commit.offset)
        return commit.offset

    def _fold(self, low: int, cut: int, dead: frozenset[int]) -> dict[int, Sighting]:
        """Marks of the completed log before ``cut``, from ``low`` or one window back, whichever is later."""
        begin = low
        while begin < cut and self._log[begin].timestamp_ms < self._log[cut - 1].timestamp_ms - WINDOW_MS:
            begin += 1
        offsets = (offset for offset in range(begin, cut) if offset not in dead)
        return {self._log[offset].ident: (offset, self._log[offset].timestamp_ms) for offset in offsets}

    def _anew(self, assignment: Assignment, low: int, dead: frozenset[int]) -> _Disk:
        """Begin without a disk: from a snapshot and the tail, or from the tail alone."""
        at = assignment.commit.offset
        newest = assignment.end if self._rules.snapshot_beyond_the_commit else at
        cut = low + round(assignment.cut * (newest - low))
        disk = _Disk(low=low, high=at, marks=self._fold(low, max(cut, at), dead))
        if self._rules.trust_a_snapshot_as_completed:
            disk.high = at + round(assignment.cut * (assignment.end - at))
        return disk

    def _replay(self, disk: _Disk, at: int, dead: frozenset[int]) -> None:
        for offset in range(disk.high, at):
            ident, timestamp_ms = self._log[offset]
            known = disk.marks.get(ident, (-1, 0))[0]
            if offset in dead:
                if known == offset and not self._rules.keep_marks_of_the_dead:
                    del disk.marks[ident]
            elif known < offset:
                disk.marks[ident] = (offset, timestamp_ms)
        disk.high, disk.done = at, {offset for offset in disk.done if offset >= at}

    def jump(self, offset: int) -> None:
        """See `Host`."""
        self.disk.high, self.disk.done = offset, set()
        if not self._rules.low_never_rises:
            self.disk.low = offset
        self.complete = False

    # --- judging -------------------------------------------------------------------------------------------------

    def admit(self, offset: int) -> Outcome:
        """See `Host`."""
        disk, ident = self.disk, self._log[offset].ident
        if disk.low <= offset < disk.high or offset in disk.done:
            return Outcome.REDELIVERED
        if self._rules.equal_offset_is_redelivered and disk.marks.get(ident, (-1, 0))[0] == offset:
            disk.done.add(offset)
            self._advance()
            return Outcome.DUPLICATE
        if ident in self._in_flight.values():
            self._parked.setdefault(ident, []).append(offset)
            return Outcome.PARKED
        outcome = self._judge(offset)
        if self._rules.mark_before_completion and outcome is not Outcome.DUPLICATE:
            disk.marks[ident] = (offset, self._log[offset].timestamp_ms)
        self._advance()
        return outcome

    def _judge(self, offset: int) -> Outcome:
        disk, (ident, now_ms) = self.disk, self._log[offset]
        mark = disk.marks.get(ident)
        if mark and mark[0] < offset and now_ms - mark[1] <= WINDOW_MS:
            disk.done.add(offset)
            if not self._rules.duplicates_do_not_refresh:
                disk.marks[ident] = (offset, now_ms)
            return Outcome.DUPLICATE
        self._in_flight[offset] = ident
        covered = disk.low == 0 or self._log[disk.low].timestamp_ms <= now_ms - WINDOW_MS
        return Outcome.FRESH if covered else Outcome.DOUBTFUL

    def end(self, offset: int, *, dead: bool) -> list[tuple[int, Outcome]]:
        """See `Host`."""
        disk, ident = self.disk, self._in_flight.pop(offset)
        disk.done.add(offset)
        if not dead:
            disk.marks[ident] = (offset, self._log[offset].timestamp_ms)
        elif disk.marks.get(ident, (-1, 0))[0] == offset and not self._rules.keep_marks_of_the_dead:
            del disk.marks[ident]
        judged: list[tuple[int, Outcome]] = []
        waiting = sorted(self._parked.pop(ident, []))
        while waiting and ident not in self._in_flight.values():
            first = waiting.pop(0)
            judged.append((first, self._judge(first)))
        if waiting:
            self._parked[ident] = waiting
        self._advance()
        return judged

    def release(self, offset: int) -> list[int]:
        """See `Host`."""
        ident = self._in_flight[offset]
        if not self._rules.release_promotes_a_twin or not self._parked.get(ident):
            return [offset]
        del self._in_flight[offset]
        twin = self._parked[ident].pop(0)
        self._in_flight[twin] = ident
        self._parked[ident].append(offset)
        return [twin]

    def _advance(self) -> None:
        while self.disk.high in self.disk.done:
            self.disk.done.discard(self.disk.high)
            self.disk.high += 1
