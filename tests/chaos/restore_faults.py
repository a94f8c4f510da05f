"""The scenario in which a broker is restored from a backup of its disk."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.chaos.group_offsets import await_committed, ends, send_apart, stands, start_all
from tests.chaos.history import BEFORE_A_RESTORE, Rewind
from tests.chaos.operator_faults import stop_somehow
from tests.chaos.scenario import Scenario
from tests.chaos.stage import Stage
from tests.chaos.topic_log import read_log

_LEAST_ROUNDS: Final = 2
_MORE: Final = 20
_WORK_S: Final = 2.0


def _restored_broker(stage: Stage) -> None:
    """Back the disk up, go on for a while, put the backup back, and send others before the workers come."""
    data = stage.bed.kafka.data
    if data is None:
        raise RuntimeError("the broker's disk is out of reach")
    backup = stage.folder / "backup"
    while len(stands(stage)) < stage.watch.partitions:
        stage.sleep(0.2)
    rounds = 0
    while rounds < _LEAST_ROUNDS or stage.left_s > 0:
        stage.await_work()
        shutil.rmtree(backup, ignore_errors=True)
        per_second = stage.sender.pause()
        stage.restart_broker(0, lambda: _copy(data, backup))
        stage.faults["backup"] += 1
        stage.sender.resume(per_second)
        stage.await_work()
        stage.about(_WORK_S)
        per_second = stage.sender.pause()
        stage.sender.confirm()
        stop_somehow(stage)
        lost = _restore(stage, backup, data)
        # As a rule more than there were, so that the log does not look short to anybody.
        share = 1.0 if rounds == 0 else stage.random.choice([0.3, 1.0, 1.0])
        if share < 1:
            # A store of before looks longer than the log, to whichever host comes to have the partition: that host goes
            # back to the end of the backup, also where another one has handled the records behind it by then.
            for partition, end in stage.restores[-1][1].items():
                stage.excuses.append(Rewind(partition=partition, low=end, high=end + lost[partition]))
        count = stage.watch.partitions * (round(share * max(lost.values(), default=0)) + _MORE)
        send_apart(stage, [b"other-%d-%d" % (rounds, number) for number in range(count)])
        start_all(stage)
        await_committed(stage)
        stage.sender.resume(per_second)
        rounds += 1


def _copy(data: Path, to: Path) -> None:
    shutil.copytree(data, to)


def _restore(stage: Stage, backup: Path, data: Path) -> Counter[int]:
    """Put the backup back, and tell the oracle; return how many records of each partition are lost."""
    before = read_log(stage.bed.kafka.bootstrap, stage.topic, stage.watch.partitions)
    # Records that an earlier restore took away had the same offsets.
    since_ns = stage.restores[-1][0] if stage.restores else 0
    handled = {(call.partition, call.offset) for call in stage.handled() if call.ended_ns > since_ns}
    stage.bed.kafka.kill()
    shutil.rmtree(data)
    _copy(backup, data)
    at_ns = time.monotonic_ns()
    stage.bed.kafka.start()
    stage.faults["restore"] += 1
    end, committed = ends(stage), stage.watch.patiently()
    stage.restores.append((at_ns, end))
    elsewhere = BEFORE_A_RESTORE * len(stage.restores)
    lost = [record for record in before if record.offset >= end[record.partition]]
    # Records that nobody had handled are gone for good.
    stage.gone += [
        record._replace(partition=record.partition + elsewhere)
        for record in lost
        if (record.partition, record.offset) in handled
    ]
    for partition, offset in end.items():
        stage.excuses.append(Rewind(partition=partition, low=committed.get(partition, 0), high=offset))
        stage.excuses.append(Rewind(partition=partition + elsewhere, low=offset, high=2**62))
    return Counter(record.partition for record in lost)


RESTORED_BROKER: Final = Scenario(
    name="restored-broker",
    summary="the broker's disk is put back to a backup, with the group's offsets, and others are sent in place "
    "of the lost ones",
    play=_restored_broker,
    broken="believe-the-old-log",
    disks=None,
    per_second=60.0,
    work_ms=2.0,
    short_s=20.0,
    copies_the_disk=True,
)
