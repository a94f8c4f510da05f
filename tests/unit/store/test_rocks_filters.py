"""Filters of a RocksDB store, its own and RocksDB's.

They are there when it opens again, and made again when they are damaged.
"""

from __future__ import annotations

import errno
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from rocksdict import Options

from dedup_sdk._store.filter_set import FilterSet
from dedup_sdk.errors import StoreUnavailableError
from tests.support.marks import digest, marks, progress, random_marks
from tests.support.stored import only_folder, open_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dedup_sdk._store.rocks import RocksPartition

DAY_MS = 86_400_000


def test_options_survive_a_reopening(root: Path, store: RocksPartition) -> None:
    """After reopening, every generation still has RocksDB's Bloom filter, by RocksDB's own account."""
    store.flush(progress(1), marks(("a", 0, 0)))
    assert store.stats().details == {"generations": 1, "bloom_generations": 1}
    store.close()
    again = open_store(root)
    assert again.stats().details == {"generations": 1, "bloom_generations": 1}
    again.close()


def test_a_store_without_bloom_filters_says_so(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where RocksDB's Bloom filters are off, the store works, logs an error and counts it."""
    store = open_store(root)
    store.flush(progress(1), marks(("a", 0, 0)))
    store.close()
    monkeypatch.setattr(
        "dedup_sdk._store.database.generation_options", lambda *_, **__: Options(raw_mode=True)
    )
    with caplog.at_level(logging.ERROR):
        again = open_store(root)
    assert "Bloom filters are off" in caplog.text
    assert again.stats().details["bloom_generations"] == 0
    assert again.find(digest("a"), 1).offsets == [0]
    again.close()


@pytest.mark.parametrize("damage", ["missing", "cut", "changed", "empty"])
def test_damaged_filter_words_are_made_again(
    root: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Filter words that are missing or damaged are made again from the keys, with a warning, and nothing is missed."""
    store = open_store(root)
    held = random_marks(5_000, 1)
    store.flush(progress(5_000), held)
    store.close()
    (path,) = (only_folder(root) / "filters").glob("*.filter")
    (path.parent / "image").unlink()
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {"cut": data[:-10], "changed": data[:-1] + bytes([data[-1] ^ 1]), "empty": b""}[damage]
        )
    with caplog.at_level(logging.WARNING):
        again = open_store(root)
    assert "rebuilding them from its keys" in caplog.text
    assert len(again.find(held.digests, 5_000).indexes) == 5_000
    again.flush(progress(5_001), marks(("a", 5_000, 0)))
    again.close()
    caplog.clear()
    once_more = open_store(root)
    assert caplog.text == ""
    assert len(once_more.find(held.digests + digest("a"), 5_001).indexes) == 5_001
    once_more.close()


def test_filters_are_there_at_once_when_a_store_opens_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that was closed in order opens without reading filter words.

    After a flush and a crash it reads them, and misses nothing.
    """
    held, later = random_marks(5_000, 1), random_marks(5_000, 2)
    store = open_store(root)
    store.flush(progress(5_000), held)
    store.close()
    read: list[int] = []
    real = FilterSet.load

    def load(filters: FilterSet, generation: int, extents: Sequence[int]) -> int:
        read.append(generation)
        return real(filters, generation, extents)

    monkeypatch.setattr(FilterSet, "load", load)
    again = open_store(root)
    assert read == []
    assert len(again.find(held.digests, 5_000).indexes) == 5_000
    image = (only_folder(root) / "filters" / "image").read_bytes()
    again.flush(progress(10_000), later)
    again.close()
    # As if it had died after the flush, or an older file had come back.
    (only_folder(root) / "filters" / "image").write_bytes(image)
    once_more = open_store(root)
    assert read == [1]
    assert len(once_more.find(held.digests + later.digests, 10_000).indexes) == 10_000
    once_more.close()


def test_what_goes_is_forgotten_also_where_its_words_are_gone(root: Path) -> None:
    """Somebody deleted the file of words of a generation.

    When that is dropped its IDs are new, and the others stay known.
    """
    store = open_store(root, generation_marks=1)
    old, young = random_marks(100, 1), random_marks(100, 2, offset=100)
    young = replace(young, timestamps=old.timestamps + DAY_MS)
    store.flush(progress(100), old)
    store.flush(progress(200), young)
    assert store.stats().details["generations"] == 2
    (only_folder(root) / "filters" / "g1.filter").unlink()
    assert store.evict() is not None
    found = store.find(old.digests + young.digests, 200)
    assert found.indexes == list(range(100, 200))
    store.close()


def test_what_cannot_be_dropped_now_is_forgotten_all_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB refuses once, e.g. because the disk is full.

    The call fails, and later ones neither fail nor know the IDs.
    """
    store = open_store(root, generation_marks=1)
    old, young = random_marks(100, 1), random_marks(100, 2, offset=100)
    store.flush(progress(100), old)
    store.flush(progress(200), replace(young, timestamps=old.timestamps + DAY_MS))
    with monkeypatch.context() as patch:
        patch.setattr("dedup_sdk._store.generations.Rdict.list_cf", _refused)
        with pytest.raises(StoreUnavailableError):
            store.evict()
    assert store.find(old.digests + young.digests, 200).indexes == list(range(100, 200))
    store.close()
    again = open_store(root)
    assert again.find(old.digests + young.digests, 200).indexes == list(range(100, 200))
    again.close()


def _refused(_folder: str) -> list[str]:
    raise OSError(errno.ENOSPC, "No space left on device")
