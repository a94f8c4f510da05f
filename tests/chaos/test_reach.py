from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest

from tests.chaos.bed import Bed
from tests.chaos.crew import Crew
from tests.chaos.options import WorkerOptions

_PATIENCE_S = 30.0

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_a_worker_says_whether_its_client_reaches_the_broker(bed: Bed, tmp_path: Path) -> None:
    """It does while connections work, and does not while they are stalled; a dead one says nothing."""
    topic, proxy = f"reach-{uuid.uuid4().hex[:6]}", bed.consumers[0]
    bed.kafka.create_topic(topic, 1)
    options = WorkerOptions(
        bootstrap=proxy.bootstrap, group=topic, topic=topic, store=str(tmp_path / "disk"), journal=""
    )
    crew = Crew(tmp_path)
    try:
        run = crew.start(0, options)
        until = time.monotonic() + _PATIENCE_S
        while run.idle_s() > 0 and time.monotonic() < until:
            time.sleep(0.1)
        assert run.idle_s() == 0
        assert run.reaches_broker() is True
        proxy.stall("requests")
        assert run.reaches_broker() is False
        proxy.flow()
        run.kill()
        assert run.reaches_broker() is None
    finally:
        proxy.flow()
        crew.end()
