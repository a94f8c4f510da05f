"""Generations: the marks of one stretch of time, dropped as a whole when all of them are outside the window.

A generation is one column family (``g<number>``) of a partition's database. Each flush adds an extent to it, which is a sorted file of pages; one
that takes nothing in any more is folded into a generation of a single extent, which takes its place. What is known
of it is kept here, so that nothing has to be scanned to drop it. Layout of the state, JSON under the key ``state``::

    {"format": 2, "next": 3, "top_offset": 99, "first_step": 7, "generations": [{"number": 1, "marks": ..., "extents": [...], ...}, ...]}
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Final, Self

import numpy as np

from dedup_sdk.errors import StoreCorruptError
from dedup_sdk.marks import Marks
from dedup_sdk.store.fields import Fields
from dedup_sdk.window import Window

FORMAT: Final = 2
MOST_EXTENTS: Final = 64
_SHARE_OF_WINDOW: Final = 8
_REMEDY: Final = "move the store away and rebuild it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """``began_ms`` is the median timestamp, ``began_number`` the highest number, of its first marks.

    ``marks`` counts what came in (an ID that came twice counts twice, until it is folded); ``extents`` has for each of its extents how many bytes
    of its file of filter words belong to it, one after the other; ``sealed``: nothing more comes in.
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
        """How much of its file of filter words belongs to it."""
        return sum(self.extents)

    def widened(self, marks: Marks) -> Generation:
        """Return it with ``marks`` (at least one) taken in."""
        oldest_ms, newest_ms = int(marks.timestamps.min()), int(marks.timestamps.max())
        newest_number = 0 if marks.numbers is None else int(marks.numbers.max())
        if not self.marks:
            return replace(
                self,
                marks=marks.count,
                oldest_ms=oldest_ms,
                newest_ms=newest_ms,
                newest_number=newest_number,
                # The median, because one timestamp from the future must not end a generation.
                began_ms=int(np.median(marks.timestamps)),
                began_number=newest_number,
            )
        return replace(
            self,
            marks=self.marks + marks.count,
            oldest_ms=min(self.oldest_ms, oldest_ms),
            newest_ms=max(self.newest_ms, newest_ms),
            newest_number=max(self.newest_number, newest_number),
        )

    def takes(self, marks: Marks, window: Window, least_marks: int) -> bool:
        """Whether ``marks`` still belong into it: until it spans an eighth of the window, and never below ``least_marks``.

        Of many small flushes it takes `MOST_EXTENTS`, whatever it spans: then it is folded.
        """
        if self.sealed or len(self.extents) >= MOST_EXTENTS:
            return False
        if self.marks < least_marks:
            return True
        if window.time_ms is not None:
            spanned_ms = int(np.median(marks.timestamps)) - self.began_ms
            if spanned_ms * _SHARE_OF_WINDOW > window.time_ms:
                return False
        if window.count is not None and marks.numbers is not None:
            spanned = int(marks.numbers.max()) - self.began_number
            return spanned * _SHARE_OF_WINDOW <= window.count
        return True

    def is_out(self, before_ms: int | None, up_to_number: int | None) -> bool:
        """Whether every mark is older than ``before_ms``, or every mark has a number of at most ``up_to_number``."""
        too_old = before_ms is not None and self.newest_ms < before_ms
        return too_old or (up_to_number is not None and self.newest_number <= up_to_number)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The generations of a partition, oldest first; one that was folded has a later number than some that are younger.

    ``top_offset`` is at least the offset of every mark in them, -1 without any; ``next_number`` is that of the next generation;
    ``first_step`` the sequence of the first step in the journal, so that a state and a journal of different times are noticed (None: written by a
    version that did not note it).
    """

    generations: tuple[Generation, ...] = field(default=())
    next_number: int = 1
    top_offset: int = -1
    first_step: int | None = 0

    @property
    def marks(self) -> int:
        """How many marks came into the generations."""
        return sum(generation.marks for generation in self.generations)

    def changed(self, generation: Generation) -> State:
        """Return it with a generation in place of the one of its number, or as the newest."""
        if generation.number >= self.next_number:
            return replace(
                self, generations=(*self.generations, generation), next_number=generation.number + 1
            )
        kept = tuple(generation if entry.number == generation.number else entry for entry in self.generations)
        return replace(self, generations=kept)

    def folded(self, old: Generation, new: Generation) -> State:
        """Return it with ``new``, whose number is the next, in the place of ``old``."""
        kept = tuple(new if entry.number == old.number else entry for entry in self.generations)
        return replace(self, generations=kept, next_number=new.number + 1)

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
        """Read what `encode` wrote in the store ``where``; raises `StoreCorruptError` on anything else."""
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            message = f"the state of {where}, {len(data)} bytes, cannot be read ({error}); {_REMEDY}"
            raise StoreCorruptError(message) from None
        read = Fields(
            f"the state of {where} cannot be read", "", content, error=StoreCorruptError, remedy=_REMEDY
        )
        if read.integer("format") != FORMAT:
            raise read.wrong("format", f"this version reads {FORMAT}; use a newer version")
        generations = tuple(_generation(entry) for entry in read.objects("generations"))
        numbers = [generation.number for generation in generations]
        following = read.integer("next", least=1)
        if len(set(numbers)) < len(numbers) or max(numbers, default=0) >= following:
            raise read.wrong(
                "next",
                f"the numbers of generations have to differ, and lie below it; {_REMEDY}",
                shown=[*numbers, following],
            )
        return cls(
            generations=generations,
            next_number=following,
            top_offset=read.integer("top_offset", least=-1),
            first_step=read.integer("first_step", least=0) if read.has("first_step") else None,
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
