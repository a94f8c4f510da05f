"""Spark's event log: the bytes of a run's shuffle, and of its tasks' results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_READS: Final = "ShuffleMapTask"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """The tasks of a run that succeeded.

    ``shuffle_bytes`` is after compression. ``read_result_bytes`` and ``write_result_bytes`` are those that a task
    sends to the driver, at most: one that writes into the shuffle, one behind it.
    """

    reads: int
    writes: int
    shuffle_bytes: int
    read_result_bytes: int
    write_result_bytes: int


def settings(folder: Path) -> str:
    """Return the arguments of spark-submit for one uncompressed log in a folder."""
    return (
        f"--conf spark.eventLog.enabled=true --conf spark.eventLog.dir={folder.as_uri()}"
        " --conf spark.eventLog.compress=false --conf spark.eventLog.rolling.enabled=false"
    )


def read_tasks(lines: Iterable[str]) -> Tasks:
    """Return the tasks that a log tells of."""
    results: dict[bool, list[int]] = {True: [], False: []}
    shuffled = 0
    for line in lines:
        if '"SparkListenerTaskEnd"' not in line:
            continue
        event = json.loads(line)
        if event["Task End Reason"]["Reason"] != "Success":
            continue
        found = event["Task Metrics"]
        shuffled += found["Shuffle Write Metrics"]["Shuffle Bytes Written"]
        results[event["Task Type"] == _READS].append(found["Result Size"])
    return Tasks(
        reads=len(results[True]),
        writes=len(results[False]),
        shuffle_bytes=shuffled,
        read_result_bytes=max(results[True], default=0),
        write_result_bytes=max(results[False], default=0),
    )
