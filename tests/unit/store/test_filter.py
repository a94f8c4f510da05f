from __future__ import annotations

import struct
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from zlib import compress, crc32

import numpy as np
import pytest

from dedup_sdk._store.filter_set import (
    BITS_PER_ID,
    BITS_PER_ID_AND_EXTENT,
    MIN_PER_FILTER,
    PATTERN_BITS,
    PATTERNS,
    ExtentWords,
    Filter,
    FilterSet,
)
from dedup_sdk._store.filter_words import (
    NO_WORDS,
    FilterWords,
    decode_words,
    encode_words,
    filter_words,
    merge_words,
)
from dedup_sdk.errors import StoreCorruptError
from tests.support.marks import random_marks


def words(count: int, seed: int) -> tuple[bytes, FilterWords]:
    """Return random digests, unsorted, and their words, sorted, of one page."""
    digests = random_marks(count, seed).digests
    added = merge_words([filter_words(digests), NO_WORDS])
    return digests, replace(added, pages=added.ranks[:1])


def test_a_filter_never_misses_and_seldom_errs() -> None:
    """Everything added is found; of other digests, at most 3 % are taken for stored in a full filter."""
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


def test_one_digest_is_answered_as_it_is_among_others() -> None:
    """Of a full filter, digests that it has, and strangers, some of which it lets pass."""
    digests, added = words(2_000, 5)
    filter_ = Filter(2_000)
    filter_.add(added)
    asked = digests + random_marks(2_000, 6).digests
    passed = [at for at in range(4_000) if filter_.may_contain(asked[16 * at : 16 * at + 16]).tolist() == [0]]
    assert passed == filter_.may_contain(asked).tolist()
    assert 2_000 < len(passed) < 2_200


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
    """A block is magic, three counts, CRC-32, lower halves of ranks, patterns, pages and steps, all little-endian.

    Pages are uint32, the others uint16; steps are packed by zlib.
    """
    digests = bytes(range(1, 17)) + bytes([1, 3]) + bytes(range(3, 17))
    data = encode_words(filter_words(digests, [0x01020304]))
    steps = compress(struct.pack("<2H", 0x0102, 1), 1)
    columns = bytes([4, 3, 4, 3]) + 2 * bytes([16, 15]) + bytes([4, 3, 2, 1]) + steps
    counts = struct.pack("<III", 2, 1, len(steps))
    assert data == b"DFW3" + counts + struct.pack("<I", crc32(counts + columns)) + columns
    assert decode_words(data)[0].ranks.tolist() == [0x01020304, 0x01030304]


@pytest.mark.parametrize("steps", [b"", b"no zlib", compress(bytes(2)), compress(bytes(2**24))])
def test_steps_of_another_number_are_damage(steps: bytes) -> None:
    """Whatever they would unpack to, and although the checksum is right."""
    columns = bytes(2 * 4) + steps
    counts = struct.pack("<III", 2, 0, len(steps))
    data = b"DFW3" + counts + struct.pack("<I", crc32(counts + columns)) + columns
    with pytest.raises(StoreCorruptError, match="its steps"):
        decode_words(data)


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
    with pytest.raises(StoreCorruptError, match="not sorted"):
        decode_words(encode_words(FilterWords(good.ranks[::-1].copy(), good.patterns)))


def test_filters_of_a_partition_follow_its_growth(tmp_path: Path) -> None:
    """Many flushes over several generations: nothing is missed, memory stays in proportion, and errors stay few."""
    filters = FilterSet(tmp_path)
    flushes = [words(20_000, seed) for seed in range(12)]
    ends = {0: 0, 1: 0}
    for index, (_, added) in enumerate(flushes):
        generation = index // 6
        ends[generation] = filters.append(generation, ends[generation], ExtentWords([added]))
    for digests, _ in flushes:
        assert len(filters.may_contain(digests)) == 20_000
    assert filters.marks == 240_000
    assert filters.nbytes <= 240_000 * (2 * BITS_PER_ID + BITS_PER_ID_AND_EXTENT) // 8
    assert len(filters.may_contain(random_marks(20_000, 99).digests)) <= 600

    reloaded = FilterSet(tmp_path, expected=240_000)
    assert [reloaded.load(generation, (end,)) for generation, end in ends.items()] == [120_000, 120_000]
    for digests, _ in flushes:
        assert len(reloaded.may_contain(digests)) == 20_000


def test_dropped_generations_leave_when_the_filter_is_made_anew(tmp_path: Path) -> None:
    """After generations were dropped, further growth makes a filter without them."""
    filters = FilterSet(tmp_path)
    old, added = words(MIN_PER_FILTER - 1, 1)
    filters.append(0, 0, ExtentWords([added]))
    filters.append(1, 0, ExtentWords([words(1, 2)[1]]))
    filters.drop([0])
    assert not filters.path(0).exists()
    filters.append(1, filters.path(1).stat().st_size, ExtentWords([words(MIN_PER_FILTER + 5_000, 3)[1]]))
    assert filters.marks == MIN_PER_FILTER + 5_001
    assert len(filters.may_contain(old)) < MIN_PER_FILTER // 30
    filters.drop([1])
    assert filters.may_contain(old).size == 0


def test_a_repeated_append_replaces_what_lay_beyond(tmp_path: Path) -> None:
    """Words written again at the same place replace those of the attempt before, also for later filters."""
    filters = FilterSet(tmp_path)
    filters.append(0, 0, ExtentWords([words(500, 1)[1]]))
    digests, added = words(300, 2)
    end = filters.append(0, 0, ExtentWords([added]))
    assert end == filters.path(0).stat().st_size
    filters.append(0, end, ExtentWords([words(MIN_PER_FILTER, 3)[1]]))
    assert filters.marks == MIN_PER_FILTER + 300
    assert len(filters.may_contain(digests)) == 300


def test_a_short_file_of_words_is_an_error(tmp_path: Path) -> None:
    """A file that has become shorter is refused, and nothing of it is added."""
    filters = FilterSet(tmp_path)
    end = filters.append(0, 0, ExtentWords([words(100, 1)[1]]))
    filters.path(0).write_bytes(filters.path(0).read_bytes()[:-1])
    fresh = FilterSet(tmp_path)
    with pytest.raises(StoreCorruptError, match="bytes"):
        fresh.load(0, (end,))
    assert fresh.marks == 0


STATE = b"the state"


def kept(folder: Path) -> tuple[bytes, FilterSet]:
    """Filters of 70,000 digests in two generations, with their image for `STATE`."""
    filters = FilterSet(folder)
    digests = b""
    for generation, count in enumerate([MIN_PER_FILTER, 5_000]):
        added, added_words = words(count, generation)
        filters.append(generation, 0, ExtentWords([added_words]))
        digests += added
    filters.save(STATE)
    return digests, filters


def test_filters_come_back_from_their_image_as_they_were(tmp_path: Path) -> None:
    """An image gives the same answers without a word being read.

    It grows like any filter, and goes when something changes.
    """
    digests, filters = kept(tmp_path)
    again = FilterSet(tmp_path)
    assert again.restore(STATE)
    asked = digests + random_marks(50_000, 9).digests
    assert again.may_contain(asked).tolist() == filters.may_contain(asked).tolist()
    assert again.by_generation(asked) == filters.by_generation(asked)
    assert (again.marks, again.nbytes) == (filters.marks, filters.nbytes)

    more, added = words(3 * MIN_PER_FILTER, 5)
    again.append(2, 0, ExtentWords([added]))
    assert not (tmp_path / "image").exists()
    assert len(again.may_contain(digests + more)) == len(digests + more) // 16
    again.save(STATE)
    again.drop([2])
    assert not FilterSet(tmp_path).restore(STATE)


def test_an_image_of_another_state_is_not_believed(tmp_path: Path) -> None:
    """An image of one state of the store says nothing of another, and nothing is taken of it."""
    kept(tmp_path)
    again = FilterSet(tmp_path)
    with pytest.raises(StoreCorruptError, match="other marks"):
        again.restore(b"a later state")
    assert again.marks == 0


@pytest.mark.parametrize("place", [0, 5, 10, 40, 500, -1])
def test_a_changed_or_cut_image_is_not_believed(tmp_path: Path, place: int) -> None:
    """A byte that changed anywhere, or an end that is missing, is found before a bit of the image is used."""
    kept(tmp_path)
    path = tmp_path / "image"
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[place] ^= 4
    for data in (bytes(changed), whole[:place]):
        path.write_bytes(data)
        again = FilterSet(tmp_path)
        with pytest.raises(StoreCorruptError, match="rebuilt"):
            again.restore(STATE)
        assert again.marks == 0


def test_words_that_are_shorter_than_the_image_says_spoil_it(tmp_path: Path) -> None:
    """An image whose words are not all there is not used: a larger filter could not be made of them."""
    kept(tmp_path)
    path = tmp_path / "g0.filter"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreCorruptError, match="shorter"):
        FilterSet(tmp_path).restore(STATE)


def test_damaged_words_behind_an_image_cost_no_answer(tmp_path: Path) -> None:
    """Where a filter cannot be made larger, because its words changed meanwhile, it stays and another one is begun."""
    digests, _ = kept(tmp_path)
    path = tmp_path / "g0.filter"
    path.write_bytes(bytes(path.stat().st_size))
    again = FilterSet(tmp_path)
    assert again.restore(STATE)
    more, added = words(3 * MIN_PER_FILTER, 5)
    again.append(2, 0, ExtentWords([added]))
    assert len(again.may_contain(digests + more)) == len(digests + more) // 16
