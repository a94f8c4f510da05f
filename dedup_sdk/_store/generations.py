"""Generations: groups of marks of similar age, each dropped as a whole once no window reaches any of its marks.

A generation is one column family (``g<number>``) of a partition's database. Each flush adds an *extent*,
which is one sorted file of pages. The state describes each generation, so that dropping one needs no scan.
Layout of the state, JSON under the key ``state``::

    {"format": 2, "next": 3, "top_offset": 99, "first_step": 7,
     "generations": [{"number": 1, "marks": ..., "extents": [...], ...}, ...]}

Invariant: a mark is never added over one with a higher offset. So the newest extent of the newest
generation with an ID has the highest offset of that ID.

*Folding* merges all extents of a generation that accepts no more marks into a new generation with one extent.
Each ID is then there once. Each flush folds twice as many marks as it adds, so that no flush takes long, and
there are never many extents.

RocksDB's own expiry was rejected (``benchmarks/expiry.py``, one window of 1,000,000 IDs in 10 s).
Generations hold 1.13 windows. RocksDB's TTL counts from the time of writing, so that a replayed backlog
lives too long; its values cannot be ingested; and 40 to 80 % of the marks that are one to two windows old
are still found. FIFO compaction goes by size: at four times the rate it forgets 80 % of the live window.
"""

from __future__ import annotations

import json
import logging
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import chain, count
from operator import attrgetter
from pathlib import Path
from typing import Final, Self

import numpy as np
from rocksdict import IngestExternalFileOptions, Rdict

from dedup_sdk._marks import Marks, select_marks, take_digests
from dedup_sdk._store.database import (
    DEFAULT,
    JOURNAL,
    STATE,
    SharedMemory,
    StoredGeneration,
    drop_extents_from,
    families_with_bloom,
    generation_options,
    get_values,
    read_words,
    scan_generations,
    wants_merges,
)
from dedup_sdk._store.filter_set import Candidates, ExtentWords, FilterSet, write_words
from dedup_sdk._store.filter_words import FilterWords, encode_words, merge_words
from dedup_sdk._store.identity import Fields
from dedup_sdk._store.pages import FoundMark, find_in_pages, sorted_parts
from dedup_sdk._store.paths import make_folder
from dedup_sdk._store.snapshot import FILTER_SUFFIX, SORTED_SUFFIX, ExtentWriter
from dedup_sdk._window import Window
from dedup_sdk.errors import StoreCorruptError

FORMAT: Final = 2
MAX_EXTENTS: Final = 64
_WINDOW_DIVISOR: Final = 8
_REMEDY: Final = "move the store away and rebuild it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The description of one generation.

    ``began_ms`` is the median timestamp, and ``began_number`` the highest acceptance number, of its first
    flush. ``marks`` counts added marks (an ID that was added twice counts twice, until it is folded).
    ``extents`` has, for each extent, its size in bytes in the generation's file of filter words, in file
    order. ``sealed``: accepts no more marks.
    """

    number: int
    marks: int = 0
    oldest_ms: int = 0
    newest_ms: int = 0
    newest_number: int = 0
    began_ms: int = 0
    began_number: int = 0
    extents: tuple[int, ...] = ()
    sealed: bool = False

    @property
    def name(self) -> str:
        """The name of its column family."""
        return f"g{self.number}"

    @property
    def filter_bytes(self) -> int:
        """The valid size of its file of filter words, in bytes."""
        return sum(self.extents)

    def widened(self, marks: Marks, count: int) -> Generation:
        """Return it with ``count`` of the ``marks`` (at least one) added."""
        oldest_ms, newest_ms = int(marks.timestamps.min()), int(marks.timestamps.max())
        newest_number = 0 if marks.numbers is None else int(marks.numbers.max())
        if not self.marks:
            return replace(
                self,
                marks=count,
                oldest_ms=oldest_ms,
                newest_ms=newest_ms,
                newest_number=newest_number,
                # The median: one timestamp from the future must not end a generation.
                began_ms=int(np.median(marks.timestamps)),
                began_number=newest_number,
            )
        return replace(
            self,
            marks=self.marks + count,
            oldest_ms=min(self.oldest_ms, oldest_ms),
            newest_ms=max(self.newest_ms, newest_ms),
            newest_number=max(self.newest_number, newest_number),
        )

    def accepts(self, marks: Marks, window: Window, min_marks: int) -> bool:
        """Whether to add ``marks`` to it: until it spans an eighth of the window, and always below ``min_marks``.

        It accepts at most `MAX_EXTENTS` flushes, whatever it spans; then it is folded.
        """
        if self.sealed or len(self.extents) >= MAX_EXTENTS:
            return False
        if self.marks < min_marks:
            return True
        if window.time_ms is not None:
            # The median again: a few late records must not keep a generation open, nor early ones end one.
            spanned_ms = int(np.median(marks.timestamps)) - self.began_ms
            if spanned_ms * _WINDOW_DIVISOR > window.time_ms:
                return False
        if window.count is not None and marks.numbers is not None:
            spanned = int(marks.numbers.max()) - self.began_number
            return spanned * _WINDOW_DIVISOR <= window.count
        return True

    def is_expired(self, before_ms: int | None, up_to_number: int | None) -> bool:
        """Whether every mark is older than ``before_ms``, or has an acceptance number of at most ``up_to_number``."""
        too_old = before_ms is not None and self.newest_ms < before_ms
        return too_old or (up_to_number is not None and self.newest_number <= up_to_number)


_marks, _number = attrgetter("marks"), attrgetter("number")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    """The generations of a partition, oldest first; a folded one has a higher number than some younger ones.

    ``top_offset`` is at least the offset of every mark in them, -1 without any; ``next_number`` is that of
    the next generation; ``first_step`` is the sequence of the first step in the journal.

    No two journals begin with the same sequence. A database whose MANIFEST was truncated opens with an
    earlier state. The rest of the later journal then does not begin at that state's ``first_step``, which
    counts as damage (`dedup_sdk._store.database.read_journal`).
    """

    generations: tuple[Generation, ...] = field(default=())
    next_number: int = 1
    top_offset: int = -1
    first_step: int = 0

    @property
    def marks(self) -> int:
        """The number of marks added to the generations."""
        return sum(map(_marks, self.generations))

    @property
    def content(self) -> bytes:
        """All of it that is about marks: a flush without any leaves it as it is. The image of the filters names it."""
        return json.dumps([self.top_offset, *map(asdict, self.generations)]).encode()

    def changed(self, generation: Generation) -> StoreState:
        """Return it with ``generation`` in place of the one with its number, or as the newest."""
        if generation.number >= self.next_number:
            return replace(
                self, generations=(*self.generations, generation), next_number=generation.number + 1
            )
        kept = tuple(generation if entry.number == generation.number else entry for entry in self.generations)
        return replace(self, generations=kept)

    def folded(self, old: Generation, new: Generation) -> StoreState:
        """Return it with ``new`` in place of ``old``."""
        kept = tuple(new if entry.number == old.number else entry for entry in self.generations)
        # A fold goes on over several flushes, which may have taken higher numbers.
        return replace(self, generations=kept, next_number=max(self.next_number, new.number + 1))

    def encode(self) -> bytes:
        """Return the bytes that `decode` reads."""
        content = {
            "format": FORMAT,
            "next": self.next_number,
            "top_offset": self.top_offset,
            "first_step": self.first_step,
            "generations": [asdict(generation) for generation in self.generations],
        }
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, where: str = "a store") -> Self:
        """Read the result of `encode` for the store ``where``; raises `StoreCorruptError` for anything else."""
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            message = f"the state of {where}, {len(data)} bytes, cannot be read ({error}); {_REMEDY}"
            raise StoreCorruptError(message) from None
        read = Fields(
            f"the state of {where} cannot be read", "", content, error=StoreCorruptError, remedy=_REMEDY
        )
        if read.integer("format") != FORMAT:
            raise read.invalid("format", f"this version reads {FORMAT}; use a newer version")
        generations = tuple(map(_generation, read.objects("generations")))
        numbers = list(map(_number, generations))
        following, top_offset, first_step = read.numbers(next=1, top_offset=-1, first_step=0)
        if len(set(numbers)) < len(numbers) or max(numbers, default=0) >= following:
            raise read.invalid(
                "next",
                f"generation numbers must be distinct and lower than next; {_REMEDY}",
                instead=[*numbers, following],
            )
        return cls(
            generations=generations,
            next_number=following,
            top_offset=top_offset,
            first_step=first_step,
        )


def _generation(read: Fields) -> Generation:
    """Read every field of `Generation` by its type; timestamps may be negative, counts may not."""
    values: dict[str, int | tuple[int, ...]] = {}
    for entry in fields(Generation):
        if entry.name == "extents":
            values[entry.name] = read.integers(entry.name, least=0)
        elif isinstance(entry.default, bool):
            values[entry.name] = read.flag(entry.name)
        elif entry.name.endswith("_ms"):
            values[entry.name] = read.integer(entry.name)
        else:
            values[entry.name] = read.integer(entry.name, least=1 if entry.name == "number" else 0)
    return Generation(**values)  # type: ignore[arg-type]


log = logging.getLogger(__name__)

_FILTERS: Final = "filters"
_INCOMING: Final = "incoming"
_FOLD: Final = f"fold{SORTED_SUFFIX}"
_FOLDED_PER_ADDED: Final = 2
_PAGES_AT_ONCE: Final = 64
ADDED_AT_ONCE: Final = 40_000
"""Marks that are written to a sorted file in one step."""
_OPENINGS: Final = count()
_OWNER: Final = struct.Struct("<QQ")
_ENTRIES: Final = re.compile(r"# entries=(\d+)")


class RocksGenerations:
    """The generations of an open database: look-ups, flushes, folds and expiry.

    ``state`` is the valid state, in memory and on disk. ``filters`` select the pages that `find` must read.
    At the start, every column family in ``names`` and every file that the state does not name is removed.
    RocksDB's exceptions pass through.
    """

    def __init__(
        self, database: Rdict, folder: Path, state: StoreState, memory: SharedMemory, names: list[str]
    ) -> None:
        self.state = state
        self.incoming = folder / _INCOMING
        self._database = database
        self._folder = folder
        self._memory = memory
        self._families: dict[int, Rdict] = {}
        # The page cache outlives this object, and a new store in this folder begins with the same numbers.
        self._opening = next(_OPENINGS)
        self._fold: Iterator[int] | None = None
        for made in (self.incoming, folder / _FILTERS):
            make_folder(made)
        for generation in state.generations:
            if generation.name not in names:
                message = (
                    f"store {folder}: generation {generation.name} is missing; move it away and rebuild it"
                )
                raise StoreCorruptError(message)
            self._families[generation.number] = database.get_column_family(generation.name)
        self.clean(names)
        if not state.generations:
            return
        # RocksDB flushes its list of files at once, and its log later: after a power cut the newest generation may
        # have a file that no state names. The journal, or the topic, still has the marks.
        newest = state.generations[-1]
        drop_extents_from(self._families[newest.number], len(newest.extents))
        if not self._restore_filters():
            for generation in state.generations:
                self._load_filter(generation)
        # RocksDB loses an option that is not passed without a word: only its own file shows the loss.
        if self.count_with_bloom() < len(state.generations):
            log.error(
                "store %s: RocksDB's Bloom filters are off, look-ups are slow; check its OPTIONS file",
                folder,
                extra={"event": "bloom-filters-off"},
            )

    @cached_property
    def filters(self) -> FilterSet:
        """The filters; created on first use, because a store without generations needs none."""
        return FilterSet(self._folder / _FILTERS, self.state.marks)

    @property
    def filter_bytes(self) -> int:
        """Memory of the filters, in bytes."""
        return self.filters.nbytes if self.state.generations else 0

    def count_with_bloom(self) -> int:
        """Return the number of generations for which RocksDB reports its own Bloom filter."""
        return len(
            families_with_bloom(self._folder) & {generation.name for generation in self.state.generations}
        )

    def find(self, asked: list[Candidates]) -> dict[int, FoundMark]:
        """Return the stored mark of each digest, by position; ``asked``: the candidates that ``filters`` selected."""
        found: dict[int, FoundMark] = {}
        ages = {generation.number: age for age, generation in enumerate(self.state.generations)}
        # The youngest first: IDs found there are not looked up in older ones.
        for number, positions, digests, keys in sorted(
            asked, key=lambda each: ages.get(each.generation, -1), reverse=True
        ):
            if not found.keys().isdisjoint(positions):
                left = [at for at, position in enumerate(positions) if position not in found]
                positions, digests, keys = (  # noqa: PLW2901
                    [positions[at] for at in left],
                    [digests[at] for at in left],
                    [keys[at] for at in left],
                )
            # Not the family itself: whoever keeps an error keeps these frames, and a handle in them keeps
            # RocksDB's lock.
            owner, read = _OWNER.pack(self._opening, number), partial(self._read, number)
            # Few pages at once: they stay in the processor's cache until they are searched.
            for start in range(0, len(keys), _PAGES_AT_ONCE):
                some = slice(start, start + _PAGES_AT_ONCE)
                pages = self._memory.pages.read(owner, keys[some], read)
                find_in_pages(pages, digests[some], positions[some], found)
        return found

    def _read(self, number: int, keys: list[bytes]) -> list[bytes | None]:
        return get_values(self._families[number], keys)

    def scan(self) -> Iterator[Marks]:
        """Yield all marks in parts, ascending, each ID once."""
        return scan_generations(list(map(self._stored, self.state.generations)), self.state.marks)

    def newer_than_stored(self, marks: Marks) -> Marks:
        """Drop marks whose ID is stored with the same or a higher offset.

        ``marks`` has each ID once.
        """
        # Nearly all marks lie above all that is stored, and need no look-up.
        below = np.flatnonzero(marks.offsets <= self.state.top_offset)
        if not below.size:
            return marks
        digests = take_digests(marks.digests, below)
        found = self.find(self.filters.by_generation(digests))
        if not found:
            return marks
        places = below[[*found]]
        kept = np.ones(marks.count, dtype=np.bool_)
        kept[places] = marks.offsets[places] > np.array([offset for offset, *_ in found.values()])
        return select_marks(marks, np.flatnonzero(kept))

    def add_steps(self, marks: Marks, window: Window, min_marks: int) -> Iterator[None]:
        """Add marks (at least one) that are newer than stored ones as an extent, and widen the state.

        It works while you iterate; each step takes a few milliseconds.
        """
        # Only the newest: `find` stops at the youngest generation that has an ID, whatever older ones have.
        generation = self.state.generations[-1] if self.state.generations else None
        if generation is None or not generation.accepts(marks, window, min_marks):
            generation = self.create()
        number, is_one_part = len(generation.extents), marks.count <= ADDED_AT_ONCE
        path = self.incoming / f"{generation.name}{SORTED_SUFFIX}"
        # A flush that was interrupted may have left its file.
        path.unlink(missing_ok=True)
        writer: ExtentWriter | None = None
        words = ExtentWords()
        for part in sorted_parts(marks, ADDED_AT_ONCE):
            if not is_one_part:
                yield
            kept = self.newer_than_stored(part)
            if kept.count:
                # Payloads are worth compressing, digests are not.
                writer = writer or ExtentWriter(path, number, compressed=marks.bear_payloads)
                words.add(writer.add(kept))
        if writer is not None:
            for _ in chain(words.filter_steps(), self.filters.prepare(words)):
                if not is_one_part:
                    yield
            writer.finish()
            self.filters.write(generation.number, generation.filter_bytes, words.encoded)
            if not is_one_part:
                yield
            self.filters.add(generation.number, generation.filter_bytes, words, number)
            extents = (*generation.extents, words.size)
            # By all marks, kept or not: too wide a range only keeps a generation longer.
            widened = replace(generation.widened(marks, words.count), extents=extents)
            top_offset = max(self.state.top_offset, int(marks.offsets.max()))
            # Write filter and state before the file: after a crash, every part of it must be found, and not look older.
            self.state = replace(self.state.changed(widened), top_offset=top_offset)
            self._database.put(STATE, self.state.encode())
            self.ingest(generation, [path])
        yield from self._fold_steps(_FOLDED_PER_ADDED * marks.count)

    def _fold_steps(self, marks: int) -> Iterator[None]:
        """Fold at least so many marks of generations that accept no more, as long as there are any."""
        # At 0 as well: often all marks were folded exactly, and the old generation is still to be replaced.
        while marks >= 0:
            if self._fold is None:
                old = next((each for each in self.state.generations[:-1] if len(each.extents) > 1), None)
                if old is None:
                    return
                self._fold = self._folding(old)
            yield
            done = next(self._fold, None)
            if done is None:
                self._fold = None
            marks -= done or 0

    def _folding(self, old: Generation) -> Iterator[int]:
        """Fold a generation; yield the number of marks of each part, and 0 after other steps."""
        path = self.incoming / _FOLD
        path.unlink(missing_ok=True)
        path_of_words = path.with_suffix(FILTER_SUFFIX)
        # The words of a fold that was given up may be there.
        write_words(path_of_words, 0, [])
        new = self.create()
        # Flushes come in between: they must not take its number.
        self.state = replace(self.state, next_number=new.number + 1)
        yield 0
        writer: ExtentWriter | None = None
        words = ExtentWords()
        for part in scan_generations([self._stored(old)], old.marks):
            yield 0
            writer = writer or ExtentWriter(path, 0, compressed=part.bear_payloads)
            before = words.size
            words.add(writer.add(part))
            write_words(path_of_words, before, words.encoded)
            words.forget_encoded()
            yield part.count
        for _ in chain(words.filter_steps(), self.filters.prepare_fold(old.number, words)):
            yield 0
        # Words and file first: once a state names the new generation, all of its marks must be found.
        self.filters.adopt(new.number, path_of_words)
        if writer is not None:
            writer.finish()
            yield 0
            self.ingest(new, [path])
        yield 0
        folded = replace(old, number=new.number, marks=words.count, extents=(words.size,), sealed=True)
        state = self.state.folded(old, folded)
        # The disk first: after a refusal, memory still has the state that the files belong to.
        self._database.put(STATE, state.encode())
        self.state = state
        self.filters.fold(old.number, new.number, words)
        yield 0
        # RocksDB flushes the list of families at once; after a power cut it must not be newer than the state.
        self._database.flush_wal(sync=True)
        yield 0
        del self._families[old.number]
        self._database.drop_column_family(old.name)

    def create(self, later: int = 0) -> Generation:
        """Create the next generation, empty, or a ``later`` one; `clean` removes it until a valid state names it."""
        generation = Generation(number=self.state.next_number + later)
        # A flush that failed may have created the family already: RocksDB refuses a second one of this name.
        if generation.number not in self._families:
            options = generation_options(self._memory)
            self._families[generation.number] = self._database.create_column_family(generation.name, options)
        return generation

    def ingest(self, generation: Generation, paths: Sequence[Path]) -> None:
        """Move sorted files from `incoming` into a generation."""
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        self._families[generation.number].ingest_external_file([str(path) for path in paths], options)

    def pages(self, generation: Generation) -> int:
        """Return the number of pages in the sorted files of a generation."""
        text = self._families[generation.number].property_value("rocksdb.aggregated-table-properties") or ""
        found = _ENTRIES.search(text)
        return int(found.group(1)) if found else 0

    def write_words(self, generation: Generation, words: FilterWords) -> int:
        """Write the filter words of a generation that is not valid yet; return the size of their file."""
        return self.filters.write(generation.number, 0, [encode_words(words)])

    def use_state(self, state: StoreState) -> None:
        """Use a state that was just written, with the same generations as before."""
        self.state = state

    def activate_state(self, state: StoreState) -> None:
        """Use a state that was just written: drop generations it does not name, and load filters of new ones."""
        known = {generation.number for generation in self.state.generations}
        self.state = state
        self.clean()
        for generation in state.generations:
            if generation.number not in known:
                self._load_filter(generation)

    def clean(self, families: list[str] | None = None) -> None:
        """Remove every column family, filter file and incoming file that the valid state does not name.

        ``families``: the database's column families, if known.
        """
        # A fold that is under way has a family and a file that no state names: both go now.
        self._fold = None
        for path in self.incoming.iterdir():
            path.unlink()
        named = {generation.name: generation.number for generation in self.state.generations}
        stray = {path.stem[1:] for path in (self._folder / _FILTERS).iterdir() if path.stem not in named}
        gone = self._families.keys() - named.values()
        # The filters first: they must not name a generation that cannot be read. Its file of words may be
        # gone already.
        if dropped := gone | {int(digits) for digits in stray if digits.isdecimal()}:
            self.filters.drop(dropped)
        for number in gone:
            del self._families[number]
        for name in families if families is not None else Rdict.list_cf(str(self._folder)):
            if name not in named and name not in (DEFAULT, JOURNAL):
                self._database.drop_column_family(name)

    def close(self) -> bool:
        """Keep the filters for the next open, and release RocksDB's objects: any of them would keep the lock.

        Return whether RocksDB wants to merge files, as `close_database` needs to know.
        """
        merges = True
        try:
            journal = self._database.get_column_family(JOURNAL)
            merges = wants_merges([self._database, journal, *self._families.values()])
            # An object of a family that lives keeps RocksDB's lock.
            del journal
            # Not when a load was interrupted: filters that lack a generation must not pass for those of the state.
            if self.state.generations and self.filters.marks == self.state.marks:
                self.filters.save(self.state.content)
        except OSError as error:
            log.info(
                "store %s: the filter image was not written (%s); the next open rebuilds the filters",
                self._folder,
                error,
                extra={"event": "filter-image-not-written"},
            )
        finally:
            self._fold = None
            self._families.clear()
            del self._database
        return merges

    def _stored(self, generation: Generation) -> StoredGeneration:
        return StoredGeneration(self._families[generation.number], len(generation.extents))

    def _restore_filters(self) -> bool:
        try:
            return self.filters.restore(self.state.content)
        except (StoreCorruptError, OSError) as error:
            log.info(
                "store %s: filter image not usable, rebuilding the filters from their words: %s",
                self._folder,
                error,
                extra={"event": "filter-image-unusable"},
            )
            return False

    def _load_filter(self, generation: Generation) -> None:
        try:
            self.filters.load(generation.number, generation.extents)
        except (StoreCorruptError, OSError) as error:
            log.warning(
                "store %s: filter words of %s not usable, rebuilding them from its keys: %s",
                self._folder,
                generation.name,
                error,
                extra={"event": "filter-words-unusable"},
            )
            self._rebuild_filter(generation)

    def _rebuild_filter(self, generation: Generation) -> None:
        family, end, extents = self._families[generation.number], 0, []
        for number in range(len(generation.extents)):
            words = ExtentWords([merge_words(read_words(family, number))])
            extents.append(self.filters.append(generation.number, end, words, number) - end)
            end += extents[-1]
        # The words may be packed to other sizes than before, and are read by the sizes in the state.
        self.state = self.state.changed(replace(generation, extents=tuple(extents)))
        self._database.put(STATE, self.state.encode())
