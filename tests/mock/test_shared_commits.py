"""Completions of which the group's commit tells, and the shared memory does not know: whoever finds them tells it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk import MemoryStore
from dedup_sdk.shared import ClaimKind, Shared
from tests.support.claiming import ClockedShared, claims_of
from tests.support.consuming import poll_quiet, poll_some, values, wait_for
from tests.support.interrupting import Interrupted, strike_at
from tests.support.shared_memory import LEASE_MS, Watched, claim_as

if TYPE_CHECKING:
    from tests.mock.conftest import Make, Send


@pytest.fixture
def store() -> Watched:
    """A shared memory, empty."""
    return Watched()


def commit_untold(make: Make, *completed: int) -> None:
    """Have the group complete and commit some messages, without a word to the shared memory, as by a kill."""
    consumer = make("pairs", completion="explicit", store=MemoryStore())
    for message in poll_some(consumer, 2):
        if message.offset() in completed:
            consumer.complete(message)
    consumer.commit(asynchronous=False)
    consumer.close()


@pytest.mark.parametrize("completed", [(0, 1), (1,)], ids=["without a gap", "above one in flight"])
def test_what_the_next_owner_finds_committed_is_known_everywhere(
    make: Make, send: Send, store: Watched, completed: tuple[int, ...]
) -> None:
    """A copy in another partition is a duplicate."""
    send("a", "b", topic="pairs")
    commit_untold(make, *completed)
    consumer = make("pairs", shared=Shared(store, scope="global"))
    assert values(poll_quiet(consumer)) == ([] if 0 in completed else ["a"])
    send("b", topic="pairs", partition=1)
    wait_for(consumer, lambda: consumer.counters.reasons.get("duplicate.shared", 0) >= 1, "the duplicate")
    assert claim_as(store, "b").kind is ClaimKind.DUPLICATE


def test_what_a_killed_one_still_claims_is_told_when_its_lease_is_over(
    make: Make, send: Send, store: Watched
) -> None:
    """Until then nobody can tell its claim from that of a consumer that handles a message of another window."""
    send("a", "b", topic="pairs")
    commit_untold(make, 0, 1)
    claim_as(store, "b", "killed")
    consumer = make("pairs", shared=ClockedShared(store, scope="global", clock=lambda: store.now_s))
    assert poll_quiet(consumer) == []
    assert claim_as(store, "b").kind is ClaimKind.IN_FLIGHT
    store.now_s += LEASE_MS / 1000 + 1
    wait_for(consumer, lambda: len(store.asked["complete"]) > 1, "the second word")
    assert claim_as(store, "b").kind is ClaimKind.DUPLICATE


def test_what_is_claimed_here_is_not_completed_by_what_the_next_partition_finds(
    make: Make, send: Send, store: Watched
) -> None:
    """It may be a message of another window."""
    send("a", "b", topic="pairs")
    commit_untold(make, 0, 1)
    shared = Shared(store, scope="global")
    consumer = make(shared=shared, completion="explicit")
    send("b", topic="pairs", partition=1)
    consumer.assign([TopicPartition("pairs", 1)])
    [copy] = poll_some(consumer, 1)
    consumer.incremental_assign([TopicPartition("pairs", 0)])
    assert poll_quiet(consumer) == []
    assert claim_as(store, "a").kind is ClaimKind.DUPLICATE
    assert claim_as(store, "b").kind is ClaimKind.IN_FLIGHT
    assert consumer.holds(copy)


def test_what_was_found_in_an_outage_is_told_behind_it(make: Make, send: Send, store: Watched) -> None:
    """As all that is completed meanwhile."""
    send("a", "b", topic="pairs")
    commit_untold(make, 0, 1)
    store.away = True
    consumer = make("pairs", shared=Shared(store, scope="global"))
    assert poll_quiet(consumer) == []
    store.away = False
    wait_for(consumer, lambda: not claims_of(consumer).acks.pending, "the word")
    assert claim_as(store, "b").kind is ClaimKind.DUPLICATE


@pytest.mark.parametrize("place", ["InHand.transaction_committed", "InHand.complete", "Writer.persist"])
def test_a_signal_behind_the_commit_of_a_transaction_repeats_none_of_its_messages(
    make: Make, send: Send, store: Watched, place: str
) -> None:
    """An earlier message is in flight still. The copy in another partition is a duplicate, too."""
    send("a", "b", "c", topic="pairs")
    consumer = make("pairs", completion="explicit", shared=Shared(store, scope="global"))
    first, *others = poll_some(consumer, 3)
    offsets = consumer.transaction_offsets(others)
    strike_at(place)
    with pytest.raises(Interrupted):
        consumer.transaction_committed(others, offsets)
    sys.setprofile(None)
    consumer.transaction_committed(others, offsets)
    assert values(poll_quiet(consumer)) == values([first])
    send("b", "c", topic="pairs", partition=1)
    assert poll_quiet(consumer) == []
    assert claim_as(store, "c").kind is ClaimKind.DUPLICATE


def test_a_reopening_tells_of_completions_before_it_gives_up_claims(
    make: Make, send: Send, store: Watched
) -> None:
    """Nobody gets a copy in between."""
    send("a", "b", topic="pairs")
    consumer = make("pairs", completion="explicit", durability="commit", shared=Shared(store, scope="global"))
    _, second = poll_some(consumer, 2)
    kinds: list[ClaimKind] = []
    strike_at("Poller._round")
    with pytest.raises(Interrupted):
        consumer.poll(0)
    consumer.complete(second)
    strike_at("Session._succeed", lambda: kinds.append(claim_as(store, "b").kind))
    consumer.poll(0)
    sys.setprofile(None)
    assert kinds == [ClaimKind.DUPLICATE]
