"""The demo's five steps: a broker, an application that sends twice, two workers and a SIGKILL, a rebuild, a restart.

Only the workers' work is simulated: the broker, the lost answers, the kill, the Spark job and the lost disk
are real, and all figures are counted afterwards (`dedup_sdk._demo.oracle`).
"""

from __future__ import annotations

import random
import shutil
import signal
import sys
import time
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

from dedup_sdk._demo import DemoError
from dedup_sdk._demo.flights import ALL_FLIGHTS, ID_HEADER, RetryingProducer, read_flights
from dedup_sdk._demo.narrator import Chapter, DemoResult, Narrator, failures
from dedup_sdk._demo.oracle import Judgement, StoreComparison, Topic, compare_stores, judge, read_handled
from dedup_sdk._demo.workers import Workers
from dedup_sdk._window import Window
from dedup_sdk.testing import CuttingProxy, LocalKafka, free_port
from dedup_sdk.testing._java_home import spark_environment

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator
    from types import FrameType


class Rebuilt(NamedTuple):
    """The number of records that the job read, and its time (seconds, the start of Spark included)."""

    records: int
    seconds: float


def rebuild(options: dict[str, str], say: Callable[[str], None]) -> Rebuilt:
    """Run spark-submit with these options of `spark_backfill.job` (without the dashes).

    ``say`` gets the job's progress lines. Raises `spark_backfill.errors.BackfillError` with the job's error.
    """
    from spark_backfill.launch import backfill

    began_s = time.monotonic()
    report = backfill([f"--{name}={value}" for name, value in options.items()], on_spark=True, say=say)
    return Rebuilt(records=int(report["records"]), seconds=time.monotonic() - began_s)


_ENDING = (signal.SIGTERM, signal.SIGHUP)
_STATUS_OF_SIGNAL = 128


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into `SystemExit` (128 + the signal's number), so that every ``with`` block is left.

    Ctrl-C does that by itself. Call it in the main thread; the former handlers are restored at the end.
    """
    former = {number: signal.signal(number, _end) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(_STATUS_OF_SIGNAL + number)


TOPIC: Final = "flights"
GROUP: Final = "billing"
PARTITIONS: Final = 4
WINDOW: Final = "7d"
ID_SPEC: Final = f"header:{ID_HEADER}"
LEAST_FLIGHTS: Final = 1_000
"""With fewer there is no "half way" to kill a worker at."""

_PROXIED = "PROXIED"
_WORKERS = 2
_REPEAT_SHARE = 0.01
_RESENT_SHARE = 0.1
_CUTS = 25
_LEAST_BATCHES_A_CUT = 10
_FLIGHTS_A_BATCH = 80
# A handler that takes no time would finish a few flights before the second worker has joined.
_LEAST_HANDLING_S = 3.0
_LEAST_SLEEP_US = 100
_PAUSE_S = 0.02
_COMMITTED_PAUSE_S = 0.2
_STALLED_S = 60.0
_SEED = 1903


def run_demo(narrator: Narrator, flights: int | None = None) -> DemoResult:
    """Run all five steps and return the result. Call it in the main thread.

    Broker, workers, Spark and all files end with it, also after Ctrl-C and SIGTERM.

    Args:
        narrator: prints the steps.
        flights: how many to send, from `LEAST_FLIGHTS`; None = all 336,776.

    Raises:
        DedupError: the demo could not be run; broken promises are in the result instead.
    """
    wanted = ALL_FLIGHTS if flights is None else flights
    if not LEAST_FLIGHTS <= wanted <= ALL_FLIGHTS:
        raise DemoError(f"{wanted} flights: give a number from {LEAST_FLIGHTS} to {ALL_FLIGHTS}")
    _check_ingredients()
    with ending_in_order(), ExitStack() as stack:
        return Scenario(stack, narrator, wanted).run()


def _check_ingredients() -> None:
    """Fail at once if the flights, PySpark, or a Java for Spark are missing."""
    next(read_flights(1))
    if find_spec("pyspark") is None:
        raise DemoError("pyspark is not installed: pip install 'dedup-sdk[demo]'")
    spark_environment()


class Scenario:
    """One run of the demo; its processes end with ``stack``."""

    def __init__(self, stack: ExitStack, narrator: Narrator, flights: int) -> None:
        self._stack = stack
        self._narrator = narrator
        self._flights = flights
        self._folder = Path(
            stack.enter_context(TemporaryDirectory(prefix="dedup-demo-", ignore_cleanup_errors=True))
        )
        self._store = self._folder / "store"
        self._snapshot = self._folder / "snapshot"

    def run(self) -> DemoResult:
        """Run the steps in order."""
        began_s = time.monotonic()
        self._start_broker()
        counts = self._send()
        judgement = self._consume(counts)
        rebuilt, comparison = self._rebuild()
        resent, resent_handled = self._restart()
        return DemoResult(
            broker="kafka",
            records=judgement.records,
            distinct_ids=judgement.distinct_ids,
            duplicates_in_topic=judgement.duplicates_in_topic,
            handled=judgement.handled,
            lost=judgement.lost,
            doubled=judgement.doubled,
            doubled_bound=judgement.doubled_bound,
            resent=resent,
            resent_handled=resent_handled,
            rebuild_records_per_second=round(rebuilt.records / rebuilt.seconds),
            marks=comparison.marks,
            stores_equal=comparison.equal,
            seconds=round(time.monotonic() - began_s, 1),
            failures=failures(judgement, comparison, resent_handled),
        )

    def _start_broker(self) -> None:
        with self._narrator.step(1, "broker") as step:
            step.doing("starting Apache Kafka (its jars are fetched the first time)")
            port = free_port()
            self._kafka = self._stack.enter_context(LocalKafka(extra_listeners={_PROXIED: port}))
            self._kafka.create_topic(TOPIC, partitions=PARTITIONS)
            self._proxy = self._stack.enter_context(
                CuttingProxy(
                    self._kafka.address(_PROXIED),
                    listen_port=port,
                    every=max(_LEAST_BATCHES_A_CUT, self._flights // _FLIGHTS_A_BATCH // _CUTS),
                    seed=_SEED,
                )
            )
            self._topic = self._stack.enter_context(
                Topic(self._kafka.bootstrap, TOPIC, group=GROUP, partitions=PARTITIONS)
            )
            step.ends_with(
                f"Apache Kafka at {self._kafka.bootstrap}, topic {TOPIC} with {PARTITIONS} partitions"
            )

    def _send(self) -> Counter[str]:
        with self._narrator.step(2, "producer") as step:
            producer = RetryingProducer(self._proxy.bootstrap, TOPIC, repeat_share=_REPEAT_SHARE)
            step.doing("sending flights over connections that break", self._flights)
            for sent in producer.send(read_flights(self._flights)):
                step.at(sent)
            step.doing("counting the records in the topic")
            counts = self._topic.count_ids(self._topic.ends())
            step.ends_with(
                f"{len(counts):,} flights, {counts.total():,} records: {producer.retried:,} sent again after "
                f"{self._proxy.cuts} cut-off answers, {producer.repeated:,} for no reason"
            )
        return counts

    def _consume(self, counts: Counter[str]) -> Judgement:
        with (
            self._narrator.step(3, "workers") as step,
            Workers(self._folder, self._worker_options()) as workers,
        ):
            step.doing("two workers handle; one will be killed", len(counts))
            for number in range(1, _WORKERS + 1):
                workers.start(f"worker-{number}")
            self._wait(workers, step, lambda: workers.handled_count() >= len(counts) // 2, _PAUSE_S)
            killed = workers.kill_busiest()
            committed = self._topic.committed()
            workers.start(f"{killed.name}-again")
            step.doing(f"{killed.name} was killed and starts again", len(counts))
            self._wait_until_committed(workers, step)
            workers.end()
            step.doing("judging")
            runs = [read_handled(run.handled_file) for run in workers.runs]
            judgement = judge(counts, runs, killed=read_handled(killed.handled_file), committed=committed)
            step.ends_with(
                f"{judgement.handled:,} handled; {killed.name} was killed after {killed.handled_count():,} and started "
                f"again: {judgement.lost:,} lost, {judgement.doubled:,} handled twice"
            )
        return judgement

    def _rebuild(self) -> tuple[Rebuilt, StoreComparison]:
        with self._narrator.step(4, "rebuild") as step:
            step.doing("Spark reads the topic and writes a key store")
            rebuilt = rebuild(
                {
                    "bootstrap": self._kafka.bootstrap,
                    "topic": TOPIC,
                    "group": GROUP,
                    "id": ID_SPEC,
                    "window": WINDOW,
                    "output": str(self._snapshot),
                },
                say=step.doing,
            )
            step.doing("comparing it with the stores of the workers")
            comparison = compare_stores(self._store, self._snapshot, Window.parse(WINDOW))
            relation = "the same as in" if comparison.equal else "NOT the same as in"
            step.ends_with(
                f"spark-submit read {rebuilt.records:,} records; its {comparison.marks:,} marks are {relation} the "
                "workers' stores"
            )
        return rebuilt, comparison

    def _restart(self) -> tuple[int, int]:
        with self._narrator.step(5, "restart") as step:
            shutil.rmtree(self._store)
            folder = self._folder / "restart"
            folder.mkdir()
            options = {**self._worker_options(), "snapshot": str(self._snapshot)}
            with Workers(folder, options) as workers:
                for number in range(1, _WORKERS + 1):
                    workers.start(f"worker-{number}")
                resent = self._resend(step)
                step.doing("the workers read it")
                self._wait_until_committed(workers, step)
                workers.end()
                resent_handled = workers.handled_count()
            step.ends_with(
                f"stores deleted, workers started from the snapshot, {resent:,} flights sent again: "
                f"{resent_handled:,} handled again"
            )
        return resent, resent_handled

    def _resend(self, step: Chapter) -> int:
        wanted = round(self._flights * _RESENT_SHARE)
        chosen = set(random.Random(_SEED).sample(range(self._flights), wanted))  # noqa: S311 (a sample, no secret)
        step.doing("sending a tenth of the flights again", wanted)
        producer = RetryingProducer(self._kafka.bootstrap, TOPIC)
        sent = 0
        for sent in producer.send(
            flight for n, flight in enumerate(read_flights(self._flights)) if n in chosen
        ):
            step.at(sent)
        return sent

    def _worker_options(self) -> dict[str, str]:
        work_us = round(_LEAST_HANDLING_S * _WORKERS / self._flights * 1_000_000)
        return {
            "bootstrap": self._kafka.bootstrap,
            "group": GROUP,
            "topic": TOPIC,
            "store": str(self._store),
            "window": WINDOW,
            "work-us": str(work_us if work_us >= _LEAST_SLEEP_US else 0),
        }

    def _wait_until_committed(self, workers: Workers, step: Chapter) -> None:
        ends = self._topic.ends()
        self._wait(workers, step, lambda: self._topic.committed() == ends, _COMMITTED_PAUSE_S)

    def _wait(self, workers: Workers, step: Chapter, done: Callable[[], bool], pause_s: float) -> None:
        """Return when ``done``; raise `DemoError` when a worker ended, or nothing was handled for a minute."""
        handled, moved_s = -1, time.monotonic()
        while not done():
            workers.check()
            if (now := workers.handled_count()) != handled:
                handled, moved_s = now, time.monotonic()
                step.at(handled)
            elif time.monotonic() - moved_s > _STALLED_S:
                raise DemoError(f"the workers handled nothing for {_STALLED_S:g} s, after {handled} flights")
            time.sleep(pause_s)
