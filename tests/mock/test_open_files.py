"""Partitions by the hundred in a process that may open few files, with stores of RocksDB."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk.testing import MockKafka

PARTITIONS = 200


def run(kafka: MockKafka, store: Path, soft: int, hard: int) -> Any:
    """Run a consumer of 200 partitions with these limits, and return what it tells."""
    kafka.create_topic("many", partitions=PARTITIONS)
    command = [sys.executable, "-m", "tests.support.crowded_store", kafka.bootstrap, "many", str(PARTITIONS)]
    done = subprocess.run(
        [*command, str(store), str(soft), str(hard)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(done.stdout)


def test_the_limit_of_a_shell_is_raised(kafka: MockKafka, tmp_path: Path) -> None:
    """All partitions are active, and one line says what was changed."""
    told = run(kafka, tmp_path, 1024, 8192)
    assert (told["active"], told["waiting"]) == (PARTITIONS, 0)
    [line] = [each for each in told["lines"]["INFO"] if "open" in each and "files" in each]
    assert "1,024" in line
    assert "8,192" in line
    assert not {"WARNING", "ERROR"} & set(told["lines"])


def test_a_limit_that_cannot_be_raised(kafka: MockKafka, tmp_path: Path) -> None:
    """One line has both numbers and the setting, some partitions work, and the process can still open files."""
    told = run(kafka, tmp_path, 256, 256)
    assert told["active"] > 5
    assert told["waiting"] == PARTITIONS - told["active"]
    [line] = told["lines"]["ERROR"]
    assert f"{told['active']} of {PARTITIONS} partitions" in line
    assert "256" in line
    assert "ulimit" in line
    assert [each for each in told["lines"].get("WARNING", ()) if "store" in each] == []
