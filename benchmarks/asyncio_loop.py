"""What asyncio costs: `AsyncDedupConsumer` beside the synchronous consumer, and how long the event loop waits for it.

Each round runs all contenders, one after the other, on one mock cluster (the lag on a broker of its own); the result is
the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from threading import Timer
from threading import enumerate as enumerate_threads
from typing import Any

from confluent_kafka import Producer

from dedup_sdk import DedupConsumer, Lookup
from dedup_sdk.aio import AsyncDedupConsumer
from dedup_sdk.testing import LocalKafka, MockKafka

PARTITIONS = 7
RECORDS = 25_000 * PARTITIONS
"""A partition of the mock cluster keeps 5 MB."""
_DEDUP = Lookup(id="header:dedup-id", window="7d")
_SLEEP_S, _CONCURRENCY = 0.005, 100
_IDLE_S = 5.0
_TICK_S = 0.001


def main() -> None:
    """Measure, and print the medians."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5, help="0: measure the lag only")
    options.add_argument(
        "--lag", type=int, default=0, metavar="RECORDS", help="measure the lag with so many records"
    )
    options.add_argument("--json", action="store_true")
    options.add_argument("--member", metavar="BOOTSTRAP", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.member:
        _join(chosen.member)
        return
    figures: dict[str, list[float]] = defaultdict(list)
    with MockKafka() as kafka:
        kafka.create_topic("work", PARTITIONS)
        kafka.create_topic("nothing")
        _fill(kafka.bootstrap, "work", RECORDS, PARTITIONS)
        for number in range(chosen.rounds):
            print(f"round {number + 1}", file=sys.stderr)
            _round(kafka.bootstrap, number, figures)
    results = {name: round(statistics.median(each), 3) for name, each in figures.items()}
    if chosen.lag:
        results |= asyncio.run(_lags(chosen.lag))
    if chosen.json:
        print(json.dumps(results))
    else:
        for name, figure in results.items():
            print(f"{name:32} {figure}")


def _fill(bootstrap: str, topic: str, count: int, partitions: int = 1) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": "lz4"})
    for number in range(count):
        while True:
            try:
                producer.produce(
                    topic, b"x" * 100, key=str(number % 100), partition=number % partitions,
                    headers=[("dedup-id", str(number).encode())],
                )  # fmt: skip
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def _config(bootstrap: str, group: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }


def _round(bootstrap: str, number: int, figures: dict[str, list[float]]) -> None:
    synchronous = _iterate(bootstrap, f"sync-{number}")
    for_loop = asyncio.run(_iterate_async(bootstrap, f"for-{number}"))
    figures["async for over synchronous"].append(synchronous[0] / for_loop[0])
    figures["cpu us a message, synchronous"].append(synchronous[1])
    figures["cpu us a message, async for"].append(for_loop[1])
    sleepers = asyncio.run(_sleepers())
    for order in (None, "key"):
        rate = asyncio.run(_run(bootstrap, f"run-{order}-{number}", order))
        figures[f"run(order={order}) over 100 sleepers"].append(rate / sleepers)
    figures["idle cpu %, synchronous"].append(_idle(bootstrap, f"idle-{number}"))
    figures["idle cpu %, async for"].append(asyncio.run(_idle_async(bootstrap, f"idle-async-{number}")))


def _iterate(bootstrap: str, group: str) -> tuple[float, float]:
    with (
        tempfile.TemporaryDirectory() as store,
        DedupConsumer(_config(bootstrap, group), dedup=_DEDUP, store=store) as consumer,
    ):
        consumer.subscribe(["work"])
        begun, cpu = 0.0, 0.0
        for count, _ in enumerate(consumer, 1):
            if count == 1:
                begun, cpu = time.perf_counter(), time.process_time()
            if count == RECORDS:
                break
        return time.perf_counter() - begun, (time.process_time() - cpu) / RECORDS * 1e6


async def _iterate_async(bootstrap: str, group: str) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as store:
        async with AsyncDedupConsumer(_config(bootstrap, group), dedup=_DEDUP, store=store) as consumer:
            await consumer.subscribe(["work"])
            begun, cpu, count = 0.0, 0.0, 0
            async for _ in consumer:
                count += 1
                if count == 1:
                    begun, cpu = time.perf_counter(), time.process_time()
                if count == RECORDS:
                    break
            return time.perf_counter() - begun, (time.process_time() - cpu) / RECORDS * 1e6


async def _run(bootstrap: str, group: str, order: Any) -> float:
    begun, count = 0.0, 0
    with tempfile.TemporaryDirectory() as store:
        async with AsyncDedupConsumer(_config(bootstrap, group), dedup=_DEDUP, store=store) as consumer:
            await consumer.subscribe(["work"])

            async def handle(_: object) -> None:
                nonlocal begun, count
                begun = begun or time.perf_counter()
                await asyncio.sleep(_SLEEP_S)
                count += 1
                if count == RECORDS:
                    consumer.stop()

            await consumer.run(handle, concurrency=_CONCURRENCY, order=order)
            return count / (time.perf_counter() - begun)


async def _sleepers() -> float:
    """Return how many sleeps a second so many tasks can do, without any message."""
    count, begun = 0, time.perf_counter()

    async def sleep() -> None:
        nonlocal count
        while count < RECORDS:
            await asyncio.sleep(_SLEEP_S)
            count += 1

    await asyncio.gather(*(sleep() for _ in range(_CONCURRENCY)))
    return count / (time.perf_counter() - begun)


def _idle(bootstrap: str, group: str) -> float:
    with (
        tempfile.TemporaryDirectory() as store,
        DedupConsumer(_config(bootstrap, group), dedup=_DEDUP, store=store) as consumer,
    ):
        consumer.subscribe(["nothing"])
        Timer(_IDLE_S, consumer.stop).start()
        begun, cpu = time.perf_counter(), time.process_time()
        for _ in consumer:
            raise AssertionError("the topic is empty")
        return (time.process_time() - cpu) / (time.perf_counter() - begun) * 100


async def _idle_async(bootstrap: str, group: str) -> float:
    with tempfile.TemporaryDirectory() as store:
        async with AsyncDedupConsumer(_config(bootstrap, group), dedup=_DEDUP, store=store) as consumer:
            await consumer.subscribe(["nothing"])
            asyncio.get_running_loop().call_later(_IDLE_S, consumer.stop)
            begun, cpu = time.perf_counter(), time.process_time()
            async for _ in consumer:
                raise AssertionError("the topic is empty")
            return (time.process_time() - cpu) / (time.perf_counter() - begun) * 100


# --- lag of the event loop ---------------------------------------------------------------------------------------


class _Lag:
    """Notes by how much a task that sleeps for a millisecond wakes too late.

    ``own``: less the time in which this process's Python threads had no CPU, because other programs had it (Linux).
    """

    def __init__(self) -> None:
        self._late: list[float] = []
        self._own: list[float] = []
        self._files: dict[int, int] = {}
        self._task = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            waited, begun = self._waited_s(), time.perf_counter()
            await asyncio.sleep(_TICK_S)
            late = time.perf_counter() - begun - _TICK_S
            self._late.append(late)
            self._own.append(max(0.0, late - self._waited_s() + waited))

    def _waited_s(self) -> float:
        """Return how long the threads have waited for a CPU."""
        waited_ns = 0
        for thread in enumerate_threads():
            number = thread.native_id or 0
            with suppress(OSError):  # it is over, or this is not Linux
                if number not in self._files:
                    self._files[number] = os.open(f"/proc/self/task/{number}/schedstat", os.O_RDONLY)
                waited_ns += int(os.pread(self._files[number], 100, 0).split()[1])
        return waited_ns / 1e9

    def end(self, name: str, results: dict[str, float]) -> None:
        """Add the 99.9th percentiles, in ms, to the results."""
        self._task.cancel()
        for file in self._files.values():
            os.close(file)
        for kind, late in (("", self._late), (", own", self._own)):
            results[f"lag p99.9 ms, {name}{kind}"] = round(statistics.quantiles(late, n=1000)[-1] * 1000, 2)


async def _lags(count: int) -> dict[str, float]:
    """Measure without a consumer, through deliveries with flushes, a recovery without a store, and rebalances."""
    results: dict[str, float] = {}
    with (
        LocalKafka() as kafka,
        tempfile.TemporaryDirectory() as lived,
        tempfile.TemporaryDirectory() as fresh,
    ):
        kafka.create_topic("long", 2)
        _fill(kafka.bootstrap, "long", count, 2)
        lag = _Lag()
        await asyncio.sleep(5)
        lag.end("nothing", results)
        async with AsyncDedupConsumer(_config(kafka.bootstrap, "lag"), dedup=_DEDUP, store=lived) as consumer:
            await consumer.subscribe(["long"])
            lag, taken = _Lag(), 0
            async for _ in consumer:
                taken += 1
                if taken == count:
                    consumer.stop()
            lag.end("delivery, flushes", results)
        async with AsyncDedupConsumer(_config(kafka.bootstrap, "lag"), dedup=_DEDUP, store=fresh) as consumer:
            await consumer.subscribe(["long"])
            lag, begun = _Lag(), time.perf_counter()
            while not consumer.health().ready:
                await consumer.poll(0.1)
            results["recovery s"] = round(time.perf_counter() - begun, 1)
            lag.end("recovery", results)
            lag = _Lag()
            other = await asyncio.create_subprocess_exec(
                sys.executable, __file__, "--member", kafka.bootstrap
            )
            await other.wait()
            await asyncio.sleep(5)
            lag.end("two rebalances", results)
    return results


def _join(bootstrap: str) -> None:
    """Be a member of the group for some seconds, in a process of its own."""
    with (
        tempfile.TemporaryDirectory() as store,
        DedupConsumer(_config(bootstrap, "lag"), dedup=_DEDUP, store=store) as consumer,
    ):
        consumer.subscribe(["long"])
        consumer.poll(10)


if __name__ == "__main__":
    main()
