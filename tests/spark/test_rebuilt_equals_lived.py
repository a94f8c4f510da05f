"""Rebuilt = lived, by the whole job: what a group remembers that lived through its topic, from Kafka and from archives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dedup_sdk._cli.app import run as dedup
from dedup_sdk._store.snapshot import verify_snapshot
from spark_backfill.backfill import backfill
from spark_backfill.options import parse_options
from tests.support.lived_topics import RULES, Life

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(420)]


@pytest.fixture
def life(request: pytest.FixtureRequest, broker: Broker, tmp_path: Path) -> Life:
    """A group with a history of its own."""
    return Life(request.param, broker, tmp_path)


@pytest.mark.parametrize("life", RULES, indirect=True)
def test_every_source_gives_what_the_group_remembers(life: Life, spark: SparkSession, tmp_path: Path) -> None:
    """The group's own snapshot and the job's are the same; who begins with that goes on as if it had lived through all."""
    own = life.live()
    lived = life.remembered(own, tmp_path / "own")
    snapshot, rebuilt = tmp_path / "snapshot", own
    for source in life.rule.sources:
        given = [*life.given, *life.source(source), "--output", str(snapshot), "--overwrite"]
        said: list[str] = []
        report = backfill(parse_options(given, print), lambda: spark, say=said.append)
        rebuilt = verify_snapshot(snapshot)
        assert life.remembered(rebuilt, snapshot) == lived, source
        assert (rebuilt.id_spec, rebuilt.window) == (own.id_spec, own.window)
        assert (rebuilt.group, rebuilt.vouched) == (
            (None, True) if life.rule.whole_topic else (life.group, False)
        )
        assert report.id_spec == own.id_spec
        assert not any(line.startswith("warning: ") for line in said), source
        assert not life.rule.in_units or any(each.high < life.rule.early for each in rebuilt.partitions)
        assert life.rule.expires or dedup(["snapshots", "diff", str(snapshot), str(tmp_path / "own")]) == 0

    came = life.go_on(snapshot)
    before, expected = life.would_be_handed_out()
    again = {position for position in came if position in before}
    assert sorted(position for position in came if position not in again) == sorted(expected)
    # What lies above the cut comes again on another disk, as ever.
    cuts = {each.partition: each.high for each in rebuilt.partitions}
    assert all(offset >= cuts[partition] for partition, offset in again)
