from __future__ import annotations

import numpy as np
import pytest

from spark_backfill.findings.digest_sample import SIZE, DigestSample, is_sampled, sampled_limit
from tests.support.naive_fold import digest_of

MINUTE_MS = 60_000


def sample(partition: int, names: range, size: int = SIZE) -> DigestSample:
    """Of IDs that are called by numbers, each seen last at the minute of that number."""
    times = {digest_of(name): name * MINUTE_MS for name in names}
    digests = sorted(times)
    last_ms = np.array([times[digest] for digest in digests], np.int64)
    return DigestSample.of(partition, b"".join(digests), last_ms, size)


def test_few_ids_are_known_exactly() -> None:
    """With fewer IDs than the sample holds, those in two partitions and those of a window are all there are."""
    both = sample(0, range(100)) + sample(1, range(90, 140))
    assert both.is_whole
    assert len(both.partitions()) == 140
    assert both.several() == {digest_of(name).hex(): [0, 1] for name in sorted(range(90, 100), key=digest_of)}
    assert both.share_within(49 * MINUTE_MS) == 60 / 150
    assert both.share_within(140 * MINUTE_MS) == 1
    assert DigestSample().share_within(1) == 0


def test_many_ids_are_estimated() -> None:
    """Of 40,000 IDs a tenth is in two partitions, and a window of a quarter of the time has that share of them."""
    both = sample(0, range(22_000)) + sample(1, range(18_000, 40_000))
    assert len(both.partitions()) == SIZE
    assert not both.is_whole
    assert len(both.several()) / SIZE == pytest.approx(0.1, abs=0.03)
    assert both.share_within(10_000 * MINUTE_MS) == pytest.approx(10_000 / 44_000, abs=0.04)


def test_the_order_of_adding_does_not_matter() -> None:
    """Samples of parts add up to one, whatever their sizes and their order."""
    parts = [sample(part % 3, range(1000 * part, 1000 * part + 1500)) for part in range(6)]
    forth, back = DigestSample(), DigestSample()
    for part in parts:
        forth, back = forth + part, part + back
    assert forth == back
    assert len(forth.partitions()) == SIZE


def test_a_part_that_gives_few_shortens_the_sample_and_does_not_spoil_it() -> None:
    """Where one part leaves IDs out, only IDs of which every partition is known stay in the sum."""
    other = sample(1, range(500))
    total = sample(0, range(1000), size=10) + other
    assert all(
        len(where) == (2 if digest in other.partitions() else 1)
        for digest, where in total.partitions().items()
    )
    assert len(total.partitions()) == 10
    assert (sample(0, range(1000), size=0) + other).several() == {}


def test_one_in_so_many_is_looked_at() -> None:
    """The IDs of a sampled history are exactly those below the limit that its sample has."""
    digests = sorted(digest_of(name) for name in range(1000))
    looked_at = is_sampled(b"".join(digests), 64).tolist()
    assert looked_at == [digest.hex() < sampled_limit(64) for digest in digests]
    assert 5 < sum(looked_at) < 30
    assert DigestSample(limit=sampled_limit(1)).is_whole
