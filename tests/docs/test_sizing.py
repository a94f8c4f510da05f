from __future__ import annotations

import re

from dedup_sdk._window import length_text
from spark_backfill.slots import ROWS_PER_SLOT
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "spark-clusters.md").read_text(encoding="utf-8")


def rows_below(head: str) -> list[list[str]]:
    """The cells of the table with this first line."""
    table = PAGE.partition(f"{head}\n")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]


def test_the_sizing_table_follows_from_its_inputs() -> None:
    """Each figure of docs/spark-clusters.md follows from the inputs above it.

    So changing one cannot be forgotten below.
    """
    inputs = [float(row[1].replace(",", "")) for row in rows_below("| input | value | where it comes from |")]
    rate, shuffled, file_bytes, filter_bytes, slot, _ = inputs
    assert slot == ROWS_PER_SLOT
    found = rows_below("| records | slots | core-seconds | cores | time | shuffle | output |")
    assert len(found) == 5
    for row in found:
        records, cores = int(row[0].replace(",", "")), int(row[3])
        core_seconds = records / rate
        assert row == [
            f"{records:,}",
            f"{-(-records // int(slot)):,}",
            f"{core_seconds:,.0f}",
            str(cores),
            length_text(round(core_seconds / cores) * 1_000, most_units=2),
            f"{records * shuffled / 1e9:,.1f} GB",
            f"{records * (file_bytes + filter_bytes) / 1e9:,.1f} GB",
        ]


def test_the_arithmetic_in_words_is_that_of_the_table() -> None:
    """The steps of the last line multiply and divide as they say."""
    steps = PAGE.partition("step by step:")[2]
    for left, sign, right, result in re.findall(
        r"([\d,]+) ([\u00d7/]) ([\d,]+)(?: bytes)? = ([\d.,]+)", steps
    ):
        one, other = (int(number.replace(",", "")) for number in (left, right))
        exact = one / other if sign == "/" else one * other / 1e12
        assert abs(float(result.replace(",", "")) - exact) <= 0.005 * exact
    assert steps.count(" = ") >= 4
