from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import s3fs

from dedup_sdk import Recovery
from dedup_sdk._cli.app import run
from dedup_sdk._store.manifest import read_manifest
from dedup_sdk._store.snapshot_copy import publish_snapshot
from tests.support.consuming import poll_quiet, poll_some, replayed, values
from tests.support.s3 import s3_server

if TYPE_CHECKING:
    from pathlib import Path

    from tests.mock.conftest import Make, Send


def test_another_host_takes_over_from_a_snapshot_of_a_running_consumer(
    make: Make, send: Send, tmp_path: Path
) -> None:
    """The consumer goes on while it is made; on another disk nothing comes again, and nothing is missing."""
    first = make("orders", store=tmp_path / "one")
    send("a", "b", "c", "a")
    assert values(poll_some(first, 3)) == ["a", "b", "c"]
    first.commit(asynchronous=False)
    snapshot = tmp_path / "snapshot"
    assert run(["snapshot", "--store", str(tmp_path / "one"), "--output", str(snapshot), "--quiet"]) == 0
    send("d", "b", "e")
    assert values(poll_quiet(first)) == ["d", "e"]
    first.close()
    (entry,) = read_manifest(snapshot).partitions
    assert 3 <= entry.high <= 4
    assert entry.marks == 3

    second = make("orders", store=tmp_path / "two", recovery=Recovery(snapshot=snapshot))
    send("a", "e", "f", "d", "b", "c")
    assert values(poll_quiet(second)) == ["f"]
    [status] = second.partition_statuses
    assert "snapshot of 3 marks" in status.detail
    assert replayed(second) == 7 - entry.high
    assert second.counters.verdicts["unverified"] == 0


def test_a_store_restored_from_it_goes_on_where_the_group_is(make: Make, send: Send, tmp_path: Path) -> None:
    """A store that `dedup restore` makes of it is the consumer's own: messages after the cut are replayed, no more."""
    first = make("orders", store=tmp_path / "one")
    send("a", "b")
    assert values(poll_some(first, 2)) == ["a", "b"]
    first.commit(asynchronous=False)
    snapshot = str(tmp_path / "snapshot")
    assert run(["snapshot", "--store", str(tmp_path / "one"), "--output", snapshot, "--quiet"]) == 0
    send("c")
    assert values(poll_quiet(first)) == ["c"]
    first.close()
    assert run(["restore", "--snapshot", snapshot, "--store", str(tmp_path / "two"), "--quiet"]) == 0

    second = make("orders", store=tmp_path / "two")
    send("a", "b", "c", "d")
    assert values(poll_quiet(second)) == ["d"]
    assert replayed(second) == 1


@pytest.mark.slow
def test_a_consumer_takes_a_snapshot_from_an_object_store(
    make: Make, send: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a URL, a consumer without a store fetches its part, and replays only later messages."""
    first = make("orders", store=tmp_path / "one")
    send("a", "b", "c")
    assert values(poll_quiet(first)) == ["a", "b", "c"]
    first.close()
    snapshot = str(tmp_path / "snapshot")
    assert run(["snapshot", "--store", str(tmp_path / "one"), "--output", snapshot, "--quiet"]) == 0
    with s3_server() as (_, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("bucket")
        publish_snapshot(snapshot, "s3://bucket/snapshots/today")

        second = make("orders", store=tmp_path / "two", recovery=Recovery(snapshot="s3://bucket/snapshots"))
        send("a", "d", "c")
        assert values(poll_quiet(second)) == ["d"]
        [status] = second.partition_statuses
        assert "snapshot of 3 marks" in status.detail
        assert replayed(second) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "snapshot", "two"]
