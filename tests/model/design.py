"""The design's rules as a host whose store is a dictionary, and the ways in which they can be broken."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.model.host import WINDOW_MS, Assignment, Commit, Outcome, Row

_NEW_ERAS = itertools.count(1)
Sighting = tuple[int, int]
"""Offset and timestamp (ms) of a mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The design, and one way of breaking each of its rules; some do harm only in pairs."""

    commit_the_position: bool = False
    trust_a_snapshot_as_completed: bool = False
    snapshot_beyond_the_commit: bool = False
    equal_offset_is_redelivered: bool = False
    mark_before_completion: bool = False
    a_dead_letter_leaves_no_mark: bool = False
    release_promotes_a_twin: bool = False
    duplicates_do_not_refresh: bool = False
    low_never_rises: bool = False
    metadata_is_optional: bool = False
    a_text_is_not_bound_to_its_offset: bool = False
    a_text_is_not_bound_to_its_rule: bool = False
    nothing_above_the_commit_travels: bool = False
    told_offsets_leave_no_mark: bool = False
    told_offsets_are_done_at_once: bool = False
    told_offsets_need_no_witness: bool = False
    a_store_needs_no_witness: bool = False
    a_store_is_compared_beyond_the_commit_alone: bool = False
    marks_are_not_asked_for_a_contradiction: bool = False
    a_void_text_keeps_the_era: bool = False
    a_resumption_keeps_the_era: bool = False
    marks_outlive_every_era: bool = False
    an_age_ends_at_the_clock: bool = False
    an_age_ends_at_the_newest_record: bool = False
    a_fold_reaches_back_from_the_last_record: bool = False


class Text(NamedTuple):
    """The text beside a commit of ``at``.

    ``done`` is completed above it, and ``witness`` the serial number of its last record.
    """

    at: int
    rule: int
    low: int
    era: int
    done: frozenset[int] = frozenset()
    witness: int | None = None


@dataclass(slots=True)
class _Disk:
    """``done`` are the completed offsets above ``high``; ``committed`` is the last offset known to be committed.

    ``told``: completed offsets of which only a commit's text says so; they are done, with a mark, once they are
    read. ``witness`` is the serial number of the last record below ``high``, ``serials`` have those of records
    above it, as far as they are known. ``since_ms``: the marks are known from this time on, None: since ``low``.
    ``newest_ms`` is the newest timestamp that was judged.
    """

    low: int
    high: int
    rule: int
    era: int = 0
    marks: dict[int, Sighting] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    told: set[int] = field(default_factory=set)
    committed: int | None = None
    witness: int | None = None
    serials: dict[int, int] = field(default_factory=dict)
    since_ms: int | None = None
    newest_ms: int = 0


class DesignHost:
    """A host that follows the rules to the letter."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._disk: _Disk | None = None
        self._log: list[Row] = []
        self._in_flight: dict[int, int] = {}
        self._parked: dict[int, list[int]] = {}
        self._position = 0
        self._clock: Callable[[], int] = lambda: 0

    @property
    def disk(self) -> _Disk:
        """The disk of a host that has the partition."""
        assert self._disk is not None
        return self._disk

    @property
    def high(self) -> int:
        """See `Host`."""
        return self.disk.high

    def lose_disk(self) -> None:
        """See `Host`."""
        self._disk = None

    def stop(self, *, killed: bool) -> None:
        """See `Host`; completions are on the disk either way."""

    def note_committed(self, offset: int) -> None:
        """See `Host`."""
        self.disk.committed = offset

    # --- the text of a commit ------------------------------------------------------------------------------------

    def completed_above(self, offset: int) -> set[int]:
        """See `Host`."""
        disk = self.disk
        above = range(offset, disk.high)
        return {each for each in {*above, *disk.done, *disk.told} if each >= offset}

    def text(self, offset: int) -> Text:
        """See `Host`."""
        disk = self.disk
        done = self.completed_above(offset)
        # Nobody believes ranges that end with a record that cannot be named.
        while done and max(done) not in disk.serials:
            done.remove(max(done))
        witness = disk.serials[max(done)] if done else None
        return Text(offset, disk.rule, min(disk.low, offset), disk.era, frozenset(done), witness)

    def rewind(self, text: object, committed: int, offset: int) -> Text | None:
        """See `Host`."""
        if not isinstance(text, Text) or text.at != committed:
            return None
        ahead = offset > committed
        low = offset if ahead else min(text.low, offset)
        return Text(offset, text.rule, low, text.era if ahead else next(_NEW_ERAS))

    def _valid(self, commit: Commit, rule: int) -> Text | None:
        text = commit.text
        if not isinstance(text, Text):
            return None
        if text.at != commit.offset and not self._rules.a_text_is_not_bound_to_its_offset:
            return None
        return text if text.rule == rule or self._rules.a_text_is_not_bound_to_its_rule else None

    def _told(self, text: Text | None, end: int) -> set[int]:
        if text is None or not text.done or self._rules.nothing_above_the_commit_travels:
            return set()
        last = max(text.done)
        same = last < end and self._log[last].serial == text.witness
        return set(text.done) if same or self._rules.told_offsets_need_no_witness else set()

    # --- coming up to date ---------------------------------------------------------------------------------------

    def assign(self, assignment: Assignment) -> int:
        """See `Host`."""
        self._log, self._in_flight, self._parked = assignment.log, {}, {}
        self._clock = assignment.clock
        rule, disk = assignment.rule, self._disk
        if disk is not None and disk.rule != rule:
            disk = None  # marks of another rule mean nothing
        text = self._valid(assignment.commit, rule)
        if assignment.new and disk is not None:
            # Its commits are gone: this disk goes on, and proves nothing of what happened elsewhere.
            if not self._rules.a_resumption_keeps_the_era:
                disk.era = next(_NEW_ERAS)
            at, low, era = disk.high, disk.low, disk.era
        else:
            at = assignment.commit.offset
            low = min(text.low, at) if text is not None else self._begin(at, disk)
            era = self._era(text, disk)
        if disk is not None:
            disk = self._opened(disk, at, low, era, text)
        if disk is None:
            disk = self._anew(assignment, low, era)
        else:
            disk.era = era
            self._cut_where_it_is_another(disk, at, assignment.end)
            if at > disk.high:
                self._replay(disk, at)
        self._disk, self._position, disk.told = disk, at, set()
        known = self.completed_above(at)
        disk.told = {offset for offset in self._told(text, assignment.end) if offset >= disk.high} - known
        if text is not None and text.witness is not None and disk.told:
            disk.serials[max(text.done)] = text.witness
        if self._rules.told_offsets_are_done_at_once:
            disk.done |= disk.told
            self._position = max([at, *(offset + 1 for offset in disk.told)])
        self._advance()
        return at

    def _opened(self, disk: _Disk, at: int, low: int, era: int, text: Text | None) -> _Disk | None:
        """Return what stays of a disk in the group's history; None: the history begins earlier than the disk knows."""
        if self._was_rewound(disk, at, low, era, text):
            return self._folded(low, at, disk.rule, era)
        if low < disk.low:
            return None
        if low > disk.low and not self._rules.low_never_rises:
            if low > disk.high:
                disk.high, disk.witness = low, None
            disk.low = low
            disk.done = {offset for offset in disk.done if offset >= disk.high}
        return disk

    def _era(self, text: Text | None, disk: _Disk | None) -> int:
        """Whatever has no valid text begins an era, wherever it lies."""
        if text is not None:
            return text.era
        return disk.era if disk is not None and self._rules.a_void_text_keeps_the_era else next(_NEW_ERAS)

    def _begin(self, at: int, disk: _Disk | None) -> int:
        """Where the history begins whose commit has no valid text: what a disk has below it is a fact."""
        if self._rules.metadata_is_optional:
            return min(disk.low if disk else 0, at)
        return min(disk.low, at) if disk is not None and at <= disk.high else at

    def _was_rewound(self, disk: _Disk, at: int, low: int, era: int, text: Text | None) -> bool:
        """Whether an era began below what the disk has completed; a lower offset of the same era only came late."""
        if era == disk.era:
            return text is None and disk.committed is not None and at < disk.committed
        completed = max([disk.high, *(offset + 1 for offset in disk.done)])
        return completed > (at if text is None else low) and not self._rules.marks_outlive_every_era

    def _serial(self, offset: int, low: int) -> int | None:
        return self._log[offset - 1].serial if offset > low else None

    def _folded(self, low: int, at: int, rule: int, era: int, cut: int = 0) -> _Disk:
        """A disk with the marks of the completed log, from ``low`` or one window back, whichever is later."""
        cut, begin = max(cut, at), low
        # A time ahead of the clock counts as now: one window before it the log has yet to come to.
        newest_ms = self._log[cut - 1].timestamp_ms if cut > low else 0
        since_ms = self._by_clock(newest_ms) - WINDOW_MS
        while begin < cut and self._log[begin].timestamp_ms < since_ms:
            begin += 1
        disk = _Disk(low, at, rule, era, witness=self._serial(at, low))
        for offset, row in enumerate(self._log[begin:cut], begin):
            disk.marks[row.idents[rule]] = (offset, row.timestamp_ms)
        if begin > low and not self._rules.a_fold_reaches_back_from_the_last_record:
            disk.since_ms = since_ms
        return disk

    def _by_clock(self, timestamp_ms: int) -> int:
        if self._rules.a_fold_reaches_back_from_the_last_record:
            return timestamp_ms
        return min(timestamp_ms, self._clock())

    def _anew(self, assignment: Assignment, low: int, era: int) -> _Disk:
        """Begin without a disk: from a snapshot and the tail, or from the tail alone."""
        at = assignment.commit.offset
        newest = assignment.end if self._rules.snapshot_beyond_the_commit else at
        disk = self._folded(low, at, assignment.rule, era, low + round(assignment.cut * (newest - low)))
        if self._rules.trust_a_snapshot_as_completed:
            disk.high = at + round(assignment.cut * (assignment.end - at))
        return disk

    def _replay(self, disk: _Disk, at: int) -> None:
        for offset in range(disk.high, at):
            row = self._log[offset]
            if disk.marks.get(row.idents[disk.rule], (-1, 0))[0] < offset:
                disk.marks[row.idents[disk.rule]] = (offset, row.timestamp_ms)
        disk.high, disk.witness = at, self._log[at - 1].serial
        disk.done = {offset for offset in disk.done if offset >= at}

    def _cut_where_it_is_another(self, disk: _Disk, at: int, end: int) -> None:
        """Give up the completions of a log that the broker no longer has."""
        if self._rules.a_store_needs_no_witness:
            return
        # Also below the commit: another host may have gone on in the new log, beyond all that this disk has.
        first = at if self._rules.a_store_is_compared_beyond_the_commit_alone else disk.low
        if disk.high > first and (disk.high > end or self._log[disk.high - 1].serial != disk.witness):
            other = (
                offset for offset in range(first, disk.high) if offset >= end or self._is_another(offset)
            )
            self._cut(next(other, disk.high))
        disk.done = {offset for offset in disk.done if offset < end}

    def _is_another(self, offset: int) -> bool:
        """Whether the record at a completed offset is not the one that was completed.

        Its ID was not completed there, nor later.
        """
        disk, row = self.disk, self._log[offset]
        newest_ms = self._by_clock(max((each for _, each in disk.marks.values()), default=-1))
        inside = row.timestamp_ms >= newest_ms - WINDOW_MS
        return inside and disk.marks.get(row.idents[disk.rule], (-1, 0))[0] < offset

    def _cut(self, offset: int) -> None:
        """Count nothing from an offset on as completed; marks stay, because their IDs were handled."""
        disk = self.disk
        if offset < disk.high:
            disk.high, disk.witness = offset, None
        disk.low, disk.committed = min(disk.low, offset), None
        disk.done = {each for each in disk.done if each < offset}
        disk.told = {each for each in disk.told if each < offset}
        self._in_flight, self._parked, self._position = {}, {}, disk.high

    def jump(self, offset: int) -> None:
        """See `Host`."""
        disk = self.disk
        disk.high, disk.done, disk.told, disk.witness = offset, set(), set(), None
        if not self._rules.low_never_rises:
            disk.low = offset
        self._position = offset

    # --- judging -------------------------------------------------------------------------------------------------

    def admit(self, offset: int) -> Outcome:
        """See `Host`."""
        disk, row = self.disk, self._log[offset]
        ident = row.idents[disk.rule]
        if offset in disk.told and not self._rules.told_offsets_are_done_at_once:
            disk.told.discard(offset)
            disk.done.add(offset)
            disk.serials[offset] = row.serial
            if disk.marks.get(ident, (-1, 0))[0] < offset and not self._rules.told_offsets_leave_no_mark:
                disk.marks[ident] = (offset, row.timestamp_ms)
        elif disk.low <= offset < disk.high or offset in disk.done:
            asked = offset not in disk.told and not self._rules.marks_are_not_asked_for_a_contradiction
            if asked and self._is_another(offset):
                self._cut(offset)
                return Outcome.ANOTHER_LOG
        self._position = max(self._position, offset + 1)
        if disk.low <= offset < disk.high or offset in disk.done:
            self._advance()
            return Outcome.REDELIVERED
        if self._rules.equal_offset_is_redelivered and disk.marks.get(ident, (-1, 0))[0] == offset:
            self._complete(offset)
            self._advance()
            return Outcome.DUPLICATE
        if ident in self._in_flight.values():
            self._parked.setdefault(ident, []).append(offset)
            return Outcome.HELD
        outcome = self._judge(offset)
        if self._rules.mark_before_completion and outcome is not Outcome.DUPLICATE:
            disk.marks[ident] = (offset, row.timestamp_ms)
        self._advance()
        return outcome

    def _judge(self, offset: int) -> Outcome:
        disk, row = self.disk, self._log[offset]
        ident, time_ms = row.idents[disk.rule], row.timestamp_ms
        mark = disk.marks.get(ident)
        if mark and mark[0] < offset and self._last_moment(time_ms) - mark[1] <= WINDOW_MS:
            self._complete(offset)
            if not self._rules.duplicates_do_not_refresh:
                disk.marks[ident] = (offset, time_ms)
            return Outcome.DUPLICATE
        self._in_flight[offset] = ident
        since_ms = time_ms - WINDOW_MS
        covered = disk.low == 0 or self._log[disk.low].timestamp_ms <= since_ms
        if not covered or (disk.since_ms is not None and disk.since_ms > since_ms):
            return Outcome.DOUBTFUL
        return Outcome.FRESH

    def _last_moment(self, time_ms: int) -> int:
        """Until when the age of a mark is measured: the time of the record, wherever that lies."""
        disk = self.disk
        newest_ms, disk.newest_ms = disk.newest_ms, max(disk.newest_ms, time_ms)
        if self._rules.an_age_ends_at_the_clock:
            return min(time_ms, self._clock())
        return min(time_ms, newest_ms) if self._rules.an_age_ends_at_the_newest_record else time_ms

    def _complete(self, offset: int) -> None:
        self.disk.done.add(offset)
        self.disk.serials[offset] = self._log[offset].serial

    def end(self, offset: int, *, dead: bool) -> list[tuple[int, Outcome]]:
        """See `Host`."""
        disk, ident = self.disk, self._in_flight.pop(offset)
        self._complete(offset)
        if not (dead and self._rules.a_dead_letter_leaves_no_mark):
            disk.marks[ident] = (offset, self._log[offset].timestamp_ms)
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
        """Move the watermark over completed records, as far as they were read.

        Until then a record may prove to be another one.
        """
        disk = self.disk
        while disk.high in disk.done and disk.high < self._position:
            disk.done.discard(disk.high)
            disk.witness = self._log[disk.high].serial
            disk.high += 1
