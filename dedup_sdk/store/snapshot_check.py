"""Whether a snapshot's files are what its manifest says of them, mark by mark."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dedup_sdk.errors import SnapshotError, StoreCorruptError
from dedup_sdk.marks import DIGEST_BYTES, Marks, elsewhere
from dedup_sdk.store.filter_words import FilterWords, decode_words, filter_words, merge_words
from dedup_sdk.store.fingerprint import NO_FINGERPRINT, fingerprint, sum_fingerprints
from dedup_sdk.store.pages import Uint64s, digest_words
from dedup_sdk.store.snapshot_reader import read_sorted_file
from dedup_sdk.store.snapshot_source import Source
from dedup_sdk.store.sorted_file import FILTER_SUFFIX, SORTED_SUFFIX, SortedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFile:
    """One sorted file that was read from end to end; ``problems`` has one line for each thing that differs from the manifest."""

    path: str
    marks: int
    problems: tuple[str, ...]


def check_snapshot(source: Source, beside: Path | None = None) -> Iterator[CheckedFile]:
    """Open every file of a snapshot, and yield what was found of each, in the order of the manifest.

    Of each are checked: size and SHA-256 (also of its filter words), the order of its digests, how many they are, the
    smallest and the largest, timestamps, acceptance numbers, how many have payloads, that all offsets lie below the cut (those of other partitions count from there on), the fingerprint, and that
    its filter words are those of its digests. ``beside``: where a file is copied to meanwhile [the temporary folder].
    """
    for entry in source.manifest.partitions:
        for file in entry.files:
            with tempfile.TemporaryDirectory(prefix="dedup-verify-", dir=beside) as scratch:
                yield _checked(source, entry.partition, entry.low, entry.high, file, Path(scratch))


@dataclass(slots=True)
class _Seen:
    """What the marks of a file say of it, page by page."""

    marks: int = 0
    smallest: str = ""
    largest: str = ""
    oldest_ms: int = 2**63 - 1
    newest_ms: int = -(2**63)
    newest_number: int | None = None
    payloads: int = 0
    fingerprint: str = NO_FINGERPRINT
    first_offset: int = 2**63 - 1
    last_offset: int = -1
    last_cut: int = -1
    disorder: str = ""
    words: list[FilterWords] = field(default_factory=list)

    def add(self, page: Marks) -> None:
        first, last = page.digests[:DIGEST_BYTES].hex(), page.digests[-DIGEST_BYTES:].hex()
        high, low = digest_words(page.digests)
        ascends = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
        if not self.disorder and (first <= self.largest or not ascends.all()):
            at = 0 if first <= self.largest else int(np.argmin(ascends)) + 1
            self.disorder = page.digests[DIGEST_BYTES * at : DIGEST_BYTES * (at + 1)].hex()
        self.smallest, self.largest = self.smallest or first, last
        self.oldest_ms = min(self.oldest_ms, int(page.timestamps.min()))
        self.newest_ms = max(self.newest_ms, int(page.timestamps.max()))
        here = page.offsets[page.offsets >= 0]
        if here.size:
            self.first_offset = min(self.first_offset, int(here.min()))
            self.last_offset = max(self.last_offset, int(here.max()))
        self.last_cut = max(self.last_cut, elsewhere(int(page.offsets.min())))
        if page.numbers is not None:
            self.newest_number = max(self.newest_number or 0, int(page.numbers.max()))
        self.marks += page.count
        self.payloads += sum(map(bool, page.payloads or ()))
        self.fingerprint = sum_fingerprints((self.fingerprint, fingerprint((page,))))
        self.words.append(filter_words(page.digests))


def _checked(
    source: Source, partition: int, low: int, high: int, file: SortedFile, scratch: Path
) -> CheckedFile:
    name = f"{source.place}/{partition}/{file.name}"
    path = f"{name}{SORTED_SUFFIX}"
    seen = _Seen()
    try:
        source.copy(partition, file, scratch)
        for page in read_sorted_file(scratch, file, path):
            seen.add(page)
    except SnapshotError as error:
        return CheckedFile(path=path, marks=seen.marks, problems=(str(error),))
    problems = [
        f"{path}: {each}={getattr(seen, each)!r}, the manifest says {getattr(file, each)!r}"
        for each in (
            "marks",
            "payloads",
            "smallest",
            "largest",
            "oldest_ms",
            "newest_ms",
            "newest_number",
            "fingerprint",
        )
        if getattr(seen, each) != getattr(file, each)
    ]
    if seen.disorder:
        problems.append(f"{path}: digest {seen.disorder} does not ascend")
    if seen.last_offset >= 0 and not low <= seen.first_offset <= seen.last_offset < high:
        problems.append(
            f"{path}: offsets {seen.first_offset} to {seen.last_offset} are not inside [{low}, {high})"
        )
    if seen.last_cut > high:
        problems.append(f"{path}: marks of other partitions count from {seen.last_cut} on, beyond {high}")
    if wrong := _wrong_words(scratch / f"{file.name}{FILTER_SUFFIX}", merge_words(seen.words)):
        problems.append(f"{name}{FILTER_SUFFIX}: {wrong}")
    return CheckedFile(path=path, marks=seen.marks, problems=tuple(problems))


def _wrong_words(path: Path, expected: FilterWords) -> str | None:
    try:
        words = merge_words(decode_words(path.read_bytes()))
    except StoreCorruptError as error:
        return str(error)
    if np.array_equal(_joined(words), _joined(expected)):
        return None
    return f"its {words.count} filter words are not those of the {expected.count} digests: look-ups would miss some"


def _joined(words: FilterWords) -> Uint64s:
    """Each word as one number, sorted: those of one rank may stand in any order."""
    return np.sort((words.ranks.astype(np.uint64) << np.uint64(16)) | words.patterns)
