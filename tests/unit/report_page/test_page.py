from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dedup_sdk._store.manifest import Manifest
from spark_backfill.errors import BackfillError
from spark_backfill.findings.adviser import advise
from spark_backfill.findings.findings import MOST_PRODUCERS, Findings, ProducerTally, total
from spark_backfill.findings.sightings import fold_run, merge_runs
from spark_backfill.findings.time_series import LAST_MS
from spark_backfill.report import Report
from spark_backfill.report_page import page as pages
from spark_backfill.report_page.document import FINDINGS_NAME, make_document, read_document
from spark_backfill.report_page.page import check_place, write_page
from spark_backfill.report_page.wording import NOTHING
from tests.support.naive_findings import Sighting, run_rows
from tests.support.naive_fold import digest_of
from tests.support.sample_report import START_MS, sample_document, sample_findings

if TYPE_CHECKING:
    from pathlib import Path


def minutes(every: int = 601) -> list[int]:
    """The times of a record a minute; one in so many has none."""
    return [START_MS + minute * 60_000 if (minute + 1) % every else -1 for minute in range(600)]


def findings_of(times_ms: list[int]) -> Findings:
    """Those of a partition whose IDs come twice each."""
    log = [Sighting(0, place, time_ms, digest_of(place // 2)) for place, time_ms in enumerate(times_ms)]
    sightings, found = fold_run(*run_rows(0, log))
    return total([found, merge_runs(0, [sightings], now_ms=2**42)])


FIGURES = {"window-adviser", "lateness-time", "lateness-offsets", "over-time"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the sample findings, in a folder of its own; drawing it takes seconds."""
    return write_page(sample_document(sample_findings()), tmp_path_factory.mktemp("page") / "deep" / "report")


def test_the_page_needs_nothing_else(page: Path) -> None:
    """One page, a PNG a figure and the JSON; the page names no other file, and no address that would be fetched."""
    assert {path.name for path in page.parent.iterdir()} == {"report.html", FINDINGS_NAME} | {
        f"{name}.png" for name in FIGURES
    }
    html = page.read_text(encoding="utf-8")
    assert html.count("<svg") == len(FIGURES)
    fetched = re.findall(r"""(?:\bsrc|\bhref|url)\s*[=(]\s*["']?([^"')>\s]+)""", html)
    assert {address for address in fetched if not address.startswith(("#", "data:,"))} == set()
    assert "@import" not in html
    assert "<script" not in html
    for name in FIGURES:
        assert (page.parent / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_report_is_drawn_again_from_its_json(page: Path, tmp_path: Path) -> None:
    """Reading the JSON, from the file or its folder, and drawing that gives the same page, byte for byte."""
    for source in (page.parent, page.parent / FINDINGS_NAME):
        again = write_page(read_document(source), tmp_path / "again")
        assert again.read_bytes() == page.read_bytes()


def test_the_figures_of_the_findings_stand_on_the_page(page: Path) -> None:
    """Counts, the advised window, repeaters and IDs of several partitions are readable in the text."""
    findings = sample_findings()
    html = page.read_text(encoding="utf-8")
    for text in (
        f"<dd>{findings.total.records:,}<", f"<dd>{findings.total.duplicates:,}<", findings.repeaters[0].digest,
        "shop-eu-2",
        next(iter(findings.sample.several())), f"{findings.total.unkeyed:,} records",
        "nothing is known of longer windows",
        "never committed", "murmur2_random",
    ):  # fmt: skip
        assert text in html, text


def test_a_sample_is_told_and_its_counts_are_its_own(page: Path, tmp_path: Path) -> None:
    """Only IDs that are remembered, and their disk, are multiplied, and the page says by what."""
    sampled = replace(sample_findings(), sampling=64)
    html = write_page(sample_document(sampled), tmp_path / "sampled").read_text(encoding="utf-8")
    exact = page.read_text(encoding="utf-8")
    assert 'id="sampled"' in html
    assert 'id="sampled"' not in exact
    assert f"<dd>{sampled.total.records:,}<" in html
    assert "records in the sample" in html
    week_ms = 7 * 86_400_000
    [ids] = [row.ids for row in advise(sampled, week_ms).table if row.window_ms == week_ms]
    assert ids == pytest.approx(64 * sample_findings().ids_within(week_ms), rel=0.01)
    assert f"<td>{ids:,}</td>" in html
    assert f"<td>{sample_findings().ids_within(week_ms):,}</td>" in exact
    assert "estimated from 2,048 IDs" in exact


def test_of_many_producers_the_document_has_the_largest(tmp_path: Path) -> None:
    """The others count as one, and the page says that; of few producers it says nothing of it."""
    tallies = {code: ProducerTally(name=f"p{code}", records=code, duplicates=1) for code in range(1, 1_101)}
    report = Report(
        output="o", cluster="c", topic="t", group=None, vouched=True, id_spec="key", window="7d", partitions=1,
        sources=("kafka",), base=None, known_since_ms=None, skipped={}, fingerprint="f", spark_start_seconds=0.0,
        seconds=1.0, records_per_second=0.0, base_marks=0, offsets=0, records=0, unkeyed=0, marks=0, files=0, bytes=0,
    )  # fmt: skip
    manifest = Manifest(
        cluster="c", topic="t", topic_id="", id_spec="key", digest="sha256/16", isolation="read_committed",
        window="7d", group=None, vouched=True, created_ms=START_MS, partitions=(),
    )  # fmt: skip
    for count in (1_100, 100):
        found = Findings(producers=dict(list(tallies.items())[-count:])) + Findings()
        document = make_document(manifest, report, found, producer_header="sent-by")
        told = document.findings.producers
        assert len(told) == min(count, MOST_PRODUCERS)
        assert sum(tally.records for tally in told.values()) == sum(range(1_101 - count, 1_101))
        html = write_page(document, tmp_path).read_text(encoding="utf-8")
        assert ("Only 1,000 producers" in html) is (count == 1_100)
        assert ("but those of producers may be estimates" in html) is (count == 1_100)


def test_names_from_outside_are_text(tmp_path: Path) -> None:
    """A topic or a producer that is called like an element, a formula or a template is shown, not obeyed."""
    document = sample_document(sample_findings(), topic="<script>alert(1)</script>{{ 1 }}")
    html = write_page(document, tmp_path).read_text(encoding="utf-8")
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;{{ 1 }}" in html
    assert "<b>mirror" not in html
    assert html.count("&lt;b&gt;mirror&lt;/b&gt; $x$") == 2


@pytest.mark.parametrize("window", ["7d", "20000n", "30d+1000n"])
def test_a_history_without_anything_has_a_page(tmp_path: Path, window: str) -> None:
    """No records, no duplicates, no producers, a window by count: the page says so."""
    html = write_page(sample_document(Findings(), window), tmp_path).read_text(encoding="utf-8")
    assert "no ID came twice" in html
    assert "<svg" not in html


def test_duplicates_without_timestamps_are_told(tmp_path: Path) -> None:
    """They count, but in no length of time; where no others are there no window is advised, and the page says why."""
    bare = findings_of(minutes(every=1))
    html = write_page(sample_document(bare), tmp_path).read_text(encoding="utf-8")
    assert f"none of the {bare.total.duplicates} duplicates has a timestamp" in html
    assert "no ID came twice" not in html
    assert 'id="partitions"' in html
    assert f"<td>{NOTHING}</td></tr>" in html
    some = findings_of(minutes(every=60))
    html = write_page(sample_document(some), tmp_path).read_text(encoding="utf-8")
    known = sum(some.gaps_ms.values())
    assert 0 < known < some.total.duplicates
    assert f"{known} duplicates with a timestamp" in html
    assert f"{some.total.duplicates - known} more duplicates have no timestamp" in html


@pytest.mark.parametrize(
    ("times_ms", "told", "has_figure"),
    [
        # Microseconds as milliseconds, in a few records and in all of them.
        (minutes() + [1_700_000_000_000_000] * 10, "10 records have", True),
        ([1000 * time_ms for time_ms in minutes()], "600 records have", False),
        # To the end of the calendar, and beyond.
        (minutes() + [2**40 * step for step in range(1, 2**12)], "3,865 records have", True),
        (minutes() + [2**50 * step for step in range(1, 2**12)], "4,095 records have", True),
        ([*minutes(), 253_402_300_799_000, 253_402_300_800_000], "1 record has", True),
        (minutes(every=60), "10 records have", True),
    ],
)
def test_a_time_beyond_the_calendar_does_not_cost_the_page(
    tmp_path: Path, times_ms: list[int], told: str, *, has_figure: bool
) -> None:
    """The figure over time shows the records up to the year 9999, and the page says how many others there are."""
    html = write_page(sample_document(findings_of(times_ms)), tmp_path).read_text(encoding="utf-8")
    assert f"{told} no timestamp up to the year 9999" in " ".join(html.split())
    assert ("(microseconds taken for milliseconds?)" in html) is (max(times_ms) > LAST_MS)
    assert 'id="partitions"' in html
    assert ("Records and duplicates over time" in html) is has_figure


def test_findings_that_cannot_be_drawn_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the library that draws is an error of one line, and the numbers are in the folder."""

    def fail(*_: object) -> None:
        raise ValueError("no such date")

    monkeypatch.setattr("spark_backfill.report_page.plots.draw", fail)
    with pytest.raises(BackfillError, match=rf"cannot be drawn .*no such date.*{FINDINGS_NAME}"):
        write_page(sample_document(sample_findings()), tmp_path)
    assert read_document(tmp_path).findings == sample_findings()


@pytest.mark.slow
def test_a_thousand_partitions_have_a_page(tmp_path: Path) -> None:
    """Of many partitions those with the most duplicates have a row, and the others a word."""
    html = write_page(sample_document(sample_findings(partitions=70, records=50)), tmp_path).read_text(
        encoding="utf-8"
    )
    assert "And 6 partitions with fewer duplicates." in html


def test_a_missing_library_is_said_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the extra the error names it, and no folder is made."""
    monkeypatch.setattr(pages, "NEEDED", ("jinja2", "no_such_library"))
    with pytest.raises(BackfillError, match=r"needs no_such_library.*dedup-sdk\[report\]"):
        check_place(tmp_path / "report")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """A report is a folder; a file in its place is left alone."""
    (tmp_path / "report").write_text("mine")
    with pytest.raises(BackfillError, match=r"report '.*' cannot be a folder"):
        check_place(tmp_path / "report")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no whole report"), ("\0\0", "no whole report"), ("[1]", "no whole report"),
        ("[" * 9999, "no whole report"),
        ('{"format": 9}', "format 9"), ('{"format": 1}', "format 1.*run the backfill again"),
        ('{"format": 2}', "no whole report"),
        ('{"format": 2, "facts": {}, "producer_header": null, "findings": {"partitions": 3}}', "no whole report"),
    ],
)  # fmt: skip
def test_what_is_no_report_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    """A file of something else, of another version or cut off is an error that says so and has the remedy."""
    (tmp_path / "findings.json").write_text(text)
    with pytest.raises(BackfillError, match=said) as error:
        read_document(tmp_path)
    assert "\n" not in str(error.value)


def test_a_snapshot_without_findings_says_how_to_get_them(tmp_path: Path) -> None:
    """A folder without the JSON names the option that leaves it there."""
    with pytest.raises(BackfillError, match="run the backfill with --report"):
        read_document(tmp_path)


def test_the_json_holds_no_more_than_is_shown(page: Path) -> None:
    """The document is small, whatever was read, and has no place or setting of the machine that made it."""
    text = (page.parent / FINDINGS_NAME).read_text()
    assert len(text) < 200_000
    assert set(json.loads(text)) == {"format", "facts", "findings", "producer_header"}
    assert str(page.parent) not in text
