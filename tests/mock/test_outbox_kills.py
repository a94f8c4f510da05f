"""SIGKILL at any moment between produce() and the delivery report, and a consumer on the other side."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import outbox_worker
from tests.support.consuming import PATIENCE_S, poll_quiet
from tests.support.outboxes import Seen, make_producer, records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make

_LIVES = 8
_LEAST_LINES = 3
"""So many times persist() has returned before a life may end."""
_MOST_LIFE_S = 0.4
_TRIES = 3


def lives(kafka: MockKafka, folder: Path, source: random.Random, *, broken: bool) -> Iterator[set[bytes]]:
    """Have workers produce and be killed, one after the other; of each the values for which persist() had returned."""
    outbox_worker.audit(folder)
    for life in range(_LIVES):
        journal, first = folder / f"journal-{life}", 1_000_000 * life
        command = [
            sys.executable,
            outbox_worker.__file__,
            kafka.bootstrap,
            str(folder),
            str(journal),
            str(first),
        ]
        worker = subprocess.Popen([*command, "broken" if broken else ""], cwd=Path(__file__).parents[2])
        until = time.monotonic() + PATIENCE_S
        while not (journal.exists() and journal.read_bytes().count(b"\n") >= _LEAST_LINES):
            assert worker.poll() is None, "a worker ended by itself"
            assert time.monotonic() < until, "a worker does not come to work"
            time.sleep(0.01)
        time.sleep(source.uniform(0, _MOST_LIFE_S))
        worker.kill()
        worker.wait()
        lines = journal.read_bytes().split(b"\n")[:-1]
        yield {b"%d" % number for number in range(first, int(lines[-1]))}


def wrong(folder: Path, log: list[Seen], persisted: set[bytes], handled: Counter[str]) -> dict[str, int]:
    """Count broken promises."""
    had = outbox_worker.audited(folder)
    return {
        "sent, and never on disk": len({each.dedup_id for each in log} - set(had)),
        "persisted, and not in the topic": len(set(had) - {each.dedup_id for each in log}),
        "persist() had returned, and nobody saw it": len(persisted - {value.encode() for value in handled}),
        "on disk, and not handled once": sum(handled[value.decode()] != 1 for value in had.values()),
    }


def finished(kafka: MockKafka, folder: Path, make: Make) -> tuple[list[Seen], Counter[str]]:
    """Send the rest, and handle the topic's messages."""
    with make_producer(kafka.bootstrap, folder) as producer:
        assert producer.flush(PATIENCE_S) == 0
    log = records(kafka.bootstrap, outbox_worker.TOPIC, 2)
    return log, Counter(
        (message.value() or b"").decode() for message in poll_quiet(make(outbox_worker.TOPIC))
    )


@pytest.mark.slow
def test_a_killed_producer_loses_nothing_and_doubles_nothing(
    kafka: MockKafka, tmp_path: Path, make: Make
) -> None:
    """Each message that was ever on disk is handled once, none is sent that was not, and order is kept within a key."""
    persisted = set[bytes]().union(*lives(kafka, tmp_path, random.Random(1), broken=False))
    log, handled = finished(kafka, tmp_path, make)
    found = wrong(tmp_path, log, persisted, handled)
    assert found == dict.fromkeys(found, 0)
    assert len(persisted) > 100
    for partition in range(2):
        for key in {each.key for each in log}:
            sent = [int(each.value) for each in log if (each.partition, each.key) == (partition, key)]
            # A resend is behind its original; of first sights each is beyond those before it.
            first_seen = list(dict.fromkeys(sent))
            assert first_seen == sorted(first_seen)


@pytest.mark.slow
def test_a_producer_that_sends_before_it_persists_is_found_out(kafka: MockKafka, tmp_path: Path) -> None:
    """The check above can fail: a key that was sent and is not on disk is one that no resend will bear."""
    for attempt in range(_TRIES):
        folder = tmp_path / f"{attempt}"
        for _ in lives(kafka, folder, random.Random(attempt), broken=True):
            sent = {each.dedup_id for each in records(kafka.bootstrap, outbox_worker.TOPIC, 2)}
            ever = {key for each in range(attempt + 1) for key in outbox_worker.audited(tmp_path / f"{each}")}
            if sent - ever:
                return
    pytest.fail("no kill came between sending and persisting")
