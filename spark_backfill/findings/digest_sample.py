"""A sample of IDs with the partitions that they came from, and when each of these saw them last.

Digests are uniform, so that the smallest ``k`` of a set are a fair sample of it, and the same ones whoever looks:
those of a union are found among those of its parts, with every partition that has them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dedup_sdk._marks import DIGEST_BYTES, Int64s, cut_digests

SIZE: Final = 2048
"""``k``: shares of the IDs are known to about 1 %, and exactly where there are no more IDs than this."""

ALL: Final = "g"
"""A limit above each digest in hexadecimal."""

_PREFIX_VALUES: Final = 2**16


class Seen(NamedTuple):
    """An ID (its digest in hexadecimal) in a partition, and the timestamp of its last sighting there."""

    digest: str
    partition: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class DigestSample:
    """The smallest digests of a topic, with all their partitions, ascending; ``+`` makes the sample of the union.

    ``limit``: no ID whose digest is below it was left out.
    """

    seen: tuple[Seen, ...] = ()
    limit: str = ALL

    @classmethod
    def of(cls, partition: int, digests: bytes, last_ms: Int64s, size: int = SIZE) -> DigestSample:
        """Sample at most ``size`` of ``n`` digests (``16 * n`` bytes, ascending, each once) of one partition."""
        end = DIGEST_BYTES * size
        kept = zip(cut_digests(digests[:end]), last_ms[:size].tolist(), strict=True)
        seen = tuple(Seen(digest.hex(), partition, seen_ms) for digest, seen_ms in kept)
        return cls(seen, digests[end : end + DIGEST_BYTES].hex() or ALL)

    @property
    def is_whole(self) -> bool:
        """Whether it has all IDs there are."""
        return self.limit == ALL

    def __add__(self, other: DigestSample) -> DigestSample:
        limit = min(self.limit, other.limit)
        # Beyond the limit of either, the partitions of an ID are not all known.
        known = sorted({each for each in (*self.seen, *other.seen) if each.digest < limit})
        digests = list(dict.fromkeys(each.digest for each in known))
        if len(digests) > SIZE:
            limit = digests[SIZE]
        return DigestSample(tuple(each for each in known if each.digest < limit), limit)

    def partitions(self) -> dict[str, list[int]]:
        """Return the partitions of each ID, by its digest; both ascend."""
        found = defaultdict[str, list[int]](list)
        for each in self.seen:
            found[each.digest].append(each.partition)
        return dict(found)

    def several(self) -> dict[str, list[int]]:
        """Return those of `partitions` with more than one."""
        return {digest: where for digest, where in self.partitions().items() if len(where) > 1}

    def share_within(self, window_ms: int) -> float:
        """Return the share of IDs, one for each of its partitions, seen last at most that long before the newest."""
        newest_ms = max((each.last_ms for each in self.seen), default=0)
        within = sum(newest_ms - each.last_ms <= window_ms for each in self.seen)
        return within / max(len(self.seen), 1)


def sampled_limit(sampling: int) -> str:
    """Return the limit where no more than one ID in ``sampling`` is looked at, those of the smallest digests."""
    return ALL if sampling == 1 else f"{2 ** (8 * DIGEST_BYTES) // sampling:0{2 * DIGEST_BYTES}x}"


def is_sampled(digests: bytes, sampling: int) -> NDArray[np.bool_]:
    """Say of ``n`` digests which are among the one in ``sampling`` (a power of two) that is looked at."""
    prefixes = np.frombuffer(digests, ">u2").reshape(-1, DIGEST_BYTES // 2)[:, 0]
    sampled: NDArray[np.bool_] = prefixes < _PREFIX_VALUES // sampling
    return sampled
