"""The generations of a partition in its database: taken in, searched, scanned, dropped.

A mark is never taken in over one of a higher offset, so that the newest generation that has an ID has its highest offset.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from rocksdict import IngestExternalFileOptions, Rdict

from dedup_sdk.errors import StoreCorruptError
from dedup_sdk.marks import DIGEST_BYTES, Marks, select_marks, take_digests
from dedup_sdk.store.codec import decode_values
from dedup_sdk.store.database import DEFAULT, JOURNAL, STATE, families_with_bloom, get_values, wants_merges
from dedup_sdk.store.filter_set import FilterSet
from dedup_sdk.store.filter_words import FilterWords, filter_words, merge_words
from dedup_sdk.store.generations import Generation, State
from dedup_sdk.store.options import MERGE_FULLY, SharedMemory, generation_options
from dedup_sdk.store.paths import PRIVATE
from dedup_sdk.store.rocks_scan import scan_families
from dedup_sdk.store.sorted_file import SORTED_SUFFIX, write_marks
from dedup_sdk.window import Window

log = logging.getLogger(__name__)

_FILTERS: Final = "filters"
_INCOMING: Final = "incoming"
_ENTRIES: Final = re.compile(r"# entries=(\d+)")


class RocksGenerations:
    """The generations that ``state`` names; what else of ``names`` lies in the database, or beside it, is removed.

    RocksDB's exceptions pass through. ``state`` is what is valid now, on disk as well.
    """

    def __init__(
        self, database: Rdict, folder: Path, state: State, memory: SharedMemory, names: list[str]
    ) -> None:
        self.state = state
        self.incoming = folder / _INCOMING
        self._database = database
        self._folder = folder
        self._memory = memory
        self._families: dict[int, Rdict] = {}
        self._newest_first: list[Rdict] = []
        self._filters = FilterSet(folder / _FILTERS, state.marks)
        for made in (self.incoming, folder / _FILTERS):
            made.mkdir(mode=PRIVATE, exist_ok=True)
        for generation in state.generations:
            if generation.name not in names:
                message = f"store {folder} lacks generation {generation.name}; move it away and rebuild it"
                raise StoreCorruptError(message)
            self._families[generation.number] = database.get_column_family(generation.name)
        self.clean(names)
        if not self._restore_filters():
            for generation in state.generations:
                self._load_filter(generation)
        if self.count_with_bloom() < len(state.generations):
            log.error(
                "store %s: RocksDB's Bloom filters are off, look-ups are slow; see its OPTIONS file", folder
            )

    @property
    def filter_bytes(self) -> int:
        """Bytes of memory that filters take."""
        return self._filters.nbytes

    def count_with_bloom(self) -> int:
        """Return how many generations have RocksDB's own Bloom filter, by its own account."""
        return len(
            families_with_bloom(self._folder) & {generation.name for generation in self.state.generations}
        )

    def find(self, digests: bytes) -> list[tuple[int, bytes]]:
        """Return (position, value) of the digests that are stored, ascending by position."""
        found: dict[int, bytes] = {}
        for number, positions in self._filters.by_generation(digests):
            family = self._families.get(number)
            wanted = [position for position in positions if position not in found] if found else positions
            if family is None or not wanted:
                continue
            keys = [digests[DIGEST_BYTES * position : DIGEST_BYTES * (position + 1)] for position in wanted]
            values = get_values(family, keys)
            found.update(
                (position, value) for position, value in zip(wanted, values, strict=True) if value is not None
            )
        return sorted(found.items())

    def scan(self) -> Iterator[Marks]:
        """Yield all marks in pages, ascending, each ID once."""
        return scan_families(self._newest_first, self.state.marks)

    def newer_than_stored(self, marks: Marks) -> Marks:
        """Leave out the marks whose ID is stored with the same or a higher offset; ``marks`` has each ID once."""
        below = np.flatnonzero(marks.offsets <= self.state.top_offset)
        found = self.find(take_digests(marks.digests, below)) if below.size else []
        if not found:
            return marks
        places = below[[index for index, _ in found]]
        offsets, *_ = decode_values([value for _, value in found])
        kept = np.ones(marks.count, dtype=np.bool_)
        kept[places] = marks.offsets[places] > offsets
        return select_marks(marks, np.flatnonzero(kept))

    def take_in(self, marks: Marks, window: Window, least_marks: int) -> None:
        """Take in marks (ascending, at least one, `newer_than_stored`), and widen the state accordingly."""
        generation = self.state.generations[-1] if self.state.generations else None
        if generation is None or not generation.takes(marks, window, least_marks):
            if generation is not None:
                self._families[generation.number].set_options(MERGE_FULLY)
            generation = self.create()
        path = self.incoming / f"{generation.name}{SORTED_SUFFIX}"
        path.unlink(missing_ok=True)
        write_marks(path, marks)
        words = filter_words(marks.digests)
        end = self._filters.append(generation.number, generation.filter_bytes, words)
        widened = replace(generation.widened(marks), filter_bytes=end)
        top_offset = max(self.state.top_offset, int(marks.offsets.max()))
        # Filter and state go ahead of the file: whatever of it is there after a crash must be found, and not look older.
        self.state = replace(self.state.changed(widened), top_offset=top_offset)
        self._database.put(STATE, self.state.encode())
        self.ingest(generation, [path])

    def create(self) -> Generation:
        """Make the next generation, empty; it is removed by `clean` until a valid state names it."""
        generation = Generation(number=self.state.next_number)
        if generation.number not in self._families:
            options = generation_options(self._memory)
            self._families[generation.number] = self._database.create_column_family(generation.name, options)
            self._order()
        return generation

    def ingest(self, generation: Generation, paths: Sequence[Path]) -> None:
        """Take sorted files of `incoming` into a generation; they are gone from there afterwards."""
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        self._families[generation.number].ingest_external_file([str(path) for path in paths], options)

    def entries(self, generation: Generation) -> int:
        """Return how many marks the sorted files of a generation have."""
        text = self._families[generation.number].property_value("rocksdb.aggregated-table-properties") or ""
        found = _ENTRIES.search(text)
        return int(found.group(1)) if found else 0

    def write_words(self, generation: Generation, words: FilterWords) -> int:
        """Write the filter words of a generation that is not valid yet; return the size of their file."""
        return self._filters.write(generation.number, 0, words)

    def adopt(self, state: State) -> None:
        """Go by a state that was just made valid: drop the generations it does not name, load those that came in whole."""
        known = {generation.number for generation in self.state.generations}
        self.state = state
        self.clean()
        for generation in state.generations:
            if generation.number not in known:
                self._load_filter(generation)

    def clean(self, families: list[str] | None = None) -> None:
        """Remove every family, file of words and incoming file that the valid state does not name.

        ``families``: those that the database has, where that is known.
        """
        for path in self.incoming.iterdir():
            path.unlink()
        numbers = {generation.number for generation in self.state.generations}
        names = {generation.name for generation in self.state.generations}
        self._families = {number: family for number, family in self._families.items() if number in numbers}
        self._order()
        for name in families if families is not None else Rdict.list_cf(str(self._folder)):
            if name not in names and name not in (DEFAULT, JOURNAL):
                self._database.drop_column_family(name)
        stray = [path.stem for path in (self._folder / _FILTERS).iterdir() if path.stem not in names]
        self._filters.drop(int(stem[1:]) for stem in stray if stem[1:].isdecimal())

    def close(self) -> bool:
        """Keep the filters for the next opening, and let go of RocksDB's objects: it keeps its lock while one is alive.

        Return whether files were to be merged, which `close_database` wants to know.
        """
        merges = True
        try:
            merges = wants_merges(self._families.values())
            self._filters.keep(self.state.encode())
        except OSError as error:
            log.info(
                "store %s: its filters are not kept (%s): the next opening makes them again",
                self._folder,
                error,
            )
        finally:
            self._families.clear()
            self._newest_first.clear()
            del self._database
        return merges

    def _order(self) -> None:
        self._newest_first = [self._families[number] for number in sorted(self._families, reverse=True)]

    def _restore_filters(self) -> bool:
        try:
            return self._filters.restore(self.state.encode())
        except (StoreCorruptError, OSError) as error:
            log.info("store %s: filters are made again from their words: %s", self._folder, error)
            return False

    def _load_filter(self, generation: Generation) -> None:
        try:
            self._filters.load(generation.number, generation.filter_bytes)
        except (StoreCorruptError, OSError) as error:
            log.warning(
                "store %s: filter of %s is made again from its keys: %s", self._folder, generation.name, error
            )
            self._remake_filter(generation)

    def _remake_filter(self, generation: Generation) -> None:
        pages = scan_families([self._families[generation.number]], generation.marks)
        words = merge_words([filter_words(page.digests) for page in pages])
        end = self._filters.append(generation.number, 0, words)
        self.state = self.state.changed(replace(generation, filter_bytes=end))
        self._database.put(STATE, self.state.encode())
