from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dedup_sdk._store.memory import MemoryStore
from dedup_sdk._store.protocol import KeyStore, PartitionStore
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._window import Window
from tests.support.marks import IDENTITY

WINDOW = Window(days=7)


@pytest.fixture(params=["memory", "rocks"])
def key_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyStore]:
    """Each kind of key store, empty."""
    store: KeyStore = (
        MemoryStore() if request.param == "memory" else RocksStore(tmp_path / "store", generation_marks=1)
    )
    yield store
    store.close()


@pytest.fixture
def store(key_store: KeyStore) -> PartitionStore:
    """A partition store of each kind, new."""
    return key_store.open(IDENTITY, WINDOW)
