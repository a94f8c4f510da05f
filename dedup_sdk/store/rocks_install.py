"""Taking the files of a snapshot into a new generation, without anything of it being valid yet."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from pathlib import Path

from dedup_sdk.errors import SnapshotError, StoreCorruptError
from dedup_sdk.store.filter_words import FilterWords, decode_words, merge_words
from dedup_sdk.store.generations import Generation, State
from dedup_sdk.store.manifest import PartitionManifest
from dedup_sdk.store.rocks_generations import RocksGenerations
from dedup_sdk.store.snapshot import reading_file
from dedup_sdk.store.sorted_file import FILTER_SUFFIX, SORTED_SUFFIX, SortedFile


def copy_in(
    snapshot: str, entry: PartitionManifest, generations: RocksGenerations, *, move: bool
) -> Generator[None, None, State]:
    """Copy and check the files, take them into a generation of their own, return the state that has nothing else.

    ``move``: the files were checked, and are moved. A megabyte a step, as long as files are copied; their filter words are one step a file, and another for all of them together.
    Raises `SnapshotError` naming the file or folder; what was begun is then to be removed by ``generations.clean()``.
    """
    folder = Path(snapshot) / str(entry.partition)
    if not entry.files:
        return State(next_number=generations.state.next_number)
    for file in entry.files:
        if move:
            _move(folder, file, generations.incoming)
        else:
            yield from reading_file(folder, file, generations.incoming)
    blocks: list[FilterWords] = []
    for file in sorted(entry.files, key=lambda file: file.smallest):
        blocks.append(_words(folder, generations.incoming, file))
        yield
    words = merge_words(blocks)
    yield
    empty = generations.create()
    try:
        generations.ingest(
            empty, [generations.incoming / f"{file.name}{SORTED_SUFFIX}" for file in entry.files]
        )
    except Exception as error:
        message = f"{folder}: RocksDB refuses its sorted files ({error}); make the snapshot again"
        raise SnapshotError(message) from error
    pages = generations.pages(empty)
    if pages != len(words.pages):
        message = f"{folder}: its sorted files have {pages} pages, its filter words say {len(words.pages)}; make the snapshot again"
        raise SnapshotError(message)
    yield
    newest_ms = max(file.newest_ms for file in entry.files)
    newest_number = max(file.newest_number or 0 for file in entry.files)
    generation = Generation(
        number=empty.number,
        marks=entry.marks,
        oldest_ms=min(file.oldest_ms for file in entry.files),
        newest_ms=newest_ms,
        newest_number=newest_number,
        began_ms=newest_ms,
        began_number=newest_number,
        extents=(generations.write_words(empty, words),),
        sealed=True,
    )
    return State(generations=(generation,), next_number=empty.number + 1, top_offset=entry.high - 1)


def _move(folder: Path, file: SortedFile, target: Path) -> None:
    for suffix in (SORTED_SUFFIX, FILTER_SUFFIX):
        path = folder / f"{file.name}{suffix}"
        try:
            shutil.move(path, target / path.name)
        except OSError as error:
            raise SnapshotError(
                f"{path} cannot be moved to {target}: {error.strerror}; make room there"
            ) from error


def _words(folder: Path, incoming: Path, file: SortedFile) -> FilterWords:
    path = folder / f"{file.name}{FILTER_SUFFIX}"
    try:
        words = merge_words(decode_words((incoming / path.name).read_bytes()))
    except StoreCorruptError as error:
        message = f"{path}: {error}; make the snapshot again"
        raise SnapshotError(message) from error
    if words.count != file.marks:
        message = (
            f"{path} has {words.count} words, the manifest says {file.marks} marks; make the snapshot again"
        )
        raise SnapshotError(message)
    return words
