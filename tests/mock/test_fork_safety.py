"""A client that the parent of a fork had let go of, and not collected yet.

The child's collection of garbage leaves it alone.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk._kafka.client.client import MetadataRequests
from dedup_sdk._kafka.client.settings import client_settings
from dedup_sdk._runner.dead_letters import DeadLetterProducer
from dedup_sdk.bridge._settings import TargetSettings
from dedup_sdk.bridge._target import Target
from tests.support.consuming import PATIENCE_S
from tests.support.forking import in_a_child
from tests.support.outboxes import make_producer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dedup_sdk.testing import MockKafka

CLIENTS = 3


@pytest.fixture(autouse=True)
def only_own_garbage() -> Iterator[None]:
    """Collect the garbage of other tests where that may be done, and nothing of this test before its fork."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def make(kind: str, kafka: MockKafka, folder: Path) -> Any:
    """Return something with a client whose threads have had to do with a broker."""
    config = {"bootstrap.servers": kafka.bootstrap, "log_level": 0}
    match kind:
        case "questions":
            made = MetadataRequests(config)
            made.probe("orders", 0).asked.answer.exception(PATIENCE_S)
            return made
        case "dead letters":
            return DeadLetterProducer(client_settings(config | {"group.id": "g"}), "orders")
        case "bridge":
            target = Target(
                TargetSettings(client=config, transactional_id="", scatters_empty_keys=False), lambda: False
            )
            target.cluster_id()
            return target
        case _:
            producer = make_producer(kafka.bootstrap, folder)
            producer.produce("orders", b"1")
            assert producer.flush() == 0
            return producer


@pytest.mark.parametrize("kind", ["questions", "dead letters", "bridge", "outbox"])
def test_garbage_with_a_client_is_not_collected_in_a_child(
    kafka: MockKafka, tmp_path: Path, kind: str
) -> None:
    """The child goes on to its end, where it would die of a segmentation fault, or hang."""
    held = []
    for number in range(CLIENTS):
        circle = [make(kind, kafka, tmp_path / str(number))]
        circle.append(circle)
        held.append(circle[0] if kind == "outbox" else None)
        del circle

    def work() -> str:
        held.clear()
        gc.collect()
        return "alive"

    parents = list(held)
    assert in_a_child(work) == "alive"
    for each in parents:
        if each is not None:
            each.close()
