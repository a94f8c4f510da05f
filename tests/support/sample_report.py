"""A report about an invented topic, to be looked at."""

from __future__ import annotations

import functools

import numpy as np

from dedup_sdk._store.pages import Uint64s
from spark_backfill.findings.findings import Findings, total
from spark_backfill.findings.sightings import fold_run, merge_runs, sightings_of
from spark_backfill.report_page.document import Document
from tests.support.naive_fold import digest_of

HOUR_MS = 3_600_000
START_MS = 1_760_000_000_000
NAMES = {11: "shop-eu-1", 12: "shop-eu-2", 13: "<b>mirror</b> $x$", 14: "no header"}


@functools.cache
def sample_findings(partitions: int = 4, records: int = 4_000, days: int = 9) -> Findings:
    """Findings of partitions of so many records, some of which come again, most of them within minutes."""
    random = np.random.default_rng(7)
    parts: list[Findings] = []
    for partition in range(partitions):
        times = np.sort(random.integers(0, days * 24 * HOUR_MS, records)) + START_MS
        # A hundredth of the IDs are used in every partition.
        names = [f"{'x' if place % 100 == 0 else partition}-{place}" for place in range(records)]
        for place in np.flatnonzero(random.random(records) < 0.05).tolist():
            before = np.searchsorted(times, times[place] - random.lognormal(np.log(HOUR_MS), 1.5))
            names[place] = names[before]
        for place in random.integers(0, records, 50).tolist():
            names[place] = f"hot-{partition}"
        digests = np.array([digest_of(name) for name in names], "V16")
        producers: Uint64s = random.choice([11, 12, 13, 14], records, p=[0.5, 0.3, 0.15, 0.05]).astype(
            np.uint64
        )
        keyed = random.random(records) > 0.01
        sightings, findings = fold_run(
            partition,
            sightings_of(digests[keyed].tobytes(), keyed, np.arange(records), times, producers),
            keyed,
            NAMES,
        )
        parts += [findings, merge_runs(partition, [sightings], now_ms=2**42)]
    return total(parts)


def sample_document(findings: Findings, window: str = "7d", topic: str = "orders") -> Document:
    """These findings with the facts of an invented run."""
    partitions = [
        {"partition": partition, "low": 0, "high": tally.records, "since_ms": None, "accepted": 0, "since_number": None,
         "newest_ms": tally.newest_ms, "marks": tally.ids, "bytes": 23 * tally.ids}
        for partition, tally in findings.partitions.items()
    ]  # fmt: skip
    facts = {
        "cluster": "MkU3OEVBNTcwNTJENDM2Qk", "topic": topic, "topic_id": "", "group": "billing", "vouched": False,
        "id_spec": "header:dedup-id", "digest": "sha256/16", "isolation": "read_committed", "window": window,
        "created_ms": START_MS + 10 * 24 * HOUR_MS, "partitions": partitions, "skipped": {"4": "never committed"},
        "offsets": findings.total.records, "records": findings.total.records, "unkeyed": findings.total.unkeyed,
        "marks": findings.total.ids, "fingerprint": "0" * 32, "files": len(partitions), "bytes": 350_000,
        "spark_start_seconds": 6.1, "seconds": 12.4, "records_per_second": findings.total.records / 12.4,
    }  # fmt: skip
    return Document(
        facts=facts, findings=findings, producer_header="producer" if findings.producers else None
    )
