"""The work of a consumer beside its poll loop: recovery, commits, and a pause where too much waits."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.errors import DedupError, RecoveryError, StoreUnavailableError
from dedup_sdk.kafka.asking import LOOK_S, explained, is_unheard_of
from dedup_sdk.kafka.assigned import Assigned, Beginning, State
from dedup_sdk.kafka.callbacks import Guard
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.commits import Coordinates
from dedup_sdk.kafka.holdings import Holdings, committed_already
from dedup_sdk.kafka.passing import passes
from dedup_sdk.kafka.reader import parted_at
from dedup_sdk.kafka.reading import is_fetched
from dedup_sdk.kafka.recovery import RecoverySettings, recover
from dedup_sdk.kafka.settings import ClientSettings
from dedup_sdk.kafka.topic_watch import TopicWatch
from dedup_sdk.kafka.uncompleted import note_uncompleted
from dedup_sdk.kafka.window_check import WindowCheck
from dedup_sdk.observe import PartitionEvent

logger = logging.getLogger("dedup_sdk")

SLICE_S = 0.05
"""Seconds of recovery work in one poll, at most."""
AT_ONCE = 2
"""Partitions that recover at the same time."""
TOGETHER_S = 0.5
"""Seconds that a partition which is up to date waits, at most, for others whose recovery goes on, to begin with them."""
ASK_AGAIN_S = 0.5
"""Seconds between two attempts to commit where a history begins, or to do what failed here."""
WRITE_AGAIN_S = 1.0
"""Seconds between two attempts to write what a full disk refused."""
UNKNOWN_S = 10.0
"""Seconds after which a topic or partition that the client, or a broker, has not heard of does not exist."""
MOST_WAITING = 100_000
"""Records of a partition that may be in memory, because one before them is not completed; then it is paused."""


class Session(Holdings):
    """Partitions in hand, and what they need. What fails here is kept in ``guard``, for `poll` to raise."""

    def __init__(
        self,
        engine: Deduplicator,
        client: Client,
        settings: ClientSettings,
        chosen: RecoverySettings,
        guard: Guard,
    ) -> None:
        super().__init__(engine, client, settings)
        self._chosen = chosen
        self._guard = guard
        self._next_commit = time.monotonic() + settings.commit_interval_s
        self._write_again_at = 0.0
        self._window_check = WindowCheck(engine, client, settings)
        self._topic_watch = TopicWatch(client)
        self._begin_by = 0.0
        self.hurried = False
        """Whether some recovery could go on at once."""
        self.waking: list[TopicPartition] = []
        """Partitions that deliver and are not fetched from yet; see `wake`."""

    @property
    def recovering(self) -> bool:
        """Whether some partition does not deliver yet."""
        return any(assigned.state is State.RECOVERING for assigned in self.assigned.values())

    @property
    def has_stopped(self) -> bool:
        """Whether the client stopped reading a partition that delivers."""
        return any(each.stopped and each.state is State.ACTIVE for each in self.assigned.values())

    @property
    def until_commit_s(self) -> float:
        """Seconds until the next commit is due."""
        return max(0.0, self._next_commit - time.monotonic())

    def absorbs(self, event: Any) -> bool:
        """Apply the user's reset policy where the log no longer has the offset that was asked for.

        True when the event is dealt with; any other event is the application's.
        """
        coordinates = event.topic(), event.partition()
        assigned = self.assigned.get(coordinates)
        if assigned is None or event.error().code() != KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            return False
        assigned.stopped = True
        if assigned.state is State.ACTIVE and self._read_again_if_truncated(
            assigned, parted_at(event.error().str())
        ):
            return True
        if self._settings.reset == "error":
            return False
        if assigned.state is State.RECOVERING:
            if assigned.start is not None:
                assigned.start = replace(assigned.start, seek=True)
            return True
        offset = self._client.edge(*coordinates, self._settings.reset)
        detail = f"{event.error().str()}; auto.offset.reset={self._settings.reset}"
        self.engine.tell(PartitionEvent("offset-out-of-range", *coordinates, offset, detail))
        self.move(*coordinates, offset, log_changed=True)
        return True

    def put_off(self, event: Any) -> None:
        """Keep an event of the client until its partition's leader may answer: the other partitions go on."""
        assigned = self.assigned.get((event.topic(), event.partition()))
        if assigned is not None:
            self._asking.failed(assigned)
            assigned.unanswered = event

    def due_events(self) -> list[Any]:
        """Return what was put off and may be answered now."""
        due = []
        for assigned in self.assigned.values():
            if assigned.unanswered is None or assigned.ask_at > time.monotonic():
                continue
            if self._asking.may_begin(assigned):
                due.append(assigned.unanswered)
                assigned.unanswered = None
        return due

    def doubt(
        self, topic: str, partition: int, same_until: int | None = None, contradicted_at: int | None = None
    ) -> None:
        """Recover an active partition anew: what comes is not what was completed there.

        ``same_until``: up to where it is, as far as the broker says. ``contradicted_at``: from where on it is not, as the marks say.
        """
        assigned = self.assigned[topic, partition]
        known = self._history(assigned)
        if known is not None:
            # Of a topic that was made anew the broker has the same leader epochs, and says that its log is the old one.
            self._client.forget_topic_ids()
            start = replace(self._where_it_stood(assigned, known), suspect=True, same_until=same_until)
            self._begin_again(assigned, replace(start, contradicted_at=contradicted_at))

    def doubt_topics_made_anew(self) -> list[Coordinates]:
        """Recover anew what is read of topics that are others by now, from their beginning; return which partitions these are."""
        if not self._topic_watch.is_due:
            return []
        # A recovery asks by itself.
        delivering = [each for each in self.assigned.values() if each.state is State.ACTIVE]
        changed = self._topic_watch.look(delivering)
        for assigned in changed:
            self.doubt(assigned.topic, assigned.partition)
        return [(assigned.topic, assigned.partition) for assigned in changed]

    def _read_again_if_truncated(self, assigned: Assigned, same_until: int | None) -> bool:
        """Recover anew where the log is not the one that was completed, or ends below it.

        A policy for what is missing would skip what came instead. ``same_until``: what the broker says of it, if anything.
        """
        known = self._history(assigned)
        if known is None:
            return False
        if same_until is None and known[1] <= self._client.log_end(assigned.topic, assigned.partition):
            return False
        self.doubt(assigned.topic, assigned.partition, same_until)
        return True

    def note_pause(self, partitions: Iterable[Coordinates], *, paused: bool) -> None:
        """Remember whose pause it is: a recovery that ends does not undo the user's."""
        for coordinates in partitions:
            if coordinates in self.assigned:
                self.assigned[coordinates].user_paused = paused

    def resumable(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return those that may deliver now."""
        held_up = {
            c for c, assigned in self.assigned.items() if assigned.full or assigned.state is State.RECOVERING
        }
        return [tp for tp in partitions if (tp.topic, tp.partition) not in held_up]

    def work(self) -> None:
        """Do what is due, for at most some 50 ms: recovery, commits, a pause where too much waits."""
        self.hurried = False
        if self.recovering:
            self._recover()
        else:
            self._client.readers.close()
        if self._window_check.asked:
            self._window_check.look()
        if self.engine.choked and time.monotonic() >= self._write_again_at:
            self.engine.write_again()
            self._write_again_at = time.monotonic() + WRITE_AGAIN_S
        for assigned in self.assigned.values():
            if assigned.full or (assigned.held is not None and assigned.held.started):
                self._throttle(assigned)
        try:
            self.commits.pay()
            if time.monotonic() >= self._next_commit:
                self._next_commit = time.monotonic() + self._settings.commit_interval_s
                self.commits.completed(self.assigned.values(), asynchronous=True)
        except KafkaException as error:
            logger.warning("commit failed (%s); it is repeated with the next one", error)

    def wake(self) -> None:
        """Have what has begun to deliver fetched from at once."""
        waking, self.waking = self.waking, []
        self._client.wake(waking)

    def _throttle(self, assigned: Assigned) -> None:
        if assigned.held is None or assigned.state is not State.ACTIVE:
            return
        lane = assigned.held.lane
        span = lane.position - lane.high
        if not self._settings.completes_on_next_call:
            note_uncompleted(assigned, lane, MOST_WAITING)
        claims = assigned.held.claims
        choked = (assigned.held.choked and self._chosen.on_full_disk == "pause") or (
            claims is not None and claims.stands_still
        )
        if choked and not assigned.full:
            assigned.full = True
            self._client.pause(assigned.topic, assigned.partition)
        elif (
            not assigned.full and span > MOST_WAITING and not lane.waits_for_unit and lane.kept > MOST_WAITING
        ):
            assigned.full = True
            self._client.pause(assigned.topic, assigned.partition)
            logger.warning(
                "%s[%d]: %d records wait for the one at %d; paused until it is completed",
                assigned.topic, assigned.partition, lane.kept, lane.high,
            )  # fmt: skip
        elif assigned.full and not choked and (lane.kept <= MOST_WAITING // 2 or lane.waits_for_unit):
            assigned.full = False
            if not assigned.user_paused:
                self._client.resume(assigned.topic, assigned.partition)

    def _recover(self) -> None:
        until = time.monotonic() + SLICE_S
        waiting = [assigned for assigned in self.assigned.values() if assigned.state is State.RECOVERING]
        while (now := time.monotonic()) < until:
            # Those that are through make room for the next: many short recoveries fit into one poll.
            busy = [each for each in waiting if each.held is None and each.ask_at <= now]
            if not busy or self._asking.rests:
                break
            # Those that failed ask last: a broker that does not answer holds up no others.
            for assigned in sorted(busy, key=_failures)[:AT_ONCE]:
                self._step(assigned)
                if time.monotonic() >= until:
                    break
        self.hurried = not self._asking.rests and any(
            each.held is None and each.ask_at <= now for each in waiting
        )
        finished = [assigned for assigned in waiting if assigned.held is not None]
        if finished:
            self._say_beginnings(finished)
            self._activate_together([assigned for assigned in finished if _is_begun(assigned)])

    def _activate_together(self, finished: list[Assigned]) -> None:
        """Let the partitions deliver in few groups: a fetch that waits for records of the first holds up that of the next."""
        if not finished:
            return
        now = time.monotonic()
        self._begin_by = self._begin_by or now + TOGETHER_S
        if not self.hurried or now >= self._begin_by:
            self._begin_by = 0.0
            self._activate(finished)

    def _step(self, assigned: Assigned) -> None:
        """Bring a partition a little further."""
        began = time.monotonic()
        try:
            if not self._asking.may_begin(assigned):
                return
            if assigned.start is None:
                self._ask_again(assigned)
                return
            if assigned.recovery is None:
                if not self._is_described(assigned):
                    return
                assigned.recovery = recover(assigned, self.engine, self._client, self._settings, self._chosen)
            next(assigned.recovery)
        except StopIteration:
            assigned.recovery = None
            assigned.failures, assigned.silent = 0, False
        except BaseException as error:
            assigned.recovery = None
            self.engine.lose(assigned.topic, assigned.partition)
            if not isinstance(error, DedupError | KafkaException):
                raise
            self._note_failure(assigned, error)
        finally:
            self._asking.took(time.monotonic() - began)

    def _note_failure(self, assigned: Assigned, error: DedupError | KafkaException) -> None:
        """Have a recovery begin again later, or the error raised."""
        assigned.ask_at = time.monotonic() + ASK_AGAIN_S
        if isinstance(error, StoreUnavailableError):
            if not assigned.no_store:
                logger.warning("%s[%d] waits for its store: %s", assigned.topic, assigned.partition, error)
            assigned.no_store = True
        elif isinstance(error, KafkaException) and (
            passes(error) or is_unheard_of(assigned, error, UNKNOWN_S)
        ):
            self._asking.failed(assigned)
            logger.warning("%s[%d]: recovery goes on later: %s", assigned.topic, assigned.partition, error)
        else:
            self._guard.keep(explained(assigned, error))

    def _is_described(self, assigned: Assigned) -> bool:
        """Whether it is known which topic this is; all that recover are asked about in one request."""
        if not self._client.is_described(assigned.topic):
            recovering = (each for each in self.assigned.values() if each.state is State.RECOVERING)
            self._client.describe({each.topic for each in recovering})
        if self._client.is_described(assigned.topic):
            return True
        assigned.ask_at = time.monotonic() + LOOK_S
        return False

    def _ask_again(self, assigned: Assigned) -> None:
        """Ask where the group stands; a broker that does not answer now is asked again later."""
        wanted = TopicPartition(assigned.topic, assigned.partition, assigned.wanted)
        try:
            [(_, committed)] = self._stand([wanted], self._client.readers.answer_s)
            assigned.start = replace(self._start(wanted, committed), seek=True)
            assigned.stands_at(committed_already(assigned.start))
            assigned.asked_from = 0.0
        except KafkaException as error:
            now = time.monotonic()
            self._asking.failed(assigned)
            self._asking.put_off(each for each in self.assigned.values() if each.start is None)
            assigned.asked_from = assigned.asked_from or now
            missing = error.args[0].code() == KafkaError._UNKNOWN_PARTITION  # noqa: SLF001
            if missing and now - assigned.asked_from > UNKNOWN_S:
                if self._client.knows_of(assigned.topic, assigned.partition):
                    # It has no leader for now, so that there is nobody to ask.
                    assigned.asked_from = now
                    return
                raise RecoveryError(
                    f"{assigned.topic}[{assigned.partition}] is unknown to the broker: {error}; does the topic exist?"
                ) from error
            if not passes(error):
                raise
            logger.warning(
                "%s[%d]: the group's offsets are not known yet (%s)",
                assigned.topic,
                assigned.partition,
                error,
            )

    def _say_beginnings(self, finished: list[Assigned]) -> None:
        """Commit where histories begin whose beginning the group does not know; what is refused is asked for again."""
        now = time.monotonic()
        due = [
            each
            for each in finished
            if not _is_begun(each) and each.beginning is Beginning.TO_ASK and each.ask_at <= now
        ]
        for assigned in due:
            assigned.ask_at = now + ASK_AGAIN_S
        try:
            self.commits.beginnings(due)
        except KafkaException as error:
            logger.warning("the beginning of the history cannot be committed (%s); asking again", error)

    def _activate(self, finished: list[Assigned]) -> None:
        """Let the partitions deliver."""
        fetching = any(map(is_fetched, self.assigned.values()))
        starts = [(assigned, assigned.start) for assigned in finished if assigned.start is not None]
        for assigned, start in starts:
            assigned.enter(State.ACTIVE)
            if start.seek or assigned.stopped or start.leader_epoch is not None:
                # With the epoch the client asks the broker whether the log still has what lies before.
                self.reading.begin(assigned, start.offset, start.leader_epoch)
            if not assigned.user_paused:
                self._client.resume(assigned.topic, assigned.partition)
            self._window_check.ask(assigned.topic, assigned.partition, start.offset)
        if not fetching:
            self.waking += [TopicPartition(assigned.topic, assigned.partition) for assigned in finished]
        behind = [each for each in self.assigned.values() if each.state is State.RECOVERING]
        self.log.ready([assigned for assigned, _ in starts], behind)


def _is_begun(assigned: Assigned) -> bool:
    """Whether the group knows where the history of this partition begins."""
    return assigned.start is None or not assigned.start.at_once or assigned.beginning is Beginning.KNOWN


def _failures(assigned: Assigned) -> int:
    return assigned.failures
