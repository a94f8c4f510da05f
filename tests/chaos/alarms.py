"""Random alarms: a signal that raises at random microseconds of a consumer's calls, on a real broker.

``python -m tests.chaos.alarms --bootstrap HOST:PORT --protocol consumer --seed 7 --seconds 60 [--broken NAME]`` plays
one seed. The seed gives the calls, the moments of the alarms and their exceptions; threads and brokers add their own
order. Exit status 1: a promise was broken; the lines above say which one, and where the last alarms struck.

While the alarms ring, one member lives several lives with one store: it polls, consumes, iterates, runs, commits,
seeks, leaves its group, and closes. A second member, on a thread that no signal reaches, comes and goes. Afterwards

- each partition delivers a new message within `DELIVERS_S`, and `close` ends within `CLOSES_S`: nothing is stuck;
- each ID that was sent was handled by one of the members, or by a last one: nothing is lost.

A message counts as handled if a call returned it. The alarm strikes no more while an earlier one is being raised.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, Producer, TopicPartition

from dedup_sdk import DedupConsumer, Lookup
from dedup_sdk.testing._local_kafka import create_topic
from tests.chaos.options import PROTOCOLS, Protocol, WorkerOptions
from tests.chaos.sabotage import sabotage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

DELIVERS_S: Final = 10.0
"""Seconds after the last alarm in which each partition must deliver a new message."""
CLOSES_S: Final = 15.0
"""Seconds in which ``close`` must end after the last alarm."""
PARTITIONS: Final = 4
_SESSION_S: Final = 60.0
"""Seconds in which the group must give all partitions to the last member."""
_HANGS_S: Final = 120.0
"""Seconds of one call after which the process ends, with the stacks of its threads."""
_LIFE_S: Final = (3.0, 9.0)
_QUIET_S: Final = 5.0
_SHORTEST_S, _LONGEST_S = 20e-6, 30e-3


class Rung(BaseException):
    """An alarm's exception that is no `Exception`, as that of Ctrl-C."""


class OverdueError(TimeoutError):
    """An alarm's exception that is an `Exception`, and even one of the system."""


class RefusedError(ValueError):
    """An alarm's exception that could be one about a value."""


_ALARMS: Final = (Rung, OverdueError, RefusedError)


class Alarms:
    """The alarm: rings once at a random moment after `wind`, unless `stop` came before."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._armed = False
        self.rung = 0
        """How often it raised."""
        self.places: deque[str] = deque(maxlen=25)
        """Where the last ones struck."""
        # `run` loads these with its first call. Python's import takes an alarm's `OSError` for that of a folder that is
        # not there, and remembers that: they would never be found again.
        for name in ("dead_letters", "runner", "settings"):
            importlib.import_module(f"dedup_sdk._runner.{name}")
        signal.signal(signal.SIGALRM, self._ring)

    def wind(self) -> None:
        """Let it ring once, in some microseconds or milliseconds."""
        self._armed = True
        after_s = _SHORTEST_S * (_LONGEST_S / _SHORTEST_S) ** self._chance.random()
        signal.setitimer(signal.ITIMER_REAL, after_s)

    def stop(self) -> None:
        """Let it not ring."""
        self._armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _ring(self, _number: int, frame: FrameType | None) -> None:
        if self._armed:
            self._armed = False
            self.rung += 1
            stack = traceback.extract_stack(frame)[-4:]
            self.places.append(
                " < ".join(f"{Path(s.filename).name}:{s.lineno} {s.name}" for s in reversed(stack))
            )
            raise _ALARMS[self.rung % len(_ALARMS)]


class Source:
    """Sends records with IDs, on a thread of its own: bursts, and single ones, some of them twice."""

    def __init__(self, bootstrap: str, topic: str, seed: int) -> None:
        self.sent: set[str] = set()
        self._topic, self._chance = topic, random.Random(seed)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(self._chance.choice([0.002, 0.02, 0.2])):
            for _ in range(self._chance.choice([1, 1, 1, 30])):
                number = (
                    len(self.sent)
                    if self._chance.random() > 0.1
                    else self._chance.randrange(len(self.sent) + 1)
                )
                self.send(str(number), number % PARTITIONS)

    def send(self, each: str, partition: int) -> None:
        """Send one record."""
        self._producer.produce(self._topic, each, headers={"dedup-id": each}, partition=partition)
        self.sent.add(each)
        self._producer.poll(0)

    def end(self) -> None:
        """Send no more, and return when the broker has all."""
        self._ended.set()
        self._thread.join()
        self.flush()

    def flush(self) -> None:
        """Return when the broker has all."""
        assert self._producer.flush(60) == 0


class Calls:
    """The calls of a member. Each takes a list, to which it adds the messages that it gets."""

    def __init__(
        self,
        consumer: DedupConsumer,
        topic: str,
        chance: random.Random,
        handle: Callable[[Iterable[Any]], None],
    ) -> None:
        self._consumer, self._topic, self._chance, self._handle = consumer, topic, chance, handle

    def poll(self, got: list[Any]) -> None:
        """Poll some times."""
        wait_s = self._chance.choice([0.0, 0.005, 0.05])
        for _ in range(self._chance.randrange(1, 12)):
            message = self._consumer.poll(wait_s)
            got.append(message)

    def consume(self, got: list[Any]) -> None:
        """Consume once."""
        got.extend(self._consumer.consume(self._chance.choice([1, 10, 500]), 0.03))

    def iterate(self, got: list[Any]) -> None:
        """Iterate over some messages, or until none comes."""
        wanted = self._chance.randrange(1, 20)
        for message in self._consumer:
            got.append(message)
            if len(got) >= wanted:
                break

    def run(self, _: list[Any]) -> None:
        """Run with a handler that ends the run."""
        left = [self._chance.randrange(1, 30)]

        def handler(message: Any) -> None:
            self._handle([message])
            left[0] -= 1
            if left[0] <= 0:
                self._consumer.stop()

        self._consumer.run(handler)

    def commit(self, _: list[Any]) -> None:
        """Commit what is completed."""
        self._consumer.commit(asynchronous=bool(self._chance.randrange(2)))

    def seek(self, _: list[Any]) -> None:
        """Seek a partition to its position, or to an earlier one."""
        place = TopicPartition(self._topic, self._chance.randrange(PARTITIONS))
        [at] = self._consumer.position([place])
        if at.offset >= 0:
            back = self._chance.choice([0, 0, 5, 50])
            self._consumer.seek(TopicPartition(place.topic, place.partition, max(0, at.offset - back)))

    def unsubscribe(self, _: list[Any]) -> None:
        """Leave the group."""
        self._consumer.unsubscribe()


_CALLS: Final = {
    "poll": 40,
    "consume": 20,
    "iterate": 8,
    "run": 3,
    "commit": 8,
    "seek": 4,
    "unsubscribe": 0.5,
}
"""The calls, by how often each is made."""


class Play:
    """One seed: the members, what they handled, and what was found wrong."""

    def __init__(self, bootstrap: str, protocol: Protocol, seed: int, seconds: float, folder: Path) -> None:
        self._bootstrap, self._protocol, self._seconds, self._folder = bootstrap, protocol, seconds, folder
        self._chance = random.Random(seed)
        self._alarms = Alarms(random.Random(seed + 1))
        self._topic = f"alarms-{protocol}-{seed}-{uuid.uuid4().hex[:6]}"
        create_topic(bootstrap, self._topic, PARTITIONS)
        self.handled: set[str] = set()
        self.wrong: list[str] = []
        self.interrupted: dict[str, int] = {}
        """Calls that an alarm interrupted, by the type of what they raised."""
        self._source = Source(bootstrap, self._topic, seed)
        self._visits = threading.Event()
        self._visitor = threading.Thread(
            target=self._come_and_go, args=[random.Random(seed + 2)], daemon=True
        )
        self._log: deque[str] = deque(maxlen=60)

    # --- the members -------------------------------------------------------------------------------------------------

    def _member(self, store: str) -> DedupConsumer:
        options = WorkerOptions(
            bootstrap=self._bootstrap, group=self._topic, topic=self._topic, store=store, journal="",
            protocol=self._protocol, max_poll_ms=300_000, commit_ms=300,
        )  # fmt: skip
        consumer = DedupConsumer(
            options.client(), dedup=Lookup(id="header:dedup-id", window="7d"), store=self._folder / store,
            idle_timeout=0.1,
        )  # fmt: skip
        consumer.subscribe([self._topic])
        return consumer

    def _come_and_go(self, chance: random.Random) -> None:
        while not self._visits.wait(chance.uniform(1.0, 5.0)):
            with self._member(chance.choice(["own", "visitor"])) as consumer:
                until = time.monotonic() + chance.uniform(1.0, 5.0)
                while time.monotonic() < until and not self._visits.is_set():
                    self._handle(consumer.consume(10, 0.1))

    def _handle(self, messages: Iterable[Any]) -> None:
        for message in messages:
            if message is not None and message.error() is None:
                self.handled.add(message.value().decode())

    # --- calls under alarms ------------------------------------------------------------------------------------------

    def _under_alarm(self, name: str, call: Callable[[list[Any]], None]) -> bool:
        """Make a call, which puts what it gets into a list, under one alarm; return whether it was interrupted."""
        alarms, got = self._alarms, list[Any]()
        before = alarms.rung
        faulthandler.dump_traceback_later(_HANGS_S, exit=True)
        try:
            try:
                if self._chance.random() < 0.8:
                    alarms.wind()
                call(got)
            finally:
                alarms.stop()
        except (Rung, Exception) as error:  # noqa: BLE001 (judged below)
            # Code of others makes any error of an alarm. One inside a callback of the client is raised by a later call.
            if alarms.rung == before and not isinstance(error, (*_ALARMS, KafkaException)):
                self._find(f"{name} raised {error!r} without an alarm")
                self._log.append(traceback.format_exc())
            kind = type(error).__name__
            self.interrupted[kind] = self.interrupted.get(kind, 0) + 1
        finally:
            self._handle(got)
        struck = alarms.rung != before
        if struck:
            self._log.append(f"{name}: {alarms.places[-1]}")
        return struck

    def _one_call(self, consumer: DedupConsumer) -> None:
        calls = Calls(consumer, self._topic, self._chance, self._handle)
        name = self._chance.choices(list(_CALLS), list(_CALLS.values()))[0]
        self._under_alarm(name, getattr(calls, name))
        if name == "unsubscribe":
            self._quietly(lambda: consumer.subscribe([self._topic]))

    def _quietly(self, call: Callable[[], Any]) -> Any:
        with suppress(KafkaException):
            return call()

    def _live(self, seconds: float) -> None:
        consumer = self._member("own")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._one_call(consumer)
        for _ in range(self._chance.randrange(4)):
            if not self._under_alarm("close", lambda _: consumer.close()):
                break
        self._close_in_time(consumer)

    def _close_in_time(self, consumer: DedupConsumer) -> None:
        began = time.monotonic()
        # Where it stands then.
        faulthandler.dump_traceback_later(CLOSES_S, exit=False)
        # An error of the alarms may have been kept for this call.
        with suppress(*_ALARMS, SystemError, TypeError):
            consumer.close()
        took = time.monotonic() - began
        if took > CLOSES_S:
            self._find(f"close took {took:.1f} s")

    # --- the judgement -----------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Play the lives; then look whether something is stuck or lost."""
        end = time.monotonic() + self._seconds
        self._visitor.start()
        while (left := end - time.monotonic()) > 1.0:
            self._live(min(left, self._chance.uniform(*_LIFE_S)))
        consumer = self._member("own")
        until = time.monotonic() + 4.0
        while time.monotonic() < until:
            self._one_call(consumer)
        self._visits.set()
        while self._visitor.is_alive():
            self._one_call(consumer)
        self._one_call(consumer)
        self._source.end()
        self._look_whether_all_deliver(consumer)
        if set_aside := consumer.counters.stores_set_aside:
            self._find(f"{set_aside} stores count as damaged, and none is")
        self._close_in_time(consumer)
        self._read_the_rest()
        if lost := self._source.sent - self.handled:
            self._find(f"{len(lost)} of {len(self._source.sent)} lost: {sorted(lost)[:20]}")

    def _look_whether_all_deliver(self, consumer: DedupConsumer) -> None:
        faulthandler.dump_traceback_later(2 * _HANGS_S, exit=True)
        # The broker may count a member that has left in a hurry as one until its session is over.
        until = time.monotonic() + _SESSION_S
        while len(consumer.assignment()) < PARTITIONS and time.monotonic() < until:
            self._consume_until(consumer, {""}, time.monotonic() + 0.1)
        waits_for = {f"probe-{number}": number for number in range(PARTITIONS)}
        for each, partition in waits_for.items():
            self._source.send(each, partition)
        self._source.flush()
        began = time.monotonic()
        self._consume_until(consumer, set(waits_for), began + DELIVERS_S)
        if stuck := sorted(waits_for.keys() - self.handled):
            given = sorted(tp.partition for tp in consumer.assignment())
            shown = consumer.partition_statuses
            self._consume_until(consumer, set(waits_for), began + 4 * DELIVERS_S)
            late_s = time.monotonic() - began if waits_for.keys() <= self.handled else float("inf")
            self._find(
                f"{stuck} did not come in time, but after {late_s:.0f} s; the client has {given}, {shown}"
            )

    def _consume_until(self, consumer: DedupConsumer, wanted: set[str], until: float) -> None:
        while time.monotonic() < until and not wanted <= self.handled:
            # Errors that are raised late are of the alarms: the call after that goes on.
            with suppress(*_ALARMS, SystemError, TypeError):
                self._handle(consumer.consume(100, 0.1))

    def _read_the_rest(self) -> None:
        faulthandler.dump_traceback_later(2 * _HANGS_S, exit=True)
        with self._member("own") as consumer:
            quiet = time.monotonic() + 2 * _QUIET_S
            while time.monotonic() < quiet:
                if got := consumer.consume(500, 0.2):
                    self._handle(got)
                    quiet = time.monotonic() + _QUIET_S
                elif self._source.sent <= self.handled:
                    break

    def _find(self, what: str) -> None:
        self.wrong.append(what)

    def report(self) -> dict[str, Any]:
        """Return the result, for JSON."""
        return {
            "alarms": self._alarms.rung,
            "interrupted": self.interrupted,
            "sent": len(self._source.sent),
            "wrong": self.wrong,
        }

    def last_events(self) -> list[str]:
        """Return the last alarms and errors, the newest last."""
        return list(self._log)


def main() -> int:
    """Play one seed; print the result."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--bootstrap", required=True)
    options.add_argument("--protocol", choices=PROTOCOLS, required=True)
    options.add_argument("--seed", type=int, required=True)
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--broken", default="")
    asked = options.parse_args()
    # Python swallows errors of a collection or a finaliser; the hook it tells could be interrupted, too.
    sys.unraisablehook = lambda _: None
    sabotage(asked.broken)
    with tempfile.TemporaryDirectory() as folder:
        play = Play(asked.bootstrap, asked.protocol, asked.seed, asked.seconds, Path(folder))
        play.play()
    faulthandler.cancel_dump_traceback_later()
    if play.wrong:
        sys.stderr.write("\n".join([*play.last_events(), ""]))
    sys.stdout.write(json.dumps(play.report()) + "\n")
    return 1 if play.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
