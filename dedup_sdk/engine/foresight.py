"""Looking up before anything is judged, so that a store that fails leaves nothing half admitted."""

from __future__ import annotations

from collections.abc import Iterable

from dedup_sdk.lane.judging import Find
from dedup_sdk.lane.state import cut_digests
from dedup_sdk.marks import Found


def looked_up(find: Find, digests: Iterable[bytes | None]) -> Find:
    """Look all digests up at once, and return a `Find` that answers from that; raises what ``find`` raises."""
    asked = list(dict.fromkeys(digest for digest in digests if digest is not None))
    found = find(b"".join(asked), len(asked))
    rows = {asked[index]: row for row, index in enumerate(found.indexes)}
    known = frozenset(asked)

    def answer(joined: bytes, count: int) -> Found:
        wanted = cut_digests(joined)
        if not known.issuperset(wanted):
            return find(joined, count)
        hits = [(index, rows[digest]) for index, digest in enumerate(wanted) if digest in rows]
        return Found(
            [index for index, _ in hits],
            [found.offsets[row] for _, row in hits],
            [found.timestamps[row] for _, row in hits],
            None if found.numbers is None else [found.numbers[row] for _, row in hits],
        )

    return answer
