"""How far back the marks of a partition go (`KnownRange`), and where a partition starts with them (`plan_start`).

The plan is a pure function of the store's progress and the group's commit. Offsets are "the next one".

low
    the beginning of the range of the log that the group has processed without a gap; from the commit's metadata
era
    a stretch of the group's history in which nobody set the group back. A commit without a valid text begins one,
    wherever its offset lies, and so does a start without a commit: what one host happens to remember proves nothing of
    what happened elsewhere
rewound
    another era began below the offsets that the store has as completed: records from there on are handled again
late
    the partition starts below the last offset that the store knows to be committed, by a commit with a valid text of
    the same era. The broker took two commits in the wrong order: nobody set the group back

`NOTHING_KNOWN` stands for a coverage whose beginning in time is not known yet; `KnownRange.know_from` replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from dedup_sdk._core.count_window import CountWindow
from dedup_sdk._core.ranges import from_offset
from dedup_sdk._marks import NO_HISTORY, NOTHING_KNOWN, Int64s, Known, Progress
from dedup_sdk._window import Window

Beginning = Literal["new", "resumed", "behind", "rewound", "jumped", "missing", "earlier"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPlan:
    """The steps to take before a partition delivers.

    - ``progress``: the state to begin with.
    - ``keep``: whether the store's marks stay; else it is reset to ``progress``.
    - ``replay_from``, ``replay_to``: offsets to fold before the first delivery; equal when there is nothing to fold.
    - ``whole``: the replay must give the marks of a whole window: it may begin one window before its end (then the
      marks are known only from there), and a snapshot may take its place.
    - ``beginning``: how the partition starts, for the log and the events.
    """

    progress: Progress
    keep: bool
    replay_from: int
    replay_to: int
    whole: bool
    beginning: Beginning


def plan_start(
    stored: Progress | None,
    *,
    committed: int,
    low: int,
    era: str = "",
    complete: bool = False,
    new: bool = False,
    vouched: bool = False,
    same_rule: bool = True,
) -> StartPlan:
    """Plan the start of a partition whose group has committed ``committed``, processed without a gap since ``low``.

    ``complete`` says that the group's own history begins at ``low``; ``new`` that it has no history at all, in a store
    neither (then ``committed`` is where it starts, and equals ``low``). ``vouched``: the text beside the commit is
    valid; else the era begins at ``committed``. ``same_rule``: the store was lived by the rule of now; what another one
    hid, or a unit that ended otherwise, was not handled by this one, and its history vouches for nothing.

    Whatever happened in between, this group has completed in this log what the store has below the next era. So marks
    outlive their era where all of them lie below it; where one lies above, which could hide a record that is to be
    handled again, they are folded anew from the store's ``low``.
    """
    if new:
        plan = _anew(committed, low=low, era=era, complete=True, beginning="new")
        # Nothing is committed until the group has said where it begins: before that a restart finds it new again.
        return replace(plan, progress=replace(plan.progress, committed=None))
    if stored is None:
        return _anew(committed, low=low, era=era, complete=complete, beginning="missing")
    # Any tool may have set this commit, but the records that the store has below were completed all the same.
    if not vouched and same_rule and stored.begun and low == committed <= stored.high:
        low, complete = stored.low, stored.known.is_complete
    if era != stored.era:
        is_rewound = stored.completed_end > (low if vouched else committed)
        stored = replace(stored, era=era)
    else:
        is_rewound = not vouched and stored.committed is not None and committed < stored.committed
    if is_rewound:
        return _anew(committed, low=low, era=era, complete=complete, beginning="rewound")
    if low < stored.low:
        return _anew(committed, low=low, era=era, complete=complete, beginning="earlier")
    if stored.low == low == stored.high < committed and not stored.done:
        # It holds nothing yet: a recovery that failed has made it. The next attempt may take a snapshot, or read back
        # one window, too.
        complete = complete or stored.known.since_ms is None
        return _anew(committed, low=low, era=era, complete=complete, beginning="missing")
    high = stored.high
    beginning: Beginning = "resumed"
    if low > stored.low:
        high, beginning = max(high, low), "jumped"
        stored = replace(
            stored, low=low, done=from_offset(stored.done, low),
            # Only if the jump left records out: else the marks still reach to the new low without a gap.
            known=stored.known.nothing_before() if low > stored.high else stored.known,
        )  # fmt: skip
    if beginning == "resumed" and committed > high:
        beginning = "behind"
    epoch = stored.epoch if high == stored.high else None
    progress = replace(stored, high=high, committed=committed, epoch=epoch)
    return StartPlan(
        progress=progress, keep=True, replay_from=high, replay_to=max(high, committed), whole=False,
        beginning=beginning,
    )  # fmt: skip


def _anew(committed: int, *, low: int, era: str, complete: bool, beginning: Beginning) -> StartPlan:
    low = min(low, committed)
    progress = Progress(
        low=low, high=low, era=era, committed=committed,
        known=NO_HISTORY if complete else NO_HISTORY.nothing_before(),
    )  # fmt: skip
    return StartPlan(
        progress=progress, keep=False, replay_from=low, replay_to=committed, whole=True, beginning=beginning
    )


UNCOVERED: Final = "uncovered"
"""Why a record is unverified: some of the marks that its window could hold are not known."""
OLDER_THAN_WINDOW: Final = "older-than-window"
"""The same of a record that came when the store kept nothing of its time any more, whatever history it has."""

GRACE: Final = 16
"""Marks are kept for a sixteenth of the window longer, so that records a little late are still covered."""


class KnownRange:
    """The range of time and numbers that the marks of a partition cover.

    ``since_ms`` and ``since_number``: as in `Known`. ``newest_ms`` is the newest timestamp of the completed
    records, ``stream_time_ms`` that of records that came, -1 before the first. In the latter a timestamp from the
    future counts as now: one such record must not make everything else look old. ``dropped_to``: some marks of offsets
    below it are gone for their age. ``count_window`` numbers the accepted records, where the window counts.
    ``longest_ms`` is how long any mark is kept: as long as the window, or that of a fallback lookup. ``ahead_ms``: so
    far may the timestamp of a record that is not known be ahead of the first known one; see `know_from`.
    """

    def __init__(
        self,
        window: Window,
        known: Known,
        *,
        longest_ms: int | None = None,
        ahead_ms: int = 0,
    ) -> None:
        self.window = window
        self.since_ms = known.since_ms
        self.since_number = known.since_number
        self.newest_ms = known.newest_ms
        self.stream_time_ms = -1
        self.dropped_to = known.dropped_to
        self.count_window: CountWindow | None = None
        self._ahead_ms = ahead_ms
        self._longest_ms = longest_ms or window.time_ms or 0
        self._accepted = known.accepted
        self._floor_number = known.floor_number
        if window.count:
            floor = self._floor_of_count_window(window.count)
            self.count_window = CountWindow(window.count, known.accepted, floor)
        elif self._floor_number:
            # No number keeps anything out any more, and nobody knows how old that was.
            self.since_ms, self.since_number, self._floor_number = NOTHING_KNOWN, known.accepted, 0

    def _floor_of_count_window(self, size: int) -> int:
        """Return the last number that is outside of this window, or was outside of an earlier and smaller one.

        Such marks stay expired.
        """
        accepted = self._accepted
        floor = max(self._floor_number, accepted - size)
        if floor > (self.since_number or 0):
            self.since_number = floor
        if floor > max(0, accepted - size):
            # This window reaches to marks that a smaller one forgot, and nobody knows how old those were.
            self.since_ms = NOTHING_KNOWN
        return floor

    @property
    def accepted(self) -> int:
        """The rank of the last accepted record below the watermark."""
        return self._accepted if self.count_window is None else self.count_window.accepted

    @property
    def floor_number(self) -> int:
        """The number up to which IDs are outside the window by now, or were outside of an earlier one.

        It is written with every step, so that nobody has to announce a change of the window. Marks stay in files
        longer than a count window reaches: without the floor a larger window would find marks that a smaller one had
        forgotten. It is written even where the present window misses nothing, because a longer one, or one by time,
        may open the store later.
        """
        if self.count_window is None:
            return self._floor_number
        return max(self.count_window.floor, self.count_window.accepted - self.count_window.size)

    def known(self, since_ms: int | None) -> Known:
        """Return the value to be written, with this ``since_ms``: units may begin later than the marks."""
        return Known(
            since_ms=since_ms, since_number=self.since_number, accepted=self.accepted, newest_ms=self.newest_ms,
            dropped_to=self.dropped_to, floor_number=self.floor_number,
        )  # fmt: skip

    def covers(self, timestamp_ms: int) -> bool:
        """Whether the marks know everything that the window of a record with this timestamp could hold."""
        time_ms = self.window.time_ms
        if time_ms is not None and (self.since_ms is None or self.since_ms <= timestamp_ms - time_ms):
            return True
        return self.covers_by_count() or self.window.is_off

    def covers_by_count(self) -> bool:
        """Whether they do because so many were accepted since, where the window counts."""
        if self.count_window is None:
            return False
        return (
            self.since_number is None
            or self.count_window.accepted - self.since_number >= self.count_window.size
        )

    def doubt(self, timestamp_ms: int) -> str:
        """Return why the window of a record is not covered."""
        return OLDER_THAN_WINDOW if self.is_old(np.array([timestamp_ms]))[0] else UNCOVERED

    def is_old(self, timestamps: Int64s) -> NDArray[np.bool_]:
        """Return which timestamps are older than the window of the newest completed record."""
        if self.window.time_ms is None:
            return np.zeros(len(timestamps), np.bool_)
        old: NDArray[np.bool_] = (timestamps >= 0) & (timestamps < self.completed_ms - self.window.time_ms)
        return old

    @property
    def completed_ms(self) -> int:
        """The time (ms) by which marks leave the store: the newest one of completed records.

        A restarted process knows no later time. If marks inside the window by that time were gone, it would take the
        log for another one.
        """
        return min(self.newest_ms, self.stream_time_ms)

    def start_stream_time(self, now_ms: int) -> None:
        """Start stream time at the newest completed record, at ``now_ms`` at the latest."""
        self.stream_time_ms = min(self.newest_ms, now_ms)

    def note_times(self, timestamps: Int64s, now_ms: int) -> None:
        """Let coverage begin with records that came where nothing was known, and put stream time forward."""
        if self.since_ms == NOTHING_KNOWN:
            self.know_from(timestamps.clip(max=now_ms), self.stream_time_ms)
        # NumPy's `max` of one element costs more than all the rest of this method.
        self.note_time(int(timestamps[0] if len(timestamps) == 1 else timestamps.max()), now_ms)

    def note_time(self, timestamp_ms: int, now_ms: int) -> None:
        """Put stream time forward to the newest timestamp (ms) of records that came, where that lies before now."""
        timestamp_ms = min(timestamp_ms, now_ms)
        self.stream_time_ms = max(self.stream_time_ms, timestamp_ms)

    def horizon_ms(self, clock_ms: int) -> int:
        """Return the timestamp before which a mark may be forgotten, with some grace for records that come late.

        The verdict is exact all the same: the age is checked when a mark is read.
        """
        return clock_ms - self._longest_ms - self._longest_ms // GRACE

    def note_completed(self, timestamp_ms: int) -> None:
        """Note the newest timestamp among completed records."""
        self.newest_ms = max(self.newest_ms, timestamp_ms)

    def forgot_before(self, timestamp_ms: int) -> None:
        """Note that sightings before this timestamp are no longer known, whatever their numbers."""
        self.since_ms = timestamp_ms if self.since_ms is None else max(self.since_ms, timestamp_ms)
        if self.count_window is not None:
            self.since_number = self.count_window.accepted

    def forget_all(self, number: int | None = None) -> None:
        """Note that nothing is known before the next record; ``number`` takes the place of the last accepted one's."""
        self.since_ms, self.since_number = NOTHING_KNOWN, self.accepted if number is None else number

    def begin_at(self, timestamp_ms: int) -> None:
        """Note that a fold begins at this timestamp: from there on the marks are known."""
        self.since_ms = timestamp_ms

    def doubt_below(self, number: int) -> None:
        """Note that too little is known below a number."""
        self.since_number = number

    def note_dropped(self, end: int) -> None:
        """Note that some marks of offsets below ``end`` are gone for their age."""
        self.dropped_to = max(self.dropped_to, end)

    def know_from(self, timestamps: Int64s, below_ms: int = -1) -> None:
        """Let the marks begin with the first of these timestamps (-1: there is none), where nothing was known.

        ``below_ms``: the newest timestamp known of the records below. A record that is not known may be as new, so
        that the marks begin no earlier.

        A late record must not move the beginning of coverage before marks that were forgotten. Where this store
        never saw the records below, only the first timestamp is known. It is exact where timestamps do not run
        backwards (log append time). Elsewhere a record may be called fresh although its copy is among those that are
        gone, for as long a time as the first record was late. It is delivered either way; only the count is wrong.
        Where more than the count hangs on it, ``ahead_ms`` is added.
        The newest of the next N records would prove nothing, because it depends on batches. To add a share of the
        window would put sound topics in doubt.
        """
        if self.since_ms == NOTHING_KNOWN:
            real = timestamps[timestamps >= 0]
            if real.size:
                self.since_ms = max(int(real[0]) + self._ahead_ms, below_ms)

    def pass_uncounted(self, count: int) -> None:
        """Pass at most so many records of which nobody knows whether they were accepted.

        A window by count counts them all as accepted, so that the marks below seem to be longer ago. Otherwise a
        mark that has left the window could hide a message.
        """
        if self.count_window is not None and self.count_window.accepted > 0:
            self.count_window.pass_uncounted(max(0, count))
