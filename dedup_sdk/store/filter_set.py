"""The filters of one partition: few and large in memory, made of the filter words that each generation keeps on disk.

Words may be read again at any time, so that a filter that is full is made anew, twice as large, without a key being
touched; while nobody has the store open, the filters lie beside the words as they were; what has been dropped meanwhile is left out. Filters beyond `MOST_PER_FILTER` digests are left as they are and
another is begun. What they let pass goes through `extent_filters`, which say where to look.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dedup_sdk.errors import StoreCorruptError
from dedup_sdk.store.extent_filters import Asked, Extent, ExtentFilters
from dedup_sdk.store.filter import Filter
from dedup_sdk.store.filter_image import IMAGE, SegmentImage, read_image, write_image
from dedup_sdk.store.filter_words import FilterWords, decode_words, encode_words

MOST_PER_FILTER: Final = 2**24
LEAST_PER_FILTER: Final = 2**16


@dataclass(slots=True)
class _Segment:
    filter: Filter
    extents: list[Extent] = field(default_factory=list)

    @property
    def marks(self) -> int:
        return sum(extent.marks for extent in self.extents)


class FilterSet:
    """Filters over everything flushed in one partition; ``folder`` holds one file of words a generation.

    ``expected``: how many digests are about to be loaded, so that the first filter is made in their size at once.
    """

    def __init__(self, folder: Path, expected: int = 0) -> None:
        self._folder = folder
        self._expected = expected
        self._segments: list[_Segment] = []
        self._extents = ExtentFilters()
        self._imaged = False

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._extents.nbytes + sum(segment.filter.nbytes for segment in self._segments)

    @property
    def marks(self) -> int:
        """How many digests were added and not dropped."""
        return sum(segment.marks for segment in self._segments)

    def path(self, generation: int) -> Path:
        """Return the file of words of a generation."""
        return self._folder / f"g{generation}.filter"

    def may_contain(self, digests: bytes) -> NDArray[np.intp]:
        """Return the positions, ascending, of the digests that may be stored; never misses one."""
        if len(self._segments) == 1:
            return self._segments[0].filter.may_contain(digests)
        if not self._segments:
            return np.empty(0, np.intp)
        found = [segment.filter.may_contain(digests) for segment in self._segments]
        return np.unique(np.concatenate(found))

    def by_generation(self, digests: bytes) -> list[Asked]:
        """Return the digests that each generation may have, and in which pages they would be; never misses one."""
        passed = self.may_contain(digests)
        return self._extents.by_generation(digests, passed) if passed.size else []

    def append(self, generation: int, start: int, words: FilterWords, number: int = 0) -> int:
        """Write words as `write` does, add them as the extent of this number, and return the file's end."""
        self._changes()
        end = self.write(generation, start, words)
        # An earlier attempt of the same flush, whose bytes were just written over.
        self._keep(lambda known: known.generation != generation or known.start < start)
        self._add(Extent(generation, start, end - start, words.count, number, len(words.pages)), [words])
        return end

    def fold(self, old: int, new: int, words: FilterWords) -> None:
        """Put a generation with one extent, whose words are written, in the place of another one that has the same digests."""
        self._changes()
        holders = [
            segment
            for segment in self._segments
            if any(extent.generation == old for extent in segment.extents)
        ]
        self._keep(lambda known: known.generation != old)
        extent = Extent(new, 0, self.path(new).stat().st_size, words.count, 0, len(words.pages))
        if len(holders) == 1:
            # Its filter has these digests already.
            holders[0].extents.append(extent)
            self._extents.add(extent, [words])
        else:
            self._add(extent, [words])
        self.path(old).unlink(missing_ok=True)

    def write(self, generation: int, start: int, words: FilterWords) -> int:
        """Write words (ascending) at byte ``start`` of the generation's file, cut off what lay beyond, return the file's end."""
        data = encode_words(words)
        path = self.path(generation)
        # What lies beyond ``start`` is left over from an interrupted flush.
        with path.open("r+b" if path.exists() else "wb") as file:
            file.truncate(start)
            file.seek(start)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return start + len(data)

    def load(self, generation: int, extents: Sequence[int]) -> int:
        """Add the extents of a generation, which have so many bytes of its file each, and return how many digests they have.

        Raises `StoreCorruptError` or OSError when they cannot be read; nothing was added then.
        """
        size = sum(extents)
        data = self.read(generation, 0, size)
        if len(data) < size:
            message = f"{self.path(generation)} has {len(data)} bytes, {size} are wanted; it is to be made again from its keys"
            raise StoreCorruptError(message)
        read, start = [], 0
        for number, length in enumerate(extents):
            blocks = decode_words(data[start : start + length])
            counts = [sum(block.count for block in blocks), sum(len(block.pages) for block in blocks)]
            if counts[0]:
                read.append((Extent(generation, start, length, counts[0], number, counts[1]), blocks))
            start += length
        if read:
            self._changes()
        for extent, blocks in read:
            self._add(extent, blocks)
        return sum(extent.marks for extent, _ in read)

    def read(self, generation: int, start: int, size: int) -> bytes:
        """Read so many bytes of a generation's file (fewer if it is shorter)."""
        with self.path(generation).open("rb") as file:
            file.seek(start)
            return file.read(size)

    def keep(self, state: bytes) -> None:
        """Write what is in memory as the image of the filters for ``state``, unless it is there; raises OSError."""
        if self._imaged or not self._segments:
            return
        images = [
            SegmentImage(
                segment.filter.capacity,
                segment.filter.count,
                tuple(segment.extents),
                segment.filter.table,
                self._extents.table(segment.extents),
                self._extents.pages(segment.extents),
            )
            for segment in self._segments
        ]
        write_image(self._folder / IMAGE, state, images)
        self._imaged = True

    def restore(self, state: bytes) -> bool:
        """Take the filters over from their image, where there is one for ``state``; only into an empty set.

        Raises `StoreCorruptError` or OSError when there is one that cannot be used; nothing was added then.
        """
        try:
            images = read_image(self._folder / IMAGE, state)
        except FileNotFoundError:
            return False
        ends = {extent.generation: extent.start + extent.size for image in images for extent in image.extents}
        for generation, end in ends.items():
            # What is there is not read now; what is missing would be missed when a filter is made larger.
            if self.path(generation).stat().st_size < end:
                message = f"{self.path(generation)} is shorter than its filter's image says; both are to be made again"
                raise StoreCorruptError(message)
        self._segments = [
            _Segment(Filter(image.capacity, image.table.copy(), image.count), list(image.extents))
            for image in images
        ]
        self._extents = ExtentFilters(
            [extent for image in images for extent in image.extents],
            np.concatenate([image.extent_table for image in images]),
            np.concatenate([image.pages for image in images]),
        )
        self._imaged = True
        return True

    def _changes(self) -> None:
        """Remove the image before what it shows changes: a state of the same bytes must never come to it later."""
        self._imaged = False
        (self._folder / IMAGE).unlink(missing_ok=True)

    def drop(self, generations: Iterable[int]) -> None:
        """Forget generations and delete their files; the bits they set go when their filter is made anew."""
        dropped = set(generations)
        if dropped:
            self._changes()
        self._keep(lambda extent: extent.generation not in dropped)
        self._segments = [segment for segment in self._segments if segment.extents]
        for generation in dropped:
            self.path(generation).unlink(missing_ok=True)

    def _keep(self, wanted: Callable[[Extent], bool]) -> None:
        for segment in self._segments:
            segment.extents = [extent for extent in segment.extents if wanted(extent)]
        self._extents.keep(wanted)

    def _add(self, extent: Extent, blocks: list[FilterWords]) -> None:
        last = self._segments[-1] if self._segments else None
        if last is None or last.marks + extent.marks > MOST_PER_FILTER:
            last = _Segment(Filter(_capacity(max(extent.marks, self._expected))))
            self._expected = 0
            self._segments.append(last)
        elif last.filter.count + extent.marks > last.filter.capacity:
            last = self._enlarged(last, extent.marks)
        last.extents.append(extent)
        self._extents.add(extent, blocks)
        for block in blocks:
            last.filter.add(block)

    def _enlarged(self, last: _Segment, more: int) -> _Segment:
        """Return a filter with room for ``more`` digests: the last made anew, or another where its words are damaged."""
        larger = Filter(_capacity(last.marks + more))
        try:
            for known in last.extents:
                for block in decode_words(self.read(known.generation, known.start, known.size)):
                    larger.add(block)
        except (StoreCorruptError, OSError):
            # What is in memory came from an image. The words are made again from the keys when they are needed to open.
            self._segments.append(_Segment(Filter(_capacity(more))))
            return self._segments[-1]
        last.filter = larger
        return last


def _capacity(marks: int) -> int:
    return max(LEAST_PER_FILTER, marks if marks > MOST_PER_FILTER else min(2 * marks, MOST_PER_FILTER))
