"""The inbox beside a table with a unique key, as one writes it by hand.

A topic is read in batches, each in one transaction. ``plain`` is SQLAlchemy's
``insert(table).on_conflict_do_nothing().returning(table.c.id)``, one statement a batch. ``array`` (PostgreSQL
only) gives all IDs as one array, which few write. ``inbox`` is `Inbox.once_many` in the same loop, of the same
bare consumer. ``filtered`` has the drop-in consumer in front. The database is that of ``$DEDUP_BENCH_DATABASE``,
an URL of SQLAlchemy's kind; without it SQLite in a file.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import uuid
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, Producer
from sqlalchemy import Column, String, Table, create_engine, text
from sqlalchemy.dialects import postgresql, sqlite

from benchmarks.contender import TUNED
from benchmarks.rounds import orders
from dedup_adapters.sql import Inbox
from dedup_sdk import DedupConsumer, Lookup, Window, header
from dedup_sdk.testing import LocalKafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

DATABASE: Final = "DEDUP_BENCH_DATABASE"
TOPIC: Final = "orders"
PARTITIONS: Final = 4
BATCH_ROWS: Final = 1_000
"""Rows of a transaction. Where half of the records never come to it, twice as many are read for it."""
REACH_RECORDS: Final = 4_000
"""How many records before it the record lies that a duplicate repeats: it was handled before."""
VALUE_BYTES: Final = 200
_STALL_S: Final = 30.0

Figures = dict[str, float]


def rounds_of_new(records: int, rounds: int) -> dict[str, list[Figures]]:
    """Measure where no record is a duplicate."""
    return _rounds_of(["inbox"], records, rounds, halved=False)


def rounds_of_halved(records: int, rounds: int) -> dict[str, list[Figures]]:
    """Measure where every second record is a duplicate, which the drop-in consumer in front knows."""
    return _rounds_of(["filtered", "inbox"], records, rounds, halved=True)


def _rounds_of(ours: list[str], records: int, rounds: int, *, halved: bool) -> dict[str, list[Figures]]:
    arrays = os.environ.get(DATABASE, "").startswith("postgresql")
    names = ["plain", *(["array"] if arrays else []), *ours]
    found: dict[str, list[Figures]] = {name: [] for name in names}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        url = os.environ.get(DATABASE, f"sqlite:///{folder}/inbox.db")
        kafka = stack.enter_context(LocalKafka())
        kafka.create_topic(TOPIC, partitions=PARTITIONS)
        distinct = _fill(kafka.bootstrap, records, halved=halved)
        spawn = multiprocessing.get_context("spawn")
        for order in orders(names, rounds):
            for name in order:
                with ProcessPoolExecutor(1, mp_context=spawn) as pool:
                    asked = pool.submit(
                        _measured, name, kafka.bootstrap, url, records, f"{folder}/{uuid.uuid4()}"
                    )
                    seconds, first = asked.result()
                if first != distinct:
                    raise AssertionError(f"{name} called {first} records first, of {distinct}")
                found[name].append({"records_per_second": records / seconds})
    return found


def _fill(bootstrap: str, records: int, *, halved: bool) -> int:
    """Send the records; return how many IDs there are."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
    )
    ids: list[bytes] = []
    for number in range(records):
        again = halved and number >= REACH_RECORDS and number // PARTITIONS % 2
        ids.append(ids[number - REACH_RECORDS] if again else str(uuid.uuid4()).encode())
        headers: list[tuple[str, str | bytes | None]] = [("dedup-id", ids[-1])]
        producer.produce(TOPIC, bytes(VALUE_BYTES), headers=headers, partition=number % PARTITIONS)
        producer.poll(0)
    if left := producer.flush(_STALL_S):
        raise AssertionError(f"{left} records were not delivered")
    return len(set(ids))


def _measured(name: str, bootstrap: str, url: str, records: int, store: str) -> tuple[float, int]:
    """Read the topic in a group of its own.

    Return the seconds from the first batch to the last commit, and how many records were first.
    """
    engine = create_engine(url)
    group = f"bench-{uuid.uuid4()}"
    table = "bench_" + uuid.uuid4().hex[:12]
    config = {**TUNED, "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    filtered = name == "filtered"
    inbox = Inbox(engine, group="bench", table=table)
    by_hand = Table(f"{table}_by_hand", inbox.metadata, Column("id", String(64), primary_key=True))
    inbox.create()
    consumer: Any = (
        DedupConsumer(config, dedup=Lookup(id=header("dedup-id"), window=Window(days=7)), store=Path(store))
        if filtered
        else Consumer({**config, "enable.auto.commit": False})
    )
    store_batch = (
        _by_rows(engine, by_hand)
        if name == "plain"
        else _by_array(engine, by_hand)
        if name == "array"
        else _by_inbox(engine, inbox)
    )
    began = first = 0.0
    try:
        consumer.subscribe([TOPIC])
        for messages in _batches(consumer, records, filtered=filtered):
            began = began or time.perf_counter()
            if messages:
                first += store_batch(messages)
                if not filtered:
                    consumer.commit(asynchronous=True)
        seconds = time.perf_counter() - began
    finally:
        consumer.close()
        inbox.metadata.drop_all(engine)
    return seconds, int(first)


def _batches(consumer: Any, records: int, *, filtered: bool) -> Iterator[list[Any]]:
    read, heard = 0, time.perf_counter()
    while read < records:
        messages = consumer.consume(BATCH_ROWS * 2 if filtered else BATCH_ROWS, 0.1)
        total = sum(consumer.counters.verdicts.values()) if filtered else read + len(messages)
        if total > read:
            heard = time.perf_counter()
            yield messages
        read = total
        if time.perf_counter() - heard > _STALL_S:
            raise TimeoutError(f"nothing comes; {read} of {records} records were read")


def _by_inbox(engine: Engine, inbox: Inbox) -> Callable[[list[Any]], int]:
    def store(messages: list[Any]) -> int:
        with engine.begin() as connection, inbox.once_many(connection, messages) as first:
            return sum(first)

    return store


def _by_rows(engine: Engine, table: Table) -> Callable[[list[Any]], int]:
    dialect = postgresql if engine.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table).on_conflict_do_nothing().returning(table.c.id)

    def store(messages: list[Any]) -> int:
        with engine.begin() as connection:
            return len(
                set(connection.execute(statement, [{"id": each} for each in _ids(messages)]).scalars())
            )

    return store


def _by_array(engine: Engine, table: Table) -> Callable[[list[Any]], int]:
    given = "SELECT unnest(CAST(:ids AS varchar[]))"
    statement = text(f"INSERT INTO {table.name} (id) {given} ON CONFLICT DO NOTHING RETURNING id")

    def store(messages: list[Any]) -> int:
        with engine.begin() as connection:
            return len(set(connection.execute(statement, {"ids": _ids(messages)}).scalars()))

    return store


def _ids(messages: list[Any]) -> list[str]:
    return [dict(message.headers())["dedup-id"].decode() for message in messages]
