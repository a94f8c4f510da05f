"""How messages come in: fetched by the client, judged in batches, handed out.

Whatever interrupts this half way (Ctrl-C, a timeout's signal, a failing disk) leaves a note of where it was: the client may
have dropped what it fetched, or a partition may have been judged by half. The next call puts that right before anything else:
it reads again from where it is certain. So what is interrupted costs no message; it may cost that some come twice.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from dedup_sdk.engine.claims import Claims
from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.engine.durable import Durable
from dedup_sdk.errors import StoreCorruptError, StoreError, StoreUnavailableError
from dedup_sdk.kafka.assigned import Assigned
from dedup_sdk.kafka.collector import Collector
from dedup_sdk.kafka.end_watch import EndWatch
from dedup_sdk.kafka.judging import Judge
from dedup_sdk.kafka.passing import passes
from dedup_sdk.kafka.pausing import Pausing
from dedup_sdk.lane.chunk import APART
from dedup_sdk.units.gathering import UNFINISHED

logger = logging.getLogger("dedup_sdk")

TIDY_S = 0.1
"""Seconds that implicit completion may wait before it is written, and between two looks at the group."""
MOST_UNWRITTEN = 20_000
"""Records of a partition that ``durability="commit"`` keeps in memory at most, before they are written all the same."""
_RECOVERING_S = 0.02
_ONE_DAY_S = 86_400.0


Durability = Literal["record", "batch", "commit"]


class Doubt(Enum):
    """What an interruption puts in question."""

    NOTHING = 0
    FETCHED = 1
    """The client moved on, and what it fetched may be gone."""
    LANES = 2
    """A partition's state may be half way between two steps."""


class Intake(Pausing):
    """Fetching, judging and handing out."""

    _engine: Deduplicator
    _judge: Judge
    _collector: Collector
    _by_commit: bool
    _durability: Durability
    _ready: deque[Any]
    _ends: EndWatch
    _dry: bool
    """Whether the client had less ready than it was asked for, when it was asked last."""
    _heard_at: float
    _survived: int
    """How many stores had been set aside when damage was found last, -1 before the first."""
    _torn: Doubt
    """Where the polling thread is, until it is through."""

    def _next(self, count: int, timeout: float | None, at_most: int) -> list[Any]:
        self._check_open()
        until = time.monotonic() + (_ONE_DAY_S if timeout is None or timeout < 0 else timeout)
        self._turns.begin_loop()
        try:
            try:
                got = self._gather_safely(count, until, at_most)
            finally:
                self._turns.end_loop()
                self._collector.resume()
        except BaseException:
            # The next call comes here again, whatever is ready.
            self._tidy_at = 0.0
            raise
        # Last of all: an interruption before this line has the messages come again.
        self._torn = Doubt.NOTHING
        return got

    def _gather_safely(self, count: int, until: float, at_most: int) -> list[Any]:
        while True:
            try:
                self._mend()
                return self._gather(count, until, at_most)
            except StoreUnavailableError:
                # Where nothing can be kept in memory instead: recovery waits for the store.
                self._doubtful = True
            except StoreCorruptError:
                if not self._survives_damage():
                    raise

    def _survives_damage(self) -> bool:
        """Whether to go on: the next round reads from what is completed, and its recovery sets the damaged store aside.

        False when nothing was set aside since the last time: then it would go on for ever.
        """
        self._doubtful = True
        before, self._survived = self._survived, self._engine.counters.stores_set_aside
        return before != self._survived

    def _gather(self, count: int, until: float, at_most: int) -> list[Any]:
        late = False
        while True:
            with self._lock:
                self._torn = Doubt.LANES
                self._tidy()
                silent = bool(self._ready) and time.monotonic() > self._heard_at + TIDY_S
                got = [] if silent else self._hand_over(count)
            if silent:
                got = self._hear_and_hand_over(count)
            if not got and not late:
                left_s = until - time.monotonic()
                late = left_s <= 0
                self._fetch_and_judge(at_most, left_s, whole=count > 1)
                with self._lock:
                    # Not before: what came in time is judged first, however long the application took.
                    self._fail_overdue()
                    got = self._hand_over(count)
            if got or late:
                return got

    def _hear_and_hand_over(self, count: int) -> list[Any]:
        """Let the group hear from us also while there is enough to hand out: slow handlers."""
        self._heard_at = time.monotonic()
        # No partition is half way now: in a rebalance callback the application may commit, or wait for its threads.
        self._torn = Doubt.FETCHED
        self._listen(0)
        with self._lock:
            self._torn = Doubt.LANES
            return self._hand_over(count)

    def _hand_over(self, count: int) -> list[Any]:
        if self._guard.holds:
            self._torn = Doubt.NOTHING
            self._guard.raise_kept()
        claims = self._engine.claims
        if claims is not None and not claims.is_sure:
            self._settle_claims(claims)
        got = self._hand.take(count)
        if self._hand.apart:
            # The next call comes here again: what is apart lies before what is ready.
            self._tidy_at = 0.0
        return got

    def _write(self, partitions: Iterable[Durable]) -> None:
        """Write what was completed, unless the next commit does so."""
        for partition in partitions:
            if self._durability != "commit" or partition.lane.unwritten >= MOST_UNWRITTEN:
                partition.persist()

    def _tidy(self) -> None:
        """Complete what the application had, write it, and look after recovery and commits."""
        if self._implicit:
            self._write(self._hand.finish())
        else:
            self._hand.leave(until_commit=self._by_commit)
            if self._by_commit:
                # What `store_offsets` completed.
                open_ = self._engine.partitions.values()
                self._write(held for held in open_ if held.started and held.lane.unwritten)
        self._engine.trim()
        if self._engine.claims is not None:
            self._settle_claims(self._engine.claims)
        if self._put_off or self._seeks:
            self._tell_what_was_put_off()
        if self._session.recovering:
            # A step of a recovery makes messages by the thousand, too.
            self._collector.pause()
            self._note_stops()
        self._session.work()
        for coordinates in self._session.doubt_topics_made_anew():
            self._forget_if_it_recovers(coordinates)
        self._drop_moved()
        if events := self._session.due_events():
            self._fetched = [*events, *self._fetched]
        if self._session.waking:
            # These partitions are whole by now: an interruption costs what was fetched, not their recovery.
            self._torn = Doubt.FETCHED
            self._session.wake()
            self._torn = Doubt.LANES
        self._tidy_at = time.monotonic() + TIDY_S

    def _settle_claims(self, claims: Claims) -> None:
        claims.keep(self._hand.take_back)
        claims.settle([held for held in self._engine.partitions.values() if held.started])
        self._offer_due()

    def _fetch_and_judge(self, at_most: int, left_s: float, *, whole: bool) -> None:
        """Judge what is there at once, or what comes within the time that is left (or until there is something to look after)."""
        enough = at_most if whole else 1
        self._torn = Doubt.FETCHED
        self._heard_at = time.monotonic()
        self._collector.pause()
        self._fetch(at_most, 0)
        if len(self._fetched) >= enough or left_s <= 0 or self._session.hurried:
            self._judge_fetched()
            return
        self._collector.resume()
        wait_s = min(
            left_s, self._session.until_commit_s, _RECOVERING_S if self._session.recovering else TIDY_S
        )
        if whole:
            self._fetch(at_most, wait_s)
        else:
            self._listen(wait_s)
        self._collector.pause()
        if not whole:
            self._fetch(at_most, 0)
        if len(self._fetched) >= enough:
            self._judge_fetched()

    def _fetch(self, at_most: int, wait_s: float) -> None:
        """Top up what was fetched."""
        room = at_most - len(self._fetched)
        self._dry = False
        if room > 0:
            self._read_again()
            with self._turns.inside_client():
                messages = super().consume(room, wait_s)
            self._dry = len(messages) < room
            self._keep(messages)

    def _listen(self, wait_s: float) -> None:
        """Let the client do its work; keep the message or event that comes with it."""
        self._read_again()
        with self._turns.inside_client():
            message = super().poll(wait_s)
        if message is not None:
            self._keep([message])

    def _keep(self, messages: list[Any]) -> None:
        with self._lock:
            if self._gone or self._dropped:
                # A rebalance or a pause in the middle of the call: the partition may be read from another place now.
                messages = self._without(messages, self._gone | self._dropped)
            self._fetched = self._fetched + messages if self._fetched else messages

    def _judge_fetched(self) -> None:
        """Judge what was fetched; events of the client go to the application untouched, in their place."""
        with self._lock:
            self._torn = Doubt.LANES
            batch = self._fetched
            if not batch:
                return
            errors = list(map(Message.error, batch))
            first = next((row for row, error in enumerate(errors) if error is not None), len(batch))
            if first == 0:
                self._take_event(batch)
                return
            judged = self._judge.judge(batch[:first])
            self._hand.fill(judged)
            self._offer_due()
            self._fetched = judged.rest + batch[first:]
            if judged.doubted:
                self._forget(judged.doubted)
            if judged.error is not None:
                self._guard.keep(judged.error)
                self._doubtful |= isinstance(judged.error, StoreError)

    def _offer_due(self) -> None:
        """Queue what a unit's end brings for messages of earlier batches."""
        for held in self._engine.partitions.values():
            if held.due:
                self._hand.offer(place for place in held.take_due() if place.chunk.states[place.row] == APART)
                self._tidy_at = 0.0

    def _fail_overdue(self) -> None:
        """Let units fail that took too long, counting the time in which there was nothing more to read."""
        if not self._engine.gathers:
            return
        for assigned in self._session.assigned.values():
            held = assigned.held
            lane = None if held is None else held.units
            if held is None or lane is None or not lane.units.waits:
                continue
            read = self._read_up_to(assigned, lane.position)
            at_end = self._ends.is_reached(assigned, read, dry=self._dry)
            overdue = held.overdue_units(self._engine.unit_timeout_s, at_end=at_end)
            for name in self._ends.late(assigned, read, overdue) if overdue else ():
                held.fail_unit(name, UNFINISHED)
        self._offer_due()

    def _read_up_to(self, assigned: Assigned, position: int) -> int:
        """Return the offset before which nothing is left to read: that of the client, where all it handed over of a partition is judged.

        It is behind markers of transactions and what was aborted, of which no record tells.
        """
        here = assigned.topic, assigned.partition
        if here in self._dropped or here in self._gone:
            return position
        if any(message.partition() == here[1] and message.topic() == here[0] for message in self._fetched):
            return position
        return max(position, self._client.reads_at(*here))

    def _take_event(self, batch: list[Any]) -> None:
        """Deal with the client's event in front, or give it to the application; keep it where a broker does not answer now."""
        try:
            absorbed = self._session.absorbs(batch[0])
        except KafkaException as error:
            if not passes(error):
                raise
            logger.warning("%s[%d]: %s; asking again", batch[0].topic(), batch[0].partition(), error)
            self._session.put_off(batch[0])
            absorbed = True
        self._fetched = batch[1:]
        if not absorbed:
            self._hand.apart.append(batch[0])
        else:
            self._forget_if_it_recovers((batch[0].topic(), batch[0].partition()))
        if batch[0].error().code() == KafkaError._FATAL:  # noqa: SLF001 (that is its public name)
            # The group has put this member out, and the client calls nobody back: another one may wait for the stores.
            self._lose([TopicPartition(topic, partition) for topic, partition in self._session.assigned])

    def _mend(self) -> None:
        """Put right what an interruption left: read again from where each partition certainly is."""
        if self._torn is Doubt.NOTHING and not self._doubtful:
            return
        with self._lock:
            self._note_stops()
            changed = self._session.reconcile((tp.topic, tp.partition) for tp in self.assignment())
            if changed or self._torn is Doubt.LANES or self._doubtful or self._session.has_stopped:
                self._hand.release_all()
                self._session.reopen_all()
            else:
                self._session.refetch_all()
            self._fetched = []
            self._torn, self._doubtful = Doubt.NOTHING, False
