"""An assignment by the group that a signal interrupts, at any of its first places."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import MemoryStore
from dedup_sdk._kafka.client.guards import Interruption
from tests.support.consuming import poll_some, values
from tests.support.interrupting import Interrupted, InterruptedAt, strike_at

if TYPE_CHECKING:
    from types import FrameType

    from confluent_kafka import Consumer, TopicPartition

    from tests.mock.conftest import Make, Send

_PATIENCE_S = 15.0


class _InterruptedStep(InterruptedAt):
    """Begins to count where the step of an assignment is called."""

    _begun = False

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self._begun:
            step = frame.f_locals.get("step")
            if (
                frame.f_code is not Interruption.run_step.__code__
                or getattr(step, "__name__", "") != "_assign_by_group"
            ):
                return None
            self._begun = True
        return super()._called(frame, event, argument)


@pytest.mark.parametrize("protocol", ["range", "cooperative-sticky", "consumer"])
def test_no_partition_is_forgotten(make: Make, send: Send, protocol: str) -> None:
    """The client takes what the callback did not: the consumer has to learn of it."""
    send("a")
    settings = (
        {"group.protocol": protocol}
        if protocol == "consumer"
        else {"partition.assignment.strategy": protocol}
    )
    forgotten = []
    for place in range(1, 4):
        consumer = make("orders", store=MemoryStore(), config={"group.id": f"{protocol}-{place}", **settings})
        strike, got = _InterruptedStep(place), list[str]()
        until = time.monotonic() + _PATIENCE_S
        with strike:
            while not strike.struck and time.monotonic() < until:
                with suppress(Interrupted):
                    got += values(filter(None, [consumer.poll(0.2)]))
        assert strike.struck
        while "a" not in got and time.monotonic() < until:
            with suppress(Interrupted):
                got += values(filter(None, [consumer.poll(0.2)]))
        if "a" not in got:
            forgotten.append(strike.where)
        consumer.close()
    assert forgotten == []


@pytest.mark.parametrize("protocol", ["range", "cooperative-sticky"])
@pytest.mark.parametrize(
    "place", ["AssignmentApi._make_room", "Handover.settle", "Session.take", "Client.committed"]
)
def test_the_offsets_that_on_assign_gave_are_not_forgotten(
    make: Make, send: Send, protocol: str, place: str
) -> None:
    """The client assigns by itself where a signal strikes behind the callback, and knows none of them."""
    send(*"abcdef")
    settings = {"partition.assignment.strategy": protocol}
    first = make("orders", config=settings)
    poll_some(first, 4)
    first.close()
    given, struck = [], []

    def on_assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            partition.offset = 2
        (consumer.assign if protocol == "range" else consumer.incremental_assign)(partitions)
        given.append(True)
        strike_at(place)

    consumer, got = make(config=settings), list[str]()
    consumer.subscribe(["orders"], on_assign=on_assign)
    until = time.monotonic() + _PATIENCE_S
    while len(got) < 4 and time.monotonic() < until:
        try:
            got += values(filter(None, [consumer.poll(0.2)]))
        except Interrupted:
            struck.append(place)
    assert (struck, given, got) == ([place], [True], [*"cdef"])
