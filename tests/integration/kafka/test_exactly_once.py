"""SIGKILL and SIGSTOP of who copies in transactions: readers of committed records see each message exactly once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.integration.kafka.test_transactions import seen
from tests.support import transaction_worker
from tests.support.consuming import PATIENCE_S, numbers
from tests.support.forks import FORKS
from tests.support.transaction_worker import SESSION_S, Job

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from tests.support.worlds import World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
MESSAGES: Final = 300
LIVES: Final = 5
PROTOCOLS: Final[list[dict[str, Any]]] = [
    {"session.timeout.ms": int(SESSION_S * 1_000), "heartbeat.interval.ms": 300},
    {"session.timeout.ms": int(SESSION_S * 1_000), "heartbeat.interval.ms": 300,
     "partition.assignment.strategy": "cooperative-sticky"},
    {"group.protocol": "consumer"},
]  # fmt: skip


class Life:
    """A worker."""

    def __init__(self, job: Job) -> None:
        self._ours, theirs = FORKS.Pipe()
        self._process = FORKS.Process(target=transaction_worker.main, args=(theirs, job))
        self._process.start()
        theirs.close()

    def hears(self, word: str, patience_s: float = PATIENCE_S) -> bool:
        """Whether the worker says this word in time."""
        pipe: Connection = self._ours
        until = time.monotonic() + patience_s
        try:
            while pipe.poll(max(0.0, until - time.monotonic())):
                if pipe.recv() == word:
                    return True
        except EOFError:
            pass
        return False

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def end(self) -> None:
        """Wait for the end of the process."""
        self._process.join(PATIENCE_S)
        self._process.close()
        self._ours.close()


@pytest.fixture
def job(pair_world: World, tmp_path: Any) -> Callable[..., Job]:
    """Make the job of a member, on a machine."""
    world = pair_world
    out = world.create_topic(f"{world.topic}-copies")

    def make(protocol: dict[str, Any], disk: str = "one", member: str = "one", kind: str = "block") -> Job:
        store = str(tmp_path / "stores" / disk)
        return Job(world.bootstrap, world.topic, out, world.group, store, protocol, member, kind)

    return make


def end_sessions_soon(world: World) -> None:
    """Have the broker end sessions of the group's members early, where it decides that (KIP-848)."""
    wanted = ConfigEntry("consumer.session.timeout.ms", "1500", incremental_operation=AlterConfigOpType.SET)
    group = ConfigResource(ConfigResource.Type.GROUP, world.group, incremental_configs=[wanted])
    admin = AdminClient({"bootstrap.servers": world.bootstrap, "log_level": 0})
    [altered] = admin.incremental_alter_configs([group]).values()
    altered.result(PATIENCE_S)


def send(world: World) -> None:
    """Send all messages, some of them twice, in two partitions."""
    for number in range(MESSAGES):
        world.send(str(number), partition=number % 2)
        if number % 10 == 0:
            world.send(str(number), partition=number % 2)


def finish(job: Job) -> None:
    """Copy what is left."""
    life = Life(job)
    assert life.hears("over"), "it does not come to an end"
    life.end()


def doubled(found: list[str]) -> dict[str, int]:
    """Messages that are there more than once."""
    return {each: times for each, times in Counter(found).items() if times > 1}


def test_killed_anywhere_each_message_is_there_once(
    pair_world: World, job: Callable[..., Job], fresh_seed: int
) -> None:
    """Also when all is sent again, and with an empty disk after each kill; the seed chooses protocol and disks."""
    draw = random.Random(fresh_seed)
    kind = draw.choice(["block", "run"])
    protocol, wipes = PROTOCOLS[fresh_seed % len(PROTOCOLS)], draw.random() < 0.5
    end_sessions_soon(pair_world)
    send(pair_world)
    for number in range(LIVES):
        life = Life(job(protocol, disk=f"disk-{number if wipes else 0}", kind=kind))
        assert life.hears("at work"), "it does not come to that"
        time.sleep(draw.uniform(0, 0.4))
        life.kill()
        life.end()
    last = job(protocol, disk=f"disk-{LIVES if wipes else 0}", kind=kind)
    finish(last)
    assert Counter(seen(pair_world, last.out)) == Counter(numbers(0, MESSAGES))
    send(pair_world)
    finish(job(protocol, disk="another"))
    assert Counter(seen(pair_world, last.out)) == Counter(numbers(0, MESSAGES))


@pytest.mark.parametrize("kind", ["block", "run", "own"])
def test_frozen_amid_a_transaction_it_writes_nothing_when_it_wakes(
    pair_world: World, job: Callable[..., Job], fresh_seed: int, kind: str
) -> None:
    """Another member has its partitions by then, and has handled all."""
    protocol = PROTOCOLS[fresh_seed % len(PROTOCOLS)]
    end_sessions_soon(pair_world)
    send(pair_world)
    frozen = Life(job(protocol, kind=kind))
    assert frozen.hears("at work")
    frozen.kill(signal.SIGSTOP)
    other = job(protocol, disk="another", member="two")
    finish(other)
    frozen.kill(signal.SIGCONT)
    assert frozen.hears("over")
    frozen.end()
    assert Counter(seen(pair_world, other.out)) == Counter(numbers(0, MESSAGES))


@pytest.mark.parametrize("kind", ["block", "run"])
def test_a_second_member_comes_and_goes(
    pair_world: World, job: Callable[..., Job], fresh_seed: int, kind: str
) -> None:
    """Both are at work; each rebalance aborts, or commits, the transactions that it meets."""
    protocol = PROTOCOLS[fresh_seed % len(PROTOCOLS)]
    send(pair_world)
    first = Life(job(protocol, kind=kind))
    assert first.hears("at work")
    second = Life(job(protocol, disk="another", member="two", kind=kind))
    for life in (second, first):
        assert life.hears("over")
        life.end()
    assert Counter(seen(pair_world, job(protocol).out)) == Counter(numbers(0, MESSAGES))


def test_metadata_taken_late_double(pair_world: World, job: Callable[..., Job]) -> None:
    """A member that was frozen, and is in the group again, commits output of messages that another has handled."""
    send(pair_world)
    broken = Life(job(PROTOCOLS[0], kind="late"))
    assert broken.hears("at work")
    broken.kill(signal.SIGSTOP)
    other = job(PROTOCOLS[0], disk="another", member="two")
    finish(other)
    broken.kill(signal.SIGCONT)
    assert broken.hears("over")
    broken.end()
    assert doubled(seen(pair_world, other.out)) != {}


@pytest.mark.parametrize("kind", ["early", "textless"])
def test_broken_loops_are_found_out(pair_world: World, job: Callable[..., Job], kind: str) -> None:
    """IDs that are remembered before the commit are lost by a kill; offsets without a text remember nothing."""
    send(pair_world)
    broken = job(PROTOCOLS[0], kind=kind)
    life = Life(broken)
    assert life.hears("between")
    life.kill()
    life.end()
    send(pair_world)
    finish(job(PROTOCOLS[0]))
    found = seen(pair_world, broken.out)
    if kind == "early":
        assert set(numbers(0, MESSAGES)) - set(found) != set(), "lost"
    else:
        assert doubled(found) != {}
