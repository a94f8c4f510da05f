"""The registry of metrics: everything that is counted has an entry, and all names are there from the start."""

from __future__ import annotations

import re
from dataclasses import replace
from inspect import isclass, isfunction
from typing import TYPE_CHECKING, get_args, get_type_hints

import pytest

import dedup_sdk
from dedup_sdk import (
    Counters,
    Deduplicator,
    Health,
    Histogram,
    Lookup,
    Metric,
    Metrics,
    PartitionStatus,
    Record,
    Sample,
    VerdictKind,
    Window,
    _observe,
    header,
)
from dedup_sdk._metrics import BY_NAME, GAUGES, METRICS, REASONS, flat_names, samples_of
from dedup_sdk._observe import by_partition, of_partition

if TYPE_CHECKING:
    from collections.abc import Iterable

HOUR_MS = 3_600_000
STATUS = PartitionStatus(
    topic="orders", partition=0, state="active", hindrances=("uncovered",), position=5, in_flight=2, waiting=1,
    committed=3, lag=9, recovery_seconds=0.5, recovery_left=0, store_bytes=100, store_marks=4, store_files=1,
    effective_window_ms=60_000, detail="new",
)  # fmt: skip


def record(offset: int, dedup_id: str | None, timestamp_ms: int = 0, partition: int = 0) -> Record:
    """A record of the topic "orders"."""
    headers = [] if dedup_id is None else [("dedup-id", dedup_id.encode())]
    return Record("orders", partition, offset, timestamp_ms, headers=headers)


def engine() -> Deduplicator:
    """An engine with a window of a week."""
    return Deduplicator(Lookup(id=header("dedup-id"), window=Window(days=7)))


def read(counters: Counters, statuses: Iterable[PartitionStatus] = ()) -> Metrics:
    """All samples of an engine's counters."""
    return Metrics("g", tuple(samples_of(counters, by_partition(counters), list(statuses))))


def test_each_entry_is_whole() -> None:
    """A name that Prometheus and OpenTelemetry allow, and sentences without an end that a table cannot have."""
    assert len({metric.full_name for metric in METRICS}) == len(METRICS) == len(BY_NAME)
    for metric in METRICS:
        assert re.fullmatch(r"[a-z][a-z_]*[a-z]", metric.full_name)
        assert len(metric.meaning) > 10
        assert len(metric.advice) > 5
        assert "|" not in metric.meaning + metric.advice
        assert (metric.kind == "histogram") == bool(metric.buckets)
        assert sorted(set(metric.buckets)) == list(metric.buckets)
        assert {*metric.labels} & {"id", "key", "value", "offset"} == set()


def test_every_metric_has_a_sample() -> None:
    """Of an engine with one partition; none has a label too many, or a name that the registry does not have."""
    counters = engine().counters
    of_partition(counters, "orders", 0)
    samples = read(counters, [STATUS]).samples
    assert {sample.metric.full_name for sample in samples} == set(BY_NAME)
    for sample in samples:
        assert len(sample.labels) == len(sample.metric.labels)
        assert len(sample.buckets) == (len(sample.metric.buckets) + 1 if sample.metric.buckets else 0)
    assert len({(sample.metric.name, sample.metric.unit, sample.labels) for sample in samples}) == len(
        samples
    )


def test_every_name_is_there_from_the_start() -> None:
    """So that a rate sees the first one, which is the most important one."""
    new = Counters().as_dict()
    assert set(new.values()) == {0}
    assert {"unkeyed.absent", "event.log-truncated", "shared.outages", "observer_errors"} <= set(new)
    assert new == flat_names()


def test_a_gauge_is_a_value_of_a_status() -> None:
    """And shows the next one as soon as there is one."""
    found = read(Counters(), [STATUS])
    assert found.value("lag") == 9
    assert found.value("committed_offset", topic="orders", partition="0") == 3
    assert found.value("effective_window_seconds") == 60
    assert found.value("state", state="active") == 1
    assert found.value("hindered", hindrance="backlog") == 0
    assert found.value("store_files", topic="orders", partition="7") == 0
    assert found.value("hindered", hindrance="uncovered") == 1
    assert {metric.full_name for metric in GAUGES} >= {"store_bytes", "recovery_seconds"}


def test_records_are_counted_by_partition_verdict_and_reason() -> None:
    """Their sums are the totals."""
    made = engine()
    made.complete([each for each in [record(0, "a"), record(1, None), record(2, "b")] if made.admit([each])])
    made.admit([record(3, "a"), record(0, "a", partition=1), record(0, "a", partition=1)])
    found = read(made.counters)
    assert found.value("records", partition="0", verdict="fresh") == 2
    assert found.value("records", partition="0", verdict="unkeyed", reason="absent") == 1
    assert found.value("records", partition="0", verdict="unkeyed", reason="") == 0
    assert found.value("records", partition="0", verdict="duplicate") == 1
    assert found.value("records", partition="1") == 1
    assert found.value("completed", partition="0") == 3
    assert found.value("completed", partition="1") == 0
    assert {kind: found.value("records", verdict=kind) for kind in made.counters.verdicts} == dict(
        made.counters.verdicts
    )
    assert found.value("records") == sum(made.counters.verdicts.values())


def test_totals_that_were_taken_go_on_counting() -> None:
    """A loop may keep them, and wait for a number."""
    made = engine()
    verdicts, reasons = made.counters.verdicts, made.counters.reasons
    assert set(verdicts.values()) == {0}
    assert reasons == {}
    made.admit([record(0, "a"), record(1, None), record(0, "b", partition=1)])
    assert (verdicts["fresh"], verdicts["unkeyed"]) == (2, 1)
    assert reasons == {"unkeyed.absent": 1}
    assert str(reasons) == "{'unkeyed.absent': 1}"


@pytest.mark.parametrize("at_once", [True, False])
def test_the_age_of_duplicates_is_how_late_they_come(*, at_once: bool) -> None:
    """By the timestamps of the log; those in one batch, and one that waited for its ID in flight."""
    made = engine()
    first = record(0, "a", 1_000)
    made.admit([first])
    late = [record(1, "a", 1_000 + 30_000), record(2, "a", 1_000 + 30_000 + 2 * HOUR_MS), record(3, "a", 5)]
    if at_once:
        made.complete([first])
        made.admit(late)
    else:
        made.admit(late)
        made.complete([first])
    [sample] = [each for each in read(made.counters).samples if each.metric.name == "duplicate_age"]
    assert sample.labels == ("orders",)
    by_bound = dict(zip([*sample.metric.buckets, None], sample.buckets, strict=True))
    assert {bound: count for bound, count in by_bound.items() if count} == {60.0: 2, 10_800.0: 1}
    assert sample.value == pytest.approx(30 + 2 * 3_600)


def test_a_record_without_a_timestamp_has_no_age() -> None:
    """Its difference to any other would be decades."""
    made = engine()
    made.admit([record(0, "a", -1)])
    made.complete([record(0, "a", -1)])
    made.admit([record(1, "a", 1_000)])
    assert read(made.counters).value("duplicate_age_seconds") == 0


def test_what_is_released_or_dead_lettered_is_counted_by_partition() -> None:
    """A dead letter is a completion, too."""
    made = engine()
    made.admit([record(0, "a"), record(0, "b", partition=1)])
    made.release([record(0, "a")])
    made.dead_letter([record(0, "b", partition=1)])
    found = read(made.counters)
    assert [found.value("released", partition=number) for number in "01"] == [1, 0]
    assert [found.value("dead_lettered", partition=number) for number in "01"] == [0, 1]
    assert [found.value("completed", partition=number) for number in "01"] == [0, 1]


def test_a_histogram_has_each_value_in_one_bucket() -> None:
    """A bound belongs to the bucket below it, as Prometheus has it."""
    alone, together = Histogram((1.0, 2.0)), Histogram((1.0, 2.0))
    values = [-1.0, 0.5, 1.0, 1.5, 2.0, 3.0]
    for value in values:
        alone.observe(value)
    import numpy as np

    together.observe_all(np.array(values))
    assert alone.taken() == together.taken() == ((3, 2, 1), 8.0)


def test_each_final_verdict_has_its_reasons() -> None:
    """The verdict that is not final is not counted."""
    assert set(REASONS) == set(VerdictKind) - {VerdictKind.HELD}


def test_a_name_or_label_that_does_not_exist_is_an_error() -> None:
    """A panel for it would be empty for ever."""
    found = read(Counters())
    with pytest.raises(KeyError):
        found.value("lags")
    with pytest.raises(KeyError, match="topic, partition"):
        found.value("lag", offset="1")


def test_a_gauge_of_several_partitions_has_no_sum() -> None:
    """Their positions, windows and states say nothing together; counts do."""
    found = read(Counters(), [STATUS, replace(STATUS, partition=1, lag=20)])
    with pytest.raises(ValueError, match=r"lag is a gauge, and 2 samples .* give partition, too"):
        found.value("lag", topic="orders")
    with pytest.raises(ValueError, match="give partition and state, too"):
        found.value("state")
    assert [found.value("lag", partition=number) for number in "01"] == [9, 20]
    assert found.value("state", partition="1", state="active") == 1
    assert found.value("records") == 0


def test_a_counter_of_a_partition_is_read_in_one_way() -> None:
    """By `Metrics`; a look at a partition that was never assigned would else begin to count it."""
    assert not {"of", "partitions"} & set(dir(Counters()))


@pytest.mark.parametrize("public", [Counters, Metrics, Metric, Sample, PartitionStatus, Health, Histogram])
def test_every_type_that_is_read_has_a_public_name(public: type) -> None:
    """Whoever writes an exporter can name what its functions take."""
    hints = [value for name, value in get_type_hints(public).items() if not name.startswith("_")]
    for each in vars(public).values():
        step = each.fget if isinstance(each, property) else each
        if isfunction(step) and not step.__name__.startswith("_"):
            hints += get_type_hints(step, localns=vars(_observe)).values()
    types = {part for hint in hints for part in [hint, *get_args(hint)] if isclass(part)}
    ours = {each for each in types if each.__module__.startswith("dedup_sdk")}
    assert {each.__name__ for each in ours} <= set(dedup_sdk.__all__)
