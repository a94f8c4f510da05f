from __future__ import annotations

import pyarrow as pa

from spark_backfill.findings.findings import (
    MOST_PRODUCERS,
    OTHER_PRODUCERS,
    Findings,
    ProducerTally,
    total,
)
from spark_backfill.findings.producer_codes import NO_HEADER, producer_codes
from spark_backfill.runs import PIECE_BYTES


def test_a_producer_has_the_same_code_everywhere() -> None:
    """Records with the same header value have the same code, whoever reads them; no header is one of them."""
    codes, names = producer_codes(pa.array([b"shop", None, b"app", b"shop"], pa.binary()))
    assert codes[0] == codes[3]
    assert len(set(codes.tolist())) == 3
    assert [names[code] for code in codes.tolist()] == ["shop", NO_HEADER, "app", "shop"]
    again, _ = producer_codes(pa.array([b"app"], pa.binary()))
    assert again[0] == codes[2]
    assert producer_codes(pa.array([b""], pa.binary())).codes[0] == codes[1]


def test_a_hostile_name_is_cut_and_made_printable() -> None:
    """The text of a header is shown without control characters, at most 80 of them, whether it is text or not."""
    codes, names = producer_codes(pa.array([b"\x1b[31m\xff" + b"x" * 1000], pa.binary()))
    name = names[int(codes[0])]
    assert len(name) == 80
    assert name.isprintable()


def test_endless_producers_count_together() -> None:
    """Of thousands of producers those with the most records are told apart, and no record of the others is left out."""
    parts = [
        Findings(producers={code: ProducerTally(name=str(code), records=code) for code in range(1, 2001)})
        for _ in range(2)
    ]
    found = (parts[0] + parts[1]).producers
    assert len(found) == MOST_PRODUCERS
    assert found[2000].records == 4000
    assert sum(tally.records for tally in found.values()) == 2 * sum(range(1, 2001))
    assert found[OTHER_PRODUCERS].name == ""


def test_the_largest_producer_may_begin_late() -> None:
    """One of hundreds that sends little at a time, and after the others, is told with all of its records."""
    others = {code: ProducerTally(name=str(code), records=100) for code in range(1, 401)}
    late = {1000: ProducerTally(name="late", records=90)}
    found = total([Findings(producers=others), *[Findings(producers=late)] * 50])
    assert found.producers == others | {1000: ProducerTally(name="late", records=4_500)}


def test_the_counts_of_a_part_travel_as_one_row() -> None:
    """With the longest names, in the longest writing of JSON, they are not larger than other rows of a shuffle."""
    codes = range(2**64 - 2 * MOST_PRODUCERS, 2**64)
    tallies = {
        code: ProducerTally(name="\N{LATIN SMALL LETTER E WITH ACUTE}" * 80, records=10**9, duplicates=10**8)
        for code in codes
    }
    assert len(str(Findings(producers=tallies) + Findings())) < PIECE_BYTES
