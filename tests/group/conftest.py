"""Fixtures of the promises to a group on any broker.

A world on librdkafka's mock cluster or on a real one, and the ways of forming groups.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk.testing import MockKafka
from tests.support.worlds import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOCK = "mock"
REAL = pytest.param("real", marks=pytest.mark.broker)
PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {"partition.assignment.strategy": "range"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "kip-848": {"group.protocol": "consumer"},
}


def on(kind: str, *more: str) -> Any:
    """A row of parameters whose first one is the broker; tests on a real one bear its mark."""
    return pytest.param(kind, *more, marks=[pytest.mark.broker] if kind == "real" else [])


MEMBERS = [on(MOCK, "eager"), on(MOCK, "cooperative"), *(on("real", protocol) for protocol in PROTOCOLS)]
"""Brokers with the protocols that they know."""


@pytest.fixture
def protocol(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The client's settings for a way of forming groups."""
    return dict(PROTOCOLS[request.param])


@pytest.fixture(params=[MOCK, REAL])
def world(request: pytest.FixtureRequest, group: str, tmp_path: Path) -> Iterator[World]:
    """A fresh topic of one partition, a fresh group that has one member at a time, empty disks."""
    with _made(request, group, tmp_path, partitions=1) as found:
        yield found


@pytest.fixture(params=[MOCK, REAL])
def pair_world(request: pytest.FixtureRequest, group: str, tmp_path: Path) -> Iterator[World]:
    """The same with a topic of two partitions, and any number of members."""
    with _made(request, group, tmp_path, partitions=2) as found:
        yield found


@contextmanager
def _made(request: pytest.FixtureRequest, group: str, disks: Path, *, partitions: int) -> Iterator[World]:
    with ExitStack() as stack:
        if request.param == MOCK:
            mock = stack.enter_context(MockKafka())
            topic = mock.create_topic("orders", partitions=partitions)
            yield World(mock.bootstrap, topic, group, disks, stack, mock=mock, alone=partitions == 1)
        else:
            topic = request.getfixturevalue("make_topic")(partitions=partitions)
            yield World(request.getfixturevalue("broker").bootstrap, topic, group, disks, stack)
