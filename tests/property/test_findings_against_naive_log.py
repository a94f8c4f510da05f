"""The findings of runs, folded and put together, against a loop over the whole log."""

from __future__ import annotations

import json
import random
from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_backfill.findings.findings import MOST_REPEATERS, Findings, total
from spark_backfill.findings.histogram import histogram
from spark_backfill.findings.sightings import SIGHTINGS, Sightings, fold_run, merge_runs
from spark_backfill.findings.time_series import LAST_MS, TimeSeries
from tests.support.naive_findings import NaiveFindings, Sighting, run_rows
from tests.support.naive_fold import digest_of

NOW_MS = 10**12
HOUR_MS = 3_600_000


@st.composite
def topics(draw: st.DrawFn) -> list[Sighting]:
    """Some partitions of a few IDs each, that come again late, early, without a date and from other partitions."""
    steps = st.tuples(
        st.sampled_from([None] * 4 + [-1, LAST_MS + 1]),
        st.integers(0, 2),
        st.integers(1, 9),
        st.one_of(st.integers(-500, 500), st.integers(-HOUR_MS, 100 * HOUR_MS)),
        st.one_of(st.none(), st.integers(0, 9)),
        st.integers(1, 3),
    )
    offsets, now, log = defaultdict[int, int](int), 10**11, list[Sighting]()
    for undated_ms, partition, skip, step_ms, name, producer in draw(st.lists(steps, max_size=60)):
        offsets[partition] += skip
        now = max(now + step_ms, 0)
        digest = None if name is None else digest_of(name)
        time_ms = now if undated_ms is None else undated_ms
        log.append(Sighting(partition, offsets[partition], time_ms, digest, producer))
    return log


def fold(log: list[Sighting], seed: int, *, through_json: bool = False) -> Findings:
    """Cut each partition into runs and each run's sightings into two digest ranges.

    Put all together in another order.
    """
    shuffle, parts = random.Random(seed), list[Findings]()
    blocks = defaultdict[tuple[int, int], list[Sightings]](list)
    for partition in {record.partition for record in log}:
        rest = [record for record in log if record.partition == partition]
        while rest:
            size = shuffle.randint(1, len(rest))
            run, rest = rest[:size], rest[size:]
            shuffle.shuffle(run)
            sightings, findings = fold_run(*run_rows(partition, run))
            parts.append(findings)
            place = sum(digest.tobytes()[0] < 0x80 for digest in sightings["digest"])
            for half, block in enumerate((sightings[:place], sightings[place:])):
                blocks[partition, half].append(np.frombuffer(block.tobytes(), SIGHTINGS))
    for (partition, _), runs in blocks.items():
        shuffle.shuffle(runs)
        parts.append(merge_runs(partition, runs, now_ms=NOW_MS))
    shuffle.shuffle(parts)
    if through_json:
        parts = [Findings.from_json(json.loads(str(part))) for part in parts]
    return total(parts)


@given(topics(), st.integers(0, 10**6))
def test_findings_are_those_of_a_loop_over_the_log(log: list[Sighting], seed: int) -> None:
    """Counts, gaps, repeaters and producers are exact.

    The log may be cut into runs in any way, and these may come in any order.
    """
    found, naive = fold(log, seed), NaiveFindings(log)
    assert found.gaps_ms == histogram(np.array([max(gap, 0) for gap in naive.gaps_ms], np.int64))
    assert found.early == sum(gap < 0 for gap in naive.gaps_ms)
    assert found.gaps_offsets == histogram(np.array(naive.gaps_offsets, np.int64))
    times = np.array([record.timestamp_ms for record in log], np.int64)
    assert found.records_over_time == TimeSeries.of(times)
    assert found.duplicates_over_time == TimeSeries.of(np.array(naive.duplicate_ms, np.int64))
    for partition, tally in found.partitions.items():
        assert tally.records == naive.records[partition]
        assert tally.unkeyed == naive.unkeyed[partition]
        assert tally.duplicates == naive.duplicates[partition]
        assert tally.ids == len([name for name in naive.counts if name[0] == partition])
        stamps = [record.timestamp_ms for record in log if record.partition == partition]
        assert (tally.oldest_ms, tally.newest_ms) == (min(stamps), max(stamps))
    assert {code: tally.records for code, tally in found.producers.items()} == dict(naive.sent)
    for code, by in found.producers.items():
        assert (by.name, by.duplicates, by.of_others) == (
            f"p{code}", naive.sent_again[code], naive.of_others[code]
        )  # fmt: skip


@given(topics(), st.integers(0, 10**6))
def test_the_biggest_repeaters_and_ids_of_several_partitions_are_named(
    log: list[Sighting], seed: int
) -> None:
    """The repeaters are those with the most sightings.

    The sample has every ID with all of its partitions, and when each saw it last.
    """
    found, naive = fold(log, seed), NaiveFindings(log)
    often = sorted(
        (
            (count, digest.hex(), partition)
            for (partition, digest), count in naive.counts.items()
            if count > 1
        ),
        reverse=True,
    )
    assert [(each.times, each.digest, each.partition) for each in found.repeaters] == often[:MOST_REPEATERS]
    for each in found.repeaters:
        assert naive.last[each.partition, bytes.fromhex(each.digest)].offset == each.last_offset
    assert {(each.partition, bytes.fromhex(each.digest)): each.last_ms for each in found.sample.seen} == {
        name: min(max(record.timestamp_ms, 0), NOW_MS) for name, record in naive.last.items()
    }
    assert found.sample.partitions() == {digest.hex(): sorted(where) for digest, where in naive.ids.items()}
    assert found.sample.is_whole


@given(topics(), st.integers(0, 10**6))
def test_findings_survive_json(log: list[Sighting], seed: int) -> None:
    """Parts that travelled as JSON add up to the same."""
    assert fold(log, seed, through_json=True) == fold(log, seed)
