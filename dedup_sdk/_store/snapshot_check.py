"""Verifies the files of a snapshot against its manifest, and compares two snapshots of one topic.

Snapshots are compared by merging their sorted files, in bounded memory whatever their size.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from operator import attrgetter, ne
from pathlib import Path

import numpy as np

from dedup_sdk._marks import DIGEST_BYTES, Marks, elsewhere, join_marks, select_marks
from dedup_sdk._masking import shown
from dedup_sdk._store.filter_words import FilterWords, decode_words, filter_words, merge_words
from dedup_sdk._store.fingerprint import NO_FINGERPRINT, fingerprint, payload_word, sum_fingerprints
from dedup_sdk._store.manifest import SortedFile
from dedup_sdk._store.pages import PageReader, Uint64s, digest_words
from dedup_sdk._store.snapshot import FILTER_SUFFIX, SORTED_SUFFIX, read_sorted_file
from dedup_sdk._store.snapshot_source import SnapshotSource, read_source
from dedup_sdk.errors import SnapshotError, StoreCorruptError

_HEX_DIGITS = 2 * DIGEST_BYTES


def mark_texts(marks: Marks) -> Iterator[tuple[str, str]]:
    """Yield the digest (hexadecimal), and offset and timestamp (ms) as text, of each mark.

    For a mark with a payload ``payload=BYTES:CHECKSUM`` follows, so that payloads of equal size can be
    distinguished.
    """
    for digest, offset, timestamp_ms, payload in _rows(marks):
        text = f"{offset} {timestamp_ms}"
        yield (
            digest,
            f"{text} payload={len(payload)}:{payload_word(payload):016x}" if payload else text,
        )


def mark_objects(marks: Marks) -> Iterator[dict[str, str | int]]:
    """Yield the same of each mark as an object for JSON."""
    for digest, offset, timestamp_ms, payload in _rows(marks):
        found: dict[str, str | int] = {"digest": digest, "offset": offset, "timestamp_ms": timestamp_ms}
        if payload:
            found |= {"payload_bytes": len(payload), "payload_checksum": f"{payload_word(payload):016x}"}
        yield found


def _rows(marks: Marks) -> Iterator[tuple[str, int, int, bytes]]:
    digests = marks.digests.hex()
    cut = (digests[at : at + _HEX_DIGITS] for at in range(0, len(digests), _HEX_DIGITS))
    return zip(
        cut, marks.offsets.tolist(), marks.timestamps.tolist(), marks.payloads or repeat(b""), strict=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFile:
    """The result for one sorted file; ``problems`` has one line per difference from the manifest.

    ``last_offset``: the highest offset of its marks, -1 without any.
    """

    path: str
    marks: int
    problems: tuple[str, ...]
    last_offset: int = -1


def check_snapshot(source: SnapshotSource, temp_dir: Path | None = None) -> Iterator[CheckedFile]:
    """Read every file of a snapshot completely, and yield the result of each, layer by layer.

    Checked are: size and SHA-256 of sorted file and filter words; order and number of digests; the smallest
    and the largest; timestamps; acceptance numbers; the number of payloads; that all offsets lie inside
    ``[low, high)``, and above those of all layers before (marks of other partitions: their cut at most ``high``); the
    fingerprint; and that the
    filter words are those of the digests. ``temp_dir``: a folder for temporary copies [the temporary folder].
    """
    for entry in source.manifest.partitions:
        low, last, layer = entry.low, -1, 0
        for file in sorted(entry.files, key=attrgetter("layer")):
            if file.layer != layer:
                low, layer = max(low, last + 1), file.layer
            with tempfile.TemporaryDirectory(prefix="dedup-verify-", dir=temp_dir) as scratch:
                checked = _check_file(source, entry.partition, low, entry.high, file, Path(scratch))
            last = max(last, checked.last_offset)
            yield checked


@dataclass(slots=True)
class _Totals:
    """Totals of the marks of a file, accumulated page by page."""

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
        # Sightings of other partitions have offsets below zero, and a cut instead.
        here = page.offsets[page.offsets >= 0]
        if here.size:
            self.first_offset = min(self.first_offset, int(here.min()))
            self.last_offset = max(self.last_offset, int(here.max()))
        # The lowest offset below zero has the highest cut; without one the result is below zero, and no cut.
        self.last_cut = max(self.last_cut, elsewhere(int(page.offsets.min())))
        if page.numbers is not None:
            self.newest_number = max(self.newest_number or 0, int(page.numbers.max()))
        self.marks += page.count
        self.payloads += sum(map(bool, page.payloads or ()))
        self.fingerprint = sum_fingerprints((self.fingerprint, fingerprint((page,))))
        self.words.append(filter_words(page.digests))


def _check_file(
    source: SnapshotSource, partition: int, low: int, high: int, file: SortedFile, scratch: Path
) -> CheckedFile:
    name = f"{source.place}/{partition}/{file.name}"
    path = f"{name}{SORTED_SUFFIX}"
    seen = _Totals()
    try:
        source.copy(partition, file, scratch)
        for page in read_sorted_file(scratch, file, path):
            seen.add(page)
    except SnapshotError as error:
        return CheckedFile(path=path, marks=seen.marks, problems=(str(error),))
    problems = [
        f"{path}: {each}={shown(getattr(seen, each))}, the manifest says {shown(getattr(file, each))}"
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
        problems.append(f"{path}: marks of other partitions have a cut of {seen.last_cut}, beyond {high}")
    if wrong := _wrong_words(scratch / f"{file.name}{FILTER_SUFFIX}", merge_words(seen.words)):
        problems.append(f"{name}{FILTER_SUFFIX}: {wrong}")
    return CheckedFile(path=path, marks=seen.marks, problems=tuple(problems), last_offset=seen.last_offset)


def _wrong_words(path: Path, expected: FilterWords) -> str | None:
    try:
        words = merge_words(decode_words(path.read_bytes()))
    except StoreCorruptError as error:
        return str(error)
    if np.array_equal(_sorted_words(words), _sorted_words(expected)):
        return None
    return f"its {words.count} filter words are not those of the {expected.count} digests: look-ups would miss some IDs"


def _sorted_words(words: FilterWords) -> Uint64s:
    """Return each word as one number, sorted: words of one rank may be in any order."""
    return np.sort((words.ranks.astype(np.uint64) << np.uint64(16)) | words.patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The differences in one range of digests of one partition, each column ascending.

    ``only_left`` and ``only_right``: marks that only one side has. ``left`` and ``right`` are parallel: the
    same digests, with another offset, timestamp, acceptance number or payload. ``same``: the number of
    equal marks.
    """

    partition: int
    only_left: Marks
    only_right: Marks
    left: Marks
    right: Marks
    same: int

    @property
    def differs(self) -> bool:
        """Whether there is any difference."""
        return bool(self.only_left.count or self.only_right.count or self.left.count)


def diff_snapshots(
    left: SnapshotSource, right: SnapshotSource, temp_dir: Path | None = None
) -> Iterator[Difference]:
    """Yield the differences of two snapshots, partition by partition, in pages.

    ``temp_dir``: a folder for temporary copies [the temporary folder]. Raises `SnapshotError` when they
    cannot be compared (different topic, ID spec or digest), or a file fails its check.
    """
    for name in ("topic", "id_spec", "digest"):
        theirs, ours = getattr(left.manifest, name), getattr(right.manifest, name)
        if theirs != ours:
            raise SnapshotError(
                f"{left.place} is of {name}={shown(theirs)}, {right.place} of {shown(ours)}: their IDs cannot be "
                f"compared"
            )
    numbers = {entry.partition for side in (left, right) for entry in side.manifest.partitions}
    for number in sorted(numbers):
        pages = [_pages(side, number, temp_dir) for side in (left, right)]
        try:
            yield from _merge(number, *pages)
        finally:
            for side in pages:
                side.close()


def _pages(source: SnapshotSource, number: int, temp_dir: Path | None) -> PageReader:
    entry = source.manifest.partition(number)
    return PageReader(iter(()) if entry is None else read_source(source, entry, temp_dir=temp_dir))


def _merge(number: int, left: PageReader, right: PageReader) -> Iterator[Difference]:
    while True:
        has_left, has_right = left.fill(), right.fill()
        if has_left and has_right:
            last = min(left.last, right.last)
            yield _compare(number, left.take(last), right.take(last))
        elif has_left or has_right:
            yield _compare(number, left.take(), right.take())
        else:
            return


def _compare(number: int, left: Marks, right: Marks) -> Difference:
    both = join_marks([left, right])
    high, low = digest_words(both.digests)
    # Stable sort: of two marks with one digest the left one comes first.
    order = np.lexsort((low, high))
    high, low = high[order], low[order]
    # One longer than the rows: the first has no neighbour before, the last none behind.
    equals_previous = np.zeros(len(order) + 1, dtype=np.bool_)
    equals_previous[1:-1] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    single = order[~equals_previous[:-1] & ~equals_previous[1:]]
    ours, theirs = (
        select_marks(both, order[equals_previous[1:]]),
        select_marks(both, order[equals_previous[:-1]]),
    )
    differs = (ours.offsets != theirs.offsets) | (ours.timestamps != theirs.timestamps)
    if ours.numbers is not None and theirs.numbers is not None:
        differs |= ours.numbers != theirs.numbers
    if ours.payloads is not None and theirs.payloads is not None:
        differs |= np.fromiter(map(ne, ours.payloads, theirs.payloads), np.bool_, ours.count)
    at = np.flatnonzero(differs)
    return Difference(
        partition=number,
        only_left=select_marks(both, single[single < left.count]),
        only_right=select_marks(both, single[single >= left.count]),
        left=select_marks(ours, at),
        right=select_marks(theirs, at),
        same=ours.count - len(at),
    )


def lines(difference: Difference) -> Iterator[str]:
    """Yield one line per difference: ``<``, ``>`` or ``!``, partition, digest, and `mark_texts` of each side."""
    for sign, marks in (("<", difference.only_left), (">", difference.only_right)):
        for digest, text in mark_texts(marks):
            yield f"{sign} {difference.partition} {digest} {text}"
    for (digest, ours), (_, theirs) in zip(
        mark_texts(difference.left), mark_texts(difference.right), strict=True
    ):
        yield f"! {difference.partition} {digest} {ours} {theirs}"
