"""The end of a block of `once` that a signal interrupts: the message is completed, or comes again."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.support.consuming import poll_quiet, poll_some, progress, values
from tests.support.interrupting import Interrupted, InterruptedAt

if TYPE_CHECKING:
    from dedup_sdk._kafka.consumer import Completion
    from tests.mock.conftest import Make, Send


def handle(*, fails: bool) -> None:
    """Handle a message, with an error or without one."""
    if fails:
        raise ValueError


@pytest.mark.parametrize("completion", ["on-next-call", "explicit"])
@pytest.mark.parametrize("fails", [False, True], ids=["handled", "failed"])
def test_no_message_stays_in_flight_for_good(
    make: Make, send: Send, completion: Completion, *, fails: bool
) -> None:
    """At any place of the end of the block. Else its offset is never committed, and it never comes again."""
    consumer = make("orders", completion=completion)
    send("first")
    consumer.complete(*poll_some(consumer, 1))
    lost, struck = list[str](), 0
    for place in range(1, 200, 4):
        send(f"{place}")
        [message] = poll_some(consumer, 1)
        strike = InterruptedAt(place)
        # Not `suppress`, whose end would be one more place, and none of ours.
        try:
            with consumer.once(message):
                strike.__enter__()
                handle(fails=fails)
        except (Interrupted, ValueError):
            pass
        strike.__exit__(None, None, None)
        struck += strike.struck
        if not strike.struck:
            break
        again = poll_quiet(consumer)
        assert values(again) in ([], [f"{place}"])
        consumer.complete(*again)
        if progress(consumer)[1]:
            lost.append(strike.where)
            # Whatever reopens the partitions, heals it.
            with suppress(Interrupted), InterruptedAt(25):
                consumer.poll(0.2)
            consumer.complete(*poll_quiet(consumer))
    assert struck > 3
    assert lost == []
