"""One consumer process: the loop that a user writes, and a journal of its handled messages.

Ends in order on SIGTERM; on SIGUSR1 the next call of its handler takes very long; on SIGHUP it notes whether its
client still reaches the broker. SIGINT is as Ctrl-C: the loop of the README (``iterate``) catches it, and
goes on, or does so with another consumer.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from dedup_sdk import (
    DedupConsumer,
    DedupError,
    Lookup,
    Recovery,
    RocksStore,
    Verdict,
    VerdictEvent,
    Window,
    header,
)
from dedup_sdk.ids import key
from dedup_sdk.shared import Shared
from tests.chaos.bad_disk import be_refused
from tests.chaos.copies import CopyingConsumer, CopyNotes
from tests.chaos.journal import Journal
from tests.chaos.options import (
    ID_HEADER,
    REACH_S,
    SENT_AGAIN_HEADER,
    UNIT_HEADER,
    WorkerOptions,
    is_poison,
    loads,
)
from tests.chaos.sabotage import sabotage

if TYPE_CHECKING:
    from tests.chaos.inbox_loop import InboxLoop

_LIST = 50
_THREADS = 3
_TRANSACTION_MS = 5_000
_ERROR = 3
_LEAVING_SHARE = 0.5
"""How many of the interruptions end the consumer, so that another one is made."""
_ON_ITS_WAY = frozenset({"poll", "__iter__", "_iterate"})
_A_MOMENT_S = 0.001


def strategy_of(options: WorkerOptions) -> Lookup:
    """Return how a worker looks for duplicates."""
    return Lookup(
        id=key() if options.by_key else header(ID_HEADER),
        window=Window.parse(options.window),
        unit=header(UNIT_HEADER) if options.units else None,
    )


# As in `sabotage`: only a worker with a database or a shared memory imports it.
def _inbox_of(options: WorkerOptions, journal: Journal, drawn: random.Random) -> InboxLoop | None:
    if options.mode != "inbox":
        return None
    from tests.chaos.inbox_loop import InboxLoop

    return InboxLoop(options, journal, drawn)


def _shared_of(options: WorkerOptions) -> Shared | None:
    if not options.memory:
        return None
    from tests.chaos.memory import shared_of

    return shared_of(options)


class RefusedCommits(logging.Handler):
    """Notes that the broker refused the commit of partitions that went.

    Then they are read again from the one before.
    """

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.WARNING)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        if record.msg.startswith("commit on revoke failed"):
            self._journal.notice("refused", [])


class Worker:
    """A handler, and the ways of calling it."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._journal = Journal(options.journal, piped=options.piped)
        logging.getLogger("dedup_sdk").addHandler(RefusedCommits(self._journal))
        self._random = random.Random(options.seed)
        self._slow = self._stopped = False
        self._in_hand: Any = None
        self._verdicts: dict[tuple[int, int], str] = {}
        self._inbox = _inbox_of(options, self._journal, self._random)
        self.consumer = self._make_consumer()

    def _make_consumer(self) -> DedupConsumer:
        options = self._options
        return (CopyingConsumer if options.mode == "transactions" else DedupConsumer)(
            options.client(),
            dedup=strategy_of(options),
            store=RocksStore(options.store, recent_marks=options.recent_marks),
            recovery=Recovery(snapshot=options.snapshot or None, on_full_disk=options.on_full_disk),
            completion="explicit" if options.mode == "workers" else "on-next-call",
            shared=_shared_of(options),
            observers=[self._note] if options.mode in {"run", "letters"} else (),
        )

    def run(self) -> None:
        """Handle messages until SIGTERM."""
        signal.signal(signal.SIGTERM, lambda *_: self._stop())
        signal.signal(signal.SIGUSR1, lambda *_: self._be_slow())
        # In a thread of its own: the one that polls may hang.
        signal.signal(
            signal.SIGHUP, lambda *_: threading.Thread(target=self._note_reach, daemon=True).start()
        )
        signal.signal(signal.SIGINT, self._interrupt)
        signal.signal(signal.SIGALRM, self._interrupt)
        while not self._stopped:
            try:
                self._live()
            except KeyboardInterrupt:
                self._in_hand = None
                self.consumer = self._make_consumer()
        self._journal.counters(self.consumer.counters.as_dict())

    def _live(self) -> None:
        """Handle messages with one consumer."""
        with self.consumer:
            self.consumer.subscribe(
                [self._options.topic],
                on_assign=self._assigned,
                on_revoke=lambda _, tps: self._notice("revoked", tps),
                on_lost=lambda _, tps: self._notice("lost", tps),
            )
            loops = {
                "iterate": self._iterate,
                "consume": self._consume,
                "workers": self._share,
                "run": self._run,
                "letters": self._give_up,
                "inbox": self._keep_in_database,
                "transactions": self._copy,
            }
            loops[self._options.mode]()

    def _assigned(self, consumer: Any, partitions: Any) -> None:
        self._notice("assigned", partitions)
        if self._inbox is not None and self._inbox.kept is not None:
            self._inbox.kept.on_assign(consumer, partitions)

    def _notice(self, kind: str, partitions: Any) -> None:
        self._journal.notice(kind, [tp.partition for tp in partitions])

    def _keep_in_database(self) -> None:
        if self._inbox is not None:
            self._inbox.handle_all(self.consumer, lambda: self._stopped)

    def _copy(self) -> None:
        options = self._options
        # A host's own: the next worker there ends the transaction of the one before.
        producer = {
            "transactional.id": f"{options.group}-{Path(options.store).name}",
            "transaction.timeout.ms": _TRANSACTION_MS,
        }
        notes = CopyNotes(options.journal)
        if isinstance(self.consumer, CopyingConsumer):
            self.consumer.notes = notes
        polls = count(1)
        while not self._stopped:
            transactions = self.consumer.transactions(producer, max_messages=options.transaction)
            if options.seed % 2:
                self.consumer.run(
                    partial(self._produce, notes, polls), transactions=transactions, workers=_THREADS,
                    on_error="retry", attempts=None, wait_initial=0.05, wait_max=0.5,
                )  # fmt: skip
                continue
            with transactions:
                for transaction in transactions:
                    poll = next(polls)
                    for message in transaction:
                        began_ns = time.monotonic_ns()
                        notes.got(message, poll, began_ns, by_key=False)
                        self._work()
                        record = notes.copied(message, began_ns)
                        notes.wrote(message, record)
                        transaction.produce(
                            options.output, record, message.key(), partition=message.partition() or 0
                        )

    def _produce(self, notes: CopyNotes, polls: Iterator[int], message: Any, produce: Any) -> None:
        began_ns = time.monotonic_ns()
        record = notes.copied(message, began_ns)
        # Before the work: a call that fails must have produced nothing.
        produce(self._options.output, record, message.key(), partition=message.partition())
        if self._random.random() < self._options.failing:
            raise RuntimeError("not this time")
        self._work()
        notes.got(message, next(polls), began_ns, by_key=True)
        notes.wrote(message, record)

    def _iterate(self) -> None:
        while not self._stopped:
            try:
                for message in self.consumer:
                    self._in_hand = message
                    self._handle(message)
                    self._in_hand = None
            except KeyboardInterrupt:
                if self._random.random() < _LEAVING_SHARE:
                    raise
                if self._in_hand is not None:
                    self.consumer.release(self._in_hand)
                    self._in_hand = None
                # A callback may not have come to that.
                self._notice("assigned", self.consumer.assignment())

    def _consume(self) -> None:
        while not self._stopped:
            batch = [m for m in self.consumer.consume(_LIST, 0.1) if m.error() is None]
            began_ns = time.monotonic_ns()
            for message in batch:
                self._handle(message, began_ns)

    def _run(self) -> None:
        self.consumer.run(
            self._fail_or_handle,
            on_error="retry",
            workers=_THREADS,
            attempts=None,
            wait_initial=0.05,
            wait_max=0.5,
        )

    def _give_up(self) -> None:
        self.consumer.run(
            self._refuse_or_handle,
            on_error="dead-letter",
            workers=_THREADS,
            attempts=2,
            wait_initial=0.01,
            wait_max=0.02,
        )

    def _refuse_or_handle(self, message: Any) -> None:
        if is_poison(message.value()) and SENT_AGAIN_HEADER not in dict(message.headers() or ()):
            raise ValueError("never like this")
        self._handle(message)

    def _fail_or_handle(self, message: Any) -> None:
        if self._random.random() < self._options.failing:
            raise RuntimeError("not this time")
        self._handle(message)

    def _share(self) -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            running: set[Future[None]] = set()
            for message in self.consumer:
                running = {future for future in running if not future.done()}
                while len(running) >= 2 * _THREADS:
                    time.sleep(0.001)
                    running = {future for future in running if not future.done()}
                # It is in hand from here on, whenever its thread begins.
                running.add(
                    pool.submit(self._in_its_own_hands, message, time.monotonic_ns(), self._as(message))
                )

    def _in_its_own_hands(self, message: Any, began_ns: int, verdict: str) -> None:
        with self.consumer.once(message):
            self._handle(message, began_ns, verdict)

    def _note(self, event: VerdictEvent) -> None:
        if event.verdict.deliver:
            self._verdicts[event.partition, event.offset] = _in_words(event.verdict)

    def _as(self, message: Any) -> str:
        """Return the consumer's verdict on a message.

        Where handlers have threads they do not ask, because asking may wait.
        """
        if self._options.mode in {"run", "letters"}:
            return self._verdicts.get((message.partition(), message.offset()), "")
        return _in_words(self.consumer.verdict(message))

    def _handle(self, message: Any, began_ns: int | None = None, verdict: str | None = None) -> None:
        began_ns = time.monotonic_ns() if began_ns is None else began_ns
        verdict = self._as(message) if verdict is None else verdict
        self._work()
        self._journal.call(message.partition(), message.offset(), began_ns, verdict)

    def _work(self) -> None:
        if self._slow:
            self._slow = False
            time.sleep(self._options.slow_s)
        if self._options.work_ms:
            time.sleep(self._random.uniform(0, 2 * self._options.work_ms / 1000))

    def _interrupt(self, _number: int, frame: FrameType | None) -> None:
        """Raise as Ctrl-C does, but not in the moment in which a message is on its way from the consumer to the loop.

        There it would be nobody's, and a loop that goes on all the same says that it is done with it.
        """
        if self._in_hand is None and frame is not None and frame.f_code.co_name in _ON_ITS_WAY:
            signal.setitimer(signal.ITIMER_REAL, _A_MOMENT_S)
        else:
            raise KeyboardInterrupt

    def _stop(self) -> None:
        self._stopped = True
        self.consumer.stop()

    def _note_reach(self) -> None:
        reached = threading.Event()
        # In one more thread, because now and then such a question takes far longer than it may.
        threading.Thread(target=self._reach, args=(reached,), daemon=True).start()
        self._journal.reach(reached=reached.wait(REACH_S))

    def _reach(self, reached: threading.Event) -> None:
        with contextlib.suppress(KafkaException):
            self.consumer.list_topics(timeout=REACH_S)
            reached.set()

    def _be_slow(self) -> None:
        self._slow = True


class Stamped(logging.Formatter):
    """Lines that begin with the machine's monotonic clock, which journals use too."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return f"{time.monotonic_ns()} {super().format(record)}"


def _in_words(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    again = f"attempt {verdict.attempt}" if verdict.attempt > 1 else ""
    return " ".join(filter(None, [verdict.kind.value, verdict.reason, again]))


def main(argument: str) -> int:
    """Run a worker; return its exit status: 3 and one line when it ended by an error of the package."""
    options = loads(argument)
    # Where it hangs, when it does not end.
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    output = logging.StreamHandler()
    output.setFormatter(Stamped("%(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[output])
    sabotage(options.broken)
    if options.refused:
        be_refused(Path(options.store))
    try:
        Worker(options).run()
    except DedupError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return _ERROR
    return 0
