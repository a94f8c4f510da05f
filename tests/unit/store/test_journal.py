from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from dedup_sdk._marks import NO_MARKS, Known, Marks, Progress, Witness
from dedup_sdk._store.pages import decode_step, encode_pages, encode_step
from dedup_sdk.errors import StoreCorruptError, StoreError
from tests.support.marks import marks, progress

GOLDEN = Path(__file__).parents[2] / "golden" / "store"

FULL = Progress(
    low=1,
    high=2**40,
    done=((2**40 + 1, 2**40 + 3),),
    committed=0,
    era="neu",
    known=Known(since_ms=-1, accepted=6, since_number=0, newest_ms=8),
)
STEPS = {
    "plain": (progress(3), marks(("a", 1, 1_700_000_000_001), ("b", 2, -1))),
    "numbered": (FULL, marks(("a", 1, 10, 5), ("b", 2, 20, 6))),
    "empty": (Progress(low=7, high=7), NO_MARKS),
    "epoch": (Progress(low=7, high=9, era="e1", epoch=0), marks(("a", 11, 10))),
    "delta-epoch": (
        Progress(low=7, high=9, done=((11, 12),), epoch=2**31 - 1, delta=True),
        marks(("a", 11, 10)),
    ),
    "delta": (Progress(low=7, high=9, done=((11, 12),), delta=True), marks(("a", 11, 10))),
    "witness": (Progress(low=7, high=9, witness=Witness(8, -1, "00c0ffee" * 2)), marks(("a", 8, 10))),
    "payload": (
        FULL,
        replace(
            marks(("a", 1, 10), ("b", 2, 20), ("c", 3, 30)), payloads=[b"nine here", b"", bytes(range(40))]
        ),
    ),
    "dropped": (replace(FULL, known=replace(FULL.known, dropped_to=2**40 - 1)), marks(("a", 1, 10, 5))),
    "floor": (
        replace(FULL, epoch=7, known=replace(FULL.known, floor_number=5)),
        marks(("a", 1, 10, 5), ("b", 2, 20, 6)),
    ),
}


def same(left: Marks, right: Marks) -> bool:
    """Whether two batches of marks are equal, column by column."""
    if (left.numbers is None) != (right.numbers is None):
        return False
    pairs = [(left.offsets, right.offsets), (left.timestamps, right.timestamps)]
    if left.numbers is not None and right.numbers is not None:
        pairs.append((left.numbers, right.numbers))
    if (left.payloads is None) != (right.payloads is None) or left.payloads != right.payloads:
        return False
    return left.digests == right.digests and all(np.array_equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_comes_back_as_it_was(name: str) -> None:
    """Decoding a journal record gives the progress and the marks that were encoded."""
    before, held = STEPS[name]
    after, decoded = decode_step(encode_step(before, held))
    assert after == before
    assert same(decoded, held)


@pytest.mark.parametrize("name", STEPS)
def test_the_layout_of_a_step_does_not_change(name: str) -> None:
    """Records written by this format's first version are read for ever, and written alike."""
    golden = bytes.fromhex((GOLDEN / f"step-{name}.hex").read_text())
    assert encode_step(*STEPS[name]) == golden
    assert decode_step(golden)[0] == STEPS[name][0]


@pytest.mark.parametrize("name", STEPS)
def test_no_changed_bit_goes_unseen(name: str) -> None:
    """Every single flipped bit, every cut and every added byte of a journal record is an error."""
    record = encode_step(*STEPS[name])
    for place in range(len(record)):
        for bit in range(8):
            changed = bytearray(record)
            changed[place] ^= 1 << bit
            with pytest.raises(StoreCorruptError):
                decode_step(bytes(changed))
        with pytest.raises(StoreCorruptError):
            decode_step(record[:place])
    with pytest.raises(StoreCorruptError):
        decode_step(record + b"\0")


def test_a_newer_format_is_named() -> None:
    """A record of a later format, though whole, is refused with both numbers."""
    body = bytearray(encode_step(progress(1), NO_MARKS)[:-4])
    body[2] = 12
    with pytest.raises(StoreCorruptError, match="its format is 12, this version reads 11"):
        decode_step(bytes(body) + struct.pack("<I", crc32(body)))


def test_a_record_is_checked_before_memory_is_taken() -> None:
    """A header that promises more marks than there are bytes is refused at once."""
    body = bytearray(encode_step(progress(1), NO_MARKS)[:-4])
    body[COUNT_AT : COUNT_AT + 4] = b"\xff" * 4
    with pytest.raises(StoreCorruptError, match="requires"):
        decode_step(bytes(body) + struct.pack("<I", crc32(body)))


def sealed(body: bytearray) -> bytes:
    """A record that is whole by its checksum, whatever is in it."""
    return bytes(body) + struct.pack("<I", crc32(body))


COUNT_AT = len(encode_step(progress(1), NO_MARKS)) - 4 - 32
"""Where the page begins in a record without done ranges and without an era: the count of its marks."""
LENGTHS_AT = len(encode_step(FULL, STEPS["payload"][1])) - 4 - 49 - 12
PAGE_AT = len(encode_step(FULL, NO_MARKS)) - 4 - 32


@pytest.mark.parametrize(
    ("place", "value"),
    [
        # Of the three lengths: together too many, too few, and beyond all bytes.
        (LENGTHS_AT, struct.pack("<I", 10)),
        (LENGTHS_AT + 8, struct.pack("<I", 39)),
        (LENGTHS_AT, struct.pack("<III", *[2**32 - 1] * 3)),
        # More marks than there are lengths, and so many that their lengths would not fit in memory.
        (PAGE_AT, struct.pack("<I", 4)),
        (PAGE_AT, struct.pack("<I", 2**32 - 1)),
        # Numbers, which a mark with a payload has not, and no payloads.
        (PAGE_AT + 4, b"\x03"),
        (PAGE_AT + 4, b"\x00"),
    ],
)
def test_hostile_payload_lengths_are_damage(place: int, value: bytes) -> None:
    """Lengths that do not fit the bytes are told before anything is taken, though the checksum is right."""
    body = bytearray(encode_step(*STEPS["payload"])[:-4])
    assert struct.unpack_from("<III", body, LENGTHS_AT) == (9, 0, 40)
    body[place : place + len(value)] = value
    with pytest.raises(StoreCorruptError):
        decode_step(sealed(body))


def test_lengths_that_are_cut_off_are_damage() -> None:
    """A record that ends among the lengths of its payloads does not pass for one without payloads."""
    body = bytearray(encode_step(*STEPS["payload"])[:LENGTHS_AT])
    with pytest.raises(StoreCorruptError, match="requires"):
        decode_step(sealed(body))


def test_a_record_with_numbers_and_payloads_is_damage() -> None:
    """Nobody writes one, though its lengths and its checksum may be right."""
    body = bytearray(encode_step(*STEPS["payload"])[:-4])
    body[PAGE_AT + 4] |= 1
    with pytest.raises(StoreCorruptError, match="invalid flags"):
        decode_step(sealed(body))


def test_payloads_of_nothing_are_written_as_none() -> None:
    """Marks none of which has a payload are written as ever, byte for byte."""
    before, held = STEPS["plain"]
    assert encode_step(before, replace(held, payloads=[b"", b""])) == encode_step(before, held)


def test_a_payload_for_each_mark_or_none() -> None:
    """Others are never written, neither in a sorted file nor in the journal."""
    held = replace(marks(("a", 1, 10), ("b", 2, 20)), payloads=[b"123456789"])
    with pytest.raises(StoreError, match="2 offsets and 1 payloads: give columns of one length"):
        encode_pages(held)
    with pytest.raises(StoreError, match="2 offsets and 1 payloads: give columns of one length"):
        encode_step(progress(1), held)


def test_a_partition_has_numbers_or_payloads() -> None:
    """Both together would be a mark that cannot be read back."""
    held = replace(marks(("a", 1, 10, 3)), payloads=[b"123456789"])
    with pytest.raises(StoreError, match="numbers and payloads"):
        encode_pages(held)
    with pytest.raises(StoreError, match="numbers and payloads"):
        encode_step(progress(1), held)
    assert encode_pages(replace(held, payloads=[b""])) == encode_pages(marks(("a", 1, 10, 3)))


def test_columns_of_different_lengths_are_refused() -> None:
    """Marks whose give columns of one length in length are never written."""
    good = marks(("a", 1, 10), ("b", 2, 20))
    with pytest.raises(StoreError, match="give columns of one length"):
        encode_step(progress(1), Marks(good.digests, good.offsets, good.timestamps[:1]))
    with pytest.raises(StoreError, match="give columns of one length"):
        encode_step(progress(1), Marks(good.digests[:16], good.offsets, good.timestamps))
    with pytest.raises(StoreError, match="give columns of one length"):
        encode_step(progress(1), Marks(good.digests, good.offsets, good.timestamps, good.offsets[:1]))


def test_a_number_beyond_64_bits_is_refused() -> None:
    """A progress that does not fit is an error of this package, in one line."""
    with pytest.raises(StoreError, match="cannot be stored"):
        encode_step(progress(2**63), NO_MARKS)
