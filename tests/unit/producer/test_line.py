from __future__ import annotations

from dedup_sdk.producer.line import Lines


def test_what_comes_behind_one_that_waits_has_no_turn() -> None:
    """In its topic, until all before it have left."""
    lines = Lines()
    assert lines.has_turn("a", 1)
    lines.join("a", 1)
    lines.join("a", 3)
    assert [lines.has_turn("a", number) for number in (1, 2, 3)] == [True, False, False]
    assert lines.has_turn("b", 2)
    lines.leave("a", 1)
    # Nobody noted it, because it waited for the first anyway.
    assert [lines.has_turn("a", number) for number in (2, 3, 4)] == [True, True, False]
    lines.leave("a", 2)
    lines.leave("a", 3)
    assert lines.has_turn("a", 4)


def test_one_that_comes_late_may_stand_first() -> None:
    """It was given to the client before, which could not deliver it."""
    lines = Lines()
    for number in (5, 6, 4, 5, 6):
        lines.join("a", number)
    assert [lines.has_turn("a", number) for number in (4, 5)] == [True, False]
    for number in (4, 5, 6):
        lines.leave("a", number)
    assert lines.has_turn("a", 7)


def test_what_is_gone_holds_up_nobody() -> None:
    """Its row was removed, or is no message any more."""
    lines = Lines()
    for number in (1, 2, 3):
        lines.join("a", number)
    lines.drop({1, 2})
    assert [lines.has_turn("a", number) for number in (3, 4)] == [True, False]
    lines.drop({3})
    assert lines.has_turn("a", 4)
