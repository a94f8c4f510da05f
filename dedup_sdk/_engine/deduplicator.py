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
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dedup_sdk._checks import callables, flag, text, whole
from dedup_sdk._core.flight import RecordRef
from dedup_sdk._core.reach import plan_start
from dedup_sdk._engine.gates import Gate, Gatekeeper
from dedup_sdk._engine.partition import Partition
from dedup_sdk._engine.prefetch import columns_of, looked_up
from dedup_sdk._interruptions import is_interruption
from dedup_sdk._marks import Coverage, Find, Int64s
from dedup_sdk._masking import shown
from dedup_sdk._observe import Counters, Observer, PartitionEvent
from dedup_sdk._record import Record, Settled, Verdict
from dedup_sdk._store.ephemeral import EphemeralStore
from dedup_sdk._store.memory import MemoryStore
from dedup_sdk._store.protocol import DIGEST_NAME, Identity, KeyStore
from dedup_sdk._strategy import Strategy, Terms
from dedup_sdk._window import Window
from dedup_sdk.errors import ConfigurationError, MissingIdError, StoreError
from dedup_sdk.ids import Ids, IdSpec, RecordFields
from dedup_sdk.ids._spec import GroupKeys

logger = logging.getLogger("dedup_sdk")

_MOST_OFFSET: Final = 2**63 - 1
_STEPS_BEHIND: Final = 3
"""Steps of a flush in one call where more marks have come meanwhile than begin one."""
_FAR_BEHIND: Final = 2
"""Marks in memory, in multiples of `recent_marks`, from which on a flush is done to its end in one call."""
_disk_full, _recent = attrgetter("writer.disk_full"), attrgetter("writer.recent")


class Deduplicator:
    """Gives each record a verdict, and remembers the IDs of completed ones.

    Admit the records of a partition in offset order. A record that you must deliver is *in flight* until `complete`,
    `release` or `dead_letter` ends it; only a completed one is remembered. Completed IDs are in the store when
    `complete` returns.

    Args:
        strategy: how duplicates are recognised.
        store: where IDs are kept; in memory by default. Several engines may share one, each with its own partitions.
        cluster: the Kafka cluster of the records; with ``group`` and ``isolation`` part of the store's identity.
        group: the consumer group that owns the marks.
        isolation: which records count: ``read_committed``, or ``read_uncommitted``.
        observers: functions called with every final verdict.
        clock: returns seconds since the epoch. It decides which marks may be dropped and which units are overdue, never
            a verdict.
        tolerates_full_disk: if the store's disk is full, keep completed IDs in memory and go on, instead of raising
            `StoreUnavailableError`. They survive a crash only after `write_again` has written them.
        forgets_unwritten: bound the memory of such IDs: above four times the store's ``recent_marks`` they are dropped,
            and records that depend on them are unverified. Set it to False if you admit no record while `disk_full`.

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
        clock: Callable[[], float] = time.time,
        tolerates_full_disk: bool = False,
        forgets_unwritten: bool = True,
    ) -> None:
        _refuse_unusable(strategy, store, clock, cluster=cluster, group=group, isolation=isolation)
        flag("tolerates_full_disk", tolerates_full_disk)
        flag("forgets_unwritten", forgets_unwritten)
        self.strategy = strategy
        self.counters = Counters()
        self.partitions: dict[tuple[str, int], Partition] = {}
        self._store = MemoryStore() if store is None else store
        self._recent_marks = self._store.recent_marks
        self._forgets_unwritten = forgets_unwritten
        self._observers = list(callables("observers", observers))
        self.is_observed = bool(self._observers)
        self.keys = GroupKeys(strategy.keys, group)
        """Reads the keys of records, including dead letters of this group that are sent again."""
        self._cluster = cluster
        self._group = group
        self._isolation = isolation
        self._clock = clock
        self._tolerates_full_disk = tolerates_full_disk
        self._late: StoreError | None = None
        self._opened: dict[tuple[str, int], Callable[[], None]] = {}
        """Ends what was opened for each partition, without writing; harmless when repeated.

        Here until that is done: an exception of a signal may strike the end of a partition, or of its gates."""
        self.gatekeeper: Gatekeeper | None = None
        """See `share`."""
        self._is_in_doubt: Callable[[], bool] = bool
        """See `write_unless`."""
        self.waits_for_time = strategy.waits_for_time
        """Whether gates may wait for records with a timeout, so that the owner must call `tick`."""
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
        """See `dedup_sdk._store.protocol.KeyStore.lock_wait_s`."""
        return self._store.lock_wait_s

    @property
    def store_folder(self) -> Path | None:
        """See `dedup_sdk._store.protocol.KeyStore.path`."""
        return self._store.path

    def terms_of(self, topic: str) -> Terms:
        """Return the strategy's terms for a topic; topics with the same window have the same object."""
        if self._everywhere is not None:
            return self._everywhere
        window = self.strategy.window_of(topic)
        terms = self._terms.get(window)
        if terms is None:
            terms = self.strategy.terms(window, digest=DIGEST_NAME, isolation=self._isolation)
            self._terms[window] = terms
        return terms

    def share(self, gatekeeper: Gatekeeper) -> None:
        """Have partitions ask this gatekeeper before records are delivered; only before a partition is opened."""
        self.gatekeeper = gatekeeper

    def write_unless(self, is_in_doubt: Callable[[], bool]) -> None:
        """Have partitions write nothing while this is true; only before a partition is opened."""
        self._is_in_doubt = is_in_doubt

    # --- partitions ----------------------------------------------------------------------------------------------

    def attach(
        self,
        topic: str,
        partition: int,
        *,
        topic_id: str = "",
        cluster: str | None = None,
    ) -> Partition:
        """Open a partition's store; how it starts is decided later, see `dedup_sdk._core.reach`.

        Several engines may share one store object; a partition that one of them has open is refused to the others, as
        to another process. An exception of a signal may come between opening a store and noting that it is open. So the
        engine keeps how to end all that it has opened, and does that before it opens the partition again.

        Raises the errors of `dedup_sdk._store.protocol.KeyStore.open`.
        """
        if (topic, partition) in self.partitions:
            raise ConfigurationError(f"{topic}[{partition}] is open already; close it first")
        terms = self.terms_of(topic)
        window = terms.window
        identity = self.identity_of(topic, partition, topic_id, cluster, terms)
        # One whose end was interrupted is open still.
        self.lose(topic, partition)
        gate: Gate | None = None
        if self.gatekeeper is not None:
            gate = self.gatekeeper.gate(
                topic, partition, window, cluster=identity.cluster, id_spec=identity.id_spec
            )
        store = self._store.open(identity, window)
        self._opened[topic, partition] = store.close
        try:
            opened = Partition(
                topic,
                partition,
                EphemeralStore(store, identity, window) if terms.ephemeral else store,
                terms,
                counters=self.counters,
                observers=self._observers,
                clock=self._clock,
                tolerates_full_disk=self._tolerates_full_disk,
                gates=() if gate is None else (gate,),
                all_partitions=self.partitions.values,
                is_in_doubt=self._is_in_doubt,
            )
        except BaseException:
            store.close()
            raise
        self._opened[topic, partition] = opened.abandon
        self.partitions[topic, partition] = opened
        return opened

    def set_aside(self, topic: str, partition: int, *, topic_id: str = "", cluster: str | None = None) -> str:
        """Move a partition's damaged store (`StoreCorruptError`) away, and return where it is kept.

        The next `open` begins with an empty one: give it ``low`` and ``committed``, so that it knows its missing part.
        Raises the errors of `dedup_sdk._store.protocol.KeyStore.set_aside`.
        """
        identity = self.identity_of(topic, partition, topic_id, cluster, self.terms_of(topic))
        kept = self._store.set_aside(identity)
        self.counters.stores_set_aside += 1
        return kept

    def identity_of(
        self, topic: str, partition: int, topic_id: str, cluster: str | None, terms: Terms
    ) -> Identity:
        """Return the identity of a partition's store; ``cluster`` None: the engine's."""
        return Identity(
            cluster=self._cluster if cluster is None else cluster,
            group=self._group,
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            id_spec=terms.id_spec,
            isolation=self._isolation,
        )

    def open(
        self, topic: str, partition: int, *, low: int | None = None, committed: int | None = None
    ) -> Coverage:
        """Open a partition and return its coverage.

        Args:
            topic: the name of the topic.
            partition: the number of the partition.
            low: the offset at which the group's history begins, without a gap since; None: the store's, else
                ``committed``.
            committed: the last committed offset of the group (the next one to read); None: the store's. Without both,
                and with a new store, the group is new: its history begins with the first record.

        Marks of ``[low, committed)`` that the store does not have stay missing, and the coverage says so.
        """
        for name, offset in (("low", low), ("committed", committed)):
            if offset is not None:
                advice = "an offset is a whole number, and not negative; leave it out if it is unknown"
                whole(name, offset, least=0, most=_MOST_OFFSET, advice=advice)
        opened = self.attach(topic, partition)
        stored = opened.loaded.progress if opened.loaded else None
        told, new = committed is not None, stored is None and committed is None
        if committed is None:
            committed = low or 0 if stored is None else max(stored.high, low or 0)
        begun = told or low is not None or (stored is not None and stored.begun)
        if low is None:
            low = stored.low if stored is not None else committed
        plan = plan_start(stored, committed=committed, low=low, era=stored.era if stored else "", new=new)
        if not told:
            # The caller gave no committed offset, so that records above the store's own may come again.
            known = stored.committed if stored is not None else None
            plan = replace(plan, progress=replace(plan.progress, committed=known))
        opened.start(plan, begun=begun)
        if plan.replay_to > plan.replay_from:
            opened.skip_to(plan.replay_to)
        return opened.coverage

    def close(self, topic: str, partition: int) -> None:
        """Write completed records and close the partition; records in flight are forgotten and must come again."""
        self._end_partition((topic, partition), Partition.close)

    def lose(self, topic: str, partition: int) -> None:
        """Close a partition that has another owner now, without writing; also one whose closing was interrupted."""
        self._end_partition((topic, partition), Partition.abandon)

    def _end_partition(self, coordinates: tuple[str, int], end: Callable[[Partition], None]) -> None:
        opened = self.partitions.pop(coordinates, None)
        try:
            if opened is not None:
                end(opened)
        finally:
            # Last, because an interruption may come anywhere: what has not ended has to be found again.
            end_again = self._opened.get(coordinates)
            if end_again is not None:
                end_again()
                del self._opened[coordinates]

    def end_left(self) -> None:
        """End what an interruption left of partitions that are gone: their stores, and their claims."""
        for coordinates in self._opened.keys() - self.partitions.keys():
            self.lose(*coordinates)

    @property
    def opened(self) -> list[tuple[str, int]]:
        """Topic and partition of all that may be open; also where the end was interrupted."""
        return list(self._opened)

    def shut(self) -> None:
        """Close all partitions, then raise the first error, if there was one.

        The store object stays open: other engines may use it for other partitions.
        """
        with contextlib.ExitStack() as closing:
            for end in self._opened.values():
                # What an interrupted end has left.
                closing.callback(end)
            for topic, partition in list(self.partitions):
                closing.callback(self.close, topic, partition)

    # --- records -------------------------------------------------------------------------------------------------

    def admit(self, records: Sequence[Record]) -> list[Verdict]:
        """Judge records; return their verdicts, in the same order.

        A partition that is not open is opened as that of a new group. A record whose ID is in flight is `HELD`, and
        gets its verdict when that one ends. So is a record whose unit is not whole (reason ``unit``): see
        `settle_units`. A record that is in flight itself, by its offset, is `HELD`, too, and ends with the first one:
        no second verdict follows.

        All records are admitted, or none. Raises `ConfigurationError` for an offset or a timestamp that does not fit
        into 64 bits, `MissingIdError` if the strategy says ``on_missing_id="fail"`` and a record has no ID, and
        `StoreError` if a store cannot be opened, read or written. An error that comes after the verdicts are known is
        raised by the next call.
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
        for (indexes, batch, ids), (partition, find) in zip(batches, ready, strict=True):
            for run in _ascending(batch):
                missing = {i - run.start: why for i, why in ids.missing.items() if run.start <= i < run.stop}
                judged = self._admit(
                    partition, batch[run], timestamps[indexes[run]], Ids(ids.digests[run], missing), find
                )
                for index, verdict in zip(indexes[run], judged, strict=True):
                    verdicts[index] = verdict
        # Duplicates complete by themselves; their marks must be in the store before a commit passes them.
        self._late = self._written(partition for partition, _ in ready)
        return [verdict for verdict in verdicts if verdict is not None]

    def _ready(self, batch: list[Record], ids: Ids) -> tuple[Partition, Find]:
        """Run every step that can fail (open the store, write pending marks, look up) before a record is admitted."""
        coordinates = batch[0].topic, batch[0].partition
        if coordinates not in self.partitions:
            self.open(*coordinates)
        partition = self.partitions[coordinates]
        if not partition.begun:
            partition.begin(batch[0].offset)
        partition.persist()
        return partition, looked_up(partition.store.find, partition.memory.asks_for(ids.digests))

    def _admit(
        self, partition: Partition, batch: list[Record], timestamps: Int64s, ids: Ids, find: Find
    ) -> list[Verdict]:
        offsets = [record.offset for record in batch]
        chunks = partition.admit(
            offsets, timestamps, ids, batch, discard_unkeyed=self._discard_unkeyed, find=find
        )
        verdicts = [chunk.verdict(row) for chunk in chunks for row in range(len(chunk.offsets))]
        # After the verdicts were read, so that a record that this settles is not reported twice.
        self.look_across(partition)
        return verdicts

    def _written(self, ended: Iterable[Partition]) -> StoreError | None:
        """Write completed records; return the error, None without one."""
        try:
            for partition in ended:
                partition.persist()
            self.trim()
        except StoreError as error:
            return error
        return None

    def _raise_late(self) -> None:
        late, self._late = self._late, None
        if late is not None:
            raise late

    def refuse_missing(self, ids: Ids, topic: str, partition: int, offsets: Sequence[int]) -> None:
        """Raise `MissingIdError` for the first record without an ID, if the strategy says ``on_missing_id="fail"``."""
        if (
            ids.missing
            and self.strategy.on_missing_id == "fail"
            and not self.strategy.window_of(topic).is_off
        ):
            index, reason = min(ids.missing.items())
            raise MissingIdError(
                f"{topic}[{partition}]@{offsets[index]} has no ID ({reason}) by {self.strategy.id}; correct the ID "
                "spec, or choose on_missing_id='process' or 'discard'"
            )

    def look_across(self, partition: Partition) -> None:
        """Have the gates of a partition look at the other partitions, after records of it came."""
        for gate in partition.gates:
            for event in gate.look_across():
                self.count(event)

    def settle_units(self, *, at_end: bool = True) -> list[Settled]:
        """Return the records of earlier calls whose unit became whole, was rejected, or failed since.

        Call it after each `admit`, and now and then while no record comes: a unit that waits too long fails in here.
        ``at_end``: there is no more record to admit now; pass False if you know of records to come. Time counts for
        units only between two successive calls with True. The records are ascending by offset in each partition;
        deliver those whose verdict says ``deliver``. Raises `StoreError` if completed ones cannot be written, and there
        is no record to return; if there is one, the next `admit` raises it.
        """
        for partition in self.partitions.values():
            for name in partition.tick(at_end=at_end):
                partition.give_up(name)
        touched = [partition for partition in self.partitions.values() if partition.due]
        settled = [
            Settled(chunk.items[row], chunk.verdict(row))
            for partition in touched
            for chunk, row in partition.take_due()
        ]
        failed = self._written(touched)
        if failed is not None and not settled:
            raise failed
        self._late = failed or self._late
        return settled

    def complete(self, records: Iterable[Record]) -> list[Settled]:
        """Complete records; return the waiting ones that get their verdict now, ascending by offset in each partition.

        Deliver those whose verdict says ``deliver`` before new ones; the others are duplicates. Raises `StoreError` if
        it cannot be written, and there is no record to return; if there is one, the next `admit` raises it.
        """
        return self._end(records, Partition.complete)

    def release(self, records: Iterable[Record]) -> list[Settled]:
        """Release records (e.g. their handler failed): each is returned, to be delivered again, with attempt + 1."""
        return self._end(records, Partition.release)

    def dead_letter(self, records: Iterable[Record]) -> list[Settled]:
        """Complete records that were sent to a dead-letter topic; as `complete`, and counted as dead-lettered."""
        return self._end(records, partial(Partition.complete, dead_lettered=True))

    def _end(
        self, records: Iterable[Record], end: Callable[[Partition, list[int]], list[RecordRef]]
    ) -> list[Settled]:
        offsets: dict[tuple[str, int], list[int]] = {}
        for record in records:
            offsets.setdefault((record.topic, record.partition), []).append(record.offset)
        settled, touched = [], []
        for coordinates, ended in offsets.items():
            partition = self.partitions.get(coordinates)
            if partition is None:
                self.counters.stale += len(ended)
                continue
            places = {place.offset: place for place in [*end(partition, ended), *partition.judged]}
            settled += [
                Settled(chunk.items[row], chunk.verdict(row)) for _, (chunk, row) in sorted(places.items())
            ]
            touched.append(partition)
        failed = self._written(touched)
        if failed is not None and not settled:
            raise failed
        # Raised later: an exception now would lose the settled records.
        self._late = failed or self._late
        return settled

    def next_offset(self, topic: str, partition: int) -> int | None:
        """Return the offset that you may commit: all records before it are completed.

        None if the partition is not open, or if no record of a new group has come yet.
        """
        opened = self.partitions.get((topic, partition))
        return opened.flight.high if opened is not None and opened.begun else None

    # --- maintenance ---------------------------------------------------------------------------------------------

    def trim(self) -> None:
        """Flush partitions to sorted files if too many marks are in memory, or a journal is too long.

        One partition at a time, and of many marks one step a call, so that it takes a few milliseconds. It takes three
        where more marks have come meanwhile than begin a flush, and all where they are twice as many.
        """
        begun_with, steps = -1, 0
        while (partition := self._to_flush()) is not None:
            if partition.writer.flushing is None:
                begun_with = partition.writer.recent
            partition.flush_step()
            steps += 1
            if partition.writer.flushing is not None:
                behind = sum(map(_recent, self.partitions.values())) // self._recent_marks
                if behind < _FAR_BEHIND and steps >= (_STEPS_BEHIND if behind else 1):
                    break
            elif partition.writer.recent >= begun_with >= 0:
                # It keeps what it has, e.g. sources with records in flight.
                break
        for partition in self.partitions.values():
            if (
                partition.writer.disk_full
                and self._forgets_unwritten
                and partition.writer.unwritten_weight > 4 * self._recent_marks
            ):
                partition.writer.forget_unwritten()
        if self._store.excess_bytes():
            self._relieve()

    def _to_flush(self) -> Partition | None:
        """Return the partition whose flush is under way, else one that is to be flushed; None without any."""
        total, most = 0, -1
        fullest: Partition | None = None
        due: Partition | None = None
        for partition in self.partitions.values():
            if not partition.started:
                continue
            writer = partition.writer
            if writer.flushing is not None:
                return partition
            if writer.disk_full or writer.fenced:
                continue
            recent = writer.recent
            total += recent
            if recent > most:
                fullest, most = partition, recent
            if due is None and writer.flush_due(self._recent_marks, recent):
                due = partition
        return fullest if due is None and total > self._recent_marks else due

    def _relieve(self) -> None:
        """While the store is too large, drop the oldest file of the partition with the longest history.

        Length is measured by the partition's own newest record. Dropping the oldest timestamps of all partitions would
        empty a partition that lags.
        """
        while self._store.excess_bytes():
            partition = max(
                self.partitions.values(), key=lambda partition: partition.writer.reach_ms, default=None
            )
            if partition is None or not partition.writer.evict():
                return

    @property
    def disk_full(self) -> bool:
        """Whether the disk of a partition is full, so that completed IDs are in memory only."""
        return any(map(_disk_full, self.partitions.values()))

    def write_again(self) -> bool:
        """Try to write the steps that full disks refused; True when all are written.

        A store that does not open again for now waits for the next call, and `admit` raises `StoreUnavailableError`
        meanwhile. Raises `StoreError` if a store is damaged, or was written by another owner.
        """
        # All partitions, although one disk is still full: they may be on different disks.
        written = [
            partition.writer.write_again()
            for partition in self.partitions.values()
            if partition.writer.disk_full
        ]
        return all(written)

    @property
    def effective_window_ms(self) -> int | None:
        """The shortest time in ms over which marks are known, of all open partitions; None without a window by time."""
        known = [
            partition.writer.effective_window_ms
            for partition in self.partitions.values()
            if partition.started
        ]
        return min((window_ms for window_ms in known if window_ms is not None), default=None)

    # --- events --------------------------------------------------------------------------------------------------

    def tell(self, event: PartitionEvent) -> None:
        """Count an event, log it, and call the observers that take events."""
        logger.warning(
            "%s[%d]: %s: %s; going on at %d", event.topic, event.partition, event.name, event.detail, event.offset,
            extra={"event": event.name},
        )  # fmt: skip
        self.count(event)

    def count(self, event: PartitionEvent) -> None:
        """Count an event, and call the observers that take events."""
        self.counters.events[event.name] = self.counters.events.get(event.name, 0) + 1
        for observer in self._observers:
            listen: Callable[[PartitionEvent], None] | None = getattr(observer, "partition_event", None)
            if listen is not None:
                try:
                    listen(event)
                except Exception as error:
                    if is_interruption(error):
                        raise
                    self.counters.observer_errors += 1
                    logger.exception(
                        "an observer failed at %s; going on", event.name, extra={"event": "observer-failed"}
                    )


def _ascending(batch: list[Record]) -> list[slice]:
    """Return slices without a repeated offset, of records sorted by offset: a partition admits ascending ones only."""
    cuts = [0, *(i for i in range(1, len(batch)) if batch[i].offset == batch[i - 1].offset), len(batch)]
    return [slice(start, end) for start, end in pairwise(cuts) if end > start]


def is_key_store(store: object) -> bool:
    """Whether an object has the attributes of a `KeyStore` that an engine reads at once."""
    return callable(getattr(store, "open", None)) and all(
        hasattr(store, name) for name in ("path", "recent_marks")
    )


def _refuse_unusable(
    strategy: object, store: object, clock: object, *, cluster: str, group: str, isolation: str
) -> None:
    """Raise `ConfigurationError` for what is no setting of an engine."""
    if not isinstance(getattr(strategy, "id", None), IdSpec):
        raise ConfigurationError(
            f"strategy={shown(strategy)}: give e.g. Lookup(id=header('dedup-id'), window=Window(days=7))"
        )
    if store is not None and (isinstance(store, type) or not is_key_store(store)):
        raise ConfigurationError(f"store={shown(store)}: give a key store, e.g. RocksStore('var/dedup')")
    if not callable(clock):
        raise ConfigurationError(
            f"clock={shown(clock)}: give a function that returns seconds, e.g. time.time"
        )
    for name, value in (("cluster", cluster), ("group", group), ("isolation", isolation)):
        text(name, value)
