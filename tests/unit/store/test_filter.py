from __future__ import annotations

import struct
from hashlib import sha256
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from dedup_sdk.errors import StoreCorruptError
from dedup_sdk.store.filter import BITS_PER_ID, PATTERN_BITS, PATTERNS, Filter
from dedup_sdk.store.filter_set import LEAST_PER_FILTER, FilterSet
from dedup_sdk.store.filter_words import (
    NO_WORDS,
    FilterWords,
    decode_words,
    encode_words,
    filter_words,
    merge_words,
)
from tests.support.marks import random_marks


def words(count: int, seed: int) -> tuple[bytes, FilterWords]:
    """Return random digests, unsorted, and their words, sorted."""
    digests = random_marks(count, seed).digests
    return digests, merge_words([filter_words(digests), NO_WORDS])


def test_a_filter_never_misses_and_seldom_errs() -> None:
    """Everything added is found; of what was not added, at most 3 % is taken for stored in a full filter."""
    digests, added = words(200_000, 1)
    filter_ = Filter(200_000)
    filter_.add(added)
    assert len(filter_.may_contain(digests)) == 200_000
    wrong = len(filter_.may_contain(random_marks(100_000, 2).digests))
    assert 0 < wrong <= 3_000
    assert filter_.nbytes * 8 <= 200_000 * BITS_PER_ID


def test_a_filter_grows_by_further_words() -> None:
    """Words may be added in several calls; an empty call adds nothing."""
    filter_ = Filter(3_000)
    parts = [words(1_000, seed) for seed in range(3)]
    for _, added in parts:
        filter_.add(added)
        filter_.add(NO_WORDS)
    assert filter_.count == 3_000
    for digests, _ in parts:
        assert len(filter_.may_contain(digests)) == 1_000


def test_positions_are_those_of_the_question() -> None:
    """The answer is positions among the digests asked for, ascending."""
    digests, added = words(100, 3)
    filter_ = Filter(100_000)
    filter_.add(added)
    strangers = random_marks(50, 4).digests
    assert filter_.may_contain(strangers + digests).tolist() == list(range(50, 150))


def test_patterns_can_be_made_from_their_description() -> None:
    """Pattern i has the first five different values of byte & 63 in SHA-256 of its name."""
    for index in (0, 1, 4095):
        bits: list[int] = []
        for byte in sha256(f"dedup filter pattern {index}".encode()).digest():
            if byte & 63 not in bits and len(bits) < 5:
                bits.append(byte & 63)
        assert int(PATTERNS[index]) == sum(1 << bit for bit in bits)
    assert PATTERN_BITS == 5
    assert PATTERNS.shape == (4096,)


def test_words_have_their_documented_layout() -> None:
    """A block is magic, count, CRC-32, ranks as uint32 and patterns as uint16, all little-endian."""
    digest = bytes(range(1, 17))
    data = encode_words(filter_words(digest))
    columns = bytes([4, 3, 2, 1]) + bytes([16, 15])
    assert data == b"DFW1" + struct.pack("<II", 1, crc32(struct.pack("<I", 1) + columns)) + columns


def test_words_come_back_block_by_block() -> None:
    """Blocks one after the other decode to as many entries, and merging sorts them."""
    _, one = words(1_000, 5)
    _, two = words(10, 6)
    blocks = decode_words(encode_words(one) + encode_words(two))
    assert [block.count for block in blocks] == [1_000, 10]
    assert np.array_equal(blocks[0].ranks, one.ranks)
    assert np.array_equal(blocks[0].patterns, one.patterns)
    merged = merge_words(blocks)
    assert (np.diff(merged.ranks.astype(np.int64)) >= 0).all()
    assert merged.count == 1_010
    assert decode_words(b"") == []


def test_no_changed_bit_of_the_words_goes_unseen() -> None:
    """Every flipped bit, every cut and every added byte of encoded words is an error."""
    data = encode_words(words(5, 7)[1])
    for place in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            with pytest.raises(StoreCorruptError):
                decode_words(bytes(changed))
        if place:
            with pytest.raises(StoreCorruptError):
                decode_words(data[:place])
    with pytest.raises(StoreCorruptError):
        decode_words(data + b"\0")


def test_words_out_of_order_are_refused() -> None:
    """A block whose ranks do not ascend would spoil a filter, though its checksum is right."""
    _, good = words(3, 8)
    with pytest.raises(StoreCorruptError, match="out of order"):
        decode_words(encode_words(FilterWords(good.ranks[::-1].copy(), good.patterns)))


def test_filters_of_a_partition_follow_its_growth(tmp_path: Path) -> None:
    """Many flushes over several generations: nothing is missed, memory stays in proportion, and errors stay few."""
    filters = FilterSet(tmp_path)
    flushes = [words(20_000, seed) for seed in range(12)]
    ends = {0: 0, 1: 0}
    for index, (_, added) in enumerate(flushes):
        generation = index // 6
        ends[generation] = filters.append(generation, ends[generation], added)
    for digests, _ in flushes:
        assert len(filters.may_contain(digests)) == 20_000
    assert filters.marks == 240_000
    assert filters.nbytes <= 2 * 240_000 * BITS_PER_ID // 8
    assert len(filters.may_contain(random_marks(20_000, 99).digests)) <= 600

    reloaded = FilterSet(tmp_path, expected=240_000)
    assert [reloaded.load(generation, end) for generation, end in ends.items()] == [120_000, 120_000]
    for digests, _ in flushes:
        assert len(reloaded.may_contain(digests)) == 20_000


def test_dropped_generations_leave_when_the_filter_is_made_anew(tmp_path: Path) -> None:
    """After generations were dropped, further growth makes a filter without them."""
    filters = FilterSet(tmp_path)
    old, added = words(LEAST_PER_FILTER - 1, 1)
    filters.append(0, 0, added)
    filters.append(1, 0, words(1, 2)[1])
    filters.drop([0])
    assert not filters.path(0).exists()
    filters.append(1, filters.path(1).stat().st_size, words(LEAST_PER_FILTER + 5_000, 3)[1])
    assert filters.marks == LEAST_PER_FILTER + 5_001
    assert len(filters.may_contain(old)) < LEAST_PER_FILTER // 30
    filters.drop([1])
    assert filters.may_contain(old).size == 0


def test_a_repeated_append_replaces_what_lay_beyond(tmp_path: Path) -> None:
    """Words written again at the same place replace those of the attempt before, also for later filters."""
    filters = FilterSet(tmp_path)
    filters.append(0, 0, words(500, 1)[1])
    digests, added = words(300, 2)
    end = filters.append(0, 0, added)
    assert end == filters.path(0).stat().st_size
    filters.append(0, end, words(LEAST_PER_FILTER, 3)[1])
    assert filters.marks == LEAST_PER_FILTER + 300
    assert len(filters.may_contain(digests)) == 300


def test_a_short_file_of_words_is_an_error(tmp_path: Path) -> None:
    """A file that has become shorter is refused, and nothing of it is added."""
    filters = FilterSet(tmp_path)
    end = filters.append(0, 0, words(100, 1)[1])
    filters.path(0).write_bytes(filters.path(0).read_bytes()[:-1])
    fresh = FilterSet(tmp_path)
    with pytest.raises(StoreCorruptError, match="bytes"):
        fresh.load(0, end)
    assert fresh.marks == 0
