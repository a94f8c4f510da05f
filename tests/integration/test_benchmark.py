"""The throughput benchmark as a user runs it, on a workload that is too small to say anything about speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.plan_runs import measure

if TYPE_CHECKING:
    from tests.support.brokers import Broker

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "throughput.py"
RECORDS = 4_000
CONTENDERS = (
    "bare_default", "bare_tuned", "bare_tuned_poll", "memory_set", "memory_set_poll", "dedup_consume", "dedup_poll",
)  # fmt: skip
FIGURES = {"msgs_per_second", "cpu_us_per_msg", "peak_rss_mib"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script to its end."""
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False
    )


def result(broker: Broker, *arguments: str) -> dict[str, Any]:
    """Run it with --json and return its output."""
    done = run("--bootstrap", broker.bootstrap, "--rounds", "1", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


@pytest.mark.slow
def test_every_contender_is_reported_and_ours_are_exact(broker: Broker) -> None:
    """One JSON object has the figures of every contender, and ours handle each ID once, at its first record."""
    printed = result(broker, "--records", str(RECORDS), "--steady-seconds", "1")
    for name in CONTENDERS:
        assert set(printed[name]) == FIGURES
        assert all(value > 0 for value in printed[name].values())
    assert printed["exact"] is True
    assert printed["poll_exact"] is True
    assert (printed["records"], printed["distinct_ids"]) == (RECORDS, RECORDS * 95 // 100)
    for name in (
        "ratio_to_bare_default",
        "ratio_to_bare_tuned",
        "poll_ratio_to_bare_tuned_poll",
        "ratio_to_memory_set",
        "poll_ratio_to_memory_set_poll",
        "cpu_us_at_1000_per_s",
        "bare_cpu_us_at_1000_per_s",
        "cpu_ratio_at_1000_per_s",
        "process_cpu_ratio_at_1000_per_s",
        "bytes_per_id",
    ):
        assert printed[name] > 0


@pytest.mark.slow
def test_a_preloaded_store_is_taken_for_the_groups_own(broker: Broker) -> None:
    """With --ids the consumer goes on with the store it finds (else the script fails), and stays exact."""
    printed = result(broker, "--records", str(RECORDS), "--ids", "20000", "--only", "dedup_consume")
    assert printed["exact"] is True
    assert printed["preload_seconds"] > 0
    assert printed["ids"] == 20_000
    assert printed["ratio_to_bare_tuned"] is None


@pytest.mark.parametrize("records", ["0", "-5", "many"])
def test_a_wrong_number_is_wrong_usage(records: str) -> None:
    """A number of records that cannot be is refused in one line that names it, with status 2."""
    done = run("--records", records)
    assert done.returncode == 2
    assert repr(records) in done.stderr or "expected one argument" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broker_that_does_not_answer_is_one_line() -> None:
    """Where nobody listens the benchmark ends with status 1 and names the address."""
    done = run("--bootstrap", "127.0.0.1:1", "--records", "100")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_price_of_one_message_is_measured_beside_a_bare_loop(broker: Broker) -> None:
    """Both loops got each message once (else the script fails), and each figure is there."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT.with_name("steady.py")), "--bootstrap", broker.bootstrap, "--rate", "200",
         "--seconds", "1",
         "--rounds", "1", "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    for loop in ("bare", "dedup"):
        assert 0 < printed[loop]["thread_us"] <= printed[loop]["process_us"]
        assert printed[loop]["latency_ms"] == sorted(printed[loop]["latency_ms"])
    assert printed["thread_us_ratio"] > 0
    assert printed["process_us_ratio"] > 0


@pytest.mark.slow
def test_the_outbox_is_measured_beside_a_plain_producer() -> None:
    """One JSON object has the figures of each, and everything was confirmed (else the script fails)."""
    script = SCRIPT.with_name("adapters.py")
    done = subprocess.run(
        [sys.executable, str(script), "--only", "outbox", "--records", "2000", "--rounds", "1", "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)["outbox"]
    assert [*printed] == ["plain", "outbox", "outbox_no_fsync"]
    figures = {"records_per_second", "cpu_us_per_record", "persisted_per_second", "ratio"}
    assert all(set(each) == figures for each in printed.values())
    assert printed["plain"]["ratio"] == 1
    assert all(each["records_per_second"] > 0 for each in printed.values())


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_large_backfill_is_planned_from_small_runs(tmp_path: Path) -> None:
    """The job runs at one size, another size costs twice as much, and the planner cuts the large one."""
    runs = measure(20_000, 1)
    assert [run["kind"] for run in runs] == ["full", "night", "anew", "install"]
    full = runs[0]
    assert full["rows"] == 18_000
    assert 20 < full["output_bytes"] / full["ids"] < 60
    assert 20 < full["shuffle_bytes"] / full["ids"] < 60
    assert full["write_result_bytes"] > 500
    twice = [
        {
            name: 2 * each if isinstance(each, int | float) and name != "cores" else each
            for name, each in run.items()
        }
        for run in runs
    ]
    measured = tmp_path / "measured.json"
    measured.write_text(json.dumps({"runs": [*runs, *twice]}), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(SCRIPT.with_name("plan_60g.py")), "--measured", str(measured), "--ids", "3000000",
         "--partitions", "4", "--cores", "2", "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert {each["kind"] for each in printed["figures"]} == {"measured", "planned", "extrapolated"}
    assert printed["runs"] == [*runs, *twice]


@pytest.mark.slow
def test_every_look_is_timed_beside_its_control() -> None:
    """In each phase, of few records: the times of so short a run say nothing."""
    done = subprocess.run(
        [
            sys.executable,
            str(SCRIPT.with_name("looking.py")),
            "--records",
            "20000",
            "--seconds",
            "2",
            "--json",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    for phase in ("flush", "rebalance", "hanging"):
        assert set(printed[phase]) == {"wake", "health", "text", "scrape", "page", "readyz", "metrics"}
        for median, most, longest in printed[phase].values():
            assert 0 < median <= most <= longest
