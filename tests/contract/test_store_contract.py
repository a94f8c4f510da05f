"""The promises of every key store, whatever it is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from dedup_sdk._marks import NO_MARKS, NONE_FOUND, Known, Progress
from dedup_sdk._store.protocol import Identity, KeyStore, PartitionStore
from dedup_sdk._window import Window
from dedup_sdk.errors import ForeignStoreError, StoreError, StoreLockedError
from tests.support.finding import find
from tests.support.interrupting import Interrupted, InterruptedAt
from tests.support.marks import IDENTITY, digest, marks, progress, random_marks, rows, write_snapshot
from tests.support.steps import finish

WINDOW = Window(days=7)

Reopen = Callable[[], PartitionStore]


def test_a_new_store_holds_nothing(store: PartitionStore) -> None:
    """A new store loads as None, finds nothing and scans nothing."""
    assert store.load() is None
    assert store.find(digest("a"), 1) == NONE_FOUND
    assert list(store.scan()) == []
    assert store.expire(10**15) is None


def test_steps_come_back_in_order_with_every_field_of_the_last_progress(
    key_store: KeyStore, store: PartitionStore
) -> None:
    """After reopening, the recent marks are those of all steps in order. Progress is the last one's, field by field."""
    last = Progress(
        low=2,
        high=9,
        done=((11, 12), (14, 20)),
        committed=5,
        era="é-2",
        known=Known(since_ms=-1, accepted=7, since_number=1, newest_ms=99),
    )
    store.append(progress(1), marks(("a", 0, 10), ("b", 1, 11)))
    store.append(progress(2), NO_MARKS)
    store.append(last, marks(("a", 8, 18)))
    store.close()
    loaded = key_store.open(IDENTITY, WINDOW).load()
    assert loaded is not None
    assert loaded.progress == last
    assert loaded.recent.digests == digest("a") + digest("b") + digest("a")
    assert loaded.recent.offsets.tolist() == [0, 1, 8]
    assert loaded.recent.timestamps.tolist() == [10, 11, 18]


def test_a_signal_in_a_step_leaves_no_progress_without_its_marks(
    key_store: KeyStore, store: PartitionStore
) -> None:
    """Wherever the signal strikes."""
    place, has_struck = 0, True
    while has_struck:
        place += 1
        at = InterruptedAt(place)
        with suppress(Interrupted), at:
            store.append(progress(place), marks((f"n-{place}", place - 1, 10)))
        has_struck = at.struck
        store.close()
        store = key_store.open(IDENTITY, WINDOW)
        loaded = store.load()
        written = loaded is not None and loaded.progress.high == place
        assert loaded is None or not written or digest(f"n-{place}") in loaded.recent.digests, at.where
    assert place > 1


def test_deltas_come_back_as_the_whole(key_store: KeyStore, store: PartitionStore) -> None:
    """Done ranges of steps add up over flushes and openings, until a whole progress takes their place."""
    store.append(progress(1), NO_MARKS)
    store.append(dataclasses.replace(progress(1), done=((5, 6),), delta=True), NO_MARKS)
    store.append(dataclasses.replace(progress(2), done=((8, 9),), delta=True), NO_MARKS)
    store.close()
    store = key_store.open(IDENTITY, WINDOW)
    loaded = store.load()
    assert loaded is not None
    assert loaded.progress == dataclasses.replace(progress(2), done=((5, 6), (8, 9)))
    store.flush(loaded.progress, NO_MARKS)
    store.append(dataclasses.replace(progress(6), done=((7, 8),), delta=True), NO_MARKS)
    store.close()
    store = key_store.open(IDENTITY, WINDOW)
    loaded = store.load()
    assert loaded is not None
    assert loaded.progress == dataclasses.replace(progress(6), done=((7, 9),))
    store.append(dataclasses.replace(progress(7), done=((9, 10),)), NO_MARKS)
    store.close()
    loaded = key_store.open(IDENTITY, WINDOW).load()
    assert loaded is not None
    assert loaded.progress.done == ((9, 10),)


def test_recent_marks_are_not_looked_up(store: PartitionStore) -> None:
    """A mark that is only in the journal is not found and not scanned."""
    store.append(progress(1), marks(("a", 0, 10)))
    assert find(store, "a") == {}
    assert list(store.scan()) == []


def test_flushed_marks_are_found_and_the_journal_is_gone(key_store: KeyStore, store: PartitionStore) -> None:
    """A flush moves marks from the journal to the found ones, here and after reopening.

    It forgets marks it was not given.
    """
    store.append(progress(3), marks(("a", 0, 10), ("b", 1, 11), ("dropped", 2, 12)))
    store.flush(progress(4), marks(("b", 1, 11), ("a", 0, 10)))
    for held in (store, None):
        if held is None:
            store.close()
            held = key_store.open(IDENTITY, WINDOW)  # noqa: PLW2901 (the second round looks at the reopened one)
        loaded = held.load()
        assert loaded is not None
        assert (loaded.progress.high, loaded.recent.count) == (4, 0)
        assert find(held, "x", "b", "dropped", "a") == {"b": (1, 11), "a": (0, 10)}


def test_steps_after_a_flush_are_kept(key_store: KeyStore, store: PartitionStore) -> None:
    """Marks appended after a flush are recent again."""
    store.append(progress(1), marks(("a", 0, 10)))
    store.flush(progress(1), marks(("a", 0, 10)))
    store.append(progress(2), marks(("b", 1, 11)))
    store.close()
    loaded = key_store.open(IDENTITY, WINDOW).load()
    assert loaded is not None
    assert (loaded.progress.high, loaded.recent.offsets.tolist()) == (2, [1])


@pytest.mark.parametrize("later", [3, 7])
def test_the_highest_offset_wins(key_store: KeyStore, store: PartitionStore, later: int) -> None:
    """Of several flushed marks of an ID the one with the highest offset is found and scanned.

    They may have come in any order.
    """
    store.flush(progress(6), marks(("a", 5, 50), ("other", 1, 10)))
    store.flush(progress(9), marks(("a", later, 10 * later), ("third", 2, 20)))
    expected = (max(5, later), 10 * max(5, later))
    assert find(store, "a") == {"a": expected}
    store.close()
    again = key_store.open(IDENTITY, WINDOW)
    assert find(again, "a") == {"a": expected}
    assert rows(again.scan())[digest("a")] == expected


def test_a_mark_on_its_way_does_not_hide_a_higher_one(
    store: PartitionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a flush is under way, too, the highest offset of an ID is found."""
    monkeypatch.setattr("dedup_sdk._store.generations.ADDED_AT_ONCE", 1)
    store.flush(progress(101), marks(("a", 100, 1_000)))
    steps = store.flush_steps(progress(200), marks(("a", 50, 500), ("b", 60, 600)))
    next(steps, None)
    assert find(store, "a", "b") == {"a": (100, 1_000), "b": (60, 600)}
    finish(steps)
    assert find(store, "a", "b") == {"a": (100, 1_000), "b": (60, 600)}


def test_one_flush_may_be_given_an_id_twice(store: PartitionStore) -> None:
    """Within one flush the highest offset wins too."""
    store.flush(progress(9), marks(("a", 5, 50), ("a", 8, 80), ("a", 6, 60)))
    assert find(store, "a") == {"a": (8, 80)}


def test_expiry_by_time_drops_what_is_older_only(key_store: KeyStore, store: PartitionStore) -> None:
    """Expiry drops old flushes as a whole, says before how new the newest dropped mark is, and touches nothing else."""
    day_ms = 86_400_000
    for day in range(4):
        store.flush(
            progress(day + 1),
            marks((f"day{day}", day, day * day_ms), (f"eve{day}", day + 100, day * day_ms + 5)),
        )
    assert (store.expires_to_ms(0), store.expire(0)) == (None, None)
    assert (store.expires_to_ms(2 * day_ms), len(find(store, "day0", "day1"))) == (day_ms + 5, 2)
    assert store.expire(2 * day_ms) == day_ms + 5
    assert (store.expires_to_ms(2 * day_ms), store.expire(2 * day_ms)) == (None, None)
    left = {
        "day2": (2, 2 * day_ms),
        "eve2": (102, 2 * day_ms + 5),
        "day3": (3, 3 * day_ms),
        "eve3": (103, 3 * day_ms + 5),
    }
    assert find(store, "day0", "day1", "day2", "eve2", "day3", "eve3") == left
    store.close()
    again = key_store.open(IDENTITY, WINDOW)
    assert rows(again.scan()) == {digest(name): mark for name, mark in left.items()}
    assert again.expire(10**15) == 3 * day_ms + 5
    assert list(again.scan()) == []


def test_what_was_dropped_is_no_newer_than_it_is_told(store: PartitionStore) -> None:
    """Also of an ID that came again, and whose newer mark lies beside others that stay.

    Whoever misses it knows that it may have been there.
    """
    day_ms = 86_400_000
    store.flush(progress(1), marks(("a", 0, 0)))
    store.flush(progress(3), marks(("a", 1, day_ms), ("b", 2, 6 * day_ms)))
    newest_ms = store.expires_to_ms(2 * day_ms)
    assert newest_ms is not None
    assert store.expire(2 * day_ms) == newest_ms
    assert find(store, "a") == {"a": (1, day_ms)} or newest_ms >= day_ms


def test_an_id_that_came_again_outlives_its_first_flush(store: PartitionStore) -> None:
    """Dropping an old flush leaves the newer mark of an ID that was in both."""
    day_ms = 86_400_000
    store.flush(progress(1), marks(("a", 0, 0)))
    store.flush(progress(9), marks(("a", 8, 6 * day_ms)))
    store.expire(day_ms)
    assert find(store, "a") == {"a": (8, 6 * day_ms)}


def test_count_windows_keep_numbers_and_expire_by_them(key_store: KeyStore) -> None:
    """With a count window marks bear their numbers, through journal, flush and scan, and may go by number alone."""
    store = key_store.open(IDENTITY, Window(count=8))
    store.append(progress(2), marks(("a", 0, 10, 1), ("b", 1, 11, 2)))
    store.close()
    store = key_store.open(IDENTITY, Window(count=8))
    loaded = store.load()
    assert loaded is not None
    assert loaded.recent.numbers is not None
    assert loaded.recent.numbers.tolist() == [1, 2]
    store.flush(progress(2), loaded.recent)
    store.flush(progress(9), marks(("c", 8, 5, 9)))
    found = store.find(digest("c") + digest("x") + digest("b"), 3)
    assert (found.indexes, found.numbers) == ([0, 2], [9, 2])
    assert store.expire(None, 1) is None
    assert store.expire(None, 2) == 11
    (page,) = store.scan()
    assert page.numbers is not None
    assert (page.digests, page.numbers.tolist()) == (digest("c"), [9])


def test_a_count_window_does_not_open_on_marks_without_numbers(
    key_store: KeyStore, store: PartitionStore
) -> None:
    """Marks of a time window cannot serve a count window, and the error names the window."""
    store.close()
    with pytest.raises(ForeignStoreError, match="20n"):
        key_store.open(IDENTITY, Window(count=20))
    key_store.open(IDENTITY, Window(days=1)).close()


def test_reset_forgets_everything_but_the_new_progress(key_store: KeyStore, store: PartitionStore) -> None:
    """After a reset there are no marks, recent or flushed, and the given progress is loaded."""
    store.flush(progress(5), marks(("a", 4, 40)))
    store.append(progress(6), marks(("b", 5, 50)))
    store.reset(progress(100, low=100))
    for held in (store, None):
        if held is None:
            store.close()
            held = key_store.open(IDENTITY, WINDOW)  # noqa: PLW2901 (the second round looks at the reopened one)
        loaded = held.load()
        assert loaded is not None
        assert (loaded.progress, loaded.recent.count) == (progress(100, low=100), 0)
        assert find(held, "a", "b") == {}
    again = held
    assert again is not None
    again.flush(progress(102), marks(("a", 101, 0)))
    assert find(again, "a") == {"a": (101, 0)}


def test_a_scan_ascends_and_is_complete(store: PartitionStore) -> None:
    """A scan over many pages and flushes ascends by digest, each ID once at its highest offset."""
    first, second = random_marks(120_000, 1), random_marks(70_000, 2, offset=120_000)
    store.flush(progress(120_000), first)
    store.flush(progress(190_000), second)
    again = random_marks(120_000, 1, offset=500_000)
    store.flush(progress(700_000), again)
    pages = list(store.scan())
    keys = np.frombuffer(b"".join(page.digests for page in pages), "V16").tolist()
    assert len(pages) > 1
    assert keys == sorted(set(keys))
    assert len(keys) == 190_000
    offsets = np.concatenate([page.offsets for page in pages])
    assert offsets.sum() == again.offsets.sum() + second.offsets.sum()


def test_a_large_flush_is_found_whole_and_nothing_else(store: PartitionStore) -> None:
    """Of a large look-up over several flushes exactly the flushed marks are found, each with its offset and time."""
    held = [random_marks(30_000, seed, offset=30_000 * seed) for seed in range(4)]
    for step in held:
        store.flush(progress(10**6), step)
    strangers = random_marks(1000, 99).digests
    assert store.find(strangers, 1000) == NONE_FOUND
    for step in held:
        found = store.find(strangers[:160] + step.digests + strangers[:160], 30_020)
        assert found.indexes == list(range(10, 30_010))
        assert found.offsets == step.offsets.tolist()
        assert found.timestamps == step.timestamps.tolist()


def test_a_partition_has_one_owner(key_store: KeyStore, store: PartitionStore) -> None:
    """A second opening of the same partition is refused until the first is closed; another partition is free."""
    with pytest.raises(StoreLockedError, match="another consumer"):
        key_store.open(IDENTITY, WINDOW)
    key_store.open(dataclasses.replace(IDENTITY, partition=4), WINDOW).close()
    store.close()
    key_store.open(IDENTITY, WINDOW).close()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("topic_id", "t2"),
        ("topic_id", ""),
        ("id_spec", "key"),
        ("digest", "md5"),
        ("isolation", "read_uncommitted"),
    ],
)
def test_a_foreign_store_is_refused(
    key_store: KeyStore, store: PartitionStore, field: str, value: str
) -> None:
    """A store opened under another identity is refused.

    The message has both values, and its owner can still open it.
    """
    store.flush(progress(5), marks(("a", 4, 40)))
    store.close()
    other: Identity = dataclasses.replace(IDENTITY, **{field: value})  # type: ignore[arg-type]
    with pytest.raises(ForeignStoreError) as caught:
        key_store.open(other, WINDOW)
    assert f"{field}={getattr(IDENTITY, field)!r}, not {value!r}" in str(caught.value)
    assert find(key_store.open(IDENTITY, WINDOW), "a") == {"a": (4, 40)}


def test_a_store_that_is_set_aside_is_empty_afterwards(key_store: KeyStore, store: PartitionStore) -> None:
    """Setting aside is refused while the store is open.

    After it the next opening finds nothing, and other partitions theirs.
    """
    other = dataclasses.replace(IDENTITY, partition=4)
    for identity, held in ((IDENTITY, store), (other, key_store.open(other, WINDOW))):
        held.flush(progress(5), marks(("a", 4, 40)))
        with pytest.raises(StoreLockedError):
            key_store.set_aside(identity)
        held.close()
    assert key_store.set_aside(IDENTITY)
    again = key_store.open(IDENTITY, WINDOW)
    assert again.load() is None
    assert find(again, "a") == {}
    assert find(key_store.open(other, WINDOW), "a") == {"a": (4, 40)}


def test_the_oldest_marks_can_be_shed(key_store: KeyStore, store: PartitionStore) -> None:
    """Shedding drops the oldest flush whatever the window says, tells how new it was, and ends when nothing is left."""
    day_ms = 86_400_000
    assert (store.oldest_ms, store.evicts_to_ms, store.evict(), key_store.excess_bytes()) == (
        None,
        None,
        None,
        0,
    )
    for day in range(3):
        store.flush(progress(day + 1), marks((f"day{day}", day, day * day_ms)))
    assert (store.oldest_ms, store.evicts_to_ms) == (0, 0)
    assert store.evict() == 0
    assert store.oldest_ms == day_ms
    assert find(store, "day0", "day1", "day2") == {"day1": (1, day_ms), "day2": (2, 2 * day_ms)}
    store.close()
    again = key_store.open(IDENTITY, WINDOW)
    assert [again.evict(), again.evict(), again.evict()] == [day_ms, 2 * day_ms, None]
    assert list(again.scan()) == []


def test_a_revived_store_goes_on_where_it_was(key_store: KeyStore, store: PartitionStore) -> None:
    """Opening anew in place changes nothing stored, and later steps follow the earlier ones."""
    store.flush(progress(1), marks(("a", 0, 10)))
    store.append(progress(2), marks(("b", 1, 20)))
    assert store.reopen()
    assert find(store, "a") == {"a": (0, 10)}
    store.append(progress(3), marks(("c", 2, 30)))
    store.close()
    loaded = key_store.open(IDENTITY, WINDOW).load()
    assert loaded is not None
    assert (loaded.progress.high, loaded.recent.offsets.tolist()) == (3, [1, 2])


def test_a_closed_store_refuses_everything(store: PartitionStore, tmp_path: Path) -> None:
    """After close, which may be repeated, every method raises StoreError."""
    manifest = write_snapshot(tmp_path / "snapshot", NO_MARKS)
    store.close()
    store.close()
    calls: list[Callable[[], object]] = [
        store.load,
        lambda: store.append(progress(1), NO_MARKS),
        lambda: store.find(digest("a"), 1),
        lambda: store.flush(progress(1), NO_MARKS),
        lambda: store.expire(1),
        lambda: store.expires_to_ms(1),
        lambda: store.evicts_to_ms,
        store.evict,
        store.reopen,
        lambda: finish(store.install_steps("nowhere", progress(1), manifest=manifest)),
        lambda: store.reset(progress(1)),
        lambda: list(store.scan()),
        store.stats,
    ]
    for call in calls:
        with pytest.raises(StoreError):
            call()


def test_closing_the_key_store_closes_its_partitions(key_store: KeyStore, store: PartitionStore) -> None:
    """A key store closes the partitions it handed out."""
    key_store.close()
    with pytest.raises(StoreError):
        store.load()


def test_half_a_digest_is_refused(store: PartitionStore) -> None:
    """A look-up whose bytes are not so many digests is an error, not an empty answer."""
    with pytest.raises(StoreError, match="31 bytes are not 2 digests"):
        store.find(b"x" * 31, 2)


def test_stats_count_marks(store: PartitionStore) -> None:
    """Stats tell flushed from recent marks."""
    store.flush(progress(2), marks(("a", 0, 10), ("b", 1, 11)))
    store.append(progress(3), marks(("c", 2, 12)))
    stats = store.stats()
    assert (stats.marks, stats.recent) == (2, 1)
    assert stats.filter_bytes > 0
