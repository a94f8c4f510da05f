"""The work that is due between polls for the partitions of a `Session`: recoveries, commits, pauses, client events.

An error without a waiting caller is kept in ``callback_errors``, and `poll` raises it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from dedup_sdk._kafka.assign.assignment import NOT_YET_DELIVERING, Assigned, Pause, Recovered, State
from dedup_sdk._kafka.assign.commits import Coordinates
from dedup_sdk._kafka.assign.health import FetchWatch
from dedup_sdk._kafka.assign.log_end import LogEnds
from dedup_sdk._kafka.assign.topic_watch import TopicWatch
from dedup_sdk._kafka.assign.window_check import WindowCheck
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.client.guards import CallbackErrors
from dedup_sdk._kafka.client.reader import diverged_at
from dedup_sdk._kafka.client.settings import ClientSettings
from dedup_sdk._kafka.recover.scheduler import RecoveryLoop
from dedup_sdk._kafka.recover.session import Session
from dedup_sdk._kafka.recover.settings import Recovery
from dedup_sdk._observe import PartitionEvent

logger = logging.getLogger("dedup_sdk")

WRITE_AGAIN_S: Final = 1.0
"""Seconds between two attempts to write marks that a full disk refused."""
MOST_WAITING: Final = 100_000
"""Records of a partition that may be in memory behind one that is not completed; above that it is paused."""

_is_fetched = attrgetter("is_fetched")


class Upkeep:
    """Does what is due for assigned partitions, when the polling thread asks it to."""

    def __init__(
        self,
        session: Session,
        client: Client,
        settings: ClientSettings,
        policy: Recovery,
        callback_errors: CallbackErrors,
    ) -> None:
        self.session, self._client, self._settings, self._policy = session, client, settings, policy
        self.fetch_watch = FetchWatch(client, fetch_wait_s=settings.fetch_wait_s)
        self.log_ends = LogEnds(client)
        self.recoveries = RecoveryLoop(session, client, settings, policy, callback_errors)
        self.next_commit_at = time.monotonic() + settings.commit_interval_s
        """When (monotonic seconds) the next commit is due."""
        self.hurried = False
        """Whether a recovery can make progress at once, so that the poll must not wait."""
        self.write_again_at = 0.0
        self._completed_by_user = not settings.completes_on_next_call
        self.put_off: dict[Coordinates, tuple[Assigned, Any]] = {}
        """Client events that need an answer of their partition's leader, which was not available."""
        self._window_check = WindowCheck(session.engine, client, settings)
        self._topic_watch = TopicWatch(client)
        self._begun: list[Assigned] = []
        """Partitions that became active, and whose windows are not checked yet."""

    def work(self, before_commits: Callable[[], None] = lambda: None) -> list[Coordinates]:
        """Do the work that is due, for about 50 ms at most: recoveries, commits, pauses because of a backlog.

        ``before_commits`` is called when commits are due, and may move positions.
        Return the partitions that are recovered again because their topic was recreated.
        """
        if (now := time.monotonic()) >= self.session.board.due_at:
            # Also before the work: a step of a new partition's recovery may take long.
            self.session.board.publish(now)
        if begun := self.recoveries.work():
            self._begin_to_deliver(begun)
        elif self._begun or self._window_check.asked:
            # Not in the call in which a partition becomes active: its first message must not wait for this.
            self._window_check.look(self._begun)
            self._begun.clear()
        self.hurried = self.recoveries.hurried
        now = time.monotonic()
        if self.session.engine.disk_full and now >= self.write_again_at:
            self.session.engine.write_again()
            self.write_again_at = time.monotonic() + WRITE_AGAIN_S
        for assigned in self.session.assigned.values():
            if assigned.state is State.ACTIVE and isinstance(assigned.phase, Recovered):
                self._throttle(assigned, assigned.phase)
        try:
            if self.session.commits.pending:
                self.session.commits.send_pending()
            if now >= self.next_commit_at:
                self.next_commit_at = now + self._settings.commit_interval_s
                before_commits()
                self.session.commits.completed(self.session.assigned.values(), asynchronous=True)
        except KafkaException as error:
            logger.warning(
                "commit failed (%s); it is repeated with the next commit",
                error,
                extra={"event": "commit-failed"},
            )
        return self._topics_made_anew() if now >= self._topic_watch.due_at else []

    def _begin_to_deliver(self, finished: list[Assigned]) -> None:
        """Activate partitions whose recovery has ended."""
        fetching = any(map(_is_fetched, self.session.assigned.values()))
        for assigned in finished:
            start = self.session.activate(assigned)
            epoch = start.leader_epoch
            if start.offset != assigned.reads_from or assigned.stopped or epoch is not None:
                # With the epoch the client has the broker check that the log still has the records before the offset.
                self.session.reading.begin(assigned, start.offset, epoch)
            if assigned.is_fetched:
                self._client.resume(assigned.topic, assigned.partition)
            if not fetching:
                self.session.reading.wake_soon(assigned.topic, assigned.partition)
        behind = [each for each in self.session.assigned.values() if each.state in NOT_YET_DELIVERING]
        self.session.log.ready(finished, behind)
        self.session.board.request()
        self._begun += finished

    def _throttle(self, assigned: Assigned, active: Recovered) -> None:
        """Pause a partition with a backlog, a full disk, or a gate that lets nothing through; resume it afterwards."""
        partition, pauses = active.partition, assigned.pauses
        flight = partition.flight
        if self._completed_by_user:
            active.note_uncompleted(MOST_WAITING)
        full = partition.writer.disk_full and self._policy.on_full_disk == "pause"
        if full != (Pause.DISK in pauses):
            self._pause_while(assigned, Pause.DISK, full)
        waits_elsewhere = partition.stands_still
        if waits_elsewhere != (Pause.ELSEWHERE in pauses):
            self._pause_while(assigned, Pause.ELSEWHERE, waits_elsewhere)
        if Pause.BACKLOG in pauses:
            if flight.kept <= MOST_WAITING // 2 or partition.needs_more:
                self._pause_while(assigned, Pause.BACKLOG, False)
        elif (
            flight.position - flight.high > MOST_WAITING
            and not partition.needs_more
            and flight.kept > MOST_WAITING
        ):
            self._pause_while(assigned, Pause.BACKLOG, True)
            logger.warning(
                "%s[%d]: paused: %d records wait for the one at offset %d; it resumes when that one is completed "
                "(does a handler hang?)",
                assigned.topic, assigned.partition, flight.kept, flight.high,
                extra={"event": "backlog"},
            )  # fmt: skip

    def _pause_while(self, assigned: Assigned, why: Pause, applies: bool) -> None:  # noqa: FBT001 (a state)
        if applies and assigned.pause(why):
            self._client.pause(assigned.topic, assigned.partition)
        elif not applies and assigned.lift(why):
            self._client.resume(assigned.topic, assigned.partition)

    # --- client events -----------------------------------------------------------------------------------------------

    def handle_offset_reset(self, event: Any) -> bool:
        """Apply ``auto.offset.reset`` where the log does not have the requested offset.

        Return whether the event is handled; the application gets any other event.
        """
        coordinates = event.topic(), event.partition()
        assigned = self.session.assigned.get(coordinates)
        if assigned is None or event.error().code() != KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            return False
        assigned.note_stop()
        if assigned.state is State.ACTIVE and self._read_again_if_truncated(
            assigned, diverged_at(event.error().str())
        ):
            return True
        if self._settings.reset == "error":
            return False
        if assigned.recovers:
            return True
        offset = self._client.edge(*coordinates, self._settings.reset)
        detail = f"{event.error().str()}; auto.offset.reset={self._settings.reset}"
        self.session.engine.tell(PartitionEvent("offset-out-of-range", *coordinates, offset, detail))
        self.session.move(*coordinates, offset, log_changed=True)
        return True

    def answer_later(self, event: Any) -> None:
        """Keep a client event until its partition's leader may answer again; the other partitions go on."""
        assigned = self.session.assigned.get((event.topic(), event.partition()))
        if assigned is not None:
            self.session.backoff.failed(assigned)
            self.put_off[assigned.coordinates] = assigned, event

    def due_events(self) -> list[Any]:
        """Return and remove the kept events that may be handled now."""
        now, session = time.monotonic(), self.session
        # Those of a partition that was closed meanwhile tell nothing any more.
        self.put_off = {at: put for at, put in self.put_off.items() if session.assigned.get(at) is put[0]}
        waiting = [assigned for assigned, _ in self.put_off.values() if assigned.retry.at <= now]
        due = [each.coordinates for each in waiting if session.backoff.may_begin(each)]
        return [self.put_off.pop(coordinates)[1] for coordinates in due]

    def _read_again_if_truncated(self, assigned: Assigned, same_until: int | None) -> bool:
        """Recover again where the log has other records than the completed ones, or ends below them.

        Return whether it does; ``auto.offset.reset`` would skip the records that replaced them. ``same_until``: see
        `LogChange`.
        """
        known = assigned.history()
        if known is None:
            return False
        if same_until is None and known.high <= self._client.log_end(assigned.topic, assigned.partition):
            return False
        self.session.recover_again(assigned.topic, assigned.partition, same_until)
        return True

    def _topics_made_anew(self) -> list[Coordinates]:
        """Recover the partitions of topics that were deleted and recreated, from their beginning; return them."""
        # A running recovery checks the topic ID itself.
        delivering = [
            active for each in self.session.assigned.values() if (active := each.active) is not None
        ]
        changed = [(each.topic, each.partition.partition) for each in self._topic_watch.look(delivering)]
        for coordinates in changed:
            self.session.recover_again(*coordinates)
        return changed
