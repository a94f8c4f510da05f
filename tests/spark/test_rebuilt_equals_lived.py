"""Rebuilt = lived, by the whole job.

The marks of a group that lived through its topic, from Kafka and from archives.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import pytest

from dedup_adapters.redis import RedisStore
from dedup_sdk._cli.app import run as dedup
from dedup_sdk._store.snapshot import verify_snapshot
from spark_backfill.archive_options import KAFKA
from spark_backfill.backfill import backfill
from spark_backfill.in_process import InProcess
from spark_backfill.on_spark import on_spark
from spark_backfill.options import parse_options
from tests.support.lived_topics import RULES, Life
from tests.support.redis_servers import HAS_REDIS, redis_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from dedup_sdk._store.manifest import Manifest, PartitionManifest
    from spark_backfill.report import Report
    from tests.support.brokers import Broker
    from tests.support.redis_servers import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(420)]
REDIS = "installed" if HAS_REDIS else "container"


@pytest.fixture
def life(request: pytest.FixtureRequest, broker: Broker, tmp_path: Path) -> Life:
    """A group with a history of its own."""
    return Life(request.param, broker, tmp_path)


@pytest.fixture
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """An empty server, of which nothing is to be said."""
    with redis_server(REDIS, tmp_path_factory.mktemp("redis"), "--appendonly", "yes") as server:
        yield server


def needs(rule: str) -> list[pytest.MarkDecorator]:
    """The needs of a rule's test from the machine."""
    return [pytest.mark.container] if RULES[rule].shared and not HAS_REDIS else []


def facts(report: Report) -> dict[str, object]:
    """The facts of a report on what was read and written, not where and how quickly."""
    differ = {"output", "seconds", "spark_start_seconds", "records_per_second"}
    return {name: value for name, value in asdict(report).items() if name not in differ}


def partitions(snapshot: Path) -> list[PartitionManifest]:
    """What a snapshot says of its partitions, but for the names of its files."""
    return [replace(each, files=()) for each in verify_snapshot(snapshot).partitions]


@pytest.mark.parametrize("life", [pytest.param(name, marks=needs(name)) for name in RULES], indirect=True)
def test_every_source_gives_what_the_group_remembers(
    life: Life, spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The group's own snapshot and the job's are the same, also on top of an older one; a shared memory tells the same.

    Without Spark the job makes the same snapshot of the topic, too.
    A consumer that begins with that snapshot goes on as if it had lived through all.
    """

    def rebuilt_from(source: str, output: Path, *more: str) -> tuple[Manifest, Report]:
        said: list[str] = []
        given = [*life.given, *life.source(source), "--output", str(output), "--overwrite", *more]
        report = backfill(parse_options(given, print), on_spark(lambda: spark), say=said.append)
        # A life may end in the middle of a unit, or have a malformed one.
        assert [line for line in said if line.startswith("warning: ") and " unit " not in line] == [], source
        if source == KAFKA:
            apart = tmp_path / "in process"
            given = [*life.given, *life.source(source), "--output", str(apart), "--overwrite", *more]
            assert facts(backfill(parse_options(given, print), lambda _: InProcess())) == facts(report)
            assert partitions(apart) == partitions(output)
        return verify_snapshot(output), report

    rule, snapshot, on_last = life.rule, tmp_path / "snapshot", list[str]()
    if rule.base:
        on_last = ["--base", str(tmp_path / "base")]
        life.live_until(rule.base)
        rebuilt_from(rule.sources[0], tmp_path / "base")
    life.live_until(rule.early)
    rebuilt = own = life.snapshot()
    lived = life.remembered(own, tmp_path / "own")
    for number, source in enumerate(rule.sources):
        more = on_last if number == len(rule.sources) - 1 else []
        rebuilt, report = rebuilt_from(source, snapshot, *more)
        assert life.remembered(rebuilt, snapshot) == lived, source
        assert (rebuilt.id_spec, rebuilt.window) == (own.id_spec, own.window)
        assert (rebuilt.group, rebuilt.vouched) == ((None, True) if rule.whole_topic else (life.group, False))
        assert report.id_spec == own.id_spec
        assert (report.base_marks > 0) == ("--base" in more)
        assert "--base" not in more or report.records == len(life.between(rule.base, rule.early))
        assert not rule.in_units or any(each.high < rule.early for each in rebuilt.partitions)
        assert rule.expires or dedup(["snapshots", "diff", str(snapshot), str(tmp_path / "own")]) == 0

    if rule.shared:
        url = request.getfixturevalue("redis").url
        assert dedup(["snapshots", "load", str(snapshot), url]) == 0
        with closing(RedisStore(url, timeout=30.0)) as store:
            told, must = life.told_by_shared(own, store)
        assert told == must

    came = life.go_on(snapshot)
    before, expected = life.would_be_handed_out()
    again = {position for position in came if position in before}
    assert sorted(position for position in came if position not in again) == sorted(expected)
    # Records above the cut come again on another disk, as ever.
    cuts = {each.partition: each.high for each in rebuilt.partitions}
    assert all(offset >= cuts[partition] for partition, offset in again)
