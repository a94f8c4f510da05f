"""A sample of IDs with the partitions that they came from, from which the share in more than one is told.

Digests are uniform, so that the smallest ``k`` of a set are a fair sample of it, and the same ones whoever looks:
those of a union are found among those of its parts, with every partition that has them.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dedup_sdk._marks import DIGEST_BYTES, cut_digests

SAMPLING: Final = 64
"""Of a history of more than `SAMPLED_ABOVE` records the findings are about one ID in so many.

Else each of thousands of slots would have some 100 kB to tell. The IDs are those of the smallest digests, so that only
the first slots of a partition have any.
"""
SAMPLED_ABOVE: Final = 100_000_000

SIZE: Final = 2048
"""``k``: the share is known to about 1 %, and exactly where there are no more IDs than this."""

_DIGESTS: Final = 2**128
_PREFIX_VALUES: Final = 2**16


class Estimate(NamedTuple):
    """Of a topic's IDs: how many (``ids``), the ``share`` of them in several partitions, and its standard error."""

    ids: int
    share: float
    error: float


@dataclass(frozen=True, slots=True)
class DigestSample:
    """The smallest digests of a topic, each with its partitions; ``+`` makes the sample of the union.

    ``end`` is the digest up to which no ID was left out, None where none was at all.
    """

    partitions: Mapping[bytes, frozenset[int]] = field(default_factory=dict)
    end: bytes | None = None

    @classmethod
    def of(cls, partition: int, digests: bytes, size: int = SIZE) -> DigestSample:
        """Sample at most ``size`` of ``n`` digests (``16 * n`` bytes, ascending, each once) of one partition."""
        kept = cut_digests(digests[: DIGEST_BYTES * size])
        left_out = digests[DIGEST_BYTES * size :][:DIGEST_BYTES]
        end = _before(left_out) if left_out else None
        return cls(dict.fromkeys(kept, frozenset({partition})), end=end)

    @classmethod
    def up_to(cls, sampling: int) -> DigestSample:
        """Return the sample without any ID, of which no more than one in ``sampling`` is looked at."""
        return cls() if sampling == 1 else cls(end=(_DIGESTS // sampling - 1).to_bytes(DIGEST_BYTES, "big"))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> DigestSample:
        """Read the output of `to_json`."""
        partitions = dict[bytes, frozenset[int]]()
        for name, digests in content["digests"].items():
            where = frozenset(int(partition) for partition in name.split(","))
            partitions |= dict.fromkeys((bytes.fromhex(digest) for digest in digests), where)
        return cls(partitions, end=None if content["end"] is None else bytes.fromhex(content["end"]))

    def to_json(self) -> dict[str, Any]:
        """Return ``end`` and the digests (hexadecimal), these by their partitions (decimal, joined by commas)."""
        grouped = defaultdict[frozenset[int], list[str]](list)
        for digest, partitions in sorted(self.partitions.items()):
            grouped[partitions].append(digest.hex())
        digests = {
            ",".join(map(str, sorted(partitions))): members
            for partitions, members in sorted(grouped.items(), key=lambda each: sorted(each[0]))
        }
        return {"end": None if self.end is None else self.end.hex(), "digests": digests}

    def __add__(self, other: DigestSample) -> DigestSample:
        union = dict(self.partitions)
        for digest, partitions in other.partitions.items():
            union[digest] = union.get(digest, frozenset()) | partitions
        ends = [end for end in (self.end, other.end) if end is not None]
        end = min(ends, default=None)
        # Beyond the end of either, the partitions of an ID are not all known.
        known = [digest for digest in union if end is None or digest <= end]
        smallest = heapq.nsmallest(SIZE + 1, known)
        if len(smallest) > SIZE:
            end = _before(smallest.pop())
        return DigestSample({digest: union[digest] for digest in smallest}, end=end)

    def several(self) -> dict[bytes, frozenset[int]]:
        """Return the IDs of the sample that came from more than one partition, ascending."""
        return {
            digest: partitions
            for digest, partitions in sorted(self.partitions.items())
            if len(partitions) > 1
        }

    def estimate(self) -> Estimate:
        """Return the sample's estimate for all IDs."""
        count = len(self.partitions)
        if not count:
            return Estimate(0, 0.0, 0.0)
        share = len(self.several()) / count
        if self.end is None:
            return Estimate(count, share, 0.0)
        looked_at = (int.from_bytes(self.end, "big") + 1) / _DIGESTS
        return Estimate(round(count / looked_at), share, (share * (1 - share) / count) ** 0.5)


def is_sampled(digests: bytes, sampling: int) -> NDArray[np.bool_]:
    """Say of ``n`` digests which are among the one in ``sampling`` (a power of two) that is looked at."""
    prefixes = np.frombuffer(digests, ">u2").reshape(-1, DIGEST_BYTES // 2)[:, 0]
    sampled: NDArray[np.bool_] = prefixes < _PREFIX_VALUES // sampling
    return sampled


def _before(digest: bytes) -> bytes:
    """The digest below the given one."""
    return max(int.from_bytes(digest, "big") - 1, 0).to_bytes(DIGEST_BYTES, "big")
