"""The promises of every shared memory."""

from __future__ import annotations

import time
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from dedup_sdk.shared import Claim, ClaimKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk.shared import ClaimStore

LEASE_MS = 600_000
WINDOW_MS = 3_600_000
NOW_MS = 1_700_000_000_000


def ids(*names: str) -> list[bytes]:
    """IDs as a consumer makes them."""
    return [sha256(name.encode()).digest()[:16] for name in names]


def claim(
    store: ClaimStore,
    *names: str,
    owner: str = "a",
    lease_ms: int = LEASE_MS,
    at_ms: int = NOW_MS,
    window_ms: int = WINDOW_MS,
) -> list[Claim]:
    """Claim for records of one time."""
    return store.claim(ids(*names), owner, lease_ms, timestamps_ms=[at_ms] * len(names), window_ms=window_ms)


def complete(
    store: ClaimStore,
    name: str,
    token: int,
    *,
    owner: str = "a",
    at_ms: int = NOW_MS,
    window_ms: int = WINDOW_MS,
) -> bool:
    """Complete one ID."""
    [taken] = store.complete(ids(name), [token], owner, timestamps_ms=[at_ms], window_ms=window_ms)
    return taken


def until_fresh(store: ClaimStore, name: str, *, owner: str) -> Claim:
    """Claim until that succeeds."""
    until = time.monotonic() + 60
    while True:
        [given] = claim(store, name, owner=owner)
        if given.kind is ClaimKind.FRESH:
            return given
        assert time.monotonic() < until, given
        time.sleep(0.005)


def test_an_id_is_claimed_completed_and_known(store: ClaimStore) -> None:
    """Fresh for the first, in flight for the others while it is handled, a duplicate for all when it is completed."""
    [first] = claim(store, "x")
    assert first.kind is ClaimKind.FRESH
    assert first.token > 0
    [other] = claim(store, "x", owner="b")
    assert other.kind is ClaimKind.IN_FLIGHT
    assert 0 < other.left_ms <= LEASE_MS
    assert complete(store, "x", first.token)
    assert claim(store, "x", owner="b") == [Claim(ClaimKind.DUPLICATE, seen_ms=NOW_MS)]
    assert claim(store, "x") == [Claim(ClaimKind.DUPLICATE, seen_ms=NOW_MS)]


def test_a_batch_is_answered_in_its_order(store: ClaimStore) -> None:
    """Each ID has its own answer and its own token, whatever the others have."""
    [known] = claim(store, "known")
    complete(store, "known", known.token)
    claim(store, "elsewhere", owner="b")
    names = [f"new-{number}" for number in range(2_500)]
    names[1_200], names[2_400] = "known", "elsewhere"
    answers = claim(store, *names)
    kinds = [answer.kind for answer in answers]
    assert kinds[1_200] is ClaimKind.DUPLICATE
    assert kinds[2_400] is ClaimKind.IN_FLIGHT
    assert kinds.count(ClaimKind.FRESH) == 2_498
    tokens = [answer.token for answer in answers if answer.kind is ClaimKind.FRESH]
    assert len(set(tokens)) == len(tokens)
    fresh = [(key, answer.token) for key, answer in zip(ids(*names), answers, strict=True) if answer.token]
    columns = [key for key, _ in fresh], [token for _, token in fresh]
    assert store.renew(*columns, "a", LEASE_MS) == [True] * 2_498
    assert (
        store.complete(*columns, "a", timestamps_ms=[NOW_MS] * 2_498, window_ms=WINDOW_MS) == [True] * 2_498
    )
    assert {answer.kind for answer in claim(store, *names[:1_000], owner="c")} == {ClaimKind.DUPLICATE}


def test_nothing_is_asked_for_nothing(store: ClaimStore) -> None:
    """An empty batch is answered."""
    assert store.claim([], "a", LEASE_MS, timestamps_ms=[], window_ms=WINDOW_MS) == []
    assert store.complete([], [], "a", timestamps_ms=[], window_ms=WINDOW_MS) == []
    assert store.renew([], [], "a", LEASE_MS) == store.release([], []) == []
    store.load([], timestamps_ms=[], window_ms=WINDOW_MS)


def test_what_is_released_is_free_at_once(store: ClaimStore) -> None:
    """Only its holder releases it, and only once; the next claim has a higher token."""
    [first] = claim(store, "x")
    assert store.release(ids("x"), [first.token - 1]) == [False]
    assert claim(store, "x", owner="b")[0].kind is ClaimKind.IN_FLIGHT
    assert store.release(ids("x"), [first.token]) == [True]
    assert store.release(ids("x"), [first.token]) == [False]
    [second] = claim(store, "x", owner="b")
    assert second.kind is ClaimKind.FRESH
    assert second.token > first.token


def test_an_owner_gets_its_own_claim_again(store: ClaimStore) -> None:
    """Under a higher token: its earlier answer may have been lost, and claims with the old one are over."""
    [first] = claim(store, "x")
    [again] = claim(store, "x")
    assert again.kind is ClaimKind.FRESH
    assert again.token > first.token
    assert not complete(store, "x", first.token)
    assert complete(store, "x", again.token)


def test_a_dead_owners_claim_ends_with_its_lease(store: ClaimStore) -> None:
    """And its later calls are refused, as soon as another owner has claimed."""
    [dead] = claim(store, "x", lease_ms=20)
    heir = until_fresh(store, "x", owner="b")
    assert heir.token > dead.token
    assert not complete(store, "x", dead.token)
    assert store.renew(ids("x"), [dead.token], "a", LEASE_MS) == [False]
    assert store.release(ids("x"), [dead.token]) == [False]
    assert claim(store, "x", owner="c")[0].kind is ClaimKind.IN_FLIGHT
    assert complete(store, "x", heir.token)
    assert not complete(store, "x", dead.token)
    assert claim(store, "x", owner="c")[0].kind is ClaimKind.DUPLICATE


def test_a_lease_that_is_over_alone_is_no_reason_to_refuse(store: ClaimStore) -> None:
    """Where nobody claimed since, handled IDs are completed; and a claim can be renewed."""
    claims = claim(store, "x", "y", lease_ms=1)
    until = time.monotonic() + 60
    while (
        claim(store, "w", owner="b", lease_ms=1)[0].kind is not ClaimKind.FRESH
    ):  # its own lease is over by then
        assert time.monotonic() < until
    time.sleep(0.05)
    assert store.renew(ids("y"), [claims[1].token], "a", LEASE_MS) == [True]
    assert claim(store, "y", owner="b")[0].kind is ClaimKind.IN_FLIGHT
    assert complete(store, "x", claims[0].token)
    assert claim(store, "x", owner="b")[0].kind is ClaimKind.DUPLICATE


def test_a_claim_that_is_renewed_lasts(store: ClaimStore) -> None:
    """Its lease counts from then on."""
    [given] = claim(store, "x", lease_ms=60_000)
    assert store.renew(ids("x"), [given.token], "a", LEASE_MS) == [True]
    [other] = claim(store, "x", owner="b")
    assert other.kind is ClaimKind.IN_FLIGHT
    assert other.left_ms > 60_000


def test_completing_twice_is_completing_once(store: ClaimStore) -> None:
    """Who does not know whether it was done does it again."""
    [given] = claim(store, "x")
    assert complete(store, "x", given.token)
    assert complete(store, "x", given.token)
    assert store.renew(ids("x"), [given.token], "a", LEASE_MS) == [False]
    assert store.release(ids("x"), [given.token]) == [False]
    assert claim(store, "x", owner="b")[0].kind is ClaimKind.DUPLICATE


def test_what_was_handled_without_a_claim_is_remembered(store: ClaimStore) -> None:
    """With a token of 0; but it takes nobody's claim away."""
    assert complete(store, "x", 0)
    assert claim(store, "x")[0].kind is ClaimKind.DUPLICATE
    [held] = claim(store, "y", owner="b")
    assert not complete(store, "y", 0)
    assert complete(store, "y", held.token)


def test_what_an_owner_claimed_without_hearing_of_it_it_completes(store: ClaimStore) -> None:
    """Its answer was lost, so that it has no token.

    Its name is enough, also a second time, and nobody handles the message again.
    """
    claim(store, "x")
    assert complete(store, "x", 0)
    assert complete(store, "x", 0)
    assert claim(store, "x", owner="b") == [Claim(ClaimKind.DUPLICATE, seen_ms=NOW_MS)]


def test_a_name_completes_no_claim_of_another_one(store: ClaimStore) -> None:
    """One whose lease was over does not speak for its heir, before and after that has completed.

    Nor does a wrong token for its own owner.
    """
    [dead] = claim(store, "x", owner="a", lease_ms=1)
    heir = until_fresh(store, "x", owner="b")
    assert not complete(store, "x", 0, owner="a")
    assert claim(store, "x", owner="c")[0].kind is ClaimKind.IN_FLIGHT
    assert not complete(store, "x", dead.token, owner="b")
    assert complete(store, "x", heir.token, owner="b")
    assert not complete(store, "x", 0, owner="a")


@pytest.mark.parametrize(
    ("age_ms", "kind"),
    [
        (WINDOW_MS, ClaimKind.DUPLICATE),
        (WINDOW_MS + 1, ClaimKind.FRESH),
        (-5, ClaimKind.DUPLICATE),
        (-WINDOW_MS, ClaimKind.DUPLICATE),
        (-WINDOW_MS - 1, ClaimKind.FRESH),
    ],
)
def test_the_window_is_measured_between_records(store: ClaimStore, age_ms: int, kind: ClaimKind) -> None:
    """By their timestamps, to the millisecond, whatever the clock says.

    A backlog is read faster than it was written, and one partition before another.
    """
    [given] = claim(store, "x")
    complete(store, "x", given.token)
    assert claim(store, "x", at_ms=NOW_MS + age_ms)[0].kind is kind


def test_a_duplicate_moves_the_mark(store: ClaimStore) -> None:
    """The window begins with the newest record of the ID, and an older one takes nothing back."""
    [given] = claim(store, "x")
    complete(store, "x", given.token)
    assert claim(store, "x", at_ms=NOW_MS + WINDOW_MS) == [Claim(ClaimKind.DUPLICATE, seen_ms=NOW_MS)]
    assert claim(store, "x", at_ms=NOW_MS + 7) == [Claim(ClaimKind.DUPLICATE, seen_ms=NOW_MS + WINDOW_MS)]
    assert claim(store, "x", at_ms=NOW_MS + 2 * WINDOW_MS) == [
        Claim(ClaimKind.DUPLICATE, seen_ms=NOW_MS + WINDOW_MS)
    ]


def test_a_mark_ends_with_its_window(store: ClaimStore) -> None:
    """By the store's clock, so that it needs no sweeping."""
    [given] = claim(store, "x", window_ms=20)
    complete(store, "x", given.token, window_ms=20)
    pause_s = 0.05
    while True:
        # To ask is to see it again: each time the window begins anew.
        time.sleep(pause_s)
        [later] = claim(store, "x", owner="b", window_ms=20)
        if later.kind is ClaimKind.FRESH:
            break
        pause_s *= 2
        assert pause_s < 60, later
    assert later.token > given.token


@pytest.mark.parametrize("at_ms", [-1, 0, 2**52, -(2**52)])
def test_timestamps_of_any_size_come_back(store: ClaimStore, at_ms: int) -> None:
    """None is -1, and one from the far future is whole."""
    [given] = claim(store, "x", at_ms=at_ms)
    complete(store, "x", given.token, at_ms=at_ms)
    assert claim(store, "x", at_ms=at_ms) == [Claim(ClaimKind.DUPLICATE, seen_ms=at_ms)]


def test_a_rebuild_adds_what_is_completed(store: ClaimStore) -> None:
    """In any order, as often as wanted; the newest record counts, and claimed IDs stay their owner's."""
    [held] = claim(store, "held")
    for timestamps_ms in ([NOW_MS, NOW_MS], [NOW_MS - 9, NOW_MS - 9], [NOW_MS, NOW_MS]):
        store.load(ids("x", "held"), timestamps_ms=timestamps_ms, window_ms=WINDOW_MS)
    assert claim(store, "x") == [Claim(ClaimKind.DUPLICATE, seen_ms=NOW_MS)]
    assert claim(store, "held", owner="b")[0].kind is ClaimKind.IN_FLIGHT
    assert complete(store, "held", held.token)
    many = [f"old-{number}" for number in range(2_500)]
    store.load(ids(*many), timestamps_ms=[NOW_MS] * 2_500, window_ms=WINDOW_MS)
    assert {answer.kind for answer in claim(store, *many)} == {ClaimKind.DUPLICATE}


def test_all_connections_have_one_memory(connect: Callable[[], ClaimStore]) -> None:
    """Marks told to one the others know, also when it has closed."""
    one, other = connect(), connect()
    [given] = claim(one, "x", owner="one")
    assert claim(other, "x", owner="other")[0].kind is ClaimKind.IN_FLIGHT
    assert complete(one, "x", given.token)
    one.close()
    assert claim(other, "x", owner="other")[0].kind is ClaimKind.DUPLICATE


@pytest.mark.parametrize("owner", ["5:7:x", "a:b c\n\"'{}", "o" * 200, ""])
def test_an_owner_may_be_any_text(store: ClaimStore, owner: str) -> None:
    """Nothing of it is read."""
    [given] = claim(store, "x", owner=owner)
    assert claim(store, "x", owner="other")[0].kind is ClaimKind.IN_FLIGHT
    [again] = claim(store, "x", owner=owner)
    assert again.token > given.token
    assert complete(store, "x", 0, owner=owner)
