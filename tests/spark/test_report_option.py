"""``--report``: the page about a real topic, whichever way Kafka is read."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Self

import pytest
from confluent_kafka import Producer

from dedup_sdk._cli.app import run
from dedup_sdk._store.snapshot import verify_snapshot
from dedup_sdk.ids import digest_one
from spark_backfill import launch
from spark_backfill.backfill import backfill
from spark_backfill.console import FOLDER
from spark_backfill.findings.findings import Findings
from spark_backfill.in_process import InProcess
from spark_backfill.on_spark import on_spark
from spark_backfill.options import parse_options
from spark_backfill.report_page import page as pages
from spark_backfill.report_page.document import read_document

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark_backfill.submission import Submission
    from tests.support.brokers import Broker

BASE_MS = 1_700_000_000_000
MINUTE_MS = 60_000
GIVEN = [
    "--bootstrap",
    "b",
    "--topic",
    "t",
    "--id",
    "key",
    "--window",
    "1d",
    "--whole-topic",
    "--output",
    "s",
]


@pytest.fixture
def flights(broker: Broker, make_topic: Callable[..., str]) -> str:
    """A topic of two partitions.

    300 records each, every tenth of which comes again after half an hour from a mirror.
    """
    topic = make_topic(2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(2):
        for minute in range(300):
            again = minute % 10 == 0 and minute > 31
            name = f"{partition}-{minute - 31 if again else minute}".encode()
            if minute == 5:
                name = b"in both"
            sender = b"mirror" if again else b"shop"
            headers: list[tuple[str, str | bytes | None]] = [("dedup-id", name), ("sent-by", sender)]
            if minute == 7:
                del headers[0]
            producer.produce(
                topic, b"v", partition=partition, headers=headers, timestamp=BASE_MS + minute * MINUTE_MS
            )
    assert producer.flush(30) == 0
    return topic


def arguments(broker: Broker, topic: str, folder: Path, *more: str) -> list[str]:
    """The whole topic, by its header, with a window of 30 days, and a report."""
    whose = ["--bootstrap", broker.bootstrap, "--topic", topic, "--id", "header:dedup-id", "--window", "30d"]
    return [
        *whose,
        "--whole-topic",
        "--output",
        str(folder / "snapshot"),
        "--report",
        str(folder / "report"),
        *more,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("with_spark", [True, False])
def test_the_report_tells_what_is_in_the_topic(
    broker: Broker, flights: str, spark: SparkSession, tmp_path: Path, *, with_spark: bool
) -> None:
    """Duplicates, when and from whom they came, IDs of both partitions, none missing."""
    given = arguments(broker, flights, tmp_path, "--producer-header", "sent-by")
    report = backfill(
        parse_options(given, print), on_spark(lambda: spark) if with_spark else lambda _: InProcess()
    )
    document = read_document(tmp_path / "snapshot")
    assert str(document) == str(read_document(tmp_path / "report"))
    found = document.findings
    assert (found.total.records, found.total.unkeyed, found.total.duplicates) == (600, 2, 52)
    assert list(found.gaps_ms.values()) == [52]
    assert next(iter(found.gaps_ms)) == pytest.approx(31 * MINUTE_MS, rel=0.032)
    assert found.gaps_offsets == {31: 52}
    tallies = {
        tally.name: (tally.records, tally.duplicates, tally.of_others) for tally in found.producers.values()
    }
    assert tallies == {"shop": (548, 0, 0), "mirror": (52, 52, 52)}
    assert found.sample.several() == {digest_one(b"in both").hex(): [0, 1]}
    assert found.total.ids == report.marks
    html = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert flights in html
    assert "mirror" in html
    assert document.facts["records"] == report.records == 600
    # A file beside the snapshot's files does not spoil it.
    assert verify_snapshot(tmp_path / "snapshot").topic == flights
    assert not (tmp_path / "snapshot" / "report.html").exists()


@pytest.mark.slow
def test_a_large_history_is_sampled(
    broker: Broker, flights: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report says so; what the run itself counts is exact."""
    monkeypatch.setattr("spark_backfill.finder.SAMPLED_ABOVE", 599)
    monkeypatch.setattr("spark_backfill.finder.SAMPLING", 4)
    report = backfill(parse_options(arguments(broker, flights, tmp_path), print), on_spark(lambda: spark))
    found = read_document(tmp_path / "snapshot").findings
    assert (report.records, report.unkeyed) == (600, 2)
    assert found.sampling == 4
    assert 100 < found.total.records < 200
    assert "one ID in\n4" in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_count_window_has_a_report_too(
    broker: Broker, flights: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Where marks are numbered in offset order, the findings are the same as with a window by time."""
    found = {}
    for window in ("30d", "100n"):
        given = arguments(broker, flights, tmp_path / window, "--window", window)
        backfill(parse_options(given, print), on_spark(lambda: spark))
        found[window] = read_document(tmp_path / window / "report").findings
    assert found["30d"].to_json() == found["100n"].to_json()
    assert found["30d"].producers == {}


def test_an_empty_topic_has_a_report(broker: Broker, make_topic: Callable[..., str], tmp_path: Path) -> None:
    """Nothing to read is no reason for no page."""

    def no_session() -> SparkSession:
        raise AssertionError("Spark was started for nothing")

    backfill(parse_options(arguments(broker, make_topic(1), tmp_path), print), on_spark(no_session))
    assert read_document(tmp_path / "report").findings == Findings()


def test_a_page_that_cannot_be_drawn_costs_no_snapshot(
    broker: Broker, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """When the report's disk is full at the end, the snapshot is there, and a line says how to draw the page later."""

    def no_session() -> SparkSession:
        raise AssertionError("Spark was started for nothing")

    said: list[str] = []
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / pages.PAGE_NAME).symlink_to("/dev/full")
    backfill(
        parse_options(arguments(broker, make_topic(1), tmp_path), print),
        on_spark(no_session),
        say=said.append,
    )
    assert verify_snapshot(tmp_path / "snapshot").partitions
    assert "warning: the snapshot is there, but no report" in said[-1]
    assert "No space left" in said[-1]
    assert pages.write_page(read_document(tmp_path / "snapshot"), tmp_path / "later").is_file()


def test_what_a_report_needs_is_looked_at_before_java_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without the extra, or with a file in the report's place, there is one line and no spark-submit."""

    def nothing_is_started(*_: object, **__: object) -> Submission:
        raise AssertionError("spark-submit was started")

    monkeypatch.setattr(launch, "Submission", nothing_is_started)
    given = ["--bootstrap", "localhost:1", "--topic", "t", "--id", "key", "--window", "1d", "--whole-topic"]
    given += ["--output", str(tmp_path / "snapshot"), "--report", str(tmp_path / "report")]
    (tmp_path / "report").write_text("mine")
    assert run(["backfill", *given]) == 1
    assert "cannot be a folder" in capfd.readouterr().err
    monkeypatch.setattr(pages, "NEEDED", ("no_such_library",))
    assert run(["backfill", *given]) == 1
    assert "pip install 'dedup-sdk[report]'" in capfd.readouterr().err


def test_a_report_is_placed_where_the_user_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative folder is that of the user, not of the scratch folder that Spark is started in."""
    started: list[tuple[list[str], str, bool]] = []

    class Noted:
        """A job that ends at once, with an empty answer."""

        stderr: tuple[str, ...] = ()

        def __init__(
            self, line: list[str], *, environment: dict[str, str], stdout: IO[str], folder: Path
        ) -> None:
            started.append((line[-2:], environment[FOLDER], folder == tmp_path))
            stdout.write("{}")

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def wait(self) -> int:
            """See `Submission`."""
            return 0

    monkeypatch.setattr(launch, "Submission", Noted)
    monkeypatch.chdir(tmp_path)
    assert launch.backfill([*GIVEN, "--report", "r"], on_spark=True) == {}
    assert started == [(["--report", "r"], str(tmp_path), False)]


def test_a_producer_header_without_a_report_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    """An option that would do nothing is wrong usage."""
    assert run(["backfill", *GIVEN, "--producer-header", "sent-by"]) == 2
    assert "--producer-header needs --report" in capfd.readouterr().err
