"""The judge: what was lost and what was doubled, from the topic's records and the workers' files alone.

It knows nothing of key stores and verdicts. What is in the topic comes from a plain consumer, what was handled from the
files that the workers wrote, one line a call of their handler.

run
    one life of one worker process, from its start to its end (orderly or by SIGKILL); each has a file of its own.
doubled bound
    what the SIGKILL may double, and no more: what the killed run had handled and the group had not yet committed, at most
    `IMPLICIT_BATCH_RECORDS`. Its successor finds the store on the same disk, so that only the last batch of implicitly
    completed records is in doubt.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

IMPLICIT_BATCH_RECORDS = 1_000
"""How many records a consumer completes implicitly in one durable step, at most (or 100 ms, whatever comes first)."""


class Handled(NamedTuple):
    """One call of a worker's handler: the record's coordinates and its dedup ID."""

    partition: int
    offset: int
    dedup_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the oracle found; all are counts.

    ``doubled`` are the calls of a handler beyond the first for their ID. ``unexplained`` are those among them that the
    SIGKILL does not excuse: their ID was not among what the killed run had handled and the group had not committed.
    """

    records: int
    distinct_ids: int
    handled: int
    lost: int
    doubled: int
    doubled_bound: int
    unexplained: int

    @property
    def duplicates_in_topic(self) -> int:
        """Records beyond the first of their ID."""
        return self.records - self.distinct_ids


def judge(
    topic: Mapping[str, int],
    runs: Iterable[Iterable[Handled]],
    *,
    killed: Iterable[Handled] = (),
    committed: Mapping[int, int] | None = None,
) -> Judgement:
    """Compare what was handled with what is in the topic.

    Args:
        topic: the number of records of each dedup ID.
        runs: what each run handled, the killed one included.
        killed: what the killed run handled.
        committed: by partition, the offset that the group had committed when that run was killed (the next one to read).
    """
    calls = Counter(each.dedup_id for run in runs for each in run)
    at_risk = {each.dedup_id for each in killed if each.offset >= (committed or {}).get(each.partition, 0)}
    doubled = {dedup_id: count - 1 for dedup_id, count in calls.items() if count > 1}
    return Judgement(
        records=sum(topic.values()),
        distinct_ids=len(topic),
        handled=calls.total(),
        lost=sum(1 for dedup_id in topic if dedup_id not in calls),
        doubled=sum(doubled.values()),
        doubled_bound=min(len(at_risk), IMPLICIT_BATCH_RECORDS),
        unexplained=sum(extra - (dedup_id in at_risk) for dedup_id, extra in doubled.items()),
    )


def read_handled(path: Path) -> list[Handled]:
    """Read a run's file: one line ``partition offset id`` a call; a last line without its end was never finished."""
    handled = []
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            if not line.endswith("\n"):
                break
            partition, offset, dedup_id = line[:-1].split(" ", 2)
            handled.append(Handled(int(partition), int(offset), dedup_id))
    return handled
