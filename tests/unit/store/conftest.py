from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dedup_sdk._store.rocks import RocksPartition, RocksStore
from dedup_sdk._window import Window
from tests.support.marks import IDENTITY
from tests.support.s3 import bucket as bucket  # noqa: PLC0414 (a fixture of the tests here)
from tests.support.s3 import server as server  # noqa: PLC0414


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the store lies."""
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> Iterator[RocksPartition]:
    """An open partition store with a window of a week."""
    partition = RocksStore(root).open(IDENTITY, Window(days=7))
    yield partition
    partition.close()
