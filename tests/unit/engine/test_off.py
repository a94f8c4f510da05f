"""A topic whose window is off: everything is delivered once, and nothing of it is remembered but where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._store.memory import MemoryStore
from dedup_sdk._store.protocol import Identity, KeyStore
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._strategy import Lookup
from dedup_sdk._window import Window, Windows
from dedup_sdk.errors import ForeignStoreError, MissingIdError
from dedup_sdk.ids import key
from tests.support.marks import marks, progress
from tests.support.records import engine, kinds, record

SOME_OFF = Windows(default=Window(count=3), topics={"off": Window.off()})


@pytest.fixture(params=["memory", "rocks"])
def key_store(request: pytest.FixtureRequest, tmp_path: Path) -> KeyStore:
    """Each of the stores, empty."""
    return MemoryStore() if request.param == "memory" else RocksStore(tmp_path / "store")


def judged(deduplicator: Deduplicator, *names: str, begin: int = 0, topic: str = "t") -> list[str]:
    """The verdicts of records with these IDs, each completed before the next comes."""
    said = []
    for offset, name in enumerate(names, begin):
        one = record(offset, name, topic=topic)
        [verdict] = deduplicator.admit([one])
        said.append(verdict.kind.value)
        deduplicator.complete([one] if verdict.deliver else [])
    return said


def test_everything_is_fresh_where_the_window_is_off(key_store: KeyStore) -> None:
    """Also at once, in one batch; the topic beside it has its window."""
    deduplicator = engine(SOME_OFF, store=key_store)
    batch = [record(offset, "a", topic="off") for offset in range(3)]
    verdicts = deduplicator.admit(batch)
    assert kinds(verdicts) == ["fresh"] * 3
    assert {verdict.reason for verdict in verdicts} == {"off"}
    assert all(verdict.deliver for verdict in verdicts)
    assert deduplicator.complete(batch) == []
    assert judged(deduplicator, "a", "a") == ["fresh", "duplicate"]
    counted = deduplicator.counters
    assert (counted.verdicts["fresh"], counted.reasons["fresh.off"]) == (4, 3)


def test_what_was_completed_is_not_delivered_again(key_store: KeyStore) -> None:
    """Redelivery is told by offset, before and after a restart, also above a gap."""
    deduplicator = engine(SOME_OFF, store=key_store)
    batch = [record(offset, "a", topic="off") for offset in range(4)]
    deduplicator.admit(batch)
    deduplicator.complete([batch[0], batch[2]])
    deduplicator.close("off", 0)
    again = deduplicator.admit(batch)
    assert kinds(again) == ["redelivered", "fresh", "redelivered", "fresh"]
    assert [verdict.reason for verdict in again] == ["", "off", "", "off"]


def test_records_without_an_id_are_delivered_whatever_the_policy_says() -> None:
    """No ID is asked for where none is looked up."""
    discarding = engine(SOME_OFF, on_missing_id="discard")
    [verdict] = discarding.admit([record(0, "", topic="off")])
    assert (verdict.kind.value, verdict.deliver) == ("fresh", True)
    failing = engine(SOME_OFF, on_missing_id="fail")
    assert kinds(failing.admit([record(0, "", topic="off")])) == ["fresh"]
    with pytest.raises(MissingIdError):
        failing.admit([record(0, "")])


def test_what_is_turned_off_is_forgotten(key_store: KeyStore) -> None:
    """Turned on again it knows nothing of before: neither stored IDs, nor later ones.

    They are unverified.
    """
    on, off = Window(count=3), Window.off()
    assert judged(engine(on, store=key_store), "a", "b") == ["fresh", "fresh"]
    key_store.close()
    assert judged(engine(off, store=key_store), "x", "y", begin=2) == ["fresh", "fresh"]
    key_store.close()
    later = engine(on, store=key_store)
    assert judged(later, "a", "x", "b", begin=4) == ["unverified", "unverified", "unverified"]
    assert judged(later, "c", "x", begin=7) == ["fresh", "duplicate"]


@pytest.mark.parametrize("window", [Window(count=3), Window(hours=1)])
def test_a_store_that_began_off_takes_any_window(window: Window, key_store: KeyStore) -> None:
    """It has no mark that could lack a number."""
    assert judged(engine(Window.off(), store=key_store), "a") == ["fresh"]
    key_store.close()
    assert judged(engine(window, store=key_store), "a", "a", begin=1) == ["unverified", "duplicate"]


def test_a_partition_that_is_off_is_covered_and_in_no_doubt(key_store: KeyStore) -> None:
    """Also where records that the group completed elsewhere are skipped."""
    deduplicator = engine(SOME_OFF, store=key_store)
    deduplicator.open("off", 0, low=0, committed=50)
    assert deduplicator.partitions["off", 0].covered
    assert judged(deduplicator, "a", begin=50, topic="off") == ["fresh"]


def test_a_dead_letter_ends_a_record_that_is_off() -> None:
    """And a release has it offered again, as everywhere."""
    deduplicator = engine(SOME_OFF)
    one, two = record(0, "a", topic="off"), record(1, "a", topic="off")
    deduplicator.admit([one, two])
    assert kinds(deduplicator.release([one])) == ["fresh"]
    assert deduplicator.dead_letter([one]) == []
    deduplicator.complete([two])
    assert deduplicator.next_offset("off", 0) == 2


def test_observing_hides_nothing_of_it() -> None:
    """With `show_duplicates` there is nothing to show."""
    deduplicator = Deduplicator(Lookup(id=key(), window="off"))
    deduplicator.open("off", 0)
    deduplicator.partitions["off", 0].flight.show_duplicates()
    assert judged(deduplicator, "a", "a", topic="off") == ["fresh", "fresh"]


def test_a_window_that_is_off_numbers_no_marks(key_store: KeyStore) -> None:
    """Marks from a window by time that are still there are none for a ring.

    It does not matter which window the store was opened with in between.
    """
    identity = Identity(cluster="c", group="g", topic="t", partition=0)
    with_time = key_store.open(identity, Window(hours=1))
    with_time.append(progress(1), marks(("a", 0, 10)))
    with_time.close()
    key_store.open(identity, Window.off()).close()
    with pytest.raises(ForeignStoreError, match="without acceptance numbers"):
        key_store.open(identity, Window(count=3))
