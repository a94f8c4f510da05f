"""What stays hidden when a group is set back with ``on_rewind="suppress"``: what it handled, and not what it gave up.

The watermark says of both that they are over. So it goes back to the first record that was given up, and what was handled above
that is completed one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from dataclasses import replace

from dedup_sdk.engine.partition import Partition
from dedup_sdk.kafka.dead_letter_log import DeadLetterLog, GivenUp
from dedup_sdk.lane.plan import StartPlan
from dedup_sdk.lane.ranges import Range, merged
from dedup_sdk.lane.state import cut_digests
from dedup_sdk.marks import NO_MARKS
from dedup_sdk.progress import Progress

logger = logging.getLogger("dedup_sdk")


def without_what_was_given_up(
    held: Partition, plan: StartPlan, dead_letters: DeadLetterLog | None
) -> Generator[None, None, StartPlan]:
    """Return the plan of a rewind that hides what was completed, so that it hands out again what was given up.

    Except where the group has handled its ID within the window since. Where nobody knows what was given up, all of it comes again.
    Raises as `DeadLetterLog.read`.
    """
    progress = plan.progress
    begin, end = plan.replay_to, min(progress.high, progress.buried or 0)
    if not plan.keep or plan.beginning != "rewound" or begin >= end:
        return plan
    given_up = None
    if dead_letters is not None:
        given_up = yield from dead_letters.read(held.topic, held.partition, buried=progress.buried)
    if given_up is None or given_up.since_ms is not None or given_up.known_from > begin:
        logger.warning(
            "%s[%d]: nobody knows which of the offsets %d to %d were given up: all of them are handed out again",
            held.topic, held.partition, begin, end,
        )  # fmt: skip
        again = [(begin, end)]
    else:
        again = [(offset, offset + 1) for offset in _not_handled_since(held, given_up, begin, end)]
    return replace(plan, progress=_reopened(progress, again))


def _reopened(progress: Progress, again: list[Range]) -> Progress:
    """Return a progress that calls everything completed that it called so, but for some ranges below its watermark, ascending."""
    if not again:
        return progress
    ends = [end for _, end in again]
    begins = [*(begin for begin, _ in again[1:]), progress.high]
    between = ((end, begin) for end, begin in zip(ends, begins, strict=True) if end < begin)
    return replace(progress, high=again[0][0], done=merged([*between, *progress.done]))


def _not_handled_since(held: Partition, given_up: GivenUp, begin: int, end: int) -> list[int]:
    """Return the offsets in ``[begin, end)`` that were given up, ascending, but for those whose ID has a later mark in the window."""
    offsets = sorted(offset for offset in given_up.digests if begin <= offset < end)
    window_ms = held.window.time_ms
    if window_ms is None or held.window.count is not None:
        # By its number nobody tells how far a later sighting lies from one that has none.
        return offsets
    asked = given_up.between(begin, end)
    later = _marks(held, asked.values())
    handled = {
        offset
        for offset, digest in asked.items()
        if any(
            at > offset and at_ms - given_up.timestamps[offset] <= window_ms
            for at, at_ms in later.get(digest, ())
            if offset in given_up.timestamps
        )
    }
    return [offset for offset in offsets if offset not in handled]


def _marks(held: Partition, digests: Iterable[bytes]) -> dict[bytes, list[tuple[int, int]]]:
    """Return offset and timestamp (ms) of what a store knows of some IDs, before its partition starts."""
    asked = list(dict.fromkeys(digests))
    found = held.store.find(b"".join(asked), len(asked))
    marks: dict[bytes, list[tuple[int, int]]] = {}
    for index, offset, timestamp_ms in zip(found.indexes, found.offsets, found.timestamps, strict=True):
        marks.setdefault(asked[index], []).append((offset, timestamp_ms))
    recent = held.loaded.recent if held.loaded else NO_MARKS
    columns = zip(
        cut_digests(recent.digests), recent.offsets.tolist(), recent.timestamps.tolist(), strict=True
    )
    wanted = set(asked)
    for digest, offset, timestamp_ms in columns:
        if digest in wanted:
            marks.setdefault(digest, []).append((offset, timestamp_ms))
    return marks
