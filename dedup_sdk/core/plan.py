"""How a partition starts: what its store may be believed, and what is to be folded again.

A pure function of what the store holds and what the group has committed. Offsets are "the next one".

low
    where the stretch of log begins that the group has processed without a gap; from the commit's metadata.
rewound
    the partition starts below the last offset that the store knows to be committed, or in another era.
late
    the same by a commit whose text is valid and of this era, which arrived after a later one: nobody set the group back.

`NOTHING_KNOWN` stands for a coverage whose beginning in time is not known yet; `dedup_sdk.core.reach.Reach.know_from`
replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from dedup_sdk.progress import Progress

Beginning = Literal["new", "resumed", "behind", "rewound", "jumped", "missing", "earlier"]

NOTHING_KNOWN: Final = 2**62
"""As ``since_ms``: no sighting is known yet; the next record's timestamp takes its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPlan:
    """What to do before a partition delivers.

    - ``progress``: the state to begin with.
    - ``keep``: whether the store's marks stay; else it is reset to ``progress``.
    - ``replay_from``, ``replay_to``: offsets to fold before the first delivery; equal when there is nothing to fold.
    - ``whole``: the replay has to give the marks of a whole window: it may begin one window before its end (then the
      marks are known only from there), and a snapshot may take its place.
    - ``beginning``: what was found, for the log and the events.
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
) -> StartPlan:
    """Say how a partition starts whose group has committed ``committed``, processed without a gap since ``low``.

    ``complete`` says that the group's own history begins at ``low``; ``new`` that it has no history at all (then
    ``committed`` is where it starts, and equals ``low``). ``vouched``: the text beside the commit is valid, so that ``era`` is the group's.
    """
    if new:
        # A store with a history whose offsets are gone (expired, deleted): nothing of it is believed, nor that there was none.
        plan = _anew(
            committed, low=low, era=era, complete=stored is None or not stored.begun, beginning="new"
        )
        # Nothing is committed until the group has said where it begins: before that a restart finds it new again.
        return replace(plan, progress=replace(plan.progress, committed=None))
    if stored is None:
        return _anew(committed, low=low, era=era, complete=complete, beginning="missing")
    below = stored.committed is not None and committed < stored.committed
    if era != stored.era or (below and not vouched):
        return _anew(committed, low=low, era=era, complete=complete, beginning="rewound")
    if low < stored.low:
        return _anew(committed, low=low, era=era, complete=complete, beginning="earlier")
    high = stored.high
    beginning: Beginning = "resumed"
    if low > stored.low:
        high, beginning = max(high, low), "jumped"
        stored = replace(
            stored, low=low, done=tuple((max(start, low), end) for start, end in stored.done if end > low),
            since_ms=NOTHING_KNOWN if low > stored.high else stored.since_ms,
            since_number=stored.accepted if low > stored.high else stored.since_number,
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
        since_ms=None if complete else NOTHING_KNOWN, since_number=None if complete else 0,
    )  # fmt: skip
    return StartPlan(
        progress=progress, keep=False, replay_from=low, replay_to=committed, whole=True, beginning=beginning
    )
