"""`close` by another thread, while a call for a list waits for more messages than have come."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from dedup_sdk._kafka.deliver.assignment_api import AssignmentApi
from tests.support.consuming import committed, numbers, poll_quiet, values

if TYPE_CHECKING:
    import pytest

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


def test_messages_that_wait_for_a_list_are_not_lost_by_close(
    make: Make, send: Send, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody got these two messages: they were fetched, and not judged yet. The next consumer gets them."""
    commit = AssignmentApi.commit_in_group

    def commit_a_little_later(api: AssignmentApi) -> None:
        # As on a busy machine: the loop is the next thread that runs.
        time.sleep(0.3)
        commit(api)

    monkeypatch.setattr(AssignmentApi, "commit_in_group", commit_a_little_later)
    send("first")
    consumer = make("orders", config={"auto.commit.interval.ms": 100})
    got = values(poll_quiet(consumer))
    send(*numbers(0, 2))
    closing = threading.Timer(0.35, consumer.close)
    closing.start()
    with suppress(RuntimeError):
        while True:
            # Less than asked for: it waits for the rest.
            got += values(consumer.consume(10, 5.0))
    closing.join()
    offset = committed(kafka.bootstrap, "g", "orders").offset
    again = values(poll_quiet(make("orders")))

    assert {*got, *again} == {"first", *numbers(0, 2)}, f"committed {offset}, got {got}, again {again}"
