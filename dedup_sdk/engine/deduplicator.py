"""The engine over plain records: usable from any client, from tests, and without Kafka."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from operator import attrgetter
from types import TracebackType
from typing import Self

from dedup_sdk.checks import callables, flag, whole
from dedup_sdk.core.flight import RecordRef
from dedup_sdk.core.memory import Find
from dedup_sdk.core.reach import plan_start
from dedup_sdk.engine.gates import Gate, Gatekeeper
from dedup_sdk.engine.partition import Partition
from dedup_sdk.engine.prefetch import columns_of, looked_up
from dedup_sdk.engine.settings import MOST_OFFSET, refuse_unusable
from dedup_sdk.errors import ConfigurationError, MissingIdError, StoreError
from dedup_sdk.ids import Ids, RecordFields
from dedup_sdk.ids.spec import GroupKeys
from dedup_sdk.marks import Coverage, Int64s
from dedup_sdk.observe import Counters, Observer, PartitionEvent
from dedup_sdk.record import Record, Settled, Verdict
from dedup_sdk.store.forgetful import ForgetfulStore
from dedup_sdk.store.memory import MemoryStore
from dedup_sdk.store.protocol import DIGEST_NAME, Identity, KeyStore, PartitionStore
from dedup_sdk.strategy import Strategy, Terms
from dedup_sdk.window import Window

logger = logging.getLogger("dedup_sdk")

_disk_full, _recent = attrgetter("writer.disk_full"), attrgetter("writer.recent")

RECENT_MARKS = 500_000
"""Marks kept in memory and journal, over all partitions, before the fullest partition is flushed to a sorted file."""


class Deduplicator:
    """Gives each record a verdict, and remembers what is completed.

    Records of a partition are admitted in offset order. A record that is to be delivered is *in flight* until
    `complete`, `release` or `dead_letter` says how it ended; only then is it remembered. What `complete` was told is in
    the store when it returns.

    Args:
        strategy: how duplicates are recognised.
        store: where it is remembered; in memory by default. Several engines may share one, each with partitions of its own.
        cluster, group, isolation: whose memory it is, and at which isolation level it reads; part of the store's identity.
        observers: called with every final verdict.
        recent_marks: marks kept in memory before they go to sorted files; about 150 bytes each. Sources of `LastId` that remember many IDs
            count as more of them.
        clock: seconds since the epoch; only decides what may be forgotten and which units are overdue, never a verdict.
        bears_full_disk: where the store's disk is full, keep what is completed in memory and go on (`write_again` tries to write
            it) instead of raising `StoreUnavailableError`; then what `complete` was told outlives the process only once it is written.
        forgets_unwritten: bound the memory that takes: above four times ``recent_marks`` they are given up, and what hangs on them is
            unverified. False for an owner that admits no more while the engine is `disk_full`.

    Not thread-safe.
    """

    def __init__(
        self,
        strategy: Strategy,
        store: KeyStore | None = None,
        *,
        cluster: str = "",
        group: str = "",
        isolation: str = "read_committed",
        observers: Iterable[Observer] = (),
        recent_marks: int = RECENT_MARKS,
        clock: Callable[[], float] = time.time,
        bears_full_disk: bool = False,
        forgets_unwritten: bool = True,
    ) -> None:
        refuse_unusable(strategy, store, clock, cluster=cluster, group=group, isolation=isolation)
        flag("bears_full_disk", bears_full_disk)
        flag("forgets_unwritten", forgets_unwritten)
        advice = f"at least one mark is kept; leave it out for {RECENT_MARKS}"
        self.strategy = strategy
        self.counters = Counters()
        self.partitions: dict[tuple[str, int], Partition] = {}
        self._store = MemoryStore() if store is None else store
        self._recent_marks = whole("recent_marks", recent_marks, advice=advice)
        self._forgets_unwritten = forgets_unwritten
        self._observers = list(callables("observers", observers))
        self.keys = GroupKeys(strategy.keys, group)
        """Reads the keys of records, redrives of this group's dead letters among them."""
        self._cluster = cluster
        self._group = group
        self._isolation = isolation
        self._clock = clock
        self._bears_full_disk = bears_full_disk
        self._late: StoreError | None = None
        self._opened: dict[tuple[str, int], PartitionStore] = {}
        """The store of each partition as it was opened last."""
        self.gatekeeper: Gatekeeper | None = None
        """See `share`."""
        self.waits_for_time = strategy.waits_for_time
        """Whether gates may wait for records that have to come in time, so that somebody must tell them the time."""
        self._discard_unkeyed = strategy.on_missing_id == "discard"
        self._terms: dict[Window, Terms] = {}
        self._everywhere: Terms | None = None
        """The terms of all topics, whatever their names are, where they have one window."""
        if isinstance(strategy.window, Window):
            self._everywhere = self.terms_of("")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shut()

    @property
    def lock_wait_s(self) -> float:
        """See `dedup_sdk.store.protocol.KeyStore.lock_wait_s`."""
        return self._store.lock_wait_s

    def terms_of(self, topic: str) -> Terms:
        """Return what the strategy means for a topic: the same object for all that have one window."""
        if self._everywhere is not None:
            return self._everywhere
        window = self.strategy.window_of(topic)
        terms = self._terms.get(window)
        if terms is None:
            terms = self.strategy.terms(window, digest=DIGEST_NAME, isolation=self._isolation)
            self._terms[window] = terms
        return terms

    def share(self, gatekeeper: Gatekeeper) -> None:
        """Have partitions pass what they hand out by this gatekeeper; only before anything is opened."""
        self.gatekeeper = gatekeeper

    # --- partitions ----------------------------------------------------------------------------------------------

    def attach(
        self,
        topic: str,
        partition: int,
        *,
        topic_id: str = "",
        cluster: str | None = None,
    ) -> Partition:
        """Open the partition's store without deciding yet how it starts; see `dedup_sdk.core.reach`.

        Several engines may share one store object; a partition that one of them has open is refused to the others, as
        to another process. A signal's exception may strike between opening a store and noting that it is open. So the
        engine keeps every store that it opened, and the next opening of a partition closes the one before.

        Raises the errors of `dedup_sdk.store.protocol.KeyStore.open`.
        """
        if (topic, partition) in self.partitions:
            raise ConfigurationError(f"{topic}[{partition}] is open already; close it first")
        terms = self.terms_of(topic)
        window = terms.window
        identity = self._identity(topic, partition, topic_id, cluster, terms)
        left = self._opened.get((topic, partition))
        if left is not None:
            # Its closing was interrupted: nobody else lets it go.
            left.close()
        gate: Gate | None = None
        if self.gatekeeper is not None:
            gate = self.gatekeeper.gate(
                topic, partition, window, cluster=identity.cluster, id_spec=identity.id_spec
            )
        store = self._store.open(identity, window)
        self._opened[topic, partition] = store
        try:
            held = Partition(
                topic,
                partition,
                ForgetfulStore(store, identity, window) if terms.forgets else store,
                terms,
                counters=self.counters,
                observers=self._observers,
                clock=self._clock,
                bears_full_disk=self._bears_full_disk,
                gates=() if gate is None else (gate,),
                all_partitions=self.partitions.values,
            )
        except BaseException:
            store.close()
            raise
        self.partitions[topic, partition] = held
        return held

    def set_aside(self, topic: str, partition: int, *, topic_id: str = "", cluster: str | None = None) -> str:
        """Put a partition's damaged store out of the way (`StoreCorruptError`), and return where it is kept.

        The next `open` begins with an empty one: tell it ``low`` and ``committed``, so that what is missing is known to be.
        Raises the errors of `dedup_sdk.store.protocol.KeyStore.set_aside`.
        """
        identity = self._identity(topic, partition, topic_id, cluster, self.terms_of(topic))
        kept = self._store.set_aside(identity)
        self.counters.stores_set_aside += 1
        return kept

    def _identity(
        self, topic: str, partition: int, topic_id: str, cluster: str | None, terms: Terms
    ) -> Identity:
        return Identity(
            cluster=self._cluster if cluster is None else cluster, group=self._group, topic=topic, partition=partition, topic_id=topic_id,
            id_spec=terms.id_spec, isolation=self._isolation,
        )  # fmt: skip

    def open(
        self, topic: str, partition: int, *, low: int | None = None, committed: int | None = None
    ) -> Coverage:
        """Open a partition and return what is known of it.

        Args:
            topic: which topic.
            partition: which partition of it.
            low: the offset where the group's history without a gap begins; None: as the store says, else ``committed``.
            committed: the offset that the group committed last (the next one to read); None: as the store says. Without
                either, and with a store that is new, the group is new: its history begins with the first record.

        Marks of ``[low, committed)`` that the store does not have are not made up: the coverage says what is missing.
        """
        for name, offset in (("low", low), ("committed", committed)):
            if offset is not None:
                advice = "an offset is a whole number, and not negative; leave out what is unknown"
                whole(name, offset, least=0, most=MOST_OFFSET, advice=advice)
        held = self.attach(topic, partition)
        stored = held.loaded.progress if held.loaded else None
        told, new = committed is not None, stored is None and committed is None
        if committed is None:
            committed = low or 0 if stored is None else max(stored.high, low or 0)
        begun = told or low is not None or (stored is not None and stored.begun)
        if low is None:
            low = stored.low if stored is not None else committed
        plan = plan_start(stored, committed=committed, low=low, era=stored.era if stored else "", new=new)
        if not told:
            # Nobody said that anything is committed, and what is not known to be committed may come again.
            known = stored.committed if stored is not None else None
            plan = replace(plan, progress=replace(plan.progress, committed=known))
        held.start(plan, begun=begun)
        if plan.replay_to > plan.replay_from:
            held.skip_to(plan.replay_to)
        return held.coverage

    def close(self, topic: str, partition: int) -> None:
        """Write what is completed and close the partition; what is in flight is forgotten and will come again."""
        held = self.partitions.pop((topic, partition), None)
        if held is not None:
            held.close()

    def lose(self, topic: str, partition: int) -> None:
        """Close a partition that belongs to somebody else now, without writing anything."""
        held = self.partitions.pop((topic, partition), None)
        if held is not None:
            held.abandon()

    def shut(self) -> None:
        """Close every partition, all of them, and then raise the first error there was.

        The store stays as open as others have it: they may use the same one for other partitions.
        """
        with contextlib.ExitStack() as closing:
            for store in self._opened.values():
                # One whose closing was interrupted is open still.
                closing.callback(store.close)
            for topic, partition in list(self.partitions):
                closing.callback(self.close, topic, partition)

    # --- records -------------------------------------------------------------------------------------------------

    def admit(self, records: Sequence[Record]) -> list[Verdict]:
        """Judge records; the verdicts have their length and order.

        A partition that is not open is opened as that of a new group. A record that is in flight already is `PARKED`
        and ends with the first of it. All of them are admitted, or none: raises `ConfigurationError` for an offset or a timestamp that
        is no number of 64 bits, `MissingIdError` when the strategy says ``on_missing_id="fail"`` and a record has no ID, and
        `StoreError` when a store cannot be opened, read or written. What is found out too late for that, because it fails after the
        verdicts are known, is raised by the next call. A record whose unit is not whole yet is `PARKED` (reason ``unit``): see
        `settle_units`.
        """
        self._raise_late()
        offsets, timestamps = columns_of(records)
        indexes_of: dict[tuple[str, int], list[int]] = {}
        for index, record in enumerate(records):
            indexes_of.setdefault((record.topic, record.partition), []).append(index)
        batches: list[tuple[list[int], list[Record], Ids]] = []
        for indexes in indexes_of.values():
            indexes.sort(key=offsets.__getitem__)
            batch = [records[index] for index in indexes]
            ids = self.keys.digests(RecordFields(batch))
            self.refuse_missing(
                ids, batch[0].topic, batch[0].partition, [offsets[index] for index in indexes]
            )
            batches.append((indexes, batch, ids))
        ready = [self._ready(batch, ids) for _, batch, ids in batches]
        verdicts: list[Verdict | None] = [None] * len(records)
        for (indexes, batch, ids), (held, find) in zip(batches, ready, strict=True):
            for run in _ascending(batch):
                missing = {i - run.start: why for i, why in ids.missing.items() if run.start <= i < run.stop}
                judged = self._admit(
                    held, batch[run], timestamps[indexes[run]], Ids(ids.digests[run], missing), find
                )
                for index, verdict in zip(indexes[run], judged, strict=True):
                    verdicts[index] = verdict
        # Duplicates complete by themselves, and what may be committed has to be in the store.
        self._late = self._written(held for held, _ in ready)
        return [verdict for verdict in verdicts if verdict is not None]

    def _ready(self, batch: list[Record], ids: Ids) -> tuple[Partition, Find]:
        """Run every step that can fail (open the store, write pending marks, look up) before a record is admitted."""
        coordinates = batch[0].topic, batch[0].partition
        if coordinates not in self.partitions:
            self.open(*coordinates)
        held = self.partitions[coordinates]
        if not held.begun:
            held.begin(batch[0].offset)
        held.persist()
        return held, looked_up(held.store.find, held.memory.asks_for(ids.digests))

    def _admit(
        self, held: Partition, batch: list[Record], timestamps: Int64s, ids: Ids, find: Find
    ) -> list[Verdict]:
        offsets = [record.offset for record in batch]
        chunks = held.admit(offsets, timestamps, ids, batch, discard_unkeyed=self._discard_unkeyed, find=find)
        verdicts = [chunk.verdict(row) for chunk in chunks for row in range(len(chunk.offsets))]
        # Not before: what is settled by that is told once.
        self.look_across(held)
        return verdicts

    def _written(self, ended: Iterable[Partition]) -> StoreError | None:
        """Write what was completed; return what failed."""
        try:
            for held in ended:
                held.persist()
            self.trim()
        except StoreError as error:
            return error
        return None

    def _raise_late(self) -> None:
        late, self._late = self._late, None
        if late is not None:
            raise late

    def refuse_missing(self, ids: Ids, topic: str, partition: int, offsets: Sequence[int]) -> None:
        """Raise `MissingIdError` for the first record without an ID where the strategy says so."""
        if (
            ids.missing
            and self.strategy.on_missing_id == "fail"
            and not self.strategy.window_of(topic).is_off
        ):
            index, reason = min(ids.missing.items())
            raise MissingIdError(
                f"{topic}[{partition}]@{offsets[index]} has no ID ({reason}) by {self.strategy.id}; correct the ID spec, or "
                "choose on_missing_id='process' or 'discard'"
            )

    def look_across(self, held: Partition) -> None:
        """Have the gates of a partition look at others, after records of it came."""
        for gate in held.gates:
            for event in gate.look_across():
                self.count(event)

    def settle_units(self, *, at_end: bool = True) -> list[Settled]:
        """Return the records of earlier calls whose unit became whole, was rejected or failed since; those that took too long fail now.

        ``at_end``: whether there is nothing more to admit; false where you know of records to come. Only while it is true, in two calls one
        after the other, time goes by for units. Ask after each `admit`, and now and then while nothing comes. Sorted by offset in each partition; those whose verdict says
        ``deliver`` are to be delivered. Raises `StoreError` where what they complete cannot be written, and there is nothing to return.
        """
        for held in self.partitions.values():
            for name in held.tick(at_end=at_end):
                held.give_up(name)
        touched = [held for held in self.partitions.values() if held.due]
        settled = [
            Settled(chunk.items[row], chunk.verdict(row))
            for held in touched
            for chunk, row in held.take_due()
        ]
        failed = self._written(touched)
        if failed is not None and not settled:
            raise failed
        self._late = failed or self._late
        return settled

    def complete(self, records: Iterable[Record]) -> list[Settled]:
        """Remember records as done; return the parked ones that are judged now, ascending by offset in each partition.

        Those whose verdict says ``deliver`` are to be delivered before new ones; the others were duplicates after all. Raises
        `StoreError` where it cannot be written; where there is something to return, the next `admit` does so.
        """
        return self._end(records, Partition.complete)

    def release(self, records: Iterable[Record]) -> list[Settled]:
        """Hand records back (their handler failed): each is returned to be delivered again, attempt + 1."""
        return self._end(records, Partition.release)

    def dead_letter(self, records: Iterable[Record]) -> list[Settled]:
        """Remember records as done that were sent to a dead-letter topic; as `complete`, and counted as dead-lettered."""
        return self._end(records, partial(Partition.complete, dead_lettered=True))

    def _end(
        self, records: Iterable[Record], end: Callable[[Partition, list[int]], list[RecordRef]]
    ) -> list[Settled]:
        offsets: dict[tuple[str, int], list[int]] = {}
        for record in records:
            offsets.setdefault((record.topic, record.partition), []).append(record.offset)
        settled, touched = [], []
        for coordinates, ended in offsets.items():
            held = self.partitions.get(coordinates)
            if held is None:
                self.counters.stale += len(ended)
                continue
            places = {place.offset: place for place in [*end(held, ended), *held.judged]}
            settled += [
                Settled(chunk.items[row], chunk.verdict(row)) for _, (chunk, row) in sorted(places.items())
            ]
            touched.append(held)
        failed = self._written(touched)
        if failed is not None and not settled:
            raise failed
        # Else it waits: with it what settled would be gone.
        self._late = failed or self._late
        return settled

    def next_offset(self, topic: str, partition: int) -> int | None:
        """Return the offset that may be committed: everything before it is completed.

        None for a partition that is not open, or whose history begins with a record that has not come yet.
        """
        held = self.partitions.get((topic, partition))
        return held.flight.high if held is not None and held.begun else None

    # --- upkeep --------------------------------------------------------------------------------------------------

    def trim(self) -> None:
        """Flush partitions to sorted files while too many marks are in memory, or a journal is too long."""
        for held in self.partitions.values():
            if held.started and held.writer.flush_due(self._recent_marks):
                held.flush()
        while sum(map(_recent, self.partitions.values())) > self._recent_marks:
            fullest = max(self.partitions.values(), key=_recent)
            before = fullest.writer.recent
            fullest.flush()
            if fullest.writer.recent == before:
                break
        for held in self.partitions.values():
            if (
                held.writer.disk_full
                and self._forgets_unwritten
                and held.writer.unwritten_weight > 4 * self._recent_marks
            ):
                held.writer.forget_unwritten()
        if self._store.excess_bytes():
            self._relieve()

    def _relieve(self) -> None:
        """While the store takes more room than it may, drop the oldest marks of the partition that remembers longest.

        "Longest" is by its own clock. To drop the oldest timestamps of all partitions would empty a partition that
        lags.
        """
        while self._store.excess_bytes():
            held = max(self.partitions.values(), key=lambda held: held.writer.reach_ms, default=None)
            if held is None or not held.writer.evict():
                return

    @property
    def disk_full(self) -> bool:
        """Whether some partition's disk is full, so that what is completed is in memory only."""
        return any(map(_disk_full, self.partitions.values()))

    def write_again(self) -> bool:
        """Try to write what full disks refused; True when everything is written.

        Raises `StoreError` when a store cannot be opened again.
        """
        # All of them are tried: one that is still full says nothing of another's disk.
        written = [held.writer.write_again() for held in self.partitions.values() if held.writer.disk_full]
        return all(written)

    @property
    def effective_window_ms(self) -> int | None:
        """The shortest time in ms over which marks are known, of all open partitions; None without a window by time."""
        known = [held.writer.effective_window_ms for held in self.partitions.values() if held.started]
        return min((window_ms for window_ms in known if window_ms is not None), default=None)

    # --- events --------------------------------------------------------------------------------------------------

    def tell(self, event: PartitionEvent) -> None:
        """Count an event, write it to the log, and tell the observers that want to know."""
        logger.warning(
            "%s[%d]: %s: %s; going on at %d", event.topic, event.partition, event.name, event.detail, event.offset
        )  # fmt: skip
        self.count(event)

    def count(self, event: PartitionEvent) -> None:
        """Count an event, and tell the observers that want to know."""
        self.counters.events[event.name] = self.counters.events.get(event.name, 0) + 1
        self.inform(event)

    def inform(self, event: PartitionEvent) -> None:
        """Tell the observers that want to know, and nobody else."""
        for observer in self._observers:
            listen: Callable[[PartitionEvent], None] | None = getattr(observer, "partition_event", None)
            if listen is not None:
                try:
                    listen(event)
                except Exception:
                    self.counters.observer_errors += 1
                    logger.exception("an observer failed at %s; going on", event.name)


def _ascending(batch: list[Record]) -> list[slice]:
    """Cut records sorted by offset where an offset repeats: a partition is fed strictly ascending."""
    cuts = [0, *(i for i in range(1, len(batch)) if batch[i].offset == batch[i - 1].offset), len(batch)]
    return [slice(start, end) for start, end in pairwise(cuts) if end > start]
