"""The consumer with windows by topic, with one that is off, and with a lookup that does not persist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from dedup_adapters import artemis
from dedup_sdk import ConfigurationError, Lookup, MissingIdError, Recovery, Window, Windows, header
from tests.support.consuming import poll_quiet, poll_some, replayed, values

if TYPE_CHECKING:
    from pathlib import Path

    from tests.mock.conftest import Make, Send


def cache(**settings: Any) -> Lookup:
    """A cache of IDs in the header ``dedup-id``."""
    return artemis.duplicate_detection(id=header("dedup-id"), **settings)


def counted(consumer: Any) -> dict[str, int]:
    """The verdicts given, without those never given."""
    return {kind: count for kind, count in consumer.counters.verdicts.items() if count}


def test_topics_have_caches_of_their_own_size(make: Make, send: Send) -> None:
    """One has a cache of two, the other none; a message of an off cache is counted."""
    consumer = make("orders", "pairs", dedup=cache(id_cache_size=2, addresses={"pairs": 0}))
    send(*"abacab")
    assert values(poll_quiet(consumer)) == ["a", "b", "c", "a", "b"]
    send("x", "x", topic="pairs")
    assert values(poll_quiet(consumer)) == ["x", "x"]
    assert counted(consumer) == {"fresh": 7, "duplicate": 1}
    assert consumer.counters.as_dict()["fresh.off"] == 2


@pytest.mark.parametrize("disk", ["same", "lost"])
@pytest.mark.parametrize(
    "settings", [{"persist_id_cache": False}, {"id_cache_size": 0}], ids=["memory", "off"]
)
def test_what_forgets_replays_nothing_and_doubts_nothing(
    make: Make, send: Send, tmp_path: Path, settings: dict[str, Any], disk: str
) -> None:
    """Handled messages do not come again, all others are new, on the same disk or another."""
    with make("orders", dedup=cache(**settings), store=tmp_path / "same") as consumer:
        send("a", "b", "c")
        assert values(poll_some(consumer, 3)) == ["a", "b", "c"]
    send("a", "b")
    with make("orders", dedup=cache(**settings), store=tmp_path / disk) as again:
        assert values(poll_quiet(again)) == ["a", "b"]
        assert counted(again) == {"fresh": 2}
        assert replayed(again) == 0
        assert all("uncovered" not in each.hindrances for each in again.partition_statuses)


def test_a_cache_in_memory_works_while_the_consumer_lives(make: Make, send: Send, tmp_path: Path) -> None:
    """And a seek begins it anew, as every beginning does."""
    consumer = make("orders", dedup=cache(persist_id_cache=False), store=tmp_path)
    send("a", "b", "a")
    assert values(poll_quiet(consumer)) == ["a", "b"]
    send("b", "c")
    assert values(poll_quiet(consumer)) == ["c"]
    consumer.seek(TopicPartition("orders", 0, 1))
    assert values(poll_quiet(consumer)) == ["b", "a", "c"]


def test_a_snapshot_for_what_begins_without_ids_is_refused(make: Make, tmp_path: Path) -> None:
    """It would never be installed, without a word."""
    with pytest.raises(
        ConfigurationError, match=r"snapshot='snap' would never be installed: .*leave snapshot out"
    ):
        make("orders", dedup=cache(persist_id_cache=False), recovery=Recovery(snapshot="snap"))
    make("orders", dedup=cache(persist_id_cache=False), recovery=Recovery(snapshot=[]))
    make("orders", dedup=cache(), recovery=Recovery(snapshot=str(tmp_path)))


def test_a_lost_disk_is_made_up_for_by_the_topic(make: Make, send: Send, tmp_path: Path) -> None:
    """A cache that persists is folded again from the beginning of the group's history.

    The last three accepted are d, e and a.
    """
    with make("orders", dedup=cache(id_cache_size=3), store=tmp_path / "one") as consumer:
        send(*"abcabdea")
        assert values(poll_some(consumer, 6)) == ["a", "b", "c", "d", "e", "a"]
    send(*"adebc")
    again = make("orders", dedup=cache(id_cache_size=3), store=tmp_path / "two")
    assert values(poll_quiet(again)) == ["b", "c"]
    assert counted(again) == {"duplicate": 3, "fresh": 2}


def test_an_id_is_asked_for_only_where_it_is_looked_up(make: Make, send: Send) -> None:
    """on_missing_id="fail" is about topics whose window is not off."""
    windows = Windows(default=Window(count=5), topics={"pairs": Window.off()})
    consumer = make(
        "orders", "pairs", dedup=Lookup(id=header("another"), window=windows, on_missing_id="fail")
    )
    send("a", "b", topic="pairs")
    assert values(poll_quiet(consumer)) == ["a", "b"]
    send("c", topic="pairs")
    send("d")
    with pytest.raises(MissingIdError, match="orders"):
        poll_quiet(consumer, 5)
