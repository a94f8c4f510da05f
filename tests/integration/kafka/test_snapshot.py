from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from dedup_sdk import Recovery
from dedup_sdk._cli.app import run
from dedup_sdk.errors import SnapshotError
from tests.support.consuming import PATIENCE_S, poll_quiet, values
from tests.support.stored import snapshot_of, stored_marks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.worlds import World


@pytest.fixture
def past(world: World) -> World:
    """A world whose group has handled a, b, c, d on machine "one". Its topic then bears e and all of them again."""
    world.send("a", "b", "a", "c", "d")
    world.handle(4)
    world.send("e", "a", "b", "c", "d")
    return world


def test_a_snapshot_stands_for_the_past(past: World, tmp_path: Path) -> None:
    """Where the store is missing it is taken over, and only records behind its cut are read again."""
    snapshot = snapshot_of(past.disk(), tmp_path / "snapshot", high=4)

    with past.consumer("two", recovery=Recovery(snapshot=snapshot)) as consumer:
        assert values(poll_quiet(consumer)) == ["e"]
        assert consumer.partition_statuses[0].detail.endswith(", replayed 1 record")
        assert consumer.counters.verdicts["unverified"] == 0
    past.rest("one")
    assert stored_marks(past.disk("two")) == stored_marks(past.disk("one"))


def test_a_store_that_is_there_is_not_replaced(past: World, tmp_path: Path) -> None:
    """A snapshot is for a machine that knows nothing."""
    snapshot = snapshot_of(past.disk(), tmp_path / "snapshot", high=2)

    with past.consumer("one", recovery=Recovery(snapshot=snapshot)) as consumer:
        assert values(poll_quiet(consumer)) == ["e"]
        assert consumer.partition_statuses[0].detail == "resumed"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"group": "another"}, "group='another'"),
        ({"id_spec": "key"}, "id_spec='key'"),
        ({"isolation": "read_uncommitted"}, "isolation='read_uncommitted'"),
        ({"topic_id": "AAAAAAAAAAAAAAAAAAAAAA"}, "topic_id='AAAAAAAAAAAAAAAAAAAAAA'"),
        ({"cluster": "elsewhere"}, "cluster='elsewhere'"),
        ({"window": "7d+5n"}, "lacks the ranks"),
    ],
)
def test_a_snapshot_of_another_history_is_not_taken(
    past: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, str], why: str
) -> None:
    """The log names the difference; the topic's own tail is read instead, so that nothing is lost or doubled."""
    snapshot = snapshot_of(past.disk(), tmp_path / "snapshot", **changes)

    with (
        caplog.at_level(logging.WARNING, "dedup_sdk"),
        past.consumer("two", recovery=Recovery(snapshot=snapshot)) as consumer,
    ):
        assert values(poll_quiet(consumer)) == ["e"]
        assert consumer.partition_statuses[0].detail.endswith(", replayed 5 records")
    assert why in caplog.text


def test_a_snapshot_beyond_the_committed_offset_is_not_taken(
    past: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its marks would make duplicates of records that the group has not handled yet."""
    past.rest("one")
    snapshot = snapshot_of(past.disk(), tmp_path / "snapshot")
    past.commit_plainly(3, metadata=past.text_for(3))

    with caplog.at_level(logging.WARNING, "dedup_sdk"):
        assert past.rest("two", recovery=Recovery(snapshot=snapshot)) == ["c", "d", "e"]
    assert "reaches offset 10 of partition 0, beyond 3" in caplog.text


def test_a_snapshot_from_before_the_groups_history_is_not_taken(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages the group skipped it has not handled, whoever says so without being asked to vouch."""
    world.send("a", "b", "c", "d")
    world.handle(4)
    snapshot = snapshot_of(world.disk(), tmp_path / "snapshot", high=2)
    world.commit_plainly(3)
    world.handle(1, "three")
    world.send("a", "d")

    with caplog.at_level(logging.WARNING, "dedup_sdk"):
        assert world.rest("two", recovery=Recovery(snapshot=snapshot)) == ["a"]
    assert "it begins at offset 0, before this group's own history at 3" in caplog.text


def test_a_vouched_snapshot_stands_for_a_plain_groups_past(world: World, tmp_path: Path) -> None:
    """Whoever makes one without a group vouches for it.

    A group that existed before us knows its past from the first record.
    """
    world.send("a", "b", "c", "d")
    world.handle(4)
    snapshot = snapshot_of(world.disk(), tmp_path / "snapshot", group=None, vouched=True)
    world.commit_plainly(4)
    world.send("a", "e", "c")

    assert world.rest("two", recovery=Recovery(snapshot=snapshot)) == ["e"]


def test_a_snapshot_that_cannot_be_read_is_an_error_in_one_line(past: World, tmp_path: Path) -> None:
    """Nothing is delivered from a wrong place: the folder is named, and the remedy."""
    consumer = past.consumer("two", recovery=Recovery(snapshot=tmp_path / "nowhere"))

    with pytest.raises(SnapshotError, match="nowhere") as caught:
        consumer.poll(PATIENCE_S)
    assert "\n" not in str(caught.value)


def test_a_damaged_snapshot_is_an_error(past: World, tmp_path: Path) -> None:
    """Files that differ from the manifest are never taken over."""
    snapshot = snapshot_of(past.disk(), tmp_path / "snapshot")
    file = next(snapshot.rglob("*.sst"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)

    with pytest.raises(SnapshotError, match="SHA-256"):
        past.consumer("two", recovery=Recovery(snapshot=snapshot)).poll(PATIENCE_S)


def test_a_store_restored_after_a_rewind_is_not_taken_for_rewound(past: World, tmp_path: Path) -> None:
    """A snapshot of a store knows since which rewind it is.

    So the store made of it goes on instead of being folded again.
    """
    command = ["--bootstrap", past.bootstrap, "--group", past.group, "--topic", past.topic]
    assert run(["rewind", *command, "--to-offset", "2", "--execute", "--quiet"]) == 0
    past.rest("one")
    snapshot, two = str(tmp_path / "snapshot"), str(past.disk("two"))
    assert run(["snapshot", "--store", str(past.disk("one")), "--output", snapshot, "--quiet"]) == 0
    assert run(["restore", "--snapshot", snapshot, "--store", two, "--quiet"]) == 0

    with past.consumer("two") as consumer:
        assert values(poll_quiet(consumer)) == []
        assert consumer.partition_statuses[0].detail == "resumed"
