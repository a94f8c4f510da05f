"""Scenarios in which the topic, the group's offsets or the records themselves are strange."""

from __future__ import annotations

import random
import time
from typing import Any, Final

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from tests.chaos.group_offsets import (
    ASK_S,
    PATIENCE_S,
    await_committed,
    ends,
    produce,
    send_apart,
    set_offsets,
    start_all,
)
from tests.chaos.history import EARLIER, Forget, Rewind, Skip
from tests.chaos.options import ID_HEADER
from tests.chaos.process_faults import start_on_an_empty_disk
from tests.chaos.scenario import Scenario
from tests.chaos.sender import plain
from tests.chaos.stage import Stage
from tests.chaos.topic_log import read_log
from tests.support.producing import Outgoing

_HOUR_MS: Final = 3_600_000
_YEAR_MS: Final = 365 * 24 * _HOUR_MS
_SKIPPED: Final = 40
_LONG_ID: Final = 100_000
_LONGEST_ID: Final = 60_000
_MANY_HEADERS: Final = 1_000
_TRANSACTION_MS: Final = 3_000


# --- offsets and records -------------------------------------------------------------------------------------------


def _set_back(stage: Stage) -> None:
    stage.stop_all()
    committed = stage.watch.patiently()
    back = {
        partition: offset - stage.random.randint(0, min(offset, 60))
        for partition, offset in committed.items()
    }
    set_offsets(stage, back)
    stage.faults["offsets-back"] += 1
    for partition, offset in back.items():
        stage.excuses.append(Rewind(partition=partition, low=offset, high=committed[partition]))
        stage.excuses.append(Forget(partition=partition, offset=offset))
    start_all(stage)


def _set_forward(stage: Stage) -> None:
    """Jump over messages sent meanwhile; their resends were never handled."""
    stage.stop_all()
    idents = [b"skipped-%d-%d" % (len(stage.skips), number) for number in range(_SKIPPED)]
    send_apart(stage, idents)
    stage.sleep(1.5)
    committed, ahead = stage.watch.patiently(), ends(stage)
    set_offsets(stage, ahead)
    stage.faults["offsets-forward"] += 1
    for partition, offset in ahead.items():
        stage.skips.append(Skip(partition=partition, low=committed.get(partition, 0), high=offset))
        stage.excuses.append(Forget(partition=partition, offset=offset))
    start_all(stage)
    # Their partitions are taken, and the first messages behind the jump are handled by then.
    stage.sleep(4.0)
    send_apart(stage, idents)


def _make_anew(stage: Stage) -> None:
    """Delete the topic and make it again, while workers and sender go on. Everything in it was handled before."""
    per_second = stage.sender.pause()
    stage.sender.confirm()
    await_committed(stage)
    records = read_log(stage.bed.kafka.bootstrap, stage.topic, stage.watch.partitions)
    stage.gone += [record._replace(partition=record.partition + EARLIER) for record in records]
    for future in stage.admin.delete_topics([stage.topic], request_timeout=ASK_S).values():
        future.result()
    stage.faults["topic-recreated"] += 1
    time.sleep(1.0)
    stage.remade_ns.append(time.monotonic_ns())
    stage.bed.kafka.create_topic(stage.topic, stage.watch.partitions)
    stage.sender.resume(per_second)
    stage.sleep(4.0)


def _truncate(stage: Stage) -> None:
    """Delete records that were handled long ago, and a disk with them: the history is nowhere any more."""
    stage.gone += read_log(stage.bed.kafka.bootstrap, stage.topic, stage.watch.partitions)
    committed = stage.watch.patiently()
    wanted = [TopicPartition(stage.topic, partition, offset // 2) for partition, offset in committed.items()]
    for future in stage.admin.delete_records(wanted, request_timeout=ASK_S).values():
        future.result()
    stage.faults["records-deleted"] += 1
    for place in wanted:
        stage.excuses.append(Forget(partition=place.partition, offset=place.offset))
    run = stage.some_run()
    if run is not None:
        start_on_an_empty_disk(stage, run)


def _delete_offsets(stage: Stage) -> None:
    stage.stop_all()
    committed = stage.watch.patiently()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            for future in stage.admin.delete_consumer_groups([stage.topic], request_timeout=ASK_S).values():
                future.result()
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            break
    stage.faults["offsets-deleted"] += 1
    for partition, offset in committed.items():
        stage.excuses.append(Rewind(partition=partition, low=0, high=offset))
    start_all(stage)


def _topic_changes(stage: Stage) -> None:
    _make_anew(stage)
    changes = [_set_forward, _set_back, _truncate, _delete_offsets]
    while stage.left_s > 0 or changes:
        change = changes.pop(0) if changes else stage.random.choice([_set_forward, _set_back])
        change(stage)
        stage.sleep(4.0)


def _partitions_added(stage: Stage) -> None:
    while stage.left_s > 0:
        count = stage.watch.partitions + stage.random.randint(1, 3)
        for future in stage.admin.create_partitions([NewPartitions(stage.topic, count)]).values():
            future.result()
        stage.faults["partitions-added"] += 1
        stage.watch.partitions = stage.sender.partitions = count
        stage.about(3.0)


# --- transactions --------------------------------------------------------------------------------------------------


def _send_in_transaction(stage: Stage, name: str, idents: list[bytes], end: str) -> Producer:
    producer = Producer({
        "bootstrap.servers": stage.bed.kafka.bootstrap,
        "transactional.id": f"{stage.topic}-{name}",
        "transaction.timeout.ms": _TRANSACTION_MS,
        "log_level": 0,
    })  # fmt: skip
    producer.init_transactions(ASK_S)
    producer.begin_transaction()
    produce(producer, stage, idents, b"transaction")
    producer.flush(ASK_S)
    if end == "commit":
        producer.commit_transaction(ASK_S)
    elif end == "abort":
        producer.abort_transaction(ASK_S)
    stage.faults[f"transaction-{end}"] += 1
    return producer


def _transactions(stage: Stage) -> None:
    number = 0
    hanging: list[Producer] = []
    while stage.left_s > 0:
        number += 1
        idents = [b"transaction-%d-%d" % (number, index) for index in range(30)]
        _send_in_transaction(stage, f"abort-{number}", idents, "abort")
        await_committed(stage)
        # Their successors fold the log again up to the commit, in which the aborted records lie.
        for run in stage.crew.alive:
            start_on_an_empty_disk(stage, run)
        stage.sleep(4.0)
        _send_in_transaction(stage, f"commit-{number}", idents, "commit")
        # Nobody ends this one: it holds back all readers until the broker does.
        lost_idents = [b"hanging-%d-%d" % (number, index) for index in range(10)]
        hanging.append(_send_in_transaction(stage, f"hang-{number}", lost_idents, "hang"))
        stage.sleep(1.0)
    stage.sleep(_TRANSACTION_MS / 1000 + 2.0)
    hanging.clear()


# --- records -------------------------------------------------------------------------------------------------------


def _strange_clock(number: int, chosen: random.Random) -> Outgoing:
    """A message whose producer's clock is an hour off, or decades."""
    message = plain(number, chosen)
    now_ms = int(time.time() * 1000)
    shift_ms = chosen.choice([0, 0, 0, -_HOUR_MS, _HOUR_MS, chosen.randint(-_HOUR_MS, _HOUR_MS)])
    strange = chosen.random()
    if strange < 0.01:
        shift_ms = 10 * _YEAR_MS
    elif strange < 0.02:
        shift_ms = 2 * _HOUR_MS - now_ms  # the seventies
    return Outgoing(
        key=message.key, value=message.value, headers=message.headers, timestamp_ms=now_ms + shift_ms
    )


def _hostile(number: int, chosen: random.Random) -> Outgoing:
    """A message whose ID is missing, empty, very long, no text, or one of a thousand."""
    kinds: list[Any] = [
        {ID_HEADER: None},
        {},
        {ID_HEADER: b"\xff\xfe\x00%d" % number},
        {ID_HEADER: b"x" * _LONG_ID + b"%d" % number},
        {ID_HEADER: b"y" * _LONGEST_ID + b"%d" % number},
        [(ID_HEADER, b"%d-%d" % (number, index)) for index in range(_MANY_HEADERS)],
        [("\u2028" * 50, b"%d" % number), (ID_HEADER, b"../../%d" % number)],
    ]
    message = plain(number, chosen)
    if chosen.random() < 0.9:
        return message
    return Outgoing(key=message.key, value=None, headers=chosen.choice(kinds))


def _kill_now_and_then(stage: Stage) -> None:
    while stage.left_s > 0:
        stage.about(2.0)
        run = stage.some_run()
        if run is not None:
            start_on_an_empty_disk(stage, run)


TOPIC_CHANGES: Final = Scenario(
    name="topic-changes",
    summary="the topic is made anew; offsets set back and forward with the plain tool, or deleted; records deleted",
    play=_topic_changes,
    broken="low-never-rises",
    per_second=120.0,
    work_ms=3.0,
    short_s=16.0,
)
PARTITIONS_ADDED: Final = Scenario(
    name="partitions-added",
    summary="the topic gets more partitions while it is read and written",
    play=_partitions_added,
    broken="start-at-the-end",
    partitions=3,
)
TRANSACTIONS: Final = Scenario(
    name="transactions",
    summary="aborted and hanging transactions; aborted records are sent again after disks were lost",
    play=_transactions,
    broken="replay-uncommitted",
    per_second=100.0,
    work_ms=3.0,
)
CLOCK: Final = Scenario(
    name="clock",
    summary="producers' clocks jump by an hour, some by decades",
    play=_kill_now_and_then,
    broken="believe-the-future",
    recipe=_strange_clock,
    skew_ms=_HOUR_MS,
    recent_marks=200,
    topic_config={
        "message.timestamp.after.max.ms": str(2**63 - 1),
        "message.timestamp.before.max.ms": str(2**63 - 1),
        "retention.ms": "-1",
    },
)
HOSTILE_IDS: Final = Scenario(
    name="hostile-ids",
    summary="IDs of 100,000 bytes, none, empty, no text, or a thousand in one record",
    play=_kill_now_and_then,
    broken="shorten-ids",
    recipe=_hostile,
    per_second=200.0,
)
