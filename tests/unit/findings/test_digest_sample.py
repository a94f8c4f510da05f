from __future__ import annotations

import pytest

from spark_backfill.findings.digest_sample import SIZE, DigestSample, Estimate
from tests.support.naive_fold import digest_of


def sample(partition: int, names: range) -> DigestSample:
    """Of IDs that are called by numbers."""
    return DigestSample.of(partition, b"".join(sorted(digest_of(name) for name in names)))


def test_few_ids_are_known_exactly() -> None:
    """With fewer IDs than the sample holds, their number and the share in two partitions are exact."""
    both = sample(0, range(100)) + sample(1, range(90, 140))
    assert both.estimate() == Estimate(140, 10 / 140, 0.0)
    assert both.several() == {digest_of(name): frozenset({0, 1}) for name in range(90, 100)}


def test_many_ids_are_estimated() -> None:
    """Of 40,000 IDs of which a tenth is in two partitions, number and share come out within some standard errors."""
    both = sample(0, range(22_000)) + sample(1, range(18_000, 40_000))
    found = both.estimate()
    assert len(both.partitions) == SIZE
    assert found.ids == pytest.approx(40_000, rel=0.1)
    assert found.share == pytest.approx(0.1, abs=4 * found.error)
    assert 0.005 < found.error < 0.01


def test_the_order_of_adding_does_not_matter() -> None:
    """Samples of parts add up to one, whatever their sizes and their order, and it survives JSON."""
    parts = [sample(part % 3, range(1000 * part, 1000 * part + 1500)) for part in range(6)]
    forth, back = DigestSample(), DigestSample()
    for part in parts:
        forth, back = forth + part, part + back
    assert forth == back
    assert DigestSample.from_json(forth.to_json()) == forth


def test_a_part_that_gives_few_shortens_the_sample_and_does_not_spoil_it() -> None:
    """Where one part leaves IDs out, only IDs of which every partition is known stay in the sum."""
    digests = b"".join(sorted(digest_of(name) for name in range(1000)))
    total = DigestSample.of(0, digests, size=10) + sample(1, range(500))
    assert all(len(partitions) == (2 if digest in sample(1, range(500)).partitions else 1)
               for digest, partitions in total.partitions.items())  # fmt: skip
    assert 10 <= len(total.partitions) < 40
    assert (DigestSample.of(0, digests, size=0) + sample(1, range(500))).several() == {}
