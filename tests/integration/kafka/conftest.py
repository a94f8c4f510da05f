"""Fixtures of the consumer's tests on a real broker: a world of one topic, one group, and disks."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.worlds import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker


@pytest.fixture
def world(broker: Broker, make_topic: MakeTopic, group: str, tmp_path: Path) -> Iterator[World]:
    """A fresh topic of one partition, a fresh group, empty disks."""
    with ExitStack() as stack:
        yield World(broker.bootstrap, make_topic(partitions=1), group, tmp_path, stack)


@pytest.fixture
def pair_world(broker: Broker, make_topic: MakeTopic, group: str, tmp_path: Path) -> Iterator[World]:
    """The same with a topic of two partitions."""
    with ExitStack() as stack:
        yield World(broker.bootstrap, make_topic(partitions=2), group, tmp_path, stack)
