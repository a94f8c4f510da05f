"""The arithmetic of benchmarks/plan_60g.py: lines, planned sizes, figures; nothing is run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import event_log
from benchmarks.linear import fit
from benchmarks.plan_60g import main, read_runs, table
from benchmarks.plan_figures import (
    EXTRAPOLATED,
    PLANNED,
    Figure,
    core_seconds,
    cost_lines,
    costs_of,
    figures_of,
    mean_night,
)
from benchmarks.plan_runs import KINDS
from benchmarks.planned_size import Size, nights, nights_a_round, plan_full, shares
from dedup_sdk._store.manifest import manifest_bytes, parse_manifest
from spark_backfill.layers import MOST_LAYERS, most_layers
from spark_backfill.slots import ROWS_PER_SLOT

SIZE = Size(records=80_000_000, partitions=4, cores=8, nightly=400_000)


def runs(*sizes: int) -> list[dict[str, Any]]:
    """Runs that cost 10 s and 2 us a row, 40 bytes of shuffle and 30 of output an ID."""
    jobs = [
        {
            "kind": kind, "rows": size, "ids": size, "cpu_seconds": 10 + size * 2e-6, "peak_rss_mib": 1000.0,
            "cores": 2, "slot_rows": size // 4, "shuffle_bytes": 40 * size, "output_bytes": 30 * size,
            "read_result_bytes": 100, "write_result_bytes": 1_000,
        }
        for kind in KINDS
        for size in sizes
    ]  # fmt: skip
    installs = [
        {"kind": "install", "ids": size, "restore_seconds": size * 1e-6, "open_seconds": 0.1}
        for size in sizes
    ]
    return [*jobs, *installs]


def planned(**more: Any) -> dict[str, Any]:
    """A run of a billion rows as the planner tells of it."""
    return {
        "read_tasks": 250, "base_tasks": 0, "write_tasks": 500, "rows": 10**9, "records": 10**9, "slot_rows": 2_000_000,
        "task_seconds": {"read": 0.2, "write": 0.1}, "function_bytes": {"read": 10, "write": 20}, **more,
    }  # fmt: skip


def driver() -> dict[str, Any]:
    """The driver's part; every fifth night writes the partitions anew."""
    manifest = {
        "files": 500, "manifest_bytes": 5_000, "most_manifest_bytes": 10_000, "write_seconds": 1.0, "read_seconds": 0.5,
    }  # fmt: skip
    night = planned(rows=10**6, records=10**6, read_tasks=4, write_tasks=4, manifest=manifest)
    return {
        "full": planned(manifest=manifest), "night": night, "anew": planned(), "nights_a_round": 5,
        "plan_seconds": 1.5, "placement_seconds": 0.5, "driver_python_mib": 100.0,
    }  # fmt: skip


def test_a_line_tells_fixed_costs_from_those_of_each() -> None:
    """Through the smallest and the largest size, by the medians; one between says how far it is off."""
    line = fit([(1, 12), (1, 40), (1, 11), (5, 20), (3, 17.6)])
    assert (line.fixed, line.each, line.most) == (10, 2, 5)
    assert line.off_by == pytest.approx(0.1)
    assert line.at(100) == 210
    assert fit([(1, 12), (5, 20)]).off_by is None


def test_a_cost_that_falls_is_fixed() -> None:
    """Else a large size would cost less than nothing; the highest of the costs is taken."""
    line = fit([(1, 30), (2, 31), (5, 20)])
    assert (line.fixed, line.each) == (31, 0)
    assert line.at(10**9) == 31


def test_one_size_is_no_line() -> None:
    """It cannot tell the two costs apart."""
    with pytest.raises(ValueError, match="two sizes are needed"):
        fit([(1, 12), (1, 13)])


def test_the_event_log_is_added_up() -> None:
    """Tasks that succeeded count, by whether they write into the shuffle; other events do not."""

    def ended(kind: str, shuffled: int, result: int, reason: str = "Success") -> str:
        return json.dumps({
            "Event": "SparkListenerTaskEnd", "Task Type": kind, "Task End Reason": {"Reason": reason},
            "Task Metrics": {"Result Size": result, "Shuffle Write Metrics": {"Shuffle Bytes Written": shuffled}},
        })  # fmt: skip

    lines = [
        '{"Event":"SparkListenerLogStart"}',
        *(ended("ShuffleMapTask", shuffled, 9) for shuffled in (5, 7)),
        ended("ShuffleMapTask", 100, 50, "ExceptionFailure"),
        ended("ResultTask", 0, 30),
    ]
    # Spark writes no space behind a colon.
    found = event_log.read_tasks(line.replace('": ', '":') for line in lines)
    assert found == event_log.Tasks(
        reads=2, writes=1, shuffle_bytes=12, read_result_bytes=9, write_result_bytes=30
    )


def test_a_full_run_is_cut_by_the_planner() -> None:
    """All records are in ranges and slots, and no slot is larger than the planner's."""
    found = plan_full(replace(SIZE, records=SIZE.records + 3))
    assert sum(each.end - each.begin for each in found.ranges) == SIZE.records + 3
    assert len(found.slots.slots) == 10 + 3 * 11
    assert found.slot_rows <= ROWS_PER_SLOT
    assert sum(shares(10, 3)) == 10
    assert max(shares(10, 3)) - min(shares(10, 3)) == 1


def test_nights_add_layers_until_the_partitions_are_written_anew() -> None:
    """A night reads its own records; only the last one reads the base, and all manifests can be read."""
    found = nights(SIZE)
    layers = min(map(most_layers, range(SIZE.partitions)))
    assert len(found) == 1 + layers
    assert layers <= nights_a_round(SIZE) <= MOST_LAYERS
    for number, (night, manifest) in enumerate(found[:-1]):
        assert not night.base_tasks
        assert all(len(entry.layers) == number + 1 for entry in manifest.partitions)
        assert sum(each.offsets for each in night.offset_ranges) == (SIZE.nightly if number else SIZE.records)
    anew, manifest = found[-1]
    rows = SIZE.records + layers * SIZE.nightly
    assert sum(each.rows for each in anew.offset_ranges) == rows
    assert manifest.marks == rows
    assert sum(map(len, anew.base_tasks)) == sum(len(entry.files) for entry in found[-2][1].partitions)
    for _, manifest in found:
        assert parse_manifest(manifest_bytes(manifest), "manifest.json") == manifest


def test_work_is_that_of_rows_and_of_beginning_tasks() -> None:
    """10 s, 2 us for each row, and a tenth or a fifth of a second for each task."""
    line = costs_of(runs(1_000, 2_000)).lines["full cpu_seconds"]
    seconds, begins = core_seconds(line, planned())
    assert begins == pytest.approx(250 * 0.2 + 500 * 0.1)
    assert seconds == pytest.approx(10 + 2_000 + 100)


def test_figures_follow_from_costs_and_plan() -> None:
    """Each says where it comes from; a price is there only where one was given."""
    costs = costs_of(runs(1_000_000, 2_000_000, 4_000_000))
    found = figures_of(costs, driver(), partitions=10, cores=100, dollars=None)
    by_name = {(each.part, each.name): each for each in found}
    assert len(by_name) == len(found)
    work = by_name["full run", "work"]
    assert work.kind == EXTRAPOLATED
    assert work.value == pytest.approx(2_110 / 3_600)
    assert by_name["full run", "time on 100 cores"].value == pytest.approx(2_110 / 3_600 / 100)
    assert by_name["full run", "shuffle"].value == pytest.approx(40e9)
    assert by_name["full run", "output"].value == pytest.approx(30e9)
    assert by_name["full run", "results to the driver, larger stage"].value == 500_000
    assert by_name["full run", "tasks that read"] == Figure("full run", "tasks that read", 250, "", PLANNED)
    install = "a consumer's install of one partition, one layer"
    assert by_name[install, "restoring"].value == pytest.approx(100)
    assert by_name[install, "files"].value == pytest.approx(3e9)
    assert not any(each.unit == "dollars" for each in found)
    priced = figures_of(costs, driver(), partitions=10, cores=100, dollars=2.0)
    prices = [each.value for each in priced if each.unit == "dollars"]
    assert prices[0] == pytest.approx(2 * 2_110 / 3_600)
    assert len(prices) == 4


def test_the_mean_night_has_its_share_of_the_one_that_writes_anew() -> None:
    """Four cheap ones and a dear one."""
    night = 10 + 2 + 4 * 0.2 + 4 * 0.1
    assert mean_night(costs_of(runs(1_000, 2_000)), driver()) == pytest.approx((4 * night + 2_110) / 5)


def test_the_table_says_how_far_a_middle_size_is_off() -> None:
    """A line for each cost, and one for each figure below the head of its part."""
    lines = cost_lines(costs_of(runs(1_000_000, 4_000_000)))
    assert "not measured" in lines[1]
    assert lines[1].split()[:4] == ["full", "cpu_seconds", "10.0", "s"]
    assert "+0.0 %" in cost_lines(costs_of(runs(1_000_000, 2_000_000, 4_000_000)))[1]
    figures = [Figure("a", "one", 1_234, "", PLANNED), Figure("b", "two", 0.25, "h", EXTRAPOLATED)]
    shown = table(figures)
    assert [line.split() for line in shown] == [
        ["a"], ["one", "1,234", "planned"], [], ["b"], ["two", "0.250", "h", "extrapolated"],
    ]  # fmt: skip


@pytest.mark.parametrize("content", ["[]", '{"runs": [1]}', "{", '{"runs": "many"}'])
def test_a_file_without_runs_is_named(content: str, tmp_path: Path) -> None:
    """In one line."""
    path = tmp_path / "measured.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"measured\.json .*give the output of --json"):
        read_runs(path)


@pytest.mark.parametrize("found", [runs(1_000), [{"kind": kind} for kind in KINDS], []])
def test_runs_that_are_too_few_end_it_in_one_line(
    found: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With status 1, before anything is started."""
    path = tmp_path / "measured.json"
    path.write_text(json.dumps({"runs": found}))
    assert main(["--measured", str(path)]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("plan_60g: ")


def test_runs_of_several_results_are_taken_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not measured again; each line of the table says where it comes from, and the assumptions follow."""
    monkeypatch.setattr("benchmarks.plan_60g.driver_cost", lambda _size: driver())
    paths = [str(tmp_path / f"{size}.json") for size in (1_000_000, 2_000_000)]
    for path, size in zip(paths, (1_000_000, 2_000_000), strict=True):
        Path(path).write_text(json.dumps({"runs": runs(size)}))
    assert main(["--measured", *paths, "--partitions", "10", "--dollars-per-core-hour", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    figures, assumptions = "\n".join(lines).split("assumed:")
    marked = [line for line in figures.splitlines() if line.startswith("  ")]
    assert len(marked) > 30
    assert {line.split()[-1] for line in marked} == {"measured", "planned", "extrapolated"}
    assert all(line.startswith("- ") for line in assumptions.strip().splitlines())
    assert main(["--measured", *paths, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == [*runs(1_000_000), *runs(2_000_000)]


@pytest.mark.parametrize(
    "arguments",
    [["--ids", "0"], ["--sizes", "1000"], ["--nightly-share", "2"], ["--dollars-per-core-hour", "-1"]],
)
def test_wrong_numbers_are_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2, and the number is named."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert arguments[0] in capsys.readouterr().err
