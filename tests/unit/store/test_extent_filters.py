"""Which generations a digest is looked up in."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dedup_sdk._store import filter_set
from dedup_sdk._store.database import get_values
from dedup_sdk._store.filter_set import (
    BITS_PER_ID_AND_EXTENT,
    Candidates,
    Extent,
    ExtentFilters,
    ExtentWords,
    Filter,
    FilterSet,
)
from dedup_sdk._store.filter_words import NO_WORDS, FilterWords, filter_words, merge_words
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._window import Window
from tests.support.marks import IDENTITY, progress, random_marks

DAY_MS = 86_400_000


def words(count: int, seed: int) -> tuple[bytes, FilterWords]:
    """Return random digests, unsorted, and their words, sorted, of one page."""
    digests = random_marks(count, seed).digests
    added = merge_words([filter_words(digests), NO_WORDS])
    return digests, dataclasses.replace(added, pages=added.ranks[:1])


def everywhere(digests: bytes) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The positions of all digests."""
    return np.arange(len(digests) // 16, dtype=np.intp)


def generations(asked: list[Candidates]) -> dict[int, list[int]]:
    """The positions that each generation is asked for, the newest first."""
    found: dict[int, set[int]] = {}
    for each in asked:
        found.setdefault(each.generation, set()).update(each.positions)
    return {generation: sorted(found[generation]) for generation in sorted(found, reverse=True)}


def test_every_generation_that_has_a_digest_is_named_and_few_others() -> None:
    """Nothing is missed, also digests in several extents of a generation.

    Of strangers each extent takes at most 4 % for its own.
    """
    filters = ExtentFilters()
    parts = [words(20_000, seed) for seed in range(6)]
    for index, (_, added) in enumerate(parts):
        filters.add(Extent(index // 2, index, 1, added.count, pages=1), ExtentWords([added]))
    for index, (digests, _) in enumerate(parts):
        found = generations(filters.by_generation(digests, everywhere(digests)))
        assert found[index // 2] == list(range(20_000))
        assert all(
            len(positions) <= 1_600 for generation, positions in found.items() if generation != index // 2
        )
    assert filters.nbytes <= 6 * (20_000 * BITS_PER_ID_AND_EXTENT // 8 + 16)


def test_generations_are_named_with_positions_of_the_question() -> None:
    """Only positions that were asked about are named, and whoever has none is left out."""
    filters = ExtentFilters()
    digests, added = words(10, 1)
    for generation in (3, 12, 7):
        filters.add(Extent(generation, 0, 1, added.count, pages=1), ExtentWords([added]))
    asked = random_marks(5, 2).digests + digests
    positions = np.array([6, 9], np.intp)
    assert generations(filters.by_generation(asked, positions)) == {12: [6, 9], 7: [6, 9], 3: [6, 9]}
    assert filters.by_generation(asked, positions[:0]) == []


def test_what_fools_the_large_filter_does_not_fool_the_small_ones(tmp_path: Path) -> None:
    """Of the strangers that a full large filter lets pass, at most 5 % a generation are looked up there."""
    filters = FilterSet(tmp_path)
    for generation in range(4):
        filters.append(generation, 0, ExtentWords([words(100_000, generation)[1]]))
    strangers = random_marks(400_000, 99).digests
    passed = filters.may_contain(strangers).size
    asked = sum(len(each.positions) for each in filters.by_generation(strangers))
    assert passed > 500
    assert asked <= 4 * passed * 5 // 100


def test_extents_that_went_are_not_named_and_the_others_are(tmp_path: Path) -> None:
    """Each generation is named for exactly its digests.

    So it stays through appends, repeated appends, dropped generations and images.
    """
    rng = np.random.default_rng(4)
    filters = FilterSet(tmp_path)
    held: dict[int, list[bytes]] = {}
    ends: dict[int, int] = {}
    for turn in range(60):
        action = rng.integers(0, 10)
        if action == 0 and held:
            oldest = min(held)
            filters.drop([oldest])
            del held[oldest], ends[oldest]
        elif action == 1 and held:
            filters.save(b"%d" % turn)
            filters = FilterSet(tmp_path)
            assert filters.restore(b"%d" % turn)
        else:
            generation = turn // 8
            digests, added = words(int(rng.integers(1, 3_000)), turn)
            start = ends.get(generation, 0)
            if action == 2:
                # An attempt that does not become valid, and is written over.
                filters.append(generation, start, ExtentWords([words(500, 1_000 + turn)[1]]))
            ends[generation] = filters.append(generation, start, ExtentWords([added]))
            held.setdefault(generation, []).append(digests)
        for generation, parts in held.items():
            digests = b"".join(parts)
            found = generations(filters.by_generation(digests))
            assert found[generation] == list(range(len(digests) // 16))
            assert set(found) <= set(held)
    assert filters.marks == sum(len(part) // 16 for parts in held.values() for part in parts)


Held = dict[int, list[tuple[bytes, FilterWords]]]


def equal_attempts() -> list[tuple[bytes, FilterWords]]:
    """Different words of the same sizes, as of a flush that is repeated: their extents are equal."""
    found = [words(900, seed) for seed in range(50, 90)]
    sizes = [ExtentWords([added]).size for _, added in found]
    (size, _) = Counter(sizes).most_common(1)[0]
    return [each for each, its_size in zip(found, sizes, strict=True) if its_size == size][:2]


EQUAL = equal_attempts()


def change(filters: FilterSet, held: Held, how: str, fold: Iterator[None]) -> None:
    """Change the filters while a fold waits; the fold takes a step after each attempt of a flush."""
    if how.startswith("drop"):
        gone = [2] if how == "drop" else [0, 1, 2]
        filters.drop(gone)
        for each in gone:
            del held[each]
        return
    end = filters.path(2).stat().st_size
    attempts = EQUAL if how == "equal flush" else EQUAL[1:]
    for _, added in attempts:
        filters.append(2, end, ExtentWords([added]), 2)
        next(fold, None)
    held[2].append(attempts[-1])


@pytest.mark.parametrize("between", ["flush", "equal flush", "drop", "drop all"])
@pytest.mark.parametrize("holders", [1, 2])
def test_a_fold_that_waits_for_the_next_flush_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: str, holders: int
) -> None:
    """Whatever comes between two of its steps, every ID is found where it is; twice, so that filters grow again."""
    monkeypatch.setattr(filter_set, "MIN_PER_FILTER", 100)
    # The second extent of generation 1 does not fit into the first filter, or does.
    monkeypatch.setattr(filter_set, "MAX_PER_FILTER", 20_000 if holders == 1 else 3_000)
    stop, is_over = 0, False
    while not is_over:
        stop += 1
        filters = FilterSet(tmp_path / str(stop))
        (tmp_path / str(stop)).mkdir()
        held: Held = {0: [words(2_500, 1)], 1: [words(300, 2), words(300, 3)], 2: [words(100, 4)]}
        for generation, parts in held.items():
            end = 0
            for number, (_, added) in enumerate(parts):
                end = filters.append(generation, end, ExtentWords([added]), number)
        folded = merge_words(added for _, added in held[1])
        folded = dataclasses.replace(folded, pages=folded.ranks[:1])
        new = ExtentWords([folded])
        filters.write(3, 0, new.encoded)
        fold = filters.prepare_fold(1, new)
        for _ in range(stop):
            is_over = next(fold, 0) == 0
        change(filters, held, between, fold)
        for _ in fold:
            pass
        if 1 in held:
            filters.fold(1, 3, new)
            held[3] = held.pop(1)
        for generation, parts in held.items():
            digests = b"".join(part for part, _ in parts)
            assert generations(filters.by_generation(digests))[generation] == list(range(len(digests) // 16))
    assert stop > 1


def test_what_was_prepared_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a flush comes between the steps of a fold over two filters: all of it at once would take too long."""
    monkeypatch.setattr(filter_set, "MAX_PER_FILTER", 3_000)
    filters = FilterSet(tmp_path)
    for generation, count in ((0, 2_500), (1, 300), (1, 400)):
        path = filters.path(generation)
        end = path.stat().st_size if path.exists() else 0
        filters.append(generation, end, ExtentWords([words(count, count)[1]]), count)
    new, flushed = ExtentWords([words(700, 5)[1]]), ExtentWords([words(50, 6)[1]])
    filters.write(3, 0, new.encoded)
    assert list(filters.prepare_fold(1, new))
    assert list(filters.prepare(flushed))
    calls = list[int]()
    monkeypatch.setattr(Filter, "add", lambda _, added: calls.append(added.count))
    end = filters.write(2, 0, flushed.encoded)
    filters.add(2, 0, flushed, 0)
    filters.fold(1, 3, new)
    assert (end, calls) == (flushed.size, [])


def test_a_look_up_asks_only_generations_that_may_have_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a store of eight generations, a stored digest is asked of one of them or little more.

    It is found at its newest offset.
    """
    # No page fits into its cache: each is asked for.
    store = RocksStore(tmp_path, generation_marks=1, block_cache_bytes=1)
    held = store.open(IDENTITY, Window(days=7))
    flushed = []
    for day in range(8):
        marks = random_marks(2_000, day, offset=2_000 * day)
        again = random_marks(2_000, 0).digests[: 16 * 100] if day == 5 else b""
        marks = dataclasses.replace(
            marks,
            digests=again + marks.digests[len(again) :],
            timestamps=marks.timestamps * 0 + DAY_MS * day,
        )
        held.flush(progress(2_000 * (day + 1)), marks)
        flushed.append(marks)
    asked = 0

    def counting(family: object, keys: list[bytes]) -> list[bytes | None]:
        nonlocal asked
        asked += len(keys)
        return get_values(family, keys)  # type: ignore[arg-type]

    monkeypatch.setattr("dedup_sdk._store.generations.get_values", counting)
    for day, marks in enumerate(flushed):
        found = held.find(marks.digests, marks.count)
        expected = marks.offsets.copy()
        if day == 0:
            expected[:100] = flushed[5].offsets[:100]
        assert found.indexes == list(range(2_000))
        assert found.offsets == expected.tolist()
    assert 16_000 <= asked <= 20_000
    store.close()
