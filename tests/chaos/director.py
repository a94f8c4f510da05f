"""Plays a scenario from its first record to the oracle's word."""

from __future__ import annotations

import logging
import shutil
import signal
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException

from dedup_sdk import Window
from dedup_sdk._units.unit import UNIT_TIMEOUT_S
from tests.chaos.bad_disk import may_refuse
from tests.chaos.bed import Bed
from tests.chaos.bridged_sender import SOURCE, BridgedSender
from tests.chaos.forgetful import ForgetfulBrokerError, is_forgetful
from tests.chaos.history import BEFORE_A_RESTORE, EARLIER, Call, History, LogRecord
from tests.chaos.memory import shared_memory
from tests.chaos.options import WorkerOptions
from tests.chaos.oracle import judge, messages, unhandled
from tests.chaos.outbox_sender import OutboxSender
from tests.chaos.output_topic import OutputTopic
from tests.chaos.report import Report
from tests.chaos.scenario import Scenario
from tests.chaos.sender import Sender
from tests.chaos.small_disk import small_disks
from tests.chaos.stage import Choice, Disks, Stage
from tests.chaos.topic_log import read_log
from tests.chaos.watch import CommitWatch
from tests.chaos.work_table import work_table

logger = logging.getLogger("chaos")

_HEAD_START_S: Final = 2.0
_IDLE_S: Final = 25.0
_IDLE_BROKEN_S: Final = 15.0
_DECIDED_S: Final = 4.0
_SETTLE_S: Final = 10.0
_SECOND_LOOK_S: Final = 2.0
_PAUSE_S: Final = 0.2
_LAST_WORDS_S: Final = 0.5
_LAST_LINES: Final = 40
_HANGING_S: Final = 120.0
"""The group keeps the partitions of a member that was killed for its session timeout.

That is 45 s by default where brokers set it (KIP-848).
"""
_AWAY_S: Final = 20.0
_LARGE: Final = 1_000
"""Messages of a transaction where there are many a second."""
_SELDOM: Final = 0.001
"""The share of failing calls there: each waits before it is made again."""


def at_rate(scenario: Scenario, rate: float) -> Scenario:
    """Return a scenario with so many new messages a second, which handlers do without any work; 0: as it is."""
    return replace(scenario, per_second=rate, work_ms=0.0) if rate else scenario


def direct(scenario: Scenario, choice: Choice, bed: Bed, *, keep: Path | None = None) -> Report:
    """Play a scenario and judge it; ``keep`` is a folder for journals, logs and stores, else they are removed.

    Raises `ForgetfulBrokerError` where something went wrong and the broker itself is the cause.
    """
    scenario = at_rate(scenario, choice.rate)
    began, logged_bytes = time.monotonic(), len(bed.kafka.logged())
    topic = f"{scenario.name}-{choice.protocol}-{choice.seed}-{uuid.uuid4().hex[:6]}"
    folder = Path(tempfile.mkdtemp(prefix="chaos-")) if keep is None else keep / topic
    folder.mkdir(parents=True, exist_ok=True)
    bed.kafka.create_topic(topic, scenario.partitions, scenario.topic_config)
    output = _output(scenario, bed, topic)
    sender = _sender(scenario, choice, bed, topic, folder)
    try:
        refusing = scenario.bad_disks and choice.mount and may_refuse()
        disks = [folder / f"disk-{host}" for host in range(scenario.hosts)] if scenario.small_disks else []
        with (
            CommitWatch(bed.kafka.bootstrap, topic, topic, scenario.partitions) as watch,
            small_disks(disks, mount=choice.mount) as mounted,
            shared_memory(scenario.memory, folder, bed) as memory,
            work_table(bed.database) if scenario.database else nullcontext() as database,
            output or nullcontext(),
        ):
            options = replace(
                _options(scenario, choice, topic),
                piped=(bool(disks) and not mounted) or (scenario.bad_disks and not refusing),
                refused=refusing,
                database="" if database is None else database.url,
                memory="" if memory is None else memory.url,
                output="" if output is None else output.topic,
            )
            stage = Stage(
                choice, bed, folder, sender, watch,
                options=options, disks=_disks(scenario, choice), proxied=scenario.proxied, database=database,
                output=output, memory=memory,
            )  # fmt: skip
            try:
                history, stuck = _play(scenario, stage)
            except (KafkaException, TimeoutError, RuntimeError) as error:
                notes = [f"faults until then: {dict(stage.faults)}", *_where_they_stand(stage)]
                if is_forgetful(bed.kafka.logged()[logged_bytes:]):
                    raise ForgetfulBrokerError(str(error), notes) from error
                for line in notes:
                    error.add_note(line)
                raise
            finally:
                stage.crew.end()
    finally:
        if isinstance(sender, OutboxSender | BridgedSender):
            sender.end()
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    judgement = judge(history)
    if (judgement.broken() or stuck) and is_forgetful(bed.kafka.logged()[logged_bytes:]):
        raise ForgetfulBrokerError(f"{judgement.broken()}; faults: {dict(stage.faults)}", stuck)
    return Report(
        scenario=scenario.name,
        choice=choice,
        judgement=judgement,
        faults={**stage.faults, **_refused(history)},
        resent=sender.retried + sender.repeated,
        rebalances=sum(notice.kind == "assigned" for notice in history.notices),
        seconds=time.monotonic() - began,
        stuck=stuck,
        ended=stage.faults["ended"] if scenario.enduring else 0,
    )


def _output(scenario: Scenario, bed: Bed, topic: str) -> OutputTopic | None:
    if not scenario.output:
        return None
    name = bed.kafka.create_topic(f"{topic}-output", scenario.partitions)
    return OutputTopic(bed.kafka.bootstrap, name, scenario.partitions)


def _sender(scenario: Scenario, choice: Choice, bed: Bed, topic: str, folder: Path) -> Sender:
    settings: dict[str, Any] = {
        "partitions": scenario.partitions, "per_second": scenario.per_second, "seed": choice.seed,
        "recipe": scenario.recipe,
        "skew_ms": scenario.skew_ms, "strays": bool(scenario.memory),
    }  # fmt: skip
    if scenario.outbox:
        return OutboxSender(bed.producers.bootstrap, topic, folder, broken=choice.broken, **settings)
    if scenario.bridged:
        bed.kafka.create_topic(SOURCE.format(topic=topic), scenario.partitions)
        return BridgedSender(
            bed.producers.bootstrap, topic, folder, straight=bed.kafka.bootstrap,
            bridged=[each.bootstrap for each in bed.consumers],
            atomic=bool(choice.seed % 2) or bool(choice.broken), broken=choice.broken, **settings,
        )  # fmt: skip
    return Sender(bed.producers.bootstrap, topic, **settings)


def _refused(history: History) -> dict[str, int]:
    """Return as faults how often the broker refused a commit of partitions that went, and put a member out."""
    kinds = Counter(notice.kind for notice in history.notices)
    named = {"commit-refused": kinds["refused"], "put-out": kinds["lost"]}
    return {name: count for name, count in named.items() if count}


def _options(scenario: Scenario, choice: Choice, topic: str) -> WorkerOptions:
    options = WorkerOptions(
        bootstrap="",
        group=topic,
        topic=topic,
        store="",
        journal="",
        protocol=choice.protocol,
        mode=scenario.mode,
        window=scenario.window,
        work_ms=scenario.work_ms,
        slow_s=scenario.slow_s,
        max_poll_ms=scenario.max_poll_ms,
        recent_marks=scenario.recent_marks,
        on_full_disk=scenario.on_full_disk,
        on_outage="pause" if choice.seed % 2 else "deliver",
        broken=choice.broken,
        kept_offsets=scenario.kept_offsets,
        units=scenario.unit_span > 0,
        by_key=scenario.by_key,
    )
    return replace(options, transaction=_LARGE, failing=_SELDOM) if choice.rate else options


def _disks(scenario: Scenario, choice: Choice) -> Disks:
    if scenario.disks is not None:
        return scenario.disks
    # A message completed too early is lost only where its successor finds it in the same store.
    return "own" if choice.seed % 2 and not choice.broken else "shared"


def _play(scenario: Scenario, stage: Stage) -> tuple[History, tuple[str, ...]]:
    """Play; return the history.

    Where messages were left and nothing was handled any more, return also where the workers stood.
    """
    for host in range(scenario.hosts):
        stage.start(host)
    stage.await_partitions()
    # Not before: messages sent while interpreters start have to be handled, too.
    stage.sender.start()
    stage.sleep(_HEAD_START_S)
    stage.begin()
    scenario.play(stage)
    stage.sender.stop()
    for host in set(range(scenario.hosts)) - {run.host for run in stage.crew.alive}:
        stage.start(host)
    drained = _drained(stage, scenario)
    stuck = _gathered(stage) if drained else _where_they_stand(stage)
    # A unit of which a part was sent again, and nothing more, is waited for.
    settled = _settled(stage, _SETTLE_S + (UNIT_TIMEOUT_S if scenario.unit_span else 0))
    for run in stage.stop_last():
        stuck += (f"{run.name}: did not end in order; its end:", *run.last_lines(_LAST_LINES))
    if drained:
        # Handled messages must not come again: not to the next one on this disk either.
        stage.start(0)
        stage.sleep(_SECOND_LOOK_S)
        stage.crew.stop()
    copied, notices = stage.copies(), stage.crew.history()[1]
    # A write that is there twice is no second call.
    calls = stage.handled() if copied is None else list(dict.fromkeys(copied.log.values()))
    calls = [call._replace(partition=_lived_at(stage, call)) for call in calls]
    notices = [
        each._replace(
            partitions=frozenset(
                lived
                for partition in each.partitions
                for lived in _lives(stage, _lived(stage, partition, each.at_ns), each.at_ns)
            )
        )
        for each in notices
    ]
    samples = [
        each._replace(partition=_kept(stage, each.partition, each.offset - 1, each.at_ns))
        for each in stage.watch.samples
    ]
    log = list(dict.fromkeys([*stage.gone, *_log(stage)]))
    history = History(
        log=log,
        calls=calls,
        window_ms=_window_ms(scenario),
        notices=notices,
        # Where the database has the offsets, commits in Kafka mean nothing.
        samples=() if scenario.kept_offsets else samples,
        excuses=stage.excuses,
        skips=stage.skips,
        by_key=stage.by_key,
        settled=settled,
        # A message waiting for another worker lets those behind it go on.
        ordered=scenario.mode != "workers" and not scenario.memory,
        given_up=stage.given_up,
        threads=scenario.mode in {"workers", "run", "letters"},
        now_ms=int(time.time() * 1000),
        told=[line for run in stage.crew.runs for line in run.lines()],
        exactly=scenario.database or scenario.output,
        persisted=stage.sender.persisted()
        if isinstance(stage.sender, OutboxSender | BridgedSender)
        else None,
        copies=stage.sender.copies() if isinstance(stage.sender, BridgedSender) else None,
        unit_span=scenario.unit_span,
        everywhere=bool(scenario.memory),
        copied=copied,
    )
    return history, stuck


def _where_they_stand(stage: Stage) -> tuple[str, ...]:
    """Return the last notes of each living worker, and where its threads are: it writes that into its log."""
    alive = stage.crew.alive
    for run in alive:
        run.signal(signal.SIGUSR2)
    time.sleep(_LAST_WORDS_S)
    return tuple(f"{run.name}: {line}" for run in alive for line in run.last_lines(_LAST_LINES))


def _gathered(stage: Stage) -> tuple[str, ...]:
    """Wait until every worker has partitions, if there are enough; return where those stand that get none for long.

    One whose client does not reach a broker that is there is started again, as whoever looks after it would: a
    client that gets an answer without brokers while its last connection drops forgets them all, and never connects
    again.
    """
    while len(stage.crew.alive) <= stage.watch.partitions:
        waiting = [run for run in stage.crew.alive if run.idle_s() > 0]
        away = [run for run in waiting if run.idle_s() > _AWAY_S]
        if not waiting:
            break
        cut_off = [run for run in away if run.reaches_broker() is False]
        hanging = [run for run in away if run not in cut_off and run.idle_s() > _HANGING_S]
        if hanging:
            said = tuple(f"{run.name}: has had no partition for {run.idle_s():.0f} s" for run in hanging)
            return said + _where_they_stand(stage)
        for run in cut_off:
            stage.kill(run, fault="cut-off")
            stage.start(run.host)
        stage.sleep(_PAUSE_S)
    return ()


def _lived(stage: Stage, partition: int, at_ns: int) -> int:
    """Return a partition's number at a moment: those of a topic that was deleted since have numbers of their own."""
    return partition + EARLIER * sum(at_ns < remade_ns for remade_ns in stage.remade_ns)


def _kept(stage: Stage, partition: int, offset: int, at_ns: int) -> int:
    """Return the number of the partition that a record was in at a moment.

    One that a restore of the broker took away lived elsewhere.
    """
    for number, (restored_ns, end) in enumerate(stage.restores, 1):
        if at_ns < restored_ns and offset >= end.get(partition, 0):
            return partition + BEFORE_A_RESTORE * number
    return _lived(stage, partition, at_ns)


def _lived_at(stage: Stage, call: Call) -> int:
    return _kept(stage, call.partition, call.offset, call.ended_ns)


def _lives(stage: Stage, partition: int, at_ns: int) -> list[int]:
    """Return every number of a partition that its owner at a moment handled records of."""
    later = (number for number, (restored_ns, _) in enumerate(stage.restores, 1) if at_ns < restored_ns)
    return [partition, *(partition + BEFORE_A_RESTORE * number for number in later)]


def _log(stage: Stage) -> list[LogRecord]:
    return read_log(stage.bed.kafka.bootstrap, stage.topic, stage.watch.partitions)


def _window_ms(scenario: Scenario) -> int:
    return Window.parse(scenario.window).time_ms or 0


def _drained(stage: Stage, scenario: Scenario) -> bool:
    """Wait until every message was handled; False when nothing is handled any more before that."""
    log = [*stage.gone, *_log(stage)]
    message_of = messages(log, _window_ms(scenario), everywhere=bool(scenario.memory))
    patience_s = _IDLE_BROKEN_S if stage.choice.broken else _IDLE_S
    ends = _ends(stage)
    grown, moved = 0, time.monotonic()
    while True:
        size = stage.progress()
        if size > grown:
            grown, moved = size, time.monotonic()
            done = {(_lived_at(stage, call), call.offset) for call in stage.handled()}
            if not unhandled(log, message_of, done, skips=stage.skips, by_key=stage.by_key):
                return True
        idle_s = time.monotonic() - moved
        # Messages below the commit will not be delivered any more.
        if idle_s > patience_s or (idle_s > _DECIDED_S and _covered(stage, ends)):
            return False
        stage.sleep(_PAUSE_S)


def _settled(stage: Stage, settle_s: float) -> dict[int, int]:
    """Return the commits once they cover the log, or after a while."""
    ends = _ends(stage)
    deadline = time.monotonic() + settle_s
    while time.monotonic() < deadline:
        if _covered(stage, ends):
            break
        stage.sleep(_PAUSE_S)
    # A topic that was deleted had been handled whole.
    return {record.partition: record.offset + 1 for record in stage.gone} | stage.watch.patiently()


def _ends(stage: Stage) -> dict[int, int]:
    ends = dict.fromkeys(range(stage.watch.partitions), 0)
    for record in _log(stage):
        ends[record.partition] = max(ends.get(record.partition, 0), record.offset + 1)
    return ends


def _covered(stage: Stage, ends: Mapping[int, int]) -> bool:
    committed = stage.watch.patiently()
    return all(committed.get(partition, 0) >= end for partition, end in ends.items())
