from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk.store.xxh64 import xxh64, xxh64_rows

PUBLISHED = {
    b"": 0xEF46DB3751D8E999,
    b"a": 0xD24EC4F1A98C6E5B,
    b"abc": 0x44BC2CF5AD770999,
    b"Nobody inspects the spammish repetition": 0xFBCEA83C8A378BF1,
}


@pytest.mark.parametrize(("text", "expected"), PUBLISHED.items())
def test_published_values(text: bytes, expected: int) -> None:
    """The hash of well-known texts is what other implementations give."""
    assert xxh64(text) == expected
    assert xxh64_rows(np.frombuffer(text, np.uint8)[None, :]).tolist() == [expected]


@given(st.integers(0, 200), st.integers(1, 5), st.randoms(use_true_random=False))
def test_rows_are_hashed_as_single_texts(length: int, count: int, random: object) -> None:
    """Side by side or one by one, of whatever length, the hashes are the same, and the rows stay as they were."""
    texts = [random.randbytes(length) for _ in range(count)]  # type: ignore[attr-defined]
    rows = np.array([list(text) for text in texts], np.uint8).reshape(count, length)
    before = rows.copy()

    assert xxh64_rows(rows).tolist() == [xxh64(text) for text in texts]
    assert (rows == before).all()


def test_many_rows() -> None:
    """More rows than are taken at once come out in their order."""
    rows = np.random.default_rng(1).integers(0, 256, (2_500, 70), np.uint8)

    hashes = xxh64_rows(rows)

    assert hashes.shape == (2_500,)
    assert [int(hashes[row]) for row in (0, 1_023, 1_024, 2_499)] == [
        xxh64(rows[row].tobytes()) for row in (0, 1_023, 1_024, 2_499)
    ]
