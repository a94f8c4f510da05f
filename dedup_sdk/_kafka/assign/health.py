"""Statuses that any thread may read without waiting, and the health that follows from them.

The state of partitions changes only with the consumer's lock, which a step may keep for a second: a slice of a replay,
a snapshot, a slow broker. So other threads get immutable statuses that were published after the last step; if no thread
is in a step, they are made anew first (`ClientLock.run_if_free`).

`FetchWatch` finds the two faults that no call reports. The client may stop fetching a partition, with its connections
and its heartbeats in order (librdkafka issue 5301); and while the topics are quiet, nobody notices that no broker
answers. Both need the brokers' word: the ends of the logs, which the leaders tell over other connections than those of
the client.

An end beyond the position proves nothing by itself: compaction may have left only holes there, and a transaction may
have been aborted. A partition is not fetched if its end *moves* beyond an end that was known before, and the position
stands still for `STOPPED_S` after that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._kafka.assign.assignment import (
    NOT_YET_DELIVERING,
    RECOVERING,
    Asking,
    Assigned,
    Pause,
    Recovered,
    Recovering,
    State,
)
from dedup_sdk._kafka.assign.commits import Coordinates
from dedup_sdk._kafka.client.client import EndProbe
from dedup_sdk._metrics import Hindrance
from dedup_sdk._observe import Health, PartitionStatus
from dedup_sdk._store.protocol import StoreStats
from dedup_sdk.errors import DedupError

logger = logging.getLogger("dedup_sdk")

PUBLISH_EVERY_S: Final = 1.0
"""Seconds after which statuses are published though no partition changed its state."""
SIZES_EVERY_S: Final = 10.0
"""Seconds between two looks at the sizes of the stores, while somebody asks for them."""
LOOK_EVERY_S: Final = 10.0
"""Seconds between two looks at the partitions whose position stands still."""
STOPPED_S: Final = 20.0
"""Seconds for which records must lie unread, with the client asked for them, before it counts as stopped.

``fetch.wait.max.ms`` comes on top: so long a broker may hold them back.
"""
MOST_LISTED = 5
"""Partitions that a log line lists at most."""


class EndSource(Protocol):
    """The client's part: where logs end."""

    def known_end(self, topic: str, partition: int) -> int:
        """Return the end of the log as of the last fetch, below zero before the first."""

    def reads_at(self, topic: str, partition: int) -> int:
        """Return the offset up to which the client has returned all records, below zero if it is not known."""

    def probe_all(self, partitions: Iterable[Coordinates]) -> dict[Coordinates, EndProbe]:
        """Ask the leaders for the ends of what may be read, asynchronously."""


class StatusBoard:
    """The published statuses, replaced as a whole. ``due_at``: when (monotonic seconds) to publish them again."""

    def __init__(
        self, assigned: Mapping[Coordinates, Assigned], engine: Deduplicator, client: EndSource
    ) -> None:
        self._assigned, self._engine, self._client = assigned, engine, client
        self._ends: dict[Coordinates, int] = {}
        self._sizes: dict[Coordinates, StoreStats] = {}
        self._asked_for_sizes, self._sized_at = False, float("-inf")
        self.statuses: tuple[PartitionStatus, ...] = ()
        self.due_at = 0.0

    def request(self) -> None:
        """Have the statuses published after this step: a partition has come, gone, or changed its state."""
        self.due_at = 0.0

    def ask_for_sizes(self) -> None:
        """Have the sizes of the stores looked up from time to time: they cost a look at each file."""
        self._asked_for_sizes = True

    def publish(self, now: float) -> None:
        """Publish the statuses, with the ends of the logs as the client knows them; on the polling thread.

        Also with the sizes of the stores, if anybody has asked for them since they were looked up.
        """
        self.due_at = now + PUBLISH_EVERY_S
        if self._asked_for_sizes and now - self._sized_at >= SIZES_EVERY_S:
            self._asked_for_sizes, self._sized_at = False, now
            # A disk that fails is met where marks are read and written: a look at sizes stops no loop.
            with suppress(OSError, DedupError):
                self._sizes = {
                    each: partition.store.stats()
                    for each, partition in self._engine.partitions.items()
                    if partition.started
                }
        self._ends = {each: self._client.known_end(*each) for each in self._assigned}
        self.renew()

    def renew(self) -> None:
        """Publish the statuses from memory, without the client; with the lock, from any thread."""
        statuses = [
            status_of(assigned, self._engine, self._ends.get(coordinates, -1), self._sizes.get(coordinates))
            for coordinates, assigned in self._assigned.items()
        ]
        self.statuses = tuple(statuses)


def warn_of_recovering(partitions: Collection[Assigned]) -> None:
    """Log one warning if the consumer closes before partitions deliver: the loop may have taken that for the end."""
    found = [each for each in partitions if each.state in RECOVERING]
    if not found:
        return
    listed = ", ".join(map(_progress_text, found[:MOST_LISTED]))
    logger.warning(
        "the consumer closes while %d of its %d partitions recover, which deliver nothing meanwhile: %s%s. If your "
        "loop ended because poll() gave None, or consume() nothing: that is not the end of the topic. Iterate with "
        "idle_timeout=, which does not count recoveries. To make recoveries short, keep store= on a disk that stays, "
        "or give Recovery(snapshot=)",
        len(found), len(partitions), listed, ", ..." if len(found) > MOST_LISTED else "",
        extra={"event": "closed-while-recovering"},
    )  # fmt: skip


def _progress_text(assigned: Assigned) -> str:
    phase, how_far = assigned.phase, assigned.state.value
    if isinstance(phase, Recovering) and phase.reached is not None:
        how_far = f"replayed up to offset {phase.reached[0]} of {phase.reached[1]}"
    return f"{assigned.topic}[{assigned.partition}] ({how_far})"


def status_of(
    assigned: Assigned, engine: Deduplicator, end: int = -1, sizes: StoreStats | None = None
) -> PartitionStatus:
    """Return the status of one partition from memory, without a request to a broker or the disk.

    ``end``: the end of its log, below zero if it is not known. ``sizes``: those of its store, if they are known.
    """
    partition = engine.partitions.get((assigned.topic, assigned.partition))
    begun = partition if partition is not None and partition.started else None
    committed = assigned.commits.confirmed
    position = None if begun is None else begun.flight.position
    read_to = committed if committed >= 0 else position
    known = assigned.known
    reached = assigned.phase.reached if isinstance(assigned.phase, Recovering) else None
    return PartitionStatus(
        topic=assigned.topic,
        partition=assigned.partition,
        state="recovering" if assigned.recovers else assigned.state.value,
        hindrances=hindrances_of(assigned, engine),
        position=position,
        in_flight=0 if begun is None else begun.flight.in_flight,
        waiting=0 if begun is None else begun.flight.held_back,
        committed=committed if committed >= 0 else None,
        recovery_seconds=known.seconds
        if isinstance(known, Recovered)
        else time.monotonic() - assigned.taken_at,
        recovery_left=0 if reached is None else max(0, reached[1] - reached[0]),
        store_bytes=None if sizes is None else sizes.disk_bytes,
        store_marks=None if sizes is None else sizes.marks,
        store_files=None if sizes is None else sizes.files,
        lag=None if end < 0 or read_to is None else max(0, end - read_to),
        effective_window_ms=None if begun is None else begun.writer.effective_window_ms,
        detail=known.note,
    )


def hindrances_of(assigned: Assigned, engine: Deduplicator) -> tuple[Hindrance, ...]:
    """Return the reasons why a partition does not deliver, or not as usual; see `PartitionStatus.hindrances`."""
    partition = engine.partitions.get((assigned.topic, assigned.partition))
    waits_for, recovered = assigned.retry.hindrance, assigned.recovered
    recovers = assigned.state in NOT_YET_DELIVERING
    of_gates = [] if partition is None else [each for gate in partition.gates for each in gate.hindrances()]
    table: list[tuple[Hindrance | None, bool]] = [
        ("offsets", isinstance(assigned.phase, Asking)),
        (waits_for, recovers and waits_for != "store"),
        ("beginning", recovers and recovered is not None),
        ("commits", assigned.commits.is_refused),
        ("store", waits_for == "store" or (partition is not None and partition.writer.disk_full)),
        ("backlog", Pause.BACKLOG in assigned.pauses),
        *[(each, True) for each in of_gates],
        ("failed", assigned.state is State.FAILED),
        ("uncompleted", recovered is not None and recovered.uncompleted),
        ("paused", Pause.USER in assigned.pauses),
        ("uncovered", recovered is not None and partition is not None and not partition.covered),
    ]
    return tuple([name for name, applies in table if applies and name is not None])


class Unread(NamedTuple):
    """Records that the client does not fetch: their partition, its log's end, and since when (monotonic seconds)."""

    coordinates: Coordinates
    end: int
    since: float


@dataclass(slots=True)
class _Look:
    """What is known of one partition whose position stands still."""

    position: int
    probe: EndProbe | None = None
    known_end: int | None = None
    """The end that the leader told first."""
    unread: Unread | None = None


class FetchWatch:
    """Asks the leaders for ends where nothing comes, without waiting for them.

    ``due_at``: when (monotonic seconds) `look` must be called. ``stopped``: records that the client leaves unread.
    ``silent_since``: the time of the first request that no broker has answered, None while one answers.
    """

    def __init__(
        self,
        client: EndSource,
        clock: Callable[[], float] = time.monotonic,
        *,
        every_s: float | None = None,
        fetch_wait_s: float = 0.0,
    ) -> None:
        self._client, self._clock = client, clock
        self._stopped_s = STOPPED_S + fetch_wait_s
        self._every_s = LOOK_EVERY_S if every_s is None else every_s
        self._looks: dict[Coordinates, _Look] = {}
        self._probes: tuple[float, list[EndProbe]] = (0.0, [])
        """The open requests, and when they were sent."""
        self.due_at = clock() + self._every_s
        self.stopped: tuple[Unread, ...] = ()
        self.silent_since: float | None = None

    def look(self, positions: Mapping[Coordinates, int], others: Sequence[Coordinates] = ()) -> None:
        """Look at the partitions that the client should fetch, by their positions; on the polling thread.

        The application has judged all that the client gave it. ``others``: partitions to ask for while there are none.
        """
        now = self._clock()
        self._read_answers()
        looks: dict[Coordinates, _Look] = {}
        quiet: list[Coordinates] = []
        for coordinates, judged in positions.items():
            before = self._looks.get(coordinates)
            position = max(judged, self._client.reads_at(*coordinates))
            if before is None or before.position != position:
                looks[coordinates] = _Look(position)
                if before is not None:
                    self.silent_since = None
            else:
                looks[coordinates] = before
                self._judge(coordinates, before, now)
                quiet.append(coordinates)
        self._looks = looks
        self.stopped = tuple(
            each.unread
            for each in looks.values()
            if each.unread is not None and now - each.unread.since >= self._stopped_s
        )
        if not self._probes[1]:
            self._ask(quiet or ([] if positions else others), now)
        self.due_at = now + self._every_s

    def _ask(self, partitions: Sequence[Coordinates], now: float) -> None:
        if partitions:
            probes = self._client.probe_all(partitions)
            self._probes = now, list(probes.values())
            for coordinates, probe in probes.items():
                if coordinates in self._looks:
                    self._looks[coordinates].probe = probe

    def _read_answers(self) -> None:
        asked_at, probes = self._probes
        if any(probe.is_answered for probe in probes):
            self.silent_since = None
        elif probes and all(probe.is_over for probe in probes):
            self.silent_since = asked_at if self.silent_since is None else self.silent_since
        if all(probe.is_over for probe in probes):
            self._probes = 0.0, []

    @staticmethod
    def _judge(coordinates: Coordinates, look: _Look, now: float) -> None:
        end = None if look.probe is None else look.probe.end
        if end is None:
            return
        if look.known_end is None:
            look.known_end = max(end, look.position)
        elif end > look.known_end and look.unread is None:
            look.unread = Unread(coordinates, end, now)


class Asked(NamedTuple):
    """What the application has done: the times are monotonic seconds."""

    at: float
    """When the client was last asked for messages or events; 0: never."""
    interval_s: float
    """``max.poll.interval.ms``, in seconds."""
    is_subscribed: bool
    has_partitions: bool
    has_assignment: bool
    is_closed: bool
    ended_by: str | None = None
    """The client's fatal error, after which no message comes any more; None without one."""


def health_of(asked: Asked, statuses: Sequence[PartitionStatus], watch: FetchWatch, now: float) -> Health:
    """Return the health of a consumer at a time (monotonic seconds)."""
    if asked.is_closed:
        reason = "the consumer is closed: make a new one to go on"
        return Health(live=True, ready=False, reasons=(reason,), closed=True)
    if asked.ended_by is not None:
        reason = (
            f"the client has failed for good, and no message comes any more: {asked.ended_by}; close this consumer and "
            "make a new one, or restart the process"
        )
        return Health(live=False, ready=False, reasons=(reason,))
    dead = [*_not_asked(asked, now), *_not_fetched(watch.stopped, now)]
    unready = [
        *_not_assigned(asked),
        *_recovering(statuses),
        *_refused(statuses),
        *_silent(watch.silent_since, now),
    ]
    return Health(live=not dead, ready=not (dead or unready), reasons=(*dead, *unready))


def _not_asked(asked: Asked, now: float) -> Iterator[str]:
    # Partitions that a program assigned by hand are nobody else's.
    if asked.is_subscribed and asked.at and now - asked.at > asked.interval_s:
        yield (
            f"your program has not asked for messages for {now - asked.at:.0f} s, and max.poll.interval.ms is "
            f"{asked.interval_s * 1000:.0f}: the group has taken its partitions away. Look for a handler that hangs, "
            "then restart the process; if handlers need so long, use run()"
        )


def _not_fetched(stopped: Sequence[Unread], now: float) -> Iterator[str]:
    for coordinates, end, since in stopped[:MOST_LISTED]:
        yield (
            f"{coordinates[0]}[{coordinates[1]}]: the client has fetched nothing for {now - since:.0f} s, although the "
            f"log goes on to offset {end}: restart the process"
        )


def _not_assigned(asked: Asked) -> Iterator[str]:
    if not (asked.is_subscribed or asked.has_partitions):
        yield "no topic is subscribed: call subscribe() or assign()"
    elif not asked.at:
        yield "your program has not asked for messages yet: call poll(), consume() or run(), or iterate"
    elif asked.is_subscribed and not asked.has_assignment:
        yield "the group has not assigned anything yet: wait; if this stays, check the brokers and the group's rights"


def _recovering(statuses: Sequence[PartitionStatus]) -> Iterator[str]:
    failed = [each for each in statuses if "failed" in each.hindrances]
    behind = [each for each in statuses if each.state == "recovering" and each not in failed]
    if failed:
        yield (
            f"{_listed(failed)} closed after the same error came twice: report the traceback in the log, then restart "
            "the process, or seek the partition"
        )
    if behind:
        yield (
            f"{_listed(behind)} not up to date, and not delivered yet: wait; if this stays, look up the hindrance in "
            "the reference"
        )


def _refused(statuses: Sequence[PartitionStatus]) -> Iterator[str]:
    refused = [each for each in statuses if each.state != "recovering" and "commits" in each.hindrances]
    if refused:
        yield (
            f"{_listed(refused)} delivered, but the broker refuses the commits, so that another host gets the messages "
            "again: raise offset.metadata.max.bytes to 4096, or give the group its rights; the log has the error"
        )


def _listed(statuses: Sequence[PartitionStatus]) -> str:
    listed = ", ".join(map(_described, statuses[:MOST_LISTED]))
    more = len(statuses) - MOST_LISTED
    return (
        f"{listed} and {more} more are" if more > 0 else f"{listed} {'is' if len(statuses) == 1 else 'are'}"
    )


def _described(status: PartitionStatus) -> str:
    notes = ", ".join(filter(None, [status.detail, *status.hindrances]))
    return f"{status.topic}[{status.partition}]" + (f" ({notes})" if notes else "")


def _silent(since: float | None, now: float) -> Iterator[str]:
    if since is not None:
        yield (
            f"no broker has answered for {now - since:.0f} s: check bootstrap.servers, the network and the brokers; "
            "the consumer goes on by itself when one answers"
        )
