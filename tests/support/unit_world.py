"""A group that reads units, crashes, moves to other disks and gives messages up.

And an oracle that knows the handled records. Each verdict that hides a record is held against them;
at the end nothing may be missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dedup_sdk._core.ranges import Ranges
from dedup_sdk._core.reach import plan_start
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._engine.partition import Partition
from dedup_sdk._record import Record, Settled, Verdict, VerdictKind
from dedup_sdk._store.memory import MemoryStore
from dedup_sdk._strategy import Lookup
from dedup_sdk._units.unit import Unit, UnitMode
from dedup_sdk._window import Window
from dedup_sdk.ids import RecordFields, header
from tests.support.disks import keeping
from tests.support.naive_units import Entry

TIMEOUT_S = 60.0
Action = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Commit:
    """The group's commit, and the text beside it."""

    offset: int
    low: int
    complete: bool
    done: Ranges = ()
    """Completed above the offset."""
    vouched: bool = True
    """Whether there is a text: other programs write none."""

    @property
    def is_exact_above(self) -> bool:
        """As of `dedup_sdk._commit_text.CommitMetadata`."""
        return self.complete or self.low < self.offset


def record_of(entry: Entry) -> Record:
    """The record of an entry."""
    headers: list[tuple[str, bytes | None]] = []
    if entry.ident is not None:
        headers.append(("dedup-id", entry.ident.encode()))
    if entry.unit is not None:
        headers.append(("dedup-unit", entry.unit.encode()))
    if entry.size is not None:
        headers.append(("dedup-unit-size", str(entry.size).encode()))
    if entry.is_end:
        headers.append(("dedup-unit-end", b""))
    return Record("t", 0, entry.offset, entry.timestamp_ms, headers=tuple(headers))


class UnitWorld:
    """One partition and one group.

    ``faults``: whether it crashed, or a unit failed, so that something may have come twice.
    """

    def __init__(
        self, window: Window, *, mode: UnitMode = "all-or-nothing", recent_marks: int = 3, records: int = 100
    ) -> None:
        self.strategy = Lookup(
            id=header("dedup-id"),
            window=window,
            unit=Unit(records=records, timeout=TIMEOUT_S),
            unit_mode=mode,
        )
        self.recent_marks = recent_marks
        self.log: list[Entry] = []
        self.now_s = 1_000.0
        self.commit: Commit | None = None
        self.handled: Counter[int] = Counter()
        self.idents: set[str] = set()
        """IDs of messages that were handled, but for those of failed units that stand or fall together.

        These come again, whole.
        """
        self.durable: set[int] = set()
        """Offsets that this disk knows to be over."""
        self.over: set[int] = set()
        """Offsets that were over at some time: handled, given up, or hidden for a reason."""
        self.verdicts: dict[int, Verdict] = {}
        self.faults = False
        self.store = MemoryStore()
        self.disks = [(self.store, self.durable)]
        self.first = 0
        self.era = 0
        self._begin()

    # --- lives ---------------------------------------------------------------------------------------------

    def _begin(self, *, skips: bool = False) -> None:
        """Open the engine as a consumer does: with its store, and the missing records folded from the log.

        ``skips``: there is no time to fold.
        """
        self.in_flight: list[int] = []
        self.engine = Deduplicator(
            self.strategy, keeping(self.recent_marks, self.store), clock=lambda: self.now_s
        )
        held = self.engine.attach("t", 0)
        stored = held.loaded.progress if held.loaded else None
        if self.commit is None:
            held.start(plan_start(stored, committed=0, low=0, new=True, complete=True, era=f"{self.era}"))
            # Before anything is delivered, so that the history has a beginning.
            self.commit = Commit(0, 0, complete=True)
            held.flight.note_committed(0)
            self.position = 0
            return
        commit = self.commit
        plan = plan_start(
            stored, committed=commit.offset, low=commit.low, complete=commit.complete, era=f"{self.era}",
            vouched=commit.vouched, same_rule=False,
        )  # fmt: skip
        held.start(plan)
        if skips and plan.replay_from < plan.replay_to:
            held.skip_to(plan.replay_to)
        else:
            if plan.replay_from < min(self.first, plan.replay_to):
                held.memory.pass_uncounted(self.first - plan.replay_from)
                held.memory.forget_all()
            self.replay(held, max(self.first, plan.replay_from), plan.replay_to)
        held.tell_completed(commit.done, is_exact=commit.is_exact_above)
        self.position = commit.offset
        if not commit.vouched:
            self.commit_offset()

    def replay(self, held: Partition, start: int, end: int) -> None:
        """Fold the records between two offsets, three records at a time."""
        tail = [entry for entry in self.log if start <= entry.offset < end]
        for at in range(0, len(tail), 3):
            piece = tail[at : at + 3]
            keys = self.strategy.keys.digests(RecordFields([record_of(entry) for entry in piece])).digests
            timestamps = np.asarray([entry.timestamp_ms for entry in piece], np.int64)
            held.fold([entry.offset for entry in piece], timestamps, keys, piece[-1].offset + 1)
            self.engine.trim()
        if held.flight.high < end:
            held.fold([], np.empty(0, np.int64), [], end)

    def crash(self) -> None:
        """Die without a word; the disk stays."""
        self.faults = True
        self.engine.lose("t", 0)
        self._begin()

    def move(self) -> None:
        """Die, and begin on another disk, which is empty."""
        self.store, self.durable = MemoryStore(), set()
        self.disks.append((self.store, self.durable))
        self.crash()

    def hand_over(self, which: int, *, skips: bool = False) -> None:
        """Leave in order; another host goes on, with its disk of before, or with a new one."""
        # Units that are over by half come again.
        self.faults = True
        self.commit_offset()
        self.engine.lose("t", 0)
        if which >= len(self.disks):
            self.disks.append((MemoryStore(), set()))
        self.store, self.durable = self.disks[min(which, len(self.disks) - 1)]
        self._begin(skips=skips)

    def commit_without_text(self) -> None:
        """Another program commits the group's offset once more while nobody reads."""
        self.commit_offset()
        assert self.commit is not None
        self.commit = Commit(self.commit.offset, self.commit.offset, complete=False, vouched=False)
        self.era += 1
        self.faults = True
        for _, durable in self.disks:
            # What was completed above is handled again.
            durable.intersection_update(range(self.commit.offset))
        self.engine.lose("t", 0)
        self._begin()

    def retain(self, count: int) -> None:
        """The log loses so many of its first records, of those that are committed."""
        left = [entry.offset for entry in self.log if self.first <= entry.offset]
        if self.commit is not None and left:
            self.first = min(self.commit.offset, left[min(count, len(left) - 1)])

    def commit_offset(self) -> None:
        """Commit the records that are over, with a consumer's text beside it."""
        held = self.engine.partitions["t", 0]
        complete = (self.commit is None or self.commit.complete) and not held.memory.exact_from
        high = held.flight.high
        self.commit = Commit(high, min(held.memory.committed_low, high), complete, held.completed_above(high))
        held.flight.note_committed(held.flight.high)
        self._check_commit(held.flight.high)

    def _check_commit(self, offset: int) -> None:
        missing = [
            entry.offset for entry in self.log if entry.offset < offset and entry.offset not in self.over
        ]
        assert not missing, f"committed {offset}, and {missing} are not over"

    # --- records -------------------------------------------------------------------------------------------

    def produce(self, entries: Iterable[Entry]) -> None:
        """Append to the log."""
        self.log += entries

    def admit(self, count: int) -> None:
        """Read on."""
        batch = [entry for entry in self.log if entry.offset >= self.position][:count]
        if batch:
            self.position = batch[-1].offset + 1
            verdicts = self.engine.admit([record_of(entry) for entry in batch])
            for entry, verdict in zip(batch, verdicts, strict=True):
                self._take(entry.offset, verdict)
        self._take_settled(self.engine.settle_units())

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds
        self._take_settled(self.engine.settle_units())

    def _take_settled(self, settled: Iterable[Settled]) -> None:
        for each in settled:
            self._take(each.record.offset, each.verdict)

    def _take(self, offset: int, verdict: Verdict) -> None:
        if verdict.kind is VerdictKind.HELD:
            return
        self.verdicts[offset] = verdict
        if verdict.reason.startswith("unit-"):
            self.faults = True
        if verdict.deliver:
            assert offset not in self.durable, f"{offset} is over on this disk, and came again: {verdict}"
            assert self.faults or not self.handled[offset], f"{offset} came twice without a fault"
            self.in_flight.append(offset)
            return
        self._check_hidden(self._entry(offset), verdict)
        self.over.add(offset)
        self._note_durable()

    def _check_hidden(self, entry: Entry, verdict: Verdict) -> None:
        """A record is hidden only if its message was handled, or its unit holds one that was."""
        if verdict.kind is VerdictKind.REDELIVERED:
            assert entry.offset in self.over, f"{entry} was never over"
            return
        unit = [each for each in self.log if entry.unit is not None and each.unit == entry.unit]
        repeated = any(each.ident == entry.ident and each.offset < entry.offset for each in unit)
        if verdict.reason == "unit":
            assert any(each.ident in self.idents for each in unit), (
                f"{entry}: nothing of its unit was handled"
            )
        else:
            assert entry.ident in self.idents or repeated, f"{entry} is lost: {verdict}"

    def _entry(self, offset: int) -> Entry:
        return next(entry for entry in self.log if entry.offset == offset)

    # --- how it ends ---------------------------------------------------------------------------------------

    def handle(self, which: int) -> None:
        """A handler is done, not always the oldest one."""
        offset = self._pick(which)
        if offset is not None:
            self.handled[offset] += 1
            self._end(offset, self.engine.complete)

    def _end(self, offset: int, end: Callable[[list[Record]], list[Settled]]) -> None:
        entry = self._entry(offset)
        alone = self.strategy.unit_mode == "members" or not self.verdicts[offset].reason.startswith("unit-")
        if entry.ident is not None and alone:
            self.idents.add(entry.ident)
        self.over.add(offset)
        self._take_settled(end([record_of(entry)]))
        self._note_durable()

    def give_up(self, which: int) -> None:
        """A handler gives up: there is a dead letter, which is an end like any other."""
        offset = self._pick(which)
        if offset is not None:
            self._end(offset, self.engine.dead_letter)

    def release(self, which: int) -> None:
        """A handler wants another try."""
        offset = self._pick(which)
        if offset is not None:
            self._take_settled(self.engine.release([record_of(self._entry(offset))]))

    def _pick(self, which: int) -> int | None:
        return self.in_flight.pop(which % len(self.in_flight)) if self.in_flight else None

    def _note_durable(self) -> None:
        """Records that are over are in the store; with a window by count those below the watermark."""
        held = self.engine.partitions["t", 0]
        for entry in self.log:
            if (
                held.window.count is None
                and entry.offset >= held.flight.low
                and held.flight.is_completed(entry.offset)
            ):
                self.durable.add(entry.offset)

    # --- all of it -----------------------------------------------------------------------------------------

    def play(self, actions: Sequence[Action]) -> None:
        """Do the acts of a list, then come to rest and see that nothing is missing."""
        for name, which, count in actions:
            self._act(name, which, count)
        self.rest()

    def _act(self, name: str, which: int, count: int) -> None:
        acts: dict[str, Callable[[], None]] = {
            "admit": lambda: self.admit(1 + count),
            "handle": lambda: self._handle_some(which, 1 + count),
            "give_up": lambda: self.give_up(which),
            "release": lambda: self.release(which),
            "commit": self.commit_offset,
            "crash": self.crash,
            "move": self.move,
            "hand_over": lambda: self.hand_over(which),
            "skip": lambda: self.hand_over(which, skips=True),
            "void": self.commit_without_text,
            "retain": lambda: self.retain(1 + 3 * count),
            "wait": lambda: self.wait(TIMEOUT_S / 3 * (1 + count)),
        }
        acts[name]()

    def _handle_some(self, which: int, count: int) -> None:
        for _ in range(count):
            self.handle(which)

    def rest(self) -> None:
        """Read everything, handle everything, wait for units that do not become whole."""
        for _ in range(4 + len(self.log)):
            self.admit(len(self.log) + 1)
            while self.in_flight:
                self.handle(0)
            if self.engine.next_offset("t", 0) == self._log_end:
                break
            self.wait(TIMEOUT_S + 1)
        assert self.engine.next_offset("t", 0) == self._log_end, "it never came to rest"
        self.commit_offset()

    @property
    def _log_end(self) -> int:
        return self.log[-1].offset + 1 if self.log else 0
