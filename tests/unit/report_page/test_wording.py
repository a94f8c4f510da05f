from __future__ import annotations

import pytest

from spark_backfill.report_page.wording import length, moment, number, plural, share, size_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 %"), (1, "100 %"), (None, "–"),  # noqa: RUF001 (the sign for nothing)
        (0.29, "29 %"), (0.999, "99.9 %"), (0.99999, "99.999 %"),
        (0.999999, "99.999 %"), (0.0000001, "< 0.001 %"), (0.0005, "0.05 %"), (0.005, "0.5 %"), (0.98999, "98.9 %"),
    ],
)  # fmt: skip
def test_a_share_is_rounded_down(value: float | None, text: str) -> None:
    """A share never reads as more than it is, and less than all never reads as all."""
    assert share(value) == text


def test_a_share_of_nothing_is_nothing() -> None:
    """A part is told as percent of a whole; of none there is no share."""
    assert share(1, 3) == "33.3 %"
    assert share(0, 0) == share(None)


def test_lengths_have_two_units() -> None:
    """A length of time is told in its two largest units, a negative one with a minus."""
    assert length(9 * 86_400_000 - 3_600_000 - 1) == "8 d 22 h"
    assert length(86_400_000) == "1 d"
    assert length(90_000) == "1 min 30 s"
    assert length(0) == "0 s"
    assert length(-1500) == "\N{MINUS SIGN}1 s 500 ms"


def test_numbers_sizes_moments_and_nouns() -> None:
    """Figures as people read them; a timestamp that is none, or that no calendar has, is no error."""
    assert number(1234567) == "1,234,567"
    assert [size_text(value) for value in (0, 1023, 1536, 48 * 2**20, 2**60)] == [
        "0 B",
        "1,023 B",
        "1.5 KiB",
        "48 MiB",
        "1,024 PiB",
    ]
    assert moment(1_760_000_000_000) == "2025-10-09 08:53:20"
    assert moment(-1) == moment(None)
    assert moment(2**62) == "after the year 9999"
    assert (plural(1, "record"), plural(2, "record")) == ("1 record", "2 records")
