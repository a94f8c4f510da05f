"""One scenario while it plays: its topic, group, workers and sender, and the faults of them.

Every fault goes through here, so that it is counted, and so that the oracle knows the messages it may have doubled.
"""

from __future__ import annotations

import logging
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from dedup_sdk._store.paths import list_partitions
from tests.chaos.bad_disk import DiskFault, make_bad, make_good
from tests.chaos.bed import CONSUMER_PROXIES, Bed
from tests.chaos.crew import Crew, Run
from tests.chaos.damage import flip_bytes
from tests.chaos.history import (
    ByKey,
    Call,
    Copies,
    Crash,
    Delivery,
    End,
    Excuse,
    LogRecord,
    Outage,
    Skip,
    Takeover,
)
from tests.chaos.memory import Memory
from tests.chaos.options import SESSION_MS, Protocol, WorkerOptions
from tests.chaos.output_topic import OutputTopic
from tests.chaos.sender import Sender
from tests.chaos.small_disk import allow_writing, fill, forbid_writing, make_room
from tests.chaos.watch import CommitWatch
from tests.chaos.work_table import WorkTable

logger = logging.getLogger("chaos")

Disks = Literal["own", "shared"]
_BREATH_S: Final = 0.1
_SESSION_S: Final = SESSION_MS / 1000
_MOST_ENDS: Final = 60
_AT_WORK_BYTES: Final = 5_000
"""Bytes written of some fifty calls."""
_AT_WORK_S: Final = 15.0
_PARTITIONS_S: Final = 60.0
"""Three interpreters start, and the group waits some seconds for its first members.

On a busy machine far longer than faults go on.
"""
_DAMAGED_FILES: Final = 2
_NOTICED_WITHIN_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The choices for a play: the seed, how long faults go on, the group's protocol, and the protection taken away."""

    seed: int
    seconds: float
    protocol: Protocol = "classic"
    broken: str = ""
    rate: float = 0.0
    """New messages a second, with handlers that take no time, and large transactions; 0: those of the scenario."""
    mount: bool = True
    """Whether small disks may be mounted, and calls be refused; else processes may write no more for a while."""


class Stage:
    """The stage of a scenario.

    Args:
        choice: see `Choice`.
        bed: the cluster.
        folder: for stores, journals and logs.
        topic: its name, also the group's.
        partitions: of the topic.
        options: of all workers; addresses, stores and seeds are filled in here.
        disks: ``own``: each host has a disk; ``shared``: they are processes of one machine.
        proxied: whether consumers reach the broker through a proxy each.
        database: where the work is; None: in the workers' journals, or in ``output``.
        memory: shared by workers, None: nothing.
    """

    def __init__(
        self,
        choice: Choice,
        bed: Bed,
        folder: Path,
        sender: Sender,
        watch: CommitWatch,
        *,
        options: WorkerOptions,
        disks: Disks,
        proxied: bool,
        database: WorkTable | None = None,
        output: OutputTopic | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.choice, self.bed, self.folder = choice, bed, folder
        self.sender, self.watch, self.memory = sender, watch, memory
        self.topic, self.disks = options.topic, disks
        self._database, self._output = database, output
        self.random = random.Random(choice.seed)
        # As in `sabotage`: only workers with a database or a shared memory import one.
        modules = {"tests.chaos.inbox_loop": options.database, "tests.chaos.memory": options.memory}
        self.crew = Crew(folder, [name for name, url in modules.items() if url])
        self.faults: Counter[str] = Counter()
        self.excuses: list[Excuse] = []
        self.skips: list[Skip] = []
        self.by_key: list[ByKey] = []
        self.gone: list[LogRecord] = []
        """Records that the log had and has no more."""
        self.given_up: set[tuple[int, int]] = set()
        """Records that were given up: committed, and not handled as they were."""
        self.remade_ns: list[int] = []
        """When the topic was deleted, and made anew."""
        self.restores: list[tuple[int, dict[int, int]]] = []
        """When a backup of the broker's disk was put back, and where the log of each partition ends in it."""
        self.resting: set[int] = set()
        """Hosts whose worker is not started again when it falls."""
        self.options, self._proxied = options, proxied
        self._stores = ""
        self._set_aside: set[Path] = set()
        self.admin = AdminClient({"bootstrap.servers": bed.kafka.bootstrap, "log_level": 0})
        self._until = 0.0

    def begin(self) -> None:
        """From now on the time is counted."""
        self._until = time.monotonic() + self.choice.seconds

    # --- time ------------------------------------------------------------------------------------------------------

    @property
    def left_s(self) -> float:
        """Seconds until faults should end."""
        return self._until - time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let the workers work, and start those again that fell."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            time.sleep(min(_BREATH_S, left_s))
            self.lift_fallen()

    def await_work(self, size: int = _AT_WORK_BYTES) -> None:
        """Let the workers come so far that their handlers have written so many bytes.

        Return after a while also when they do not.
        """
        before, deadline = self.crew.handled_bytes(), time.monotonic() + _AT_WORK_S
        while self.crew.handled_bytes() < before + size and time.monotonic() < deadline:
            self.sleep(_BREATH_S)

    def await_partitions(self) -> None:
        """Let each worker come so far that it was told of partitions; return after a while also when one was not."""
        deadline = time.monotonic() + _PARTITIONS_S
        while not all(run.at_work for run in self.crew.alive) and time.monotonic() < deadline:
            self.sleep(_BREATH_S)

    def about(self, seconds: float) -> None:
        """Sleep for half to one and a half times as long."""
        self.sleep(self.random.uniform(0.5, 1.5) * seconds)

    # --- workers ---------------------------------------------------------------------------------------------------

    def start(self, host: int, **changes: Any) -> Run:
        """Start a worker at a host."""
        disk = host if self.disks == "own" else 0
        address = (
            self.bed.consumers[host % CONSUMER_PROXIES].bootstrap
            if self._proxied
            else self.bed.kafka.bootstrap
        )
        options = replace(
            self.options,
            bootstrap=address,
            store=str(self.folder / f"disk-{disk}{self._stores}"),
            seed=self.choice.seed * 1_000 + len(self.crew.runs),
            **changes,
        )
        return self.crew.start(host, options)

    def equip(self, **changes: Any) -> None:
        """Start workers with other options from now on."""
        self.options = replace(self.options, **changes)

    def take_new_stores(self) -> None:
        """Start workers with store folders of their own from now on: that of each host is left behind."""
        self._stores += "-new"

    def lift_fallen(self) -> None:
        """Act like a supervisor of workers that ended by an error: look, and start them again."""
        self._see_set_aside()
        for run in self.crew.fallen:
            logger.info("%s ended by itself: %s", run.name, run.last_words())
            run.kill()
            self.excuses.append(self._crash(run))
            self.faults["ended"] += 1
            if self.faults["ended"] > _MOST_ENDS:
                raise RuntimeError(f"workers end all the time; the last one said: {run.last_words()}")
            if run.host not in self.resting:
                self.start(run.host)

    def _see_set_aside(self) -> None:
        """Note stores that workers found damaged: uncommitted messages then come again to the same worker."""
        for run in self.crew.alive:
            for folder in _damaged_stores(run.store) - self._set_aside:
                self._set_aside.add(folder)
                at_ns = time.monotonic_ns()
                safe = self.watch.before(at_ns - _NOTICED_WITHIN_NS)
                self.excuses.append(Crash(run=run.name, at_ns=at_ns, committed=safe))
                self.faults["set-aside"] += 1

    def _committed(self) -> dict[int, int] | None:
        """Return the offsets that count as safe when a partition moves: on one machine all that the store has."""
        return self.watch.patiently() if self.disks == "own" else None

    def _crash(self, run: Run) -> Crash:
        at_ns = time.monotonic_ns()
        return Crash(run=run.name, at_ns=at_ns, committed=self._committed())

    def some_run(self, *, at_work: bool = False) -> Run | None:
        """Return one of the living workers; ``at_work``: that has partitions."""
        alive = [run for run in self.crew.alive if not at_work or run.idle_s() == 0]
        return self.random.choice(alive) if alive else None

    # --- handled messages --------------------------------------------------------------------------------------------

    def handled(self) -> list[Call]:
        """Return the calls that count.

        The rows of the database, or the records of the output that its reader has seen, where the work is there, else
        the workers' notes.
        """
        if self._output is not None:
            return self._output.calls()
        return self.crew.history()[0] if self._database is None else self._database.calls()

    def progress(self) -> int:
        """Return a number that grows as long as something is handled."""
        rows = 0 if self._database is None else self._database.count()
        records = 0 if self._output is None else self._output.count
        return self.crew.handled_bytes() + rows + records

    def copies(self) -> Copies | None:
        """Return the output at the end, and what was noted of its transactions; None where there is none."""
        if self._output is None:
            return None
        log = self._output.log()
        self._output.catch_up(log)
        notes = self.crew.copied()
        return Copies(
            log=log,
            polls=self._output.polls(),
            ends=[note for note in notes if isinstance(note, End)],
            deliveries=[note for note in notes if isinstance(note, Delivery)],
        )

    # --- faults ----------------------------------------------------------------------------------------------------

    def kill(self, run: Run, *, fault: str = "kill") -> None:
        """SIGKILL."""
        run.kill()
        self.excuses.append(self._crash(run))
        self.faults[fault] += 1

    def freeze(self, run: Run, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        run.signal(signal.SIGSTOP)
        at_ns, committed = time.monotonic_ns(), self._committed()
        self.sleep(seconds)
        run.signal(signal.SIGCONT)
        self.faults["freeze"] += 1
        self.suspect(run, at_ns, committed)

    def suspect(self, run: Run, at_ns: int, committed: dict[int, int] | None) -> None:
        """Note that others may have had this run's partitions since ``at_ns``, unknown to it."""
        takeover = Takeover(run=run.name, at_ns=at_ns, until_ns=time.monotonic_ns(), committed=committed)
        self.excuses.append(takeover)

    def slow(self, run: Run, seconds: float) -> None:
        """Have the next call of a handler take long; return when it should be over."""
        at_ns, committed = time.monotonic_ns(), self._committed()
        run.signal(signal.SIGUSR1)
        self.sleep(seconds)
        self.faults["slow"] += 1
        self.suspect(run, at_ns, committed)

    def dawdle(self, run: Run, seconds: float) -> None:
        """Have the next call of a handler take long, but not so long that its group gives the worker up.

        That excuses nothing.
        """
        run.signal(signal.SIGUSR1)
        self.sleep(seconds)
        self.faults["dawdle"] += 1

    def leave(self, run: Run) -> None:
        """SIGTERM: the worker finishes, commits and goes; that excuses nothing."""
        run.terminate()
        if not run.wait():
            self._force([run])
        else:
            self.faults["leave"] += 1

    def delete_store(self, run: Run) -> None:
        """Remove the files of a host's disk."""
        shutil.rmtree(run.store, ignore_errors=True)
        self.faults["store-deleted"] += 1

    def stop_all(self) -> None:
        """End all workers in order."""
        self._force(self.crew.stop())

    def _force(self, late: list[Run]) -> None:
        """Note workers that had to be killed because their clients reach no broker any more.

        Another one is an error.
        """
        for run in late:
            if not run.cut_off:
                raise RuntimeError(f"{run.name} did not end in order: {run.last_words()}")
            self.excuses.append(self._crash(run))
            self.faults["cut-off"] += 1

    def stop_last(self) -> list[Run]:
        """End all workers; return those that had to be killed although their clients reach the broker."""
        late = self.crew.stop()
        for run in late:
            self.excuses.append(self._crash(run))
            self.faults["cut-off" if run.cut_off else "ended-by-force"] += 1
        return [run for run in late if not run.cut_off]

    def suspect_all(self, since_ns: int, committed: dict[int, int] | None) -> None:
        """Note that the group may have thrown out any of its members since then."""
        for run in self.crew.alive:
            self.suspect(run, since_ns, committed)

    def restart_broker(self, seconds: float, meanwhile: Callable[[], None] | None = None) -> None:
        """SIGKILL, and a start after some time."""
        self._await_coordinator()
        at_ns, committed, moves = time.monotonic_ns(), self._committed(), self.bed.kafka.moves
        self.bed.kafka.kill()
        if meanwhile is not None:
            meanwhile()
        self._sleep_blind(seconds)
        self.bed.kafka.start()
        self.faults["broker-kill"] += 1
        if moved := self.bed.kafka.moves - moves:
            self.faults["coordinator-moved"] += moved
        self.sleep(1.5 * _SESSION_S)
        self.suspect_all(at_ns, committed)

    def pause_broker(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after some time."""
        self._await_coordinator()
        at_ns, committed, moves = time.monotonic_ns(), self._committed(), self.bed.kafka.moves
        self.bed.kafka.pause()
        self._sleep_blind(seconds)
        self.bed.kafka.resume()
        self.faults["broker-pause"] += 1
        if moved := self.bed.kafka.moves - moves:
            self.faults["coordinator-moved"] += moved
        self.sleep(1.5 * _SESSION_S)
        self.suspect_all(at_ns, committed)

    def _await_coordinator(self) -> None:
        """Let the group's coordinator load its offsets.

        One that loses its partition meanwhile forgets it (see `forgetful`).
        """
        self.watch.patiently()

    @staticmethod
    def _sleep_blind(seconds: float) -> None:
        """Sleep without looking after workers: there is no broker to ask for commits."""
        time.sleep(seconds)

    def restart_database(self, seconds: float) -> None:
        """SIGKILL for the database's server, and a start after some time."""
        self._work_table.restart(seconds)
        self.faults["database-kill"] += 1

    def cut_database(self) -> None:
        """End all connections to the database."""
        self._work_table.cut()
        self.faults["database-cut"] += 1

    @property
    def _work_table(self) -> WorkTable:
        if self._database is None:
            raise TypeError("this scenario has no database")
        return self._database

    def cut(self, run: Run) -> None:
        """Cut all of a worker's connections."""
        self.bed.consumers[run.host % CONSUMER_PROXIES].cut_now()
        self.faults["cut"] += 1

    def stall(self, run: Run, direction: Literal["requests", "responses"], seconds: float) -> None:
        """Forward nothing in one direction of a worker's connections for some time."""
        proxy = self.bed.consumers[run.host % CONSUMER_PROXIES]
        at_ns, committed = time.monotonic_ns(), self._committed()
        proxy.stall(direction)
        self.sleep(seconds)
        proxy.flow()
        self.faults[f"stall-{direction}"] += 1
        self.sleep(1.0)
        self.suspect(run, at_ns, committed)

    @contextmanager
    def full_disk(self, run: Run) -> Iterator[None]:
        """Leave no room on a worker's disk while the block runs."""
        with self._no_writes(run, lambda: fill(run.store), lambda: make_room(run.store)):
            self.faults["disk-full"] += 1
            yield

    @contextmanager
    def bad_disk(self, run: Run, fault: DiskFault) -> Iterator[None]:
        """Let a worker's disk fail while the block runs, also for those that are started on it then."""
        at_ns = time.monotonic_ns()
        with self._no_writes(run, lambda: make_bad(run.store, fault), lambda: make_good(run.store)):
            self.faults[f"disk-{fault.name}"] += 1
            yield
        until_ns = time.monotonic_ns()
        for each in self.crew.alive if fault.refuses_reads else []:
            went_ns = [notice.at_ns for notice in each.journal()[1] if notice.kind != "assigned"]
            if each.store == run.store and any(at_ns < when < until_ns for when in went_ns):
                # A look-up that was refused had it open its stores again: until then it has nothing to commit.
                self.excuses.append(Outage(run=each.name, at_ns=at_ns, until_ns=until_ns))

    @contextmanager
    def _no_writes(self, run: Run, begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
        """Have the disk fail, or, where that cannot be done here, the process write no more."""
        at_ns, ended = time.monotonic_ns(), {each.name for each in self.crew.runs} - self._names_alive()
        if self.options.piped:
            forbid_writing(run.pid)
        else:
            begin()
        try:
            yield
        finally:
            if not self.options.piped:
                end()
            elif not run.over and run.exit_status is None:
                allow_writing(run.pid)
            # A read from before the disk was well may be refused a little later.
            self.sleep(1.0)
            until_ns = time.monotonic_ns()
            # Who lives on keeps unwritten marks in memory: it owes nothing to the outage.
            on_it = {each.name for each in self.crew.runs if each.store == run.store}
            concerned = sorted(on_it - ended - self._names_alive())
            self.excuses += [Outage(run=name, at_ns=at_ns, until_ns=until_ns) for name in concerned]

    def _names_alive(self) -> set[str]:
        return {run.name for run in self.crew.alive}

    def damage(self, run: Run) -> None:
        """Flip bytes in one of a dead worker's files."""
        self._damage_in(run.store)

    def damage_all(self, run: Run) -> None:
        """Flip bytes in some files of each of a dead worker's stores."""
        for store in list_partitions(run.store):
            for _ in range(_DAMAGED_FILES):
                self._damage_in(store.path)

    def _damage_in(self, folder: Path) -> None:
        kind = flip_bytes(folder, self.random)
        if kind:
            self.faults[f"damage-{kind}"] += 1

    def lose_disk(self, run: Run) -> None:
        """Remove a living worker's stores, let it go on for a moment, and kill it."""
        at_ns, committed = time.monotonic_ns(), self._committed()
        self.delete_store(run)
        self.about(0.5)
        self.suspect(run, at_ns, committed)
        if run.exit_status is None:
            self.kill(run)

    def lose_partition(self, run: Run) -> None:
        """Remove one of a living worker's stores, let it go on for a moment, and kill it."""
        stores = list_partitions(run.store)
        if not stores:
            return
        at_ns, committed = time.monotonic_ns(), self._committed()
        shutil.rmtree(self.random.choice(stores).path, ignore_errors=True)
        self.faults["partition-deleted"] += 1
        self.about(0.5)
        self.suspect(run, at_ns, committed)
        if run.exit_status is None:
            self.kill(run)

    def interrupt(self, run: Run, seconds: float) -> None:
        """SIGINT, which its loop survives, and SIGKILL soon after."""
        run.signal(signal.SIGINT)
        # It reads again from a certain offset: that may be as after a crash.
        self.excuses.append(self._crash(run))
        self.faults["interrupt"] += 1
        self.sleep(seconds)
        if run.exit_status is None:
            self.kill(run)

    def places(self) -> list[TopicPartition]:
        """Return the topic's partitions."""
        return [TopicPartition(self.topic, partition) for partition in range(self.watch.partitions)]


def _damaged_stores(store: Path) -> set[Path]:
    """Return the folders that were set aside below a store.

    None while folders go that are being looked into: the next look finds them.
    """
    try:
        return set(store.rglob("*.damaged-*"))
    except FileNotFoundError:
        return set()
