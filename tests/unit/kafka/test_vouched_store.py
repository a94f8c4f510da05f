"""A store that was restored by somebody's word, and reaches beyond the group's commit."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dedup_sdk._commit_text import CommitMetadata
from dedup_sdk._kafka.assign.assignment import Assigned, Recovering
from dedup_sdk._kafka.assign.start import Start
from dedup_sdk._kafka.recover import history as steps
from dedup_sdk._kafka.recover.attempt import Attempt
from dedup_sdk._kafka.recover.settings import HistoryChoice, Recovery
from dedup_sdk._marks import Progress

SETTINGS = Recovery()
NOTHING: Any = None


def lines_at_start(
    caplog: pytest.LogCaptureFixture, *, committed: int, known: int | None, reopened: bool = False
) -> list[str]:
    """The log lines when a store of offsets 0 to 9 meets a group that has committed ``committed``."""
    progress = Progress(low=0, high=10, committed=known)
    held = SimpleNamespace(
        topic="orders",
        partition=3,
        loaded=SimpleNamespace(progress=progress),
        terms=SimpleNamespace(gates=None),
    )
    start = Start(offset=committed, metadata=CommitMetadata(low=0), reopened=reopened)
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="dedup_sdk"):
        steps.start_plan(cast("Any", held), start, cast("Any", None), SETTINGS)
    return [each.getMessage() for each in caplog.records]


def test_what_it_hides_beyond_the_commit_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """One line says which offsets are not delivered.

    Where the group got as far, or the store knows its commits, there is none.
    """
    (line,) = lines_at_start(caplog, committed=4, known=None)
    assert line.startswith(
        "orders[3]: its store has offsets up to 10 as processed, and the group has committed 4: those between"
    )
    assert "are not delivered" in line
    assert lines_at_start(caplog, committed=10, known=None) == []
    assert lines_at_start(caplog, committed=4, known=4) == []
    assert lines_at_start(caplog, committed=4, known=None, reopened=True) == []


@pytest.mark.parametrize(
    ("history", "told"), [("none", "are delivered as unverified"), ("assume-processed", "count as processed")]
)
def test_a_text_of_another_log_and_records_before_it(
    history: HistoryChoice, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The line has their fate under the user's setting."""
    start = Start(offset=4, metadata=CommitMetadata(low=0, log="theirs"))
    steps.discard_other_log(
        Attempt(
            Assigned("orders", 3),
            Recovering(start, log="ours"),
            NOTHING,
            NOTHING,
            NOTHING,
            Recovery(history=history),
            cluster="",
            topic_id="",
            until=None,
        ),
        start,
        CommitMetadata(low=0, log="theirs"),
    )
    assert "belongs to another log" in caplog.text
    assert told in caplog.text
