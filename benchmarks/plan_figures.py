"""From measured costs and a planned size to the figures of `benchmarks.plan_60g`: pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.linear import Line, fit
from benchmarks.plan_runs import KINDS
from spark_backfill.report_page.wording import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MEASURED: Final = "measured"
PLANNED: Final = "planned"
EXTRAPOLATED: Final = "extrapolated"

ASSUMPTIONS: Final = (
    "hours: a lower bound, of CPU time: cores as fast as here are busy all the time, and wait for nothing",
    "hours: the start of Spark, and the driver's own work, come on top",
    "network: brokers, storage and the shuffle between machines keep up; here all of it is one machine",
    "disks: workers have room for the shuffle, and the output is as quick as a local disk",
    "object stores: the delays of two requests for each file are not in the hours",
    "skew: partitions are equally full; a larger one has more tasks, not larger ones, and is one consumer's install",
    "IDs: each has one record; in the measured runs one record in twenty is a duplicate, and records have 200 bytes",
    "window: nothing expires; it is by time; there are no units, and no report",
    "driver: the memory of its Java is not known at this size",
    "driver: a stage's results stay below spark.driver.maxResultSize (1 GiB by default)",
    "failures: no task runs twice",
)
_HOUR_S: Final = 3_600
_NAMES: Final = {
    "full": "full run",
    "night": "a night: a layer (--add)",
    "anew": "a night that writes all partitions anew",
}
_UNITS: Final = {"cpu_seconds": ("s", 1e6, "us"), "restore_seconds": ("s", 1e6, "us"), "open_seconds": ("s", 1e6, "us"),
                 "peak_mib": ("MiB", 2**20, "B")}  # fmt: skip


class Figure(NamedTuple):
    """A line of the result; ``kind`` says where it comes from."""

    part: str
    name: str
    value: float
    unit: str
    kind: str

    @property
    def text(self) -> str:
        """The value and its unit."""
        if self.unit == "bytes":
            return size_text(round(self.value))
        if not self.unit:
            return f"{self.value:,.0f}"
        if self.unit == "dollars":
            return f"{self.value:,.2f} {self.unit}"
        return f"{self.value:,.{1 if self.value >= 1 else 3}f} {self.unit}"


@dataclass(frozen=True, slots=True)
class Costs:
    """The lines of all costs by kind of run and figure, and the bytes that a task sends to the driver at most."""

    lines: Mapping[str, Line]
    read_result_bytes: int
    write_result_bytes: int


def costs_of(runs: Sequence[Mapping[str, Any]]) -> Costs:
    """Return the costs of runs; raises `ValueError` where there are not two sizes of each kind."""
    lines: dict[str, Line] = {}
    for kind in KINDS:
        found = [run for run in runs if run["kind"] == kind]
        lines |= {
            f"{kind} cpu_seconds": fit((run["rows"], run["cpu_seconds"]) for run in found),
            f"{kind} shuffle_bytes": fit((run["ids"], run["shuffle_bytes"]) for run in found),
            f"{kind} output_bytes": fit((run["ids"], run["output_bytes"]) for run in found),
            f"{kind} peak_mib": fit((run["slot_rows"], run["peak_rss_mib"] / run["cores"]) for run in found),
        }
    installs = [run for run in runs if run["kind"] == "install"]
    for name in ("restore_seconds", "open_seconds"):
        lines[f"install {name}"] = fit((run["ids"], run[name]) for run in installs)
    jobs = [run for run in runs if run["kind"] in KINDS]
    return Costs(
        lines,
        max(run["read_result_bytes"] for run in jobs),
        max(run["write_result_bytes"] for run in jobs),
    )


def cost_lines(costs: Costs) -> list[str]:
    """Return a table of what was measured: the fixed part, the part for each unit, and how far a middle size is off."""
    lines = [f"{'measured':<24}{'fixed':>14}{'each':>14}{'between, off by':>18}{'measured up to':>17}"]
    for name, line in costs.lines.items():
        unit, factor, small = _UNITS.get(name.split()[1], ("B", 1, "B"))
        off_by = "not measured" if line.off_by is None else f"{100 * line.off_by:+.1f} %"
        fixed = round(line.fixed, 1) + 0.0
        lines.append(
            f"{name:<24}{fixed:>12,.1f} {unit:<3}{line.each * factor:>10,.2f} {small:<2}{off_by:>18}"
            f"{line.most:>17,.0f}"
        )
    return lines


def core_seconds(line: Line, planned: Mapping[str, Any]) -> tuple[float, float]:
    """Return the time of processors that a run takes, and the part of it in which tasks begin."""
    begins = sum(planned[f"{name}_tasks"] * each for name, each in planned["task_seconds"].items())
    return line.at(planned["rows"]) + begins, begins


def figures_of(
    costs: Costs, driver: Mapping[str, Any], *, partitions: int, cores: int, dollars: float | None
) -> list[Figure]:
    """Return all lines; ``driver`` is the result of `benchmarks.driver_cost`, ``dollars`` the price of a core-hour."""
    figures = [figure for kind in KINDS for figure in _of_run(kind, costs, driver[kind], cores, dollars)]
    mean = mean_night(costs, driver)
    part = f"a night, the mean of {driver['nights_a_round']}"
    figures += _work(part, mean, cores, dollars)
    figures += _of_driver(driver)
    return [*figures, *_of_install(costs, driver, partitions)]


def mean_night(costs: Costs, driver: Mapping[str, Any]) -> float:
    """Return the core-seconds of a night, where a partition is written anew in one of ``nights_a_round``."""
    count = driver["nights_a_round"]
    night, anew = (
        core_seconds(costs.lines[f"{kind} cpu_seconds"], driver[kind])[0] for kind in ("night", "anew")
    )
    return float((night * (count - 1) + anew) / count)


def _of_run(
    kind: str, costs: Costs, planned: Mapping[str, Any], cores: int, dollars: float | None
) -> Iterator[Figure]:
    part = _NAMES[kind]
    reads = planned["read_tasks"] + planned["base_tasks"]
    line = costs.lines[f"{kind} cpu_seconds"]
    yield Figure(part, "records to read", planned["records"], "", PLANNED)
    if planned["rows"] > planned["records"]:
        yield Figure(part, "marks of the base to read", planned["rows"] - planned["records"], "", PLANNED)
    yield Figure(part, "tasks that read", reads, "", PLANNED)
    yield Figure(part, "tasks that write, new files", planned["write_tasks"], "", PLANNED)
    yield Figure(part, "rows of a slot", planned["slot_rows"], "", PLANNED)
    if manifest := planned.get("manifest"):
        yield Figure(part, "files in the manifest", manifest["files"], "", PLANNED)
        yield Figure(part, "manifest", manifest["manifest_bytes"], "bytes", PLANNED)
        yield Figure(part, "manifest, at most", manifest["most_manifest_bytes"], "bytes", PLANNED)
        yield Figure(part, "writing the manifest", manifest["write_seconds"], "s", MEASURED)
    largest = max(planned["function_bytes"], key=planned["function_bytes"].__getitem__)
    yield Figure(
        part, f"function of a task ({largest})", planned["function_bytes"][largest], "bytes", MEASURED
    )
    for name, seconds in planned["task_seconds"].items():
        yield Figure(part, f"beginning a task ({name})", seconds, "CPU s", MEASURED)
    work, begins = core_seconds(line, planned)
    yield from _work(part, work, cores, dollars)
    yield Figure(part, "of it, beginning tasks", begins / _HOUR_S, "core-h", EXTRAPOLATED)
    yield Figure(
        part, "shuffle", costs.lines[f"{kind} shuffle_bytes"].at(planned["rows"]), "bytes", EXTRAPOLATED
    )
    yield Figure(
        part, "output", costs.lines[f"{kind} output_bytes"].at(planned["rows"]), "bytes", EXTRAPOLATED
    )
    memory_mib = costs.lines[f"{kind} peak_mib"].at(planned["slot_rows"])
    yield Figure(part, "memory of a core, Java and Python", memory_mib * 2**20, "bytes", EXTRAPOLATED)
    results = max(reads * costs.read_result_bytes, planned["write_tasks"] * costs.write_result_bytes)
    yield Figure(part, "results to the driver, larger stage", results, "bytes", EXTRAPOLATED)
    yield Figure(part, "rows, times the largest measured run", planned["rows"] / line.most, "", PLANNED)


def _work(part: str, seconds: float, cores: int, dollars: float | None) -> Iterator[Figure]:
    hours = seconds / _HOUR_S
    yield Figure(part, "work", hours, "core-h", EXTRAPOLATED)
    yield Figure(part, f"time on {cores:,} cores", hours / cores, "h", EXTRAPOLATED)
    if dollars is not None:
        yield Figure(part, "price", hours * dollars, "dollars", EXTRAPOLATED)


def _of_driver(driver: Mapping[str, Any]) -> Iterator[Figure]:
    part = "driver"
    yield Figure(part, "planning tasks and files", driver["plan_seconds"], "s", MEASURED)
    yield Figure(part, "placing slots", driver["placement_seconds"], "s", MEASURED)
    # All plans of a round are in memory at once there.
    yield Figure(
        part, "memory of its Python, at most", driver["driver_python_mib"] * 2**20, "bytes", MEASURED
    )


def _of_install(costs: Costs, driver: Mapping[str, Any], partitions: int) -> Iterator[Figure]:
    part = "a consumer's install of one partition, one layer"
    ids = driver["full"]["rows"] / partitions
    yield Figure(part, "IDs", ids, "", PLANNED)
    size = costs.lines["full output_bytes"].at(driver["full"]["rows"]) / partitions
    yield Figure(part, "files", size, "bytes", EXTRAPOLATED)
    if "read_seconds" in driver["night"]["manifest"]:
        yield Figure(part, "reading the manifest", driver["night"]["manifest"]["read_seconds"], "s", MEASURED)
    for name, words in (("restore_seconds", "restoring"), ("open_seconds", "opening")):
        yield Figure(part, words, costs.lines[f"install {name}"].at(ids), "s", EXTRAPOLATED)
    most = costs.lines["install restore_seconds"].most
    yield Figure(part, "IDs, times the largest measured", ids / most, "", PLANNED)
