"""How long a consumer keeps its claims in a shared memory, and the fate of claims that it loses."""

from __future__ import annotations

import gc
import threading
import time
from itertools import count
from typing import TYPE_CHECKING, Any, Self

import pytest

from dedup_sdk import Window
from dedup_sdk._observe import Counters
from dedup_sdk.shared import ClaimKind, MemoryClaimStore, Shared
from dedup_sdk.shared._claims import ClaimGatekeeper
from dedup_sdk.shared._gate import OwnedClaim
from tests.support import inside
from tests.support.claiming import ClockedShared, claims_of
from tests.support.consuming import PATIENCE_S, poll_quiet, poll_some, progress, values, wait_for
from tests.support.shared_memory import Watched, claim_as, complete_as, hindrances, shared_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk import DedupConsumer
    from tests.mock.conftest import Make, Send

LEASE_S = 60.0


@pytest.fixture
def store() -> Watched:
    """A shared memory, empty."""
    return Watched()


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition without asking any consumer for messages."""
    patience_ends = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < patience_ends, f"waited in vain for: {what}"
        time.sleep(0.01)


def renewed(store: Watched, times: int) -> Callable[[], bool]:
    """Whether it was asked so often for another lease, from now on."""
    before = len(store.asked["renew"])
    return lambda: len(store.asked["renew"]) >= before + times


def take_first(consumer: DedupConsumer, send: Send, *names: str) -> Any:
    """Send these and return the first of them, when the consumer has claimed them as one batch."""
    assert poll_quiet(consumer) == []
    send(*names)
    patience_ends = time.monotonic() + PATIENCE_S
    fetcher = inside.fetcher_of(consumer)
    while len(fetcher.messages) < len(names):
        assert time.monotonic() < patience_ends, f"{len(fetcher.messages)} of {len(names)} came"
        fetcher.fetch(100, 0.1)
    [first] = poll_some(consumer, 1)
    assert len(inside.ready(consumer)) == len(names) - 1
    return first


class Clock:
    """The clock of a consumer, which a stop of its process sets forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic() + self.ahead_s


@pytest.fixture
def clock() -> Clock:
    """A clock that is right until it is set forward."""
    return Clock()


class Stop:
    """A process that is stopped while other consumers of the memory go on; ``clock`` is its consumer's."""

    def __init__(self, consumer: DedupConsumer, store: Watched, clock: Clock) -> None:
        self._consumer, self._store, self._clock = consumer, store, clock

    def __enter__(self) -> Self:
        """Stop for longer than a lease: others may claim."""
        claims_of(self._consumer).leases.lock.acquire()
        self._store.now_s += LEASE_S + 1
        return self

    def __exit__(self, *_: object) -> None:
        """Go on: the process sees a clock that went on, too."""
        self._clock.ahead_s += LEASE_S + 1
        inside.let_time_pass(self._consumer)
        claims_of(self._consumer).leases.lock.release()


def test_a_slow_handler_keeps_its_claims(make: Make, send: Send, store: Watched) -> None:
    """It takes several leases, and another consumer with the same IDs gets none of them."""
    consumer = make("orders", shared=Shared(store, scope="global", lease=1.0))
    take_first(consumer, send, *"abcde")
    for _ in range(5):
        # The first of them may be under way, the second one begins later.
        until(renewed(store, 2), "renewals without a poll")
        store.now_s += 0.9
    until(renewed(store, 2), "renewals without a poll")
    assert [claim_as(store, name).kind for name in "abcde"] == [ClaimKind.IN_FLIGHT] * 5
    assert values(poll_some(consumer, 4)) == ["b", "c", "d", "e"]
    assert consumer.counters.shared == {"claimed": 5}


def test_two_living_consumers_handle_each_message_once(
    make: Make, send: Send, store: Watched, tmp_path: Any
) -> None:
    """Two groups divide the work.

    While one handler is slow, the other group asks all the time for the messages behind it.
    """
    names = [f"id-{number}" for number in range(50)]
    send(*names, topic="pairs", partition=1)
    slow = make("orders", shared=Shared(store, scope="global", lease=1.0))
    first = take_first(slow, send, *names)
    other = make(
        "pairs",
        config={"group.id": "h"},
        store=str(tmp_path / "other"),
        shared=Shared(store, scope="global", lease=1.0),
    )
    got = []
    for _ in range(5):
        got += wait_for(other, renewed(store, 2), "renewals of the one that is slow")
        store.now_s += 0.9
    assert got == []
    assert values([first, *poll_some(slow, 49)]) == names
    assert poll_quiet(slow) == []
    wait_for(other, lambda: other.counters.verdicts["duplicate"] >= 50, "the duplicates")
    assert other.counters.verdicts["duplicate"] == 50
    assert other.counters.verdicts["fresh"] == 0


def test_what_was_lost_in_a_stop_is_not_handed_out(
    make: Make, send: Send, store: Watched, clock: Clock
) -> None:
    """It was claimed, and is in another consumer's hands: it waits, like all that is in flight elsewhere."""
    consumer = make("orders", shared=ClockedShared(store, scope="global", clock=clock))
    take_first(consumer, send, *"abcde")
    with Stop(consumer, store, clock):
        mine, gone = claim_as(store, "b"), claim_as(store, "c")
        assert complete_as(store, "c", gone)
    assert values(poll_some(consumer, 2)) == ["d", "e"]
    assert poll_quiet(consumer) == []
    assert hindrances(consumer) == ("elsewhere",)
    assert consumer.counters.shared["lapsed"] == 2
    assert MemoryClaimStore.release(store, shared_id("b"), [mine.token]) == [True]
    assert values(poll_some(consumer, 1)) == ["b"]
    assert poll_quiet(consumer) == []
    assert progress(consumer) == (5, 0)
    # "b" and "c" were judged twice: no counter falls.
    assert {kind: total for kind, total in consumer.counters.verdicts.items() if total} == {
        "fresh": 6,
        "duplicate": 1,
    }


def test_in_order_what_lies_behind_it_waits_too(make: Make, send: Send, store: Watched, clock: Clock) -> None:
    """And is free for others meanwhile."""
    consumer = make("orders", shared=ClockedShared(store, scope="global", clock=clock, in_flight="wait"))
    take_first(consumer, send, *"abcde")
    with Stop(consumer, store, clock):
        mine = claim_as(store, "c")
    assert values(poll_some(consumer, 1)) == ["b"]
    assert poll_quiet(consumer) == []
    other = claim_as(store, "e")
    assert other.kind is ClaimKind.FRESH
    assert complete_as(store, "e", other)
    assert complete_as(store, "c", mine)
    assert values(poll_some(consumer, 1)) == ["d"]
    assert poll_quiet(consumer) == []
    assert progress(consumer) == (5, 0)


def test_what_waits_apart_is_taken_back_too(make: Make, send: Send, store: Watched, clock: Clock) -> None:
    """Messages that were released, and those kept aside for a pause."""
    consumer = make("orders", shared=ClockedShared(store, scope="global", clock=clock), completion="explicit")
    first = take_first(consumer, send, *"abc")
    consumer.release(first)
    consumer.pause(consumer.assignment())
    with Stop(consumer, store, clock):
        given = {name: claim_as(store, name) for name in "ab"}
    assert poll_quiet(consumer, 0.3) == []
    consumer.resume(consumer.assignment())
    assert values(poll_some(consumer, 1)) == ["c"]
    assert poll_quiet(consumer) == []
    for name in "ab":
        assert complete_as(store, name, given[name])
    wait_for(consumer, lambda: inside.next_offset(consumer) == 2, "the duplicates")


def test_what_was_lost_in_hand_is_not_handed_out_again(
    make: Make, send: Send, store: Watched, clock: Clock
) -> None:
    """Its handler wants another try, long after the consumer heard that another one has it.

    It waits, and is a duplicate then.
    """
    consumer = make("orders", shared=ClockedShared(store, scope="global", clock=clock), completion="explicit")
    first = take_first(consumer, send, *"ab")
    with Stop(consumer, store, clock):
        gone = claim_as(store, "a")
    [second] = poll_some(consumer, 1)
    assert second.value() == b"b"
    assert consumer.counters.shared["lapsed"] == 1
    consumer.release(first)
    assert poll_quiet(consumer) == []
    assert hindrances(consumer) == ("elsewhere",)
    consumer.complete(second)
    assert complete_as(store, "a", gone)
    wait_for(consumer, lambda: progress(consumer) == (2, 0), "the duplicate")


@pytest.mark.parametrize("on_outage", ["pause", "deliver"])
def test_nothing_is_handed_out_on_a_lease_that_is_over(
    make: Make, send: Send, store: Watched, clock: Clock, on_outage: Any
) -> None:
    """Whose store cannot be asked for longer than that does not know who has its messages: as without a claim."""
    consumer = make("orders", shared=ClockedShared(store, scope="global", clock=clock, on_outage=on_outage))
    take_first(consumer, send, *"abc")
    with Stop(consumer, store, clock):
        store.away = True
    if on_outage == "deliver":
        rest = poll_some(consumer, 2)
        verdicts = [consumer.verdict(message) for message in rest]
        assert [verdict and verdict.reason for verdict in verdicts] == ["shared-outage"] * 2
        # Counted when they were judged first, and again: a count that falls would be read as a restart.
        assert consumer.counters.verdicts["fresh"] == 3
        assert consumer.counters.reasons["unverified.shared-outage"] == 2
        return
    assert poll_quiet(consumer, 0.5) == []
    gone = claim_as(store, "b")
    store.away = False
    assert values(poll_some(consumer, 1)) == ["c"]
    assert complete_as(store, "b", gone)
    wait_for(consumer, lambda: progress(consumer) == (3, 0), "the duplicate")


def test_a_message_is_not_held_when_its_claim_is_lost(
    make: Make, send: Send, store: Watched, clock: Clock
) -> None:
    """A worker that asks lets it be.

    It comes again where nobody completes it, and its place in the log is not held up for ever.
    """
    send(*"abc")
    consumer = make("orders", shared=ClockedShared(store, scope="global", clock=clock), completion="explicit")
    a, b, c = poll_some(consumer, 3)
    assert [consumer.holds(message) for message in (a, b, c)] == [True] * 3
    with Stop(consumer, store, clock):
        given, gone = claim_as(store, "a"), claim_as(store, "b")
        assert complete_as(store, "a", given)
    assert [consumer.holds(message) for message in (a, b, c)] == [False, False, True]
    consumer.complete(c)
    wait_for(consumer, lambda: inside.next_offset(consumer) == 1, "the duplicate")
    assert MemoryClaimStore.release(store, shared_id("b"), [gone.token]) == [True]
    [again] = poll_some(consumer, 1)
    assert (again.value(), consumer.holds(again)) == (b"b", True)
    consumer.complete(again)
    wait_for(consumer, lambda: progress(consumer) == (3, 0), "the end")


def test_nobody_holds_what_nobody_can_tell(make: Make, send: Send, store: Watched, clock: Clock) -> None:
    """The lease is over, and the store is away: the message comes again when it was asked for."""
    send("a")
    consumer = make(
        "orders",
        shared=ClockedShared(store, scope="global", clock=clock, on_outage="pause"),
        completion="explicit",
    )
    [message] = poll_some(consumer, 1)
    with Stop(consumer, store, clock):
        store.away = True
    assert not consumer.holds(message)
    assert poll_quiet(consumer, 0.3) == []
    store.away = False
    [again] = poll_some(consumer, 1)
    assert consumer.holds(again)


def claims_for(store: MemoryClaimStore, *, silence_s: float = 300.0) -> tuple[ClaimGatekeeper, list[float]]:
    """ClaimGatekeeper that hold one ID, and the clock they go by."""
    now_s = [0.0]
    claims = ClaimGatekeeper(
        Shared(store, lease=9.0), Counters(), group="g", silence_s=silence_s, clock=lambda: now_s[0]
    )
    own = claims.gate("orders", 0, Window(days=7), cluster="", id_spec="key")
    assert own is not None

    own.owned[b"d" * 16] = OwnedClaim(b"k" * 16, 1, 0)
    claims.leases.gates.add(own)
    return claims, now_s


def test_claims_are_renewed_as_long_as_the_group_waits_for_the_consumer(store: Watched) -> None:
    """Three times in a lease; of one that hangs others get the messages."""
    claims, now_s = claims_for(store, silence_s=300.0)
    for second in count():
        now_s[0] = float(second)
        assert claims.leases.renew_while_alive() > 0
        if second > 1_000:
            break
    assert len(store.asked["renew"]) == 99
    claims.keep(lambda _: [])
    assert len(store.asked["renew"]) == 100


def test_a_renewal_that_failed_is_tried_again_before_the_lease_is_over(store: Watched) -> None:
    """Not only when the next one would be due; meanwhile nothing is sure for longer than a lease."""
    store.away = True
    claims, now_s = claims_for(store)
    for tenth in range(90):
        now_s[0] = tenth / 10
        claims.leases.renew_while_alive()
        assert claims.is_sure
    assert len(store.asked["renew"]) == 4  # at 3 s, and 0.5, 1 and 2 s later
    now_s[0] = 9.0
    assert not claims.is_sure


def test_only_partitions_with_claims_are_renewed(make: Make, send: Send, store: Watched) -> None:
    """One that could not be opened, and is tried again and again, leaves nothing; nor does one that went."""
    consumer = make("orders", shared=Shared(store, scope="global"))
    claims = claims_of(consumer)
    for _ in range(3):
        claims.gate("orders", 0, Window(days=7), cluster="", id_spec="key")
    send("a")
    poll_some(consumer, 1)
    [own] = claims.leases.gates
    assert len(own.owned) == 1
    consumer.close()
    assert not claims.leases.gates


def test_the_thread_ends_with_its_consumer(store: Watched) -> None:
    """Also where nobody closes it: its claims must not be kept from others by a thread that nobody knows."""
    closed, _ = claims_for(store)
    left, _ = claims_for(store)
    others = set(threading.enumerate())
    for claims in (closed, left):
        claims.leases.start_renewing()
    threads = set(threading.enumerate()) - others
    assert [thread.name for thread in threads] == ["dedup-leases"] * 2
    closed.close()
    del claims, left
    gc.collect()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize(("lease", "warned"), [(1.5, True), (2.0, False), (60.0, False)])
def test_a_lease_shorter_than_a_session_is_told(
    make: Make, store: Watched, caplog: pytest.LogCaptureFixture, lease: float, *, warned: bool
) -> None:
    """A process that stands still for a moment would keep its partitions and lose its claims."""
    make(shared=Shared(store, lease=lease), config={"session.timeout.ms": 2000})
    told = [record.getMessage() for record in caplog.records if "session.timeout.ms" in record.getMessage()]
    assert bool(told) == warned
    if warned:
        assert told[0].startswith("lease=1.5 s is shorter than session.timeout.ms (2 s)")
        assert told[0].endswith("give at least lease=2")
