"""Where a bridge begins, by its knowledge of the log and of the commits."""

from __future__ import annotations

import pytest
from confluent_kafka import OFFSET_BEGINNING

from dedup_sdk.bridge._source_log import Log, StartPosition, parse_log, start_position

C, OTHER = "0" * 8, "1" * 8
OLD, NEW = C + "a" * 8, C + "b" * 8


@pytest.mark.parametrize("log", [Log(OLD), Log(OLD, plain=True), Log(C)])
def test_a_text_is_read_as_it_was_written(log: Log) -> None:
    """A text that is not a bridge's, or of a later version, is none."""
    assert parse_log(str(log)) == log
    for text in (
        None,
        "",
        str(log) + " more=1",
        "dedup/2 at=3 fingerprint=.90c2e5d1aabb0c4d low=3 complete=1 era=",
        str(log).replace("/1", "/2"),
    ):
        assert parse_log(text) is None


def test_nothing_is_said_of_a_log_that_nobody_knows() -> None:
    """A cluster without an ID."""
    assert str(Log("")) == ""
    assert parse_log(str(Log(""))) is None


@pytest.mark.parametrize(
    ("now", "committed", "text", "expected"),
    [
        (NEW, -1001, None, StartPosition(Log(NEW), None)),
        (NEW, 7, "", StartPosition(Log(NEW), 7)),
        (NEW, 7, str(Log(NEW)), StartPosition(Log(NEW), 7)),
        (NEW, 7, str(Log(OLD)), StartPosition(Log(NEW), OFFSET_BEGINNING, recreated=True)),
        (NEW, 7, str(Log(OTHER + OLD[8:])), StartPosition(Log(NEW), 7, translated=True)),
        # Brokers that have no topic IDs, that get them, and that have them while others do not.
        (C, 7, str(Log(C)), StartPosition(Log(C), 7)),
        (NEW, 7, str(Log(C)), StartPosition(Log(NEW, plain=True), 7)),
        (NEW, 7, str(Log(NEW, plain=True)), StartPosition(Log(NEW, plain=True), 7)),
        (NEW, 7, str(Log(OLD, plain=True)), StartPosition(Log(NEW), OFFSET_BEGINNING, recreated=True)),
        (C, 7, str(Log(OLD)), StartPosition(Log(OLD), 7)),
    ],
)  # fmt: skip
def test_where_a_member_begins(now: str, committed: int, text: str | None, expected: StartPosition) -> None:
    """At the group's offset, if that is of this log; its records keep the names that they had."""
    assert start_position(now, committed, text, previous=None, copied_to=None) == expected


@pytest.mark.parametrize(
    ("now", "previous", "copied_to", "committed", "text", "expected"),
    [
        (OLD, Log(OLD), 5, 3, str(Log(OLD)), StartPosition(Log(OLD), 5)),
        (NEW, Log(OLD), 5, 3, str(Log(OLD)), StartPosition(Log(NEW), OFFSET_BEGINNING, recreated=True)),
        (NEW, Log(OLD, plain=True), 5, -1001, None, StartPosition(Log(NEW), OFFSET_BEGINNING, recreated=True)),
        (NEW, Log(C), 5, 3, str(Log(C)), StartPosition(Log(NEW, plain=True), 5)),
        (NEW, Log(NEW, plain=True), None, -1001, None, StartPosition(Log(NEW, plain=True), None)),
        # It had begun anew already, and copied nothing yet.
        (NEW, Log(NEW), None, 3, str(Log(OLD)), StartPosition(Log(NEW), OFFSET_BEGINNING, recreated=True)),
    ],
)  # fmt: skip
def test_where_a_member_goes_on_that_was_in_doubt(
    now: str, previous: Log, copied_to: int | None, committed: int, text: str | None, expected: StartPosition
) -> None:
    """Behind the copied records, or at the start_position of another log."""
    assert start_position(now, committed, text, previous=previous, copied_to=copied_to) == expected


def test_a_log_s_mark_is_the_topic_s() -> None:
    """None where it has no ID, or had none when its records were first named."""
    assert [Log(NEW).mark, Log(C).mark, Log("").mark, Log(NEW, plain=True).mark] == ["b" * 8, "", "", ""]
    assert Log("").completed_by(NEW) == Log(NEW)
