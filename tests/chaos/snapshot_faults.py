"""A scenario in which stores are lost, and the snapshots to recover them from are damaged."""

from __future__ import annotations

import time
from typing import Final

from tests.chaos.damage import flip_bytes
from tests.chaos.process_faults import start_on_an_empty_disk
from tests.chaos.scenario import Scenario
from tests.chaos.sender import repeating
from tests.chaos.snapshots import write_snapshot
from tests.chaos.stage import Stage
from tests.chaos.topic_log import read_log

_ASK_S: Final = 10.0
_PATIENCE_S: Final = 120.0
_WINDOW: Final = "7d"


def _snapshots(stage: Stage) -> None:
    _await_commits(stage)
    stage.stop_all()
    place = stage.folder / "snapshots"
    _take(stage, 0, damaged=False)
    stage.equip(snapshot=str(place))
    for host in range(3):
        stage.start(host)
    number = 0
    while number == 0 or stage.left_s > 0:
        number += 1
        stage.await_work()
        # Newer than the last whole one, so that it is the one to be tried first.
        _take(stage, number, damaged=True)
        run = stage.some_run()
        if run is not None:
            start_on_an_empty_disk(stage, run)
        stage.about(2.0)


def _await_commits(stage: Stage) -> None:
    """Wait until there is a history in every partition."""
    deadline = time.monotonic() + _PATIENCE_S
    while not all(stage.watch.patiently().get(each, 0) for each in range(stage.watch.partitions)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{stage.topic}: some partition has no commit after {_PATIENCE_S:g} s")
        stage.sleep(0.2)


def _take(stage: Stage, number: int, *, damaged: bool) -> None:
    """Make a snapshot of the commits by now, which is there whole or not at all.

    ``damaged``: bytes of each part are flipped.
    """
    log = read_log(stage.bed.kafka.bootstrap, stage.topic, stage.watch.partitions)
    making = stage.folder / f"snapshot-{number}"
    committed = stage.watch.patiently()
    cuts = {partition: committed.get(partition, 0) for partition in range(stage.watch.partitions)}
    write_snapshot(
        making, log, cuts, cluster=str(stage.admin.list_topics(timeout=_ASK_S).cluster_id),
        group=stage.topic, window=_WINDOW, number=number,
    )  # fmt: skip
    for part in sorted(path for path in making.iterdir() if path.is_dir()) if damaged else []:
        kind = flip_bytes(part, stage.random)
        if kind:
            stage.faults[f"snapshot-damage-{kind}"] += 1
    (stage.folder / "snapshots").mkdir(exist_ok=True)
    making.rename(stage.folder / "snapshots" / str(number))


SNAPSHOTS: Final = Scenario(
    name="snapshots",
    summary="stores are lost, and bytes are flipped in the newest snapshot to recover from",
    play=_snapshots,
    broken="install-unchecked",
    window=_WINDOW,
    recent_marks=300,
    recipe=repeating,
)
