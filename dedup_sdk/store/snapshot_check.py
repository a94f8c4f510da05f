"""Whether a snapshot's files are what its manifest says of them, and which IDs two snapshots of one topic disagree about.

Snapshots are compared by merging their sorted files: bounded memory, whatever their size.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from operator import ne
from pathlib import Path

import numpy as np

from dedup_sdk.errors import SnapshotError, StoreCorruptError
from dedup_sdk.marks import DIGEST_BYTES, NO_MARKS, Marks, cut_marks, elsewhere, join_marks, select_marks
from dedup_sdk.store.filter_words import FilterWords, decode_words, filter_words, merge_words
from dedup_sdk.store.fingerprint import NO_FINGERPRINT, fingerprint, payload_word, sum_fingerprints
from dedup_sdk.store.manifest import SortedFile
from dedup_sdk.store.pages import Uint64s, digest_words
from dedup_sdk.store.snapshot import FILTER_SUFFIX, SORTED_SUFFIX, read_sorted_file, read_source
from dedup_sdk.store.snapshot_source import Source

_HEX_DIGITS = 2 * DIGEST_BYTES


def mark_texts(marks: Marks) -> Iterator[tuple[str, str]]:
    """Yield of each mark its digest in hexadecimal, and its offset and timestamp (ms).

    One that has a payload says ``payload=BYTES:CHECKSUM`` behind them, so that payloads of one size are told apart.
    """
    digests = marks.digests.hex()
    cut = (digests[at : at + _HEX_DIGITS] for at in range(0, len(digests), _HEX_DIGITS))
    columns = zip(
        cut, marks.offsets.tolist(), marks.timestamps.tolist(), marks.payloads or repeat(b""), strict=False
    )
    for digest, offset, timestamp_ms, payload in columns:
        text = f"{offset} {timestamp_ms}"
        yield (
            digest,
            f"{text} payload={len(payload)}:{payload_word(payload):016x}" if payload else text,
        )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs in one stretch of one partition's digests, each ascending: marks that only one side has, and pairs that differ.

    ``left`` and ``right`` are parallel: the same digests, with another offset, timestamp, acceptance number or payload. ``same``
    counts the marks that are equal.
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


def diff_snapshots(left: Source, right: Source, beside: Path | None = None) -> Iterator[Difference]:
    """Yield the differences of two snapshots, partition by partition, in pages.

    ``beside``: where a file of each is copied to meanwhile [the temporary folder]. Raises `SnapshotError` when they cannot be
    compared (another topic, ID spec or digest), or a file does not check.
    """
    for name in ("topic", "id_spec", "digest"):
        theirs, ours = getattr(left.manifest, name), getattr(right.manifest, name)
        if theirs != ours:
            raise SnapshotError(
                f"{left.place} is of {name}={theirs!r}, {right.place} of {ours!r}: their IDs cannot be compared"
            )
    numbers = {entry.partition for side in (left, right) for entry in side.manifest.partitions}
    for number in sorted(numbers):
        pages = [_pages(side, number, beside) for side in (left, right)]
        try:
            yield from _merged(number, *pages)
        finally:
            for side in pages:
                side.close()


def _pages(source: Source, number: int, beside: Path | None) -> _Pages:
    entry = source.manifest.partition(number)
    return _Pages(iter(()) if entry is None else read_source(source, entry, beside=beside))


class _Pages:
    """The marks of one side that were read and not compared yet."""

    def __init__(self, pages: Iterator[Marks]) -> None:
        self._pages = pages
        self.held = NO_MARKS

    def fill(self) -> bool:
        """Read a page when nothing is held; return whether something is."""
        while not self.held.count:
            page = next(self._pages, None)
            if page is None:
                return False
            self.held = page
        return True

    @property
    def last(self) -> bytes:
        return self.held.digests[-DIGEST_BYTES:]

    def take(self, last: bytes | None = None) -> Marks:
        """Take what is held, up to this digest."""
        if last is None:
            taken, self.held = self.held, NO_MARKS
            return taken
        high, low = digest_words(self.held.digests)
        wanted_high, wanted_low = (int(word[0]) for word in digest_words(last))
        end = int(np.count_nonzero((high < wanted_high) | ((high == wanted_high) & (low <= wanted_low))))
        taken, self.held = cut_marks(self.held, 0, end), cut_marks(self.held, end, self.held.count)
        return taken

    def close(self) -> None:
        close = getattr(self._pages, "close", None)
        if close is not None:
            close()


def _merged(number: int, left: _Pages, right: _Pages) -> Iterator[Difference]:
    while True:
        has_left, has_right = left.fill(), right.fill()
        if has_left and has_right:
            last = min(left.last, right.last)
            yield _compared(number, left.take(last), right.take(last))
        elif has_left or has_right:
            yield _compared(number, left.take(), right.take())
        else:
            return


def _compared(number: int, left: Marks, right: Marks) -> Difference:
    both = join_marks([left, right])
    high, low = digest_words(both.digests)
    # Stable: of two with one digest the left one comes first.
    order = np.lexsort((low, high))
    high, low = high[order], low[order]
    twin = np.zeros(len(order) + 1, dtype=np.bool_)
    twin[1:-1] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    lone = order[~twin[:-1] & ~twin[1:]]
    ours, theirs = select_marks(both, order[twin[1:]]), select_marks(both, order[twin[:-1]])
    differs = (ours.offsets != theirs.offsets) | (ours.timestamps != theirs.timestamps)
    if ours.numbers is not None and theirs.numbers is not None:
        differs |= ours.numbers != theirs.numbers
    if ours.payloads is not None and theirs.payloads is not None:
        differs |= np.fromiter(map(ne, ours.payloads, theirs.payloads), np.bool_, ours.count)
    at = np.flatnonzero(differs)
    return Difference(
        partition=number,
        only_left=select_marks(both, lone[lone < left.count]),
        only_right=select_marks(both, lone[lone >= left.count]),
        left=select_marks(ours, at),
        right=select_marks(theirs, at),
        same=ours.count - len(at),
    )


def lines(difference: Difference) -> Iterator[str]:
    """Yield one line a difference: ``<``, ``>`` or ``!``, partition, digest, then what each side that has it says (`mark_texts`)."""
    for sign, marks in (("<", difference.only_left), (">", difference.only_right)):
        for digest, text in mark_texts(marks):
            yield f"{sign} {difference.partition} {digest} {text}"
    for (digest, ours), (_, theirs) in zip(
        mark_texts(difference.left), mark_texts(difference.right), strict=True
    ):
        yield f"! {difference.partition} {digest} {ours} {theirs}"
