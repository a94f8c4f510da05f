"""Running ``dedup`` inside the test's process, and key stores to look into."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pytest

from dedup_sdk._cli.app import run
from dedup_sdk._marks import Known, Marks, Progress
from dedup_sdk._store.protocol import Identity
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._window import Window
from dedup_sdk.ids import digest_parts

if TYPE_CHECKING:
    from pathlib import Path

NEWEST_MS = 1_700_000_000_000
_OTHERS = re.compile(r"^%\d\|.*\|rdkafka#producer-.*\n", re.MULTILINE)
"""A line of a producer of an earlier test about a broker that is gone; no command has one."""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    status: int
    stdout: str
    stderr: str


class Dedup(Protocol):
    """Runs ``dedup`` with arguments."""

    def __call__(self, *arguments: str) -> Done:
        """Return how it ended."""


@pytest.fixture
def dedup(capfd: pytest.CaptureFixture[str]) -> Dedup:
    """The command, as its entry point runs it."""

    def call(*arguments: str) -> Done:
        capfd.readouterr()
        status = run(arguments)
        output = capfd.readouterr()
        return Done(status, output.out, _OTHERS.sub("", output.err))

    return call


class WriteStore(Protocol):
    """Writes the store of one partition: the given IDs at consecutive offsets, flushed or only in the journal."""

    def __call__(
        self,
        *ids: str | list[bytes],
        partition: int = 0,
        group: str = "billing",
        id_spec: str = "header:dedup-id",
    ) -> Path:
        """Return the store's folder."""


@pytest.fixture
def write_store(tmp_path: Path) -> WriteStore:
    """Key stores as a consumer leaves them: half of the marks in a sorted file, half in the journal."""

    def write(
        *ids: str | list[bytes], partition: int = 0, group: str = "billing", id_spec: str = "header:dedup-id"
    ) -> Path:
        parts = [[each.encode()] if isinstance(each, str) else each for each in ids]
        half = len(parts) // 2
        store = RocksStore(tmp_path / "store")
        identity = Identity(cluster="c1", group=group, topic="orders", partition=partition, id_spec=id_spec)
        opened = store.open(identity, Window(days=7))
        opened.flush(_progress(half), _marks(parts, 0, half))
        opened.append(_progress(len(parts)), _marks(parts, half, len(parts)))
        store.close()
        return tmp_path / "store"

    return write


def _progress(high: int) -> Progress:
    return Progress(low=0, high=high, committed=high, known=Known(newest_ms=NEWEST_MS + high - 1))


def _marks(parts: list[list[bytes]], begin: int, end: int) -> Marks:
    offsets = np.arange(begin, end, dtype=np.int64)
    return Marks(b"".join(digest_parts(each) for each in parts[begin:end]), offsets, offsets + NEWEST_MS)
