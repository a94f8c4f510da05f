"""The worker processes of a run.

Started, stopped in order or out of it, and started again when they end by an error.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tests.chaos.copies import notes_of, read_notes
from tests.chaos.history import Call, Delivery, End, Line, Notice
from tests.chaos.journal import read_counters, read_journal, read_reach
from tests.chaos.options import REACH_S, WorkerOptions
from tests.support.fork_server import ForkServer

ROOT = Path(__file__).parents[2]
_WORKER = "tests.chaos.worker"
_END_S = 30.0
_LAST_WORDS_S = 0.5
_PAUSE_S = 0.02
_SIGNAL_S = 25.0


class Run:
    """One life of one worker.

    Attributes:
        host: which place it runs at: its disk, its proxy.
        name: unique in a run.
        over: whether it was ended by us.
        cut_off: whether its client reached no broker when it did not end in order.
    """

    def __init__(self, name: str, host: int, folder: Path, options: WorkerOptions, forks: ForkServer) -> None:
        self.name, self.host = name, host
        self._began_ns = time.monotonic_ns()
        self.options = replace(options, journal=str(folder / f"{name}.jsonl"))
        self.log = folder / f"{name}.log"
        self.log.touch()
        self._process = forks.start(_WORKER, self.options.dumps(), self.log)
        self.over = self.cut_off = False

    @property
    def store(self) -> Path:
        """The folder of its key stores."""
        return Path(self.options.store)

    @property
    def exit_status(self) -> int | None:
        """None while it lives."""
        return self._process.exit_status

    @property
    def pid(self) -> int:
        """Its process ID."""
        return self._process.pid

    @property
    def at_work(self) -> bool:
        """Whether it has come so far that it was told of partitions."""
        journal = Path(self.options.journal)
        return journal.exists() and journal.stat().st_size > 0

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when it has ended."""
        self._process.signal(number)

    def kill(self) -> None:
        """End it out of order (SIGKILL), also when it is stopped."""
        self._process.kill()
        self.over = True

    def terminate(self) -> None:
        """Ask it to end in order."""
        self._process.signal(signal.SIGTERM)

    def wait(self) -> bool:
        """Wait until it has ended; whether it did so in order. One that does not end is killed."""
        status = self._process.wait(_END_S)
        if status is None:
            self.cut_off = self.reaches_broker() is False
            self._process.signal(signal.SIGUSR2)
            time.sleep(_LAST_WORDS_S)
        self.kill()
        # The signal itself ends only a worker that has not begun yet.
        return status in (0, -signal.SIGTERM)

    def journal(self) -> tuple[list[Call], list[Notice]]:
        """Return its notes."""
        return read_journal(Path(self.options.journal), self.name)

    def idle_s(self) -> float:
        """Return for how long, seconds, it has had no partition.

        It is 0 while it has one, and for one that the group gave none.
        """
        held: set[int] = set()
        since_ns, kind = self._began_ns, ""
        for notice in self.journal()[1]:
            if notice.kind == "assigned":
                held |= notice.partitions
            elif notice.kind != "refused":
                held -= notice.partitions
            since_ns, kind = notice.at_ns, notice.kind
        return 0.0 if held or kind == "assigned" else (time.monotonic_ns() - since_ns) / 1e9

    def reaches_broker(self) -> bool | None:
        """Ask whether its client reaches the broker; None when it does not answer."""
        asked_ns = time.monotonic_ns()
        self.signal(signal.SIGHUP)
        # Its main thread hears signals between two calls of the client, of which a question to a broker takes ten
        # seconds.
        until = time.monotonic() + REACH_S + _SIGNAL_S
        said: bool | None = None
        while said is None and not self.over and time.monotonic() < until:
            time.sleep(_PAUSE_S)
            said = read_reach(Path(self.options.journal), asked_ns)
        return said

    def counters(self) -> dict[str, int]:
        """Return its consumer's totals, if it ended in order."""
        return read_counters(Path(self.options.journal))

    def lines(self) -> list[Line]:
        """Return its consumer's log lines."""
        found: list[Line] = []
        for line in self.log.read_text(errors="replace").splitlines():
            at_ns, _, text = line.partition(" ")
            if at_ns.isdigit():
                found.append(Line(int(at_ns), self.name, text))
        return found

    def last_lines(self, count: int) -> list[str]:
        """Return the end of its output."""
        return self.log.read_text(errors="replace").splitlines()[-count:]

    def last_words(self) -> str:
        """Return the last line of its output."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else f"nothing (exit status {self.exit_status})"


class Crew:
    """All runs of one scenario.

    Args:
        folder: of journals and logs.
        modules: what workers need besides their own.
    """

    def __init__(self, folder: Path, modules: Iterable[str] = ()) -> None:
        self._folder = folder
        self._forks = ForkServer([_WORKER, *modules], folder)
        self.runs: list[Run] = []

    @property
    def alive(self) -> list[Run]:
        """Runs that were not ended by us and have not ended by themselves."""
        return [run for run in self.runs if not run.over and run.exit_status is None]

    @property
    def fallen(self) -> list[Run]:
        """Runs that ended by themselves and were not noticed yet."""
        return [run for run in self.runs if not run.over and run.exit_status is not None]

    def start(self, host: int, options: WorkerOptions) -> Run:
        """Start a worker."""
        run = Run(f"run-{len(self.runs) + 1}", host, self._folder, options, self._forks)
        self.runs.append(run)
        return run

    def history(self) -> tuple[list[Call], list[Notice]]:
        """Return the notes of all runs."""
        calls: list[Call] = []
        notices: list[Notice] = []
        for run in self.runs:
            own_calls, own_notices = run.journal()
            calls += own_calls
            notices += own_notices
        return calls, notices + [note for note in self.copied() if isinstance(note, Notice)]

    def copied(self) -> list[Delivery | End | Notice]:
        """Return what all runs noted of the transactions in which they copied messages."""
        return [note for run in self.runs for note in read_notes(Path(run.options.journal), run.name)]

    def handled_bytes(self) -> int:
        """Return how much was written until now: it grows as long as something is handled."""
        journals = [Path(run.options.journal) for run in self.runs]
        files = [*journals, *map(notes_of, journals)]
        return sum(file.stat().st_size for file in files if file.exists())

    def end(self) -> None:
        """Kill the living workers."""
        try:
            for run in self.runs:
                if not run.over:
                    run.kill()
        finally:
            self._forks.end()

    def stop(self) -> list[Run]:
        """End all in order; return those that did not."""
        going = self.alive
        for run in going:
            run.terminate()
            time.sleep(_PAUSE_S)
        return [run for run in going if not run.wait()]
