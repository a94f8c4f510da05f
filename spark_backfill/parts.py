"""A run in parts, written one after the other, so that little is lost where one fails.

- A *part* is the offset ranges of a few partitions, which are read and folded together.
- A part is *written* (`WrittenPart`) when all of its files are at the output.
- A written part is *kept* when a text at the output says what was written. The text stays until the snapshot is there,
  so that it outlives a run that fails, or whose driver is killed.
- A kept part of an earlier run is *taken over* by one with ``--resume``: nothing of its partitions is read again, and
  their history ends where it ended then.

A part is taken over where the run asks for the same thing (`request_digest`), and only for partitions whose history
still begins there, and reaches as far, in the same log: others are read again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any, Final

from dedup_sdk._store.manifest import FORMAT, SortedFile, manifest_bytes
from spark_backfill.base import Base, SameUntil, cut_off_at
from spark_backfill.history import History
from spark_backfill.offset_range import BasePart, OffsetRange, Staying
from spark_backfill.options import Options
from spark_backfill.publish import paths_of
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slots import Slot, SlotPlan

LEAST_ROWS: Final = 200_000_000
"""A smaller part would not be worth the time in which tasks wait for its last one."""
_MOST_PARTS: Final = 32
"""About so many, however many rows there are."""
_NO_RULE: Final = frozenset(
    {
        "id", "output", "existing", "report", "packages", "client_config", "bootstrap", "resume",
        "parallelism",
        # Gaps are looked for in all of the history, what is taken over included.
        "allow_gap",
        # Its text counts: an age is another time in each run.
        "expire_before_ms",
    }
)  # fmt: skip
"""Options that change nothing about what is folded, or are named in other words."""


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """A part whose files are at the output: what was folded, its slots, and their outcomes.

    Outcomes have the numbers of these slots. ``eras``, ``epochs``: those of its partitions, as in
    `spark_backfill.history.History`.
    """

    offset_ranges: tuple[OffsetRange, ...]
    eras: Mapping[int, str]
    epochs: Mapping[int, int]
    slots: tuple[Slot, ...]
    outcomes: tuple[SlotOutcome, ...]

    def to_json(self, rule: str) -> str:
        """Return the text that `from_json` reads; ``rule`` as of `request_digest`."""
        return json.dumps(
            {
                "rule": rule,
                "offset_ranges": list(map(asdict, self.offset_ranges)),
                "eras": list(self.eras.items()),
                "epochs": list(self.epochs.items()),
                "slots": self.slots,
                "outcomes": [each.to_json() for each in self.outcomes],
            }
        )

    @classmethod
    def from_json(cls, text: str, rule: str) -> WrittenPart | None:
        """Read the output of `to_json`; None where it is of another rule, or cannot be read."""
        try:
            content = json.loads(text)
            if content["rule"] != rule:
                return None
            return cls(
                tuple(map(_offset_range, content["offset_ranges"])),
                {int(partition): str(era) for partition, era in content["eras"]},
                {int(partition): int(epoch) for partition, epoch in content["epochs"]},
                tuple(Slot(*each) for each in content["slots"]),
                tuple(map(SlotOutcome.from_json, content["outcomes"])),
            )
        except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return None

    @property
    def partitions(self) -> set[int]:
        """The partitions that it is about."""
        return {each.partition for each in self.offset_ranges}

    def lacking(self, names: Collection[str]) -> set[int]:
        """Return the partitions of which not all files are among those at the output, by their paths there."""
        return {
            self.slots[each.slot].partition
            for each in self.outcomes
            if each.file is not None
            and not {*paths_of(self.slots[each.slot].partition, each.file)}.issubset(names)
        }

    def of(self, partitions: Collection[int]) -> WrittenPart:
        """Return the part of it that is about these partitions."""
        numbers = [number for number, slot in enumerate(self.slots) if slot.partition in partitions]
        renumbered = {number: index for index, number in enumerate(numbers)}
        return WrittenPart(
            tuple(each for each in self.offset_ranges if each.partition in partitions),
            {partition: era for partition, era in self.eras.items() if partition in partitions},
            {partition: epoch for partition, epoch in self.epochs.items() if partition in partitions},
            tuple(self.slots[number] for number in numbers),
            tuple(
                replace(each, slot=renumbered[each.slot]) for each in self.outcomes if each.slot in renumbered
            ),
        )


def _offset_range(content: dict[str, Any]) -> OffsetRange:
    base = content.pop("base")
    if base is not None:
        named = dict(zip(BasePart._fields, _tuples(base), strict=True))
        if named["staying"] is not None:
            files, forgotten_ms = named["staying"]
            named["staying"] = Staying(tuple(SortedFile(**each) for each in files), forgotten_ms)
        base = BasePart(**named)
    return OffsetRange(**{name: _tuples(value) for name, value in content.items()}, base=base)


def _tuples(value: Any) -> Any:
    """The value, whose lists are tuples, as before it was JSON."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def request_digest(options: Options, history: History, base: Base | None, *, findings: int) -> str:
    """Return a digest of a run's request: two runs have the same one if they ask for the same result.

    How and where the work is done makes no difference. ``findings``: the report looks at one ID in so many, 0: there is
    no report.
    """
    shown = [
        f"{name}={getattr(options, name)!r}" for name in sorted(Options.__slots__) if name not in _NO_RULE
    ]
    shown += [str(options.id), str(findings), history.cluster, history.topic_id, str(FORMAT)]
    if base is not None:
        shown.append(str(base.stays))
    data = "\n".join(shown).encode() + (b"" if base is None else manifest_bytes(base.manifest))
    return sha256(data).hexdigest()


def cut_parts(offset_ranges: Iterable[OffsetRange], together: int = 1) -> list[tuple[OffsetRange, ...]]:
    """Return the offset ranges that have rows, in parts of about as many rows; few rows are one part.

    ``together``: at least so many are in each but the last, where a task folds a whole partition.
    """
    busy = [each for each in offset_ranges if each.rows]
    most = max(LEAST_ROWS, -(-sum(each.rows for each in busy) // _MOST_PARTS))
    parts: list[list[OffsetRange]] = []
    room = 0
    for each in busy:
        if not parts or (each.rows > room and len(parts[-1]) >= together):
            parts.append([])
            room = most
        parts[-1].append(each)
        room -= each.rows
    return list(map(tuple, parts))


def still_right(history: History, kept: WrittenPart, *, vouched: bool, same_until: SameUntil) -> WrittenPart:
    """Return what of a kept part can be taken over: the partitions whose history a run could have planned like that.

    ``vouched``: the user vouches for all that the log has, which may have lost its beginning since.
    ``same_until`` says up to where the log is still that of an epoch.
    """
    known = {each.partition: each for each in history.offset_ranges}

    def is_right(then: OffsetRange) -> bool:
        number = then.partition
        now = known.get(number)
        epochs = kept.epochs.get(number), history.epochs.get(number)
        return (
            now is not None
            and (then.low == now.low or (vouched and then.low < now.low))
            and then.high <= now.high
            and kept.eras.get(number, "") == history.eras.get(number, "")
            and cut_off_at(number, then.high, *epochs, same_until) is None
        )

    return kept.of({each.partition for each in kept.offset_ranges if is_right(each)})


def with_taken_over(history: History, parts: Sequence[WrittenPart]) -> History:
    """Return the history whose partitions end where parts taken over say, in the leader epochs that were known then."""
    known = {each.partition: each for part in parts for each in part.offset_ranges}
    epochs = {partition: epoch for partition, epoch in history.epochs.items() if partition not in known}
    return replace(
        history,
        offset_ranges=tuple(known.get(each.partition, each) for each in history.offset_ranges),
        epochs=epochs | {partition: epoch for part in parts for partition, epoch in part.epochs.items()},
    )


def joined(parts: Sequence[WrittenPart]) -> tuple[SlotPlan, list[SlotOutcome]]:
    """Return the slots of written parts, and their outcomes."""
    slots: list[Slot] = []
    outcomes: list[SlotOutcome] = []
    for part in parts:
        outcomes += [replace(each, slot=len(slots) + each.slot) for each in part.outcomes]
        slots += part.slots
    return SlotPlan(tuple(slots)), outcomes
