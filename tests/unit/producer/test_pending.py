from __future__ import annotations

from dedup_sdk.producer._pipeline import PendingByTopic


def test_a_message_behind_a_waiting_one_waits_as_well() -> None:
    """In its topic, until all messages before it were given to the client."""
    pending = PendingByTopic()
    assert pending.is_first("a", 1)
    pending.add("a", 1)
    pending.add("a", 3)
    assert [pending.is_first("a", number) for number in (1, 2, 3)] == [True, False, False]
    assert pending.is_first("b", 2)
    pending.remove("a", 1)
    # It was not added: it waits for the first one anyway.
    assert [pending.is_first("a", number) for number in (2, 3, 4)] == [True, True, False]
    pending.remove("a", 2)
    pending.remove("a", 3)
    assert pending.is_first("a", 4)


def test_a_message_that_comes_late_may_be_first() -> None:
    """It was given to the client before, which could not deliver it."""
    pending = PendingByTopic()
    for number in (5, 6, 4, 5, 6):
        pending.add("a", number)
    assert [pending.is_first("a", number) for number in (4, 5)] == [True, False]
    for number in (4, 5, 6):
        pending.remove("a", number)
    assert pending.is_first("a", 7)


def test_a_removed_message_blocks_none() -> None:
    """Its row was removed, or is not a message."""
    pending = PendingByTopic()
    for number in (1, 2, 3):
        pending.add("a", number)
    pending.discard({1, 2})
    assert [pending.is_first("a", number) for number in (3, 4)] == [True, False]
    pending.discard({3})
    assert pending.is_first("a", 4)
