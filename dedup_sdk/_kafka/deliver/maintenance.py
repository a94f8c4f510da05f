"""Maintenance: the work on a timer. It writes completed records, recovers partitions, commits, and flushes.

It is due every `MAINTENANCE_S`, after `MAINTENANCE_RECORDS` records, and as soon as an event needs it.
"""

from __future__ import annotations

import gc
import time

from dedup_sdk._kafka.client.guards import Steps
from dedup_sdk._kafka.deliver.assignment_api import AssignmentApi
from dedup_sdk._kafka.deliver.judge import Judge
from dedup_sdk._kafka.deliver.positions import Positions
from dedup_sdk._kafka.deliver.write_policy import WritePolicy

MAINTENANCE_S = 0.1
"""Seconds between two runs of maintenance: implicit completions are written at least this often."""
MAINTENANCE_RECORDS = 1_000
"""The most records that are judged, or completed, between two runs of maintenance."""
_RECOVERING_S = 0.02


class Collector:
    """Pauses the garbage collector if it is enabled, and enables it again if it was paused here (``paused``).

    While a batch is fetched and judged, it would visit a thousand live messages and their headers twice a batch, a
    tenth of the whole cost. It is never paused while a call waits, and resumed as the very last step before the
    application gets its messages: by then the messages of the batch before are freed. A ``gc.disable()`` by another
    thread in the few milliseconds between has no effect.
    """

    def __init__(self) -> None:
        self.paused = False

    def pause(self) -> None:
        """Pause garbage collection until `resume`."""
        if gc.isenabled():
            # In this order, here and below: an interruption between the two must not leave it disabled for good.
            self.paused = True
            gc.disable()

    def resume(self) -> None:
        """Enable garbage collection again, if it was before."""
        if self.paused:
            gc.enable()
            self.paused = False


class Maintenance:
    """Does the work, with the lock, in the thread that asks for messages."""

    def __init__(
        self,
        judge: Judge,
        assignment: AssignmentApi,
        positions: Positions,
        writes: WritePolicy,
        steps: Steps,
    ) -> None:
        self._judge, self._assignment, self._positions, self.writes = judge, assignment, positions, writes
        self._handover, self._session = judge.handover, judge.handover.session
        self._fetcher, self._delivery = judge.fetcher, judge.delivery
        self._interruption = steps.interruption
        self.collector = Collector()
        self.judged = 0
        """How many records had been judged at the last run, but for those of a batch that was still in hand."""
        self.recover_at = 0.0
        """When (monotonic seconds) recoveries go on if no message is ready meanwhile."""

    def is_due(self, now: float) -> bool:
        """Whether it is due; recoveries go on before its time if no message is ready."""
        due = self._interruption.maintenance_at
        if not self._delivery.batch.ready:
            due = min(due, self.recover_at)
        return now >= due or self._judge.judged - self.judged >= MAINTENANCE_RECORDS

    def write_before(self, coming: int) -> None:
        """Write completed records if with so many more a crash would repeat more than `MAINTENANCE_RECORDS`."""
        if self._judge.judged - self.judged + coming > MAINTENANCE_RECORDS:
            self.writes.write_all()

    def run(self, heard_at: float) -> None:
        """Write completed records; then recovery, commits, and flushes.

        ``heard_at``: when (monotonic seconds) the client was last asked for messages.
        """
        session, upkeep, fetcher = self._session, self._judge.upkeep, self._fetcher
        # Records of a batch that is still in hand are written later, together with those that come meanwhile.
        batch = self._delivery.batch
        self.judged = self._judge.judged - (len(batch.messages) - batch.ended)
        self.writes.write_all()
        self._judge.engine.trim()
        batch.free(idle=fetcher.ran_dry)
        self._judge.classifier.warn_of_missing_ids()
        if (gatekeeper := self._judge.engine.gatekeeper) is not None:
            self._judge.ask(gatekeeper)
        self._assignment.reopen_staying()
        if self._handover.noted_seeks:
            self._positions.do_noted_seeks()
        if recovers := session.recovering:
            # A step of a recovery allocates thousands of messages, too.
            self.collector.pause()
            fetcher.note_stops()
        for coordinates in upkeep.work(before_commits=fetcher.pass_holes):
            self._handover.forget_if_it_recovers(coordinates)
        if session.reading.moved:
            fetcher.drop_moved()
        if upkeep.put_off and (events := upkeep.due_events()):
            fetcher.put_first(events)
        if session.reading.waking:
            session.reading.wake()
        if upkeep.fetch_watch.due_at <= heard_at:
            self._watch_fetches()
        self._assignment.client.serve()
        now = time.monotonic()
        if now >= session.board.due_at:
            session.board.publish(now)
        self.recover_at = now + (0.0 if upkeep.hurried else _RECOVERING_S if recovers else MAINTENANCE_S)
        self._interruption.schedule_maintenance(min(now + MAINTENANCE_S, upkeep.next_commit_at))

    def _watch_fetches(self) -> None:
        """Look for partitions that the client does not fetch; only those count of which all messages are judged."""
        is_judged = self._fetcher.ran_dry and not (self._fetcher.messages or self._delivery.batch.ready)
        positions = {
            coordinates: assigned.engine_partition.flight.position
            for coordinates, assigned in self._session.assigned.items()
            if is_judged and assigned.is_fetched and assigned.engine_partition is not None
        }
        others = list(self._session.assigned)[:1] or self._assignment.first_topic
        self._judge.upkeep.fetch_watch.look(positions, others)
        if not self._session.has_assignment:
            self._session.note_membership()
