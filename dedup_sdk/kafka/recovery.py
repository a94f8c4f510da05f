"""How a partition comes up to date before it delivers: a ladder of rungs, each taken only where it gains ground.

1. `_open_store`: the local store, if it is of this log and this rule.
2. `log_check.start_in_the_log`: whether the log still is the one that store and group saw; `_checked` for the completions above the offset that the commit's text tells.
3. `start_from_snapshot`: a snapshot, where the marks of a whole window are missing.
4. `replay`: the tail of the topic, up to the committed offset.
5. `_where_to_begin`: where that history is gone, coverage begins later.

A generator that does a few milliseconds of work a step, so that it runs beside the poll loop and a rebalance never waits for it. Each step yields
None to go on at once, or a `Wait`.

`RecoveryLoop` has recoveries side by side, in slices that fit between two polls: it says which of them goes on, which waits, and which partitions may
deliver.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk.core.reach import NOTHING_KNOWN, StartPlan, plan_start
from dedup_sdk.core.source_keys import lacked_fallback
from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.engine.partition import Partition
from dedup_sdk.errors import (
    DedupError,
    ForeignStoreError,
    RecoveryError,
    SnapshotError,
    StoreCorruptError,
    StoreError,
    StoreLockedError,
    StoreUnavailableError,
)
from dedup_sdk.kafka.assignment import (
    CATCHING_UP,
    RECOVERING,
    Assigned,
    Coordinates,
    LogChange,
    Start,
    Starts,
    State,
    Steps,
    Wait,
)
from dedup_sdk.kafka.client import ANSWER_S, Client, EndProbe, MetadataRequests
from dedup_sdk.kafka.client_errors import is_retriable
from dedup_sdk.kafka.commit_text import CommitMetadata, CompletedAbove, Void, log_name
from dedup_sdk.kafka.commits import Beginning, Commits
from dedup_sdk.kafka.guards import CallbackErrors
from dedup_sdk.kafka.log_check import bears_witness, start_in_the_log, until_where_it_is_the_same
from dedup_sdk.kafka.reader import Readers, TailReader
from dedup_sdk.kafka.settings import ClientSettings
from dedup_sdk.observe import EventName, Hindrance, PartitionEvent
from dedup_sdk.store.manifest import Manifest, PartitionManifest, fitting_partition
from dedup_sdk.store.protocol import Identity
from dedup_sdk.store.snapshot_source import Source, fetched, find_snapshots, scratch
from dedup_sdk.window import Window

logger = logging.getLogger("dedup_sdk")

LOCK_NEWS_S = 1.0
"""Seconds after which it is news that a partition waits for its store: a hand-over takes less."""
LOCK_LOOK_S = 0.01
"""Seconds between two looks whether another process has let a store go, at first."""
MAX_LOCK_LOOK_S = 1.0
"""The same after a long wait."""
SILENT_S = 1.0
"""Seconds without a record after which a replay lets others go first."""
SILENT_LOOK_S = 0.1
"""Seconds between two looks of such a replay."""
ROOM_LOOK_S = 0.2
"""Seconds between two looks whether a full disk has room again."""
TELL_EVERY_S = 5.0
"""Seconds between two lines in the log that say how far a replay is."""

History = Literal["none", "assume-processed"]
OnFullDisk = Literal["pause", "unverified"]
SameUntil = Callable[[int, int], Generator[None, None, int | None]]

_OF_THE_RULE = ("format", "id_spec", "digest", "isolation", "window")
"""Fields of a store's identity that say by which rule, or in which format, it was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySettings:
    """The user's choices: where snapshots are, and whether an unknown past counts as processed."""

    snapshot: tuple[str, ...]
    """Folders, folders of several snapshots, and URLs."""
    history: History
    on_full_disk: OnFullDisk = "pause"
    store_folder: Path | None = None
    """Next to it a remote snapshot is fetched to; None: where temporary files go."""
    timeout_s: float | None = None
    """Seconds after which a partition starts without the rest of its past; None: never."""


@dataclass(slots=True)
class Recovery:
    """The state that the rungs of one recovery share, and its news for the log and for observers."""

    assigned: Assigned
    engine: Deduplicator
    client: Client
    settings: ClientSettings
    chosen: RecoverySettings
    cluster: str
    topic_id: str
    until: float | None = None
    """When (monotonic seconds) the partition starts without the rest of its past; None: never."""
    set_aside: bool = False
    """Whether its store was damaged, so that recovery began with an empty one."""
    notes: list[str] = field(default_factory=list)
    told: bool = False
    """Whether observers know of it; there are no events where nothing is read or installed, because the store knows all."""

    def out_of_time(self) -> bool:
        """Whether `until` has come."""
        return self.until is not None and time.monotonic() >= self.until

    def reader(self) -> closing[TailReader]:
        """Return a reader of the partition, for a ``with``."""
        return closing(self.client.tail_reader(self.assigned.topic, self.assigned.partition))

    def event(self, name: EventName, detail: str, offset: int | None = None) -> PartitionEvent:
        """Return an event of this partition, by default at its start."""
        start = self.assigned.start
        if offset is None:
            offset = -1 if start is None else start.offset
        return PartitionEvent(name, self.assigned.topic, self.assigned.partition, offset, detail)

    def begin(self, detail: str) -> None:
        """Something is going to be replayed or installed; observers hear of the first."""
        self.assigned.replay(detail)
        if not self.told:
            self.told = True
            self.engine.inform(self.event("recovery-started", detail))

    def progress(self, offset: int, detail: str) -> None:
        """A replay has come to an offset."""
        self.assigned.replay(detail)
        self.engine.inform(self.event("recovery-progress", detail, offset))


def recover(
    assigned: Assigned,
    engine: Deduplicator,
    client: Client,
    settings: ClientSettings,
    chosen: RecoverySettings,
) -> Steps[None]:
    """Bring one partition up to date; when the generator ends, ``assigned.held`` may be fed from its start on.

    Raises `StoreError`, `SnapshotError` or `RecoveryError`; nothing is delivered then.
    """
    began = time.monotonic()
    start = assigned.start
    if start is None:
        raise RecoveryError(f"{assigned.topic}[{assigned.partition}] has no start")
    at = Recovery(
        assigned, engine, client, settings, chosen,
        cluster=client.cluster_id(), topic_id=client.topic_id(assigned.topic),
    )  # fmt: skip
    assigned.identify(log_name(at.cluster, at.topic_id))
    at.until = None if chosen.timeout_s is None else assigned.taken_at + chosen.timeout_s
    held = yield from _open_store(at)
    start, told_epoch = yield from _as_far_as_believed(at, start, held)
    while True:
        plan = _plan(held, start, client, chosen)
        cut: LogChange | None = None
        if plan.replay_to > plan.replay_from and start.log_change is None:
            # Nobody has handled the records that the log has now in the place of those to be folded.
            cut = yield from _cut_before(start, held, client)
        if cut is None:
            if start is not assigned.start:
                assigned.begin_at(start)
            plan = yield from _from_store_or_snapshot(at, start, held, plan)
            cut = yield from _replay_tail(at, start, held, plan)
            if cut is None:
                break
            # It was cut meanwhile: among the replayed records may be some that nobody has handled.
            held.begin_with(None)
        change = cut if start.log_change is None else start.log_change._replace(same_until=cut.same_until)
        start = yield from _in_the_log(at, replace(start, log_change=change), held)
    done = None if start.metadata is None or plan.beginning == "rewound" else start.metadata.done
    if done is not None:
        # Records that the group completed elsewhere above its committed offset are hidden.
        held.tell_completed(done.ranges, told_epoch)
    held.read_from(start.offset)
    if start.metadata is not None and held.flight.high == start.offset:
        held.flight.learn_epoch(start.metadata.epoch)
    new = start.new and plan.progress.since_ms is None
    note, seconds = ", ".join(at.notes), time.monotonic() - began
    complete = new if start.metadata is None else start.metadata.complete
    assigned.be_ready(held, complete=complete, told=done, note=note, seconds=seconds)
    if at.told:
        engine.inform(at.event("recovery-ended", f"{note}, {seconds:.2f} s"))


# --- the first rung: the local store ------------------------------------------------------------------------------------


def _open_store(at: Recovery) -> Steps[Partition]:
    """Open the partition's store, once whoever has it lets it go; one that is damaged, or means nothing here, is set aside."""
    assigned, engine = at.assigned, at.engine
    began, waited_s = time.monotonic(), -1.0
    while True:
        try:
            return engine.attach(assigned.topic, assigned.partition, topic_id=at.topic_id, cluster=at.cluster)
        except StoreLockedError as error:
            before_s, waited_s = waited_s, time.monotonic() - began
            _tell_of_the_lock(at, error, waited_s, before_s)
            yield Wait(min(MAX_LOCK_LOOK_S, max(LOCK_LOOK_S, waited_s / 10)), "lock")
        except StoreCorruptError as damage:
            _set_damaged_aside(at, damage)
            yield None
        except ForeignStoreError as error:
            recreated = error.field == "topic_id" and bool(at.topic_id)
            if not recreated and error.field not in _OF_THE_RULE:
                raise
            kept = _set_aside(at)
            if kept is not None:
                name: EventName = "topic-recreated" if recreated else "rule-changed"
                engine.tell(at.event(name, f"{error}; it is kept as {kept}"))
            yield None


def _set_damaged_aside(at: Recovery, damage: StoreCorruptError) -> None:
    """Have recovery begin with an empty store, and say so once: the marks of the damaged one are rebuilt from the topic."""
    try:
        kept = _set_aside(at)
    except StoreError as error:
        raise RecoveryError(str(error)) from damage
    if kept is not None:
        at.set_aside = True
        at.engine.inform(at.event("store-damaged", f"{damage}; it is kept as {kept}"))
        logger.error(
            "%s[%d]: its damaged store is kept as %s, and recovery begins with an empty one: %s",
            at.assigned.topic, at.assigned.partition, kept, damage,
        )  # fmt: skip


def _set_aside(at: Recovery) -> str | None:
    """Move the partition's store out of the way; None where another process opened it meanwhile: the next look waits for that one."""
    topic, partition = at.assigned.topic, at.assigned.partition
    try:
        return at.engine.set_aside(topic, partition, topic_id=at.topic_id, cluster=at.cluster)
    except StoreLockedError:
        return None


def _tell_of_the_lock(at: Recovery, error: StoreLockedError, waited_s: float, before_s: float) -> None:
    """Say once that a partition waits for its store, where that takes longer than a hand-over, and once more, as a warning, later.

    ``before_s``: how long it had waited at the last look.
    """
    topic, partition, limit_s = at.assigned.topic, at.assigned.partition, at.engine.lock_wait_s
    if before_s < limit_s <= waited_s:
        detail = f"waited {limit_s:g} s and goes on waiting; nothing is delivered meanwhile: {error}"
        logger.warning("%s[%d]: store-locked: %s", topic, partition, detail)
        at.engine.count(at.event("store-locked", detail))
    elif before_s < LOCK_NEWS_S <= waited_s < limit_s:
        logger.info("%s[%d] waits for its store: %s", topic, partition, error)


# --- the second rung: whether history is of this log and this rule (see also log_check) ----------------------------------


def _as_far_as_believed(at: Recovery, start: Start, held: Partition) -> Steps[tuple[Start, int | None]]:
    """Return where to start, with as much of the group's history as is of this log and this rule.

    Also the leader epoch of the last record that the commit's text calls completed above its offset; None without one.
    """
    assigned = at.assigned
    if start.metadata is not None and not start.metadata.is_of(assigned.log):
        start = _without_another_log(assigned, start, start.metadata)
    if start.rule not in (None, held.terms.rule):
        start = _without_another_rule(assigned, start, held)
    if start.void is not None:
        _tell_why_void(assigned, start, start.void, at.chosen)
    start = yield from _in_the_log(at, start, held)
    if start.metadata is None or start.metadata.done is None:
        return start, None
    return (yield from _checked(start, start.metadata, start.metadata.done, held, at.engine, at.client))


def _in_the_log(at: Recovery, start: Start, held: Partition) -> Steps[Start]:
    """Return where to start in the log as it is now: asked only where store and group do not agree on all that is completed."""
    if start.new or (
        held.loaded is not None
        and held.loaded.progress.high == start.offset
        and start.log_change is None
        and (start.reopened or not held.loaded.progress.done)
    ):
        # Asking takes a while, for each partition; the client tells where the log ends below the next offset to read.
        return start
    return (yield from start_in_the_log(start, held, at.engine, at.client, at.settings, until=at.until))


def _without_another_log(assigned: Assigned, start: Start, metadata: CommitMetadata) -> Start:
    """Leave out a commit's text about another log: a tool that copies groups translates offsets, not the text beside them."""
    if metadata.is_of_one_before(assigned.log):
        # A topic takes its group's offsets along when it is deleted: this one is of a consumer that did not hear of it.
        return replace(
            start,
            metadata=None,
            void=Void.TOPIC_BEFORE,
            void_rule=start.rule,
            at_once=True,
            log_change=LogChange(),
        )
    logger.warning(
        "%s[%d]: the text beside the committed offset %d is of another log (%s, this one is %s): was the group copied from another "
        "cluster? What came before is unverified", assigned.topic, assigned.partition, start.offset, metadata.log, assigned.log,
    )  # fmt: skip
    # The broker's answer about its epochs compares this log with itself.
    change = None if start.log_change is None else start.log_change._replace(same_until=None)
    return replace(
        start, metadata=None, void=Void.OTHER_LOG, void_rule=start.rule, at_once=True, log_change=change
    )


def _without_another_rule(assigned: Assigned, start: Start, held: Partition) -> Start:
    """Let the history begin where the group stands, where marks were made by another rule than now.

    Records that another ID spec or strategy hid were never handled: folded by this one, they would count as handled. Marks that are there stay: they
    were made by this rule.

    During a rolling deploy members with the old rule and with the new one void each other's texts at each hand-over:
    more is delivered as unverified, nothing is lost.
    """
    logger.warning(
        "%s[%d]: up to offset %d the group went by another rule (%s, now %s): was the ID spec, the strategy, the kind of window or "
        "isolation.level changed? Nothing before it counts as handled; what depends on it is unverified until the window has filled",
        assigned.topic, assigned.partition, start.offset, start.rule, held.terms.rule,
    )  # fmt: skip
    # Nor may the user vouch for it: what the other rule hid was handled by nobody.
    return replace(start, metadata=None, void=Void.OTHER_RULE, at_once=True)


def _tell_why_void(assigned: Assigned, start: Start, void: Void, chosen: RecoverySettings) -> None:
    """Say why nothing is known of the group's history; another log, or another rule, was told by then."""
    if void in (Void.TOPIC_BEFORE, Void.OTHER_LOG, Void.OTHER_RULE):
        return
    vouched = chosen.history == "assume-processed"
    logger.log(
        logging.INFO if vouched or void is Void.NO_TEXT else logging.WARNING,
        "%s[%d]: the group has committed %d, and %s: %s",
        assigned.topic, assigned.partition, start.offset, void.value,
        "history='assume-processed' vouches for what came before" if vouched else "what came before is unverified until the window has filled",
    )  # fmt: skip


def _checked(
    start: Start,
    metadata: CommitMetadata,
    done: CompletedAbove,
    held: Partition,
    engine: Deduplicator,
    client: Client,
) -> Steps[tuple[Start, int | None]]:
    """Believe a commit's text about offsets completed above it only where the log has the last of these records.

    Return its leader epoch, too: the log may be cut before the partition has read up to there.
    """
    there = yield from bears_witness(done.witness, held, engine, client)
    if there.same:
        return start, there.epoch
    logger.warning(
        "%s[%d]: the text beside offset %d names a record at %d as completed which the log does not have: what is completed above "
        "that offset is not known, and is handed out again", held.topic, held.partition, start.offset, done.witness.offset,
    )  # fmt: skip
    return replace(start, metadata=replace(metadata, done=None), at_once=True), None


def _cut_before(start: Start, held: Partition, client: Client) -> Steps[LogChange | None]:
    """Return how the log parts from the one that the group committed, None where it does not, or nobody can say."""
    same_until = yield from until_where_it_is_the_same(start, held.topic, held.partition, client)
    return LogChange(same_until) if same_until is not None and same_until < start.offset else None


# --- the plan: how much the rungs above leave to do ---------------------------------------------------------------------


def _plan(held: Partition, start: Start, client: Client, chosen: RecoverySettings) -> StartPlan:
    """Say how the partition starts, from what its store holds and the group has committed."""
    stored = held.loaded.progress if held.loaded else None
    where = held.topic, held.partition
    if start.new and stored is not None and stored.begun:
        logger.warning(
            "%s[%d]: the group has no committed offset, but its store has offsets %d to %d: were its commits deleted, or did they "
            "expire? It begins anew at %d; what came before is unverified", *where, stored.low, stored.high, start.offset,
        )  # fmt: skip
    low, era, complete = start.offset, stored.era if stored else "", False
    if start.metadata is not None:
        low, era, complete = start.metadata.low, start.metadata.era, start.metadata.complete
    elif chosen.history == "assume-processed" and start.is_unvouched:
        low = client.bounds(*where)[0]
    plan = plan_start(
        stored,
        committed=start.offset,
        low=low,
        era=era,
        complete=complete,
        new=start.new,
        vouched=start.metadata is not None,
    )
    if start.is_unvouched and (stored is None or stored.committed is None or start.offset < stored.committed):
        # As far as is known here the group was set back: a new era tells it to hosts whose stores know more, whatever is committed meanwhile.
        plan = replace(plan, progress=replace(plan.progress, era=secrets.token_hex(4)))
    if stored is not None and plan.beginning == "resumed" and start.offset < (stored.committed or 0):
        logger.warning(
            "%s[%d]: a commit of %d came after that of %d, in the same era: nobody set the group back, so that nothing is handled "
            "again", *where, start.offset, stored.committed,
        )  # fmt: skip
    unknown = stored is not None and stored.committed is None and not start.reopened
    if plan.keep and unknown and plan.progress.high > start.offset:
        logger.warning(
            "%s[%d]: its store takes offsets up to %d for processed, and the group has committed %d: those between were completed "
            "here, or a restored snapshot vouches for them, and are not delivered; if nobody processed them, remove the store",
            *where, plan.progress.high, start.offset,
        )  # fmt: skip
    if start.reopened:
        # Offsets that were not committed yet must not look committed: after a crash the group's offset would seem to be set back.
        plan = replace(plan, progress=replace(plan.progress, committed=start.acknowledged))
    return plan


def _from_store_or_snapshot(at: Recovery, start: Start, held: Partition, plan: StartPlan) -> Steps[StartPlan]:
    """Begin with the marks of the store, of a snapshot, or with none; return the rest of the plan."""
    assigned = at.assigned
    if plan.beginning == "rewound":
        detail = "the group's offsets were set back below what this store knows to be committed"
        at.engine.inform(at.event("rewound", detail, start.offset))
        if at.engine.gatekeeper is not None:
            at.engine.gatekeeper.rewound(assigned.topic, assigned.partition)
    at.notes = [plan.beginning]
    if plan.whole and not held.forgets and at.chosen.snapshot and not at.out_of_time():
        identity = Identity(
            cluster=at.cluster, group=at.settings.group, topic=assigned.topic, partition=assigned.partition,
            topic_id=at.topic_id, id_spec=held.terms.id_spec, isolation=at.settings.isolation,
        )  # fmt: skip
        with at.reader() as reader:
            plan, note = yield from start_from_snapshot(
                held, plan, at.chosen.snapshot, identity, at.chosen.store_folder, at.begin, reader.same_until
            )
        at.notes.append(note)
    else:
        held.start(plan)
    if at.set_aside:
        at.notes.append("damaged store set aside")
        if plan.beginning == "new" and not held.forgets:
            # Nothing was committed, and yet there was a store, which may have had marks.
            held.memory.forget_all()
    return plan


# --- the third rung: a snapshot -----------------------------------------------------------------------------------------


class _Fit(NamedTuple):
    """A snapshot that fits: its part for the partition, and the plan once it is in."""

    source: Source
    part: PartitionManifest
    plan: StartPlan

    @property
    def tail(self) -> int:
        return self.plan.replay_to - self.plan.replay_from


def start_from_snapshot(
    held: Partition,
    plan: StartPlan,
    places: Iterable[str],
    identity: Identity,
    beside: Path | None,
    begin: Callable[[str], object] = lambda _: None,
    same_until: SameUntil | None = None,
) -> Steps[tuple[StartPlan, str]]:
    """Start a partition from the snapshot that fits best, else as planned; return the rest of the plan, and a note.

    The best is the one that leaves the least to be replayed, and of these the newest. One line in the log says why others were
    passed over. ``beside``: the store's folder, next to which a remote one is fetched to. ``begin`` gets a line about the one that is going to be
    installed. ``same_until(offset, epoch)`` asks the broker up to where its log before an offset is that of a leader epoch.

    Raises `SnapshotError` where no snapshot can be read, or every one that fits is damaged.
    """
    found, passed_over = find_snapshots(places)
    yield None
    fits: list[_Fit] = []
    for source in found:
        try:
            part = _fitting(source.place, source.manifest, held, plan, identity)
            yield from _check_log(source.place, part, same_until)
        except SnapshotError as misfit:
            passed_over.append(str(misfit))
        else:
            after = _after(part, plan)
            fits.append(
                _Fit(source, part, _resharded(part, after) if source.manifest.resharded_from else after)
            )
    fits.sort(key=lambda fit: (fit.tail, -fit.source.manifest.created_ms))
    damage: SnapshotError | None = None
    for rank, fit in enumerate(fits):
        begin(f"installing snapshot {fit.source.place}, then {fit.tail} offsets to replay")
        try:
            with scratch(beside) as folder:
                here = yield from fetched(fit.source, (fit.part,), folder)
                yield from held.install(here, fit.plan, move=fit.source.remote is not None)
        except SnapshotError as error:
            damage = error
            passed_over.append(str(error))
            continue
        passed_over += [f"{other.source.place} leaves {other.tail} offsets" for other in fits[rank + 1 :]]
        if passed_over:
            logger.info(
                "%s[%d]: snapshot %s taken, which leaves %d offsets; passed over: %s",
                held.topic, held.partition, fit.source.place, fit.tail, "; ".join(passed_over),
            )  # fmt: skip
        return fit.plan, f"snapshot of {fit.part.marks} marks"
    if damage is not None:
        raise damage
    logger.warning("%s[%d]: snapshot not taken: %s", held.topic, held.partition, "; ".join(passed_over))
    held.start(plan)
    return plan, "snapshot not taken"


def _fitting(
    folder: str | Path, manifest: Manifest, held: Partition, plan: StartPlan, identity: Identity
) -> PartitionManifest:
    """Return the snapshot's part for this partition; raises `SnapshotError` that says why it must not be taken.

    A cut beyond the committed offset would make duplicates of records that this group never handled; so would the
    history of another group, unless the user vouches for it by giving a snapshot that was made without one.
    """
    lacked = lacked_fallback(manifest.id_spec, identity.id_spec)
    if lacked is not None:
        message = (
            f"snapshot {folder} has the sources, and nothing of what otherwise= looks up; the topic is read instead. "
            f"Make it with dedup backfill --otherwise {lacked} and the --otherwise-window of the consumer's Lookup"
        )
        raise SnapshotError(message)
    part = fitting_partition(
        folder, manifest, identity, plan.progress, numbered=held.window.count is not None
    )
    ours, theirs = held.window, Window.parse(manifest.window)
    if (ours.count or 0) > (theirs.count or 0) or (ours.count is None and theirs.count is not None):
        raise SnapshotError(
            f"its window is {theirs}, here it is {ours}, and ranks cannot be made up; make one with this window"
        )
    claims_history = part.low < part.high
    if not manifest.vouched and claims_history and part.low < plan.progress.low:
        raise SnapshotError(
            f"it begins at offset {part.low}, before this group's own history at {plan.progress.low}; make one with --group"
        )
    return part


def _check_log(folder: str | Path, part: PartitionManifest, same_until: SameUntil | None) -> Steps[None]:
    """Refuse a snapshot of records that the log no longer has; where nobody knows that, it is taken."""
    if same_until is None or part.epoch is None or part.low == part.high:
        return
    end = yield from same_until(part.high, part.epoch)
    if end is not None and end < part.high:
        raise SnapshotError(
            f"snapshot {folder} reaches offset {part.high} of leader epoch {part.epoch}, which ends at {end} in the log now: "
            "the log was cut since; make a new one"
        )


def _after(part: PartitionManifest, plan: StartPlan) -> StartPlan:
    """Return the plan once the snapshot is in: offsets between its cut and the committed offset are replayed."""
    progress = plan.progress
    if part.high < progress.low:
        # Nobody vouches for the offsets between its cut and the group's own beginning.
        progress = replace(progress, high=progress.low, newest_ms=part.newest_ms, accepted=part.accepted)
        if progress.since_ms is not None:
            progress = replace(progress, since_ms=NOTHING_KNOWN, since_number=part.accepted)
    else:
        progress = replace(progress, high=part.high, newest_ms=part.newest_ms, accepted=part.accepted)
        if plan.beginning != "new":
            progress = replace(progress, since_ms=part.since_ms, since_number=part.since_number)
        if part.low > progress.low and part.since_ms is None:
            # It knows all from its own beginning on, which is later than the group's.
            progress = replace(progress, since_ms=NOTHING_KNOWN, since_number=part.accepted)
    return replace(plan, progress=progress, replay_from=progress.high, whole=False)


def _resharded(part: PartitionManifest, plan: StartPlan) -> StartPlan:
    """Return the plan where marks of other partitions came in: also in one that is new they are known only since then."""
    since_ms = part.since_ms
    if since_ms is None:
        return plan
    known_ms = plan.progress.since_ms
    return replace(
        plan,
        progress=replace(plan.progress, since_ms=since_ms if known_ms is None else max(known_ms, since_ms)),
    )


# --- the fourth rung: a replay, from where history is not gone (the fifth) -------------------------------------------------


def _replay_tail(at: Recovery, start: Start, held: Partition, plan: StartPlan) -> Steps[LogChange | None]:
    """Fold the missing tail, if any; return how the log was cut meanwhile, if it was."""
    if plan.replay_to <= plan.replay_from:
        return None
    with at.reader() as reader:
        cut = yield from replay(at, held, plan, reader)
    at.notes.append(f"replayed {at.assigned.replayed} records")
    return cut or (yield from _cut_before(start, held, at.client))


def replay(at: Recovery, held: Partition, plan: StartPlan, reader: TailReader) -> Steps[LogChange | None]:
    """Fold the IDs of the tail into the marks; return how the log was cut if it no longer goes as far, or has records of a later epoch there."""
    first, decided = reader.bounds()
    last = decided if plan.replay_to <= decided else reader.log_end()
    if plan.replay_to > last:
        return LogChange()
    if held.forgets:
        held.skip_to(plan.replay_to)
        return None
    if at.out_of_time() or plan.replay_to > decided:
        _give_up_waiting(at, held, plan)
        return None
    begin = yield from _where_to_begin(held, plan, reader, first)
    at.begin(f"replaying offsets {begin} to {plan.replay_to}")
    return (yield from _fold(at, held, plan, reader, begin))


def _fold(
    at: Recovery, held: Partition, plan: StartPlan, reader: TailReader, begin: int
) -> Steps[LogChange | None]:
    watch = ReplayWatch(f"{held.topic}[{held.partition}]", begin, plan.replay_to, at.until, at.progress)
    epoch = None if at.assigned.start is None else at.assigned.start.leader_epoch
    reached, heard = begin, time.monotonic()
    for piece in reader.slices(begin, plan.replay_to, at.engine.keys):
        if watch.is_over:
            _give_up_waiting(at, held, plan)
            return None
        if piece is None:
            # The broker is away, or has much that is left out: others go first.
            yield Wait(SILENT_LOOK_S, "broker") if time.monotonic() - heard >= SILENT_S else None
            continue
        if epoch is not None and piece.epoch is not None and piece.epoch > epoch:
            # Before it is written: later nobody could tell it from records that were handled.
            return LogChange(piece.offsets[0])
        held.fold(piece.offsets, piece.timestamps, piece.digests, piece.end)
        reached, heard = piece.end, time.monotonic()
        at.assigned.replay(at.assigned.note, len(piece.offsets))
        watch.note(piece.end)
        at.engine.trim()
        yield None
        while held.writer.disk_full and at.chosen.on_full_disk == "pause":
            # Marks that are folded now could not be kept.
            yield Wait(ROOM_LOOK_S, "store")
    if reached < plan.replay_to:
        return LogChange()
    if held.flight.high < plan.replay_to:
        held.fold([], np.empty(0, np.int64), [], plan.replay_to)
    return None


def _give_up_waiting(at: Recovery, held: Partition, plan: StartPlan) -> None:
    """Start without the records that were not replayed in time."""
    held.skip_to(plan.replay_to)
    detail = "recovery_timeout is over; what hangs on the rest is unverified until the window has filled"
    at.engine.tell(at.event("recovery-timeout", detail, plan.replay_to))


def _where_to_begin(held: Partition, plan: StartPlan, reader: TailReader, first: int) -> Steps[int]:
    """Return the offset of the first record to fold; coverage begins later where records that could matter are gone from the log."""
    begin = there = min(max(plan.replay_from, first), plan.replay_to)
    if plan.whole and held.window.time_ms is not None and not held.hangs_on_order:
        begin = yield from _one_window_back(held, reader, there, plan.replay_to)
        # Asked again, because retention may have taken records since: then the window seems to begin where the log does.
        first = max(first, reader.bounds()[0])
        there = min(max(plan.replay_from, first), plan.replay_to)
        begin = max(begin, there)
    if first > plan.replay_from and begin == there:
        # Had the window begun behind it, nothing that is gone could matter.
        logger.warning(
            "%s[%d]: offsets %d to %d are gone from the log; what hangs on them is unverified until the window has filled",
            held.topic, held.partition, plan.replay_from, first,
        )  # fmt: skip
        held.memory.pass_uncounted(first - plan.replay_from)
        held.memory.forget_all()
    return begin


def _one_window_back(held: Partition, reader: TailReader, low: int, end: int) -> Steps[int]:
    """Return where a fold may begin that gives every mark alive at ``end``, and note from when the marks are known."""
    newest_ms = yield from reader.newest_before(end, low)
    if newest_ms is None:
        return low
    # A record from the future counts as now: from its own timestamp the window would reach too little.
    since_ms = held.memory.reach.horizon_ms(min(newest_ms, int(time.time() * 1000)))
    first = reader.first_at(since_ms)
    if first is None or first <= low:
        return low
    held.memory.reach.begin_at(since_ms)
    return min(first, end)


class ReplayWatch:
    """Follows one partition's replay of offsets ``[start, end)``; ``until`` (seconds of ``clock``) is when it has to be over.

    ``tell`` gets each line, with the offset that is reached.
    """

    def __init__(
        self,
        name: str,
        start: int,
        end: int,
        until: float | None,
        tell: Callable[[int, str], object] = lambda _offset, _line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._start, self._end, self._until, self._clock = name, start, end, until, clock
        self._tell = tell
        self._began = self._told = clock()

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._until is not None and self._clock() >= self._until

    def note(self, offset: int) -> None:
        """Write a line now and then, and tell it: how far it is, at which rate, and for how long still."""
        now = self._clock()
        if now - self._told < TELL_EVERY_S:
            return
        self._told = now
        rate = (offset - self._start) / (now - self._began)
        left = f"{(self._end - offset) / rate:.0f} s to go" if rate > 0 else "nothing has come yet"
        line = f"replayed up to offset {offset} of {self._end}, {rate:.0f} offsets a second, {left}"
        logger.info("%s: %s", self._name, line)
        self._tell(offset, line)


SLICE_S = 0.05
"""Seconds of recovery work in one poll, at most."""
AT_ONCE = 2
"""Partitions that recover at the same time."""
TOGETHER_S = 0.5
"""Seconds that a partition which is up to date waits, at most, for others whose recovery goes on, to begin with them."""
ASK_AGAIN_S = 0.5
"""Seconds between two attempts to commit where a history begins, or to repeat a step that failed here."""
UNKNOWN_S = 10.0
"""Seconds after which a topic or partition that the client, or a broker, has not heard of does not exist."""
_UNKNOWN_PARTITION: Final = KafkaError._UNKNOWN_PARTITION  # noqa: SLF001 (that is its public name)

MOST_ANSWER_S: Final = 4.0
"""The most of it, for a broker that takes long."""
BACKOFF_S: Final = 60.0
"""Seconds for which brokers are asked with care after one has not answered."""
AGAIN_S: Final = 0.5
"""Seconds until a partition asks again after its first failure; each further one doubles them."""
MOST_AGAIN_S: Final = 8.0
"""The most of it."""
LOOK_S: Final = 0.02
"""Seconds between two looks for an answer that nobody waits for."""
_TIMES: Final = 4.0
"""How many times as long as the last one a question may take."""
_LONG_S: Final = 0.1
_REST_TIMES: Final = 3.0
_MOST_REST_S: Final = 2.0
Clock = Callable[[], float]

_state, _failures = attrgetter("state"), attrgetter("failures")


class Backoff:
    """Says how long a poll may wait for a broker, and which recoveries may have it wait.

    Recovery asks brokers, and a poll waits for the answers. Where one was not given in time, the next recoveries begin only when
    the leader of their partition has answered a question that nobody waits for: a broker that hangs costs the others one short wait,
    and a slow one is given the time that it needs.
    """

    def __init__(self, questions: MetadataRequests, readers: Readers, clock: Clock = time.monotonic) -> None:
        self._questions, self._readers, self._clock = questions, readers, clock
        self._active_until = self._rest_until = 0.0
        self._probes: dict[tuple[str, int], EndProbe] = {}
        readers.set_timeout(ANSWER_S)

    @property
    def is_active(self) -> bool:
        """Whether some broker did not answer lately."""
        return self._clock() < self._active_until

    def note_silence(self) -> None:
        """Note that some broker did not answer."""
        self._active_until = self._clock() + BACKOFF_S

    @property
    def rests(self) -> bool:
        """Whether polls have waited enough for now, so that active partitions have their turn."""
        return self._clock() < self._rest_until

    def may_begin(self, assigned: Assigned) -> bool:
        """Whether a recovery may ask brokers now, and how long for; false while its leader does not answer."""
        now = self._clock()
        if self._readers.timeout_s != (answer_s := assigned.answer_s or ANSWER_S):
            self._readers.set_timeout(answer_s)
        if assigned.recovery is not None or now >= self._active_until:
            return True
        coordinates = assigned.topic, assigned.partition
        probe = self._probes.get(coordinates)
        if probe is None:
            probe = self._probes[coordinates] = self._questions.probe(*coordinates)
        if not probe.is_over:
            assigned.wait_until(now + LOOK_S, "broker" if now - probe.began > ANSWER_S else None)
            return False
        del self._probes[coordinates]
        if not probe.is_answered:
            self._put_off(assigned, now, "broker")
            return False
        assigned.wait_until(assigned.ask_at, None)
        assigned.give_time(min(max(ANSWER_S, _TIMES * (probe.took_s or 0.0)), MOST_ANSWER_S))
        self._readers.set_timeout(assigned.answer_s)
        return True

    def took(self, seconds: float) -> None:
        """Note how long a step of a recovery took: while brokers are slow, others have several times as much."""
        if self._readers.timeout_s != ANSWER_S:
            self._readers.set_timeout(ANSWER_S)
        if seconds > _LONG_S and self.is_active:
            self._rest_until = self._clock() + min(_REST_TIMES * seconds, _MOST_REST_S)

    def failed(self, assigned: Assigned) -> None:
        """Note that a question was not answered."""
        self.note_silence()
        self._put_off(assigned, self._clock(), assigned.waits_for)

    def put_off(self, partitions: Iterable[Assigned]) -> None:
        """Have these not ask before a while, because the same question was not answered to another."""
        again = self._clock() + AGAIN_S
        for assigned in partitions:
            assigned.wait_until(max(assigned.ask_at, again), assigned.waits_for)

    def forget(self, topic: str, partition: int) -> None:
        """Take no answer any more for a partition that went."""
        self._probes.pop((topic, partition), None)

    def _put_off(self, assigned: Assigned, now: float, hindrance: Hindrance | None) -> None:
        pause_s = AGAIN_S * 2 ** min(assigned.count_failure() - 1, 8)
        assigned.wait_until(now + min(pause_s, MOST_AGAIN_S), hindrance)
        self._questions.renew()


class RecoveryLoop:
    """Brings the partitions in ``assigned`` that recover a little further, poll by poll. Errors are kept in ``callback_errors``, for `poll` to raise."""

    def __init__(
        self,
        assigned: Mapping[Coordinates, Assigned],
        engine: Deduplicator,
        client: Client,
        settings: ClientSettings,
        chosen: RecoverySettings,
        *,
        callback_errors: CallbackErrors,
        starts: Starts,
        backoff: Backoff,
        commits: Commits,
    ) -> None:
        self._assigned = assigned
        self._engine, self._client, self._settings, self._chosen = engine, client, settings, chosen
        self._callback_errors, self._starts, self._backoff, self._commits = (
            callback_errors,
            starts,
            backoff,
            commits,
        )
        self._begin_by = 0.0
        self.hurried = False
        """Whether some recovery could go on at once."""

    def work(self) -> list[Assigned]:
        """Go on with the recoveries, for at most `SLICE_S`; return the partitions that may deliver now.

        The readers of the topics' tails are closed where nothing recovers any more.
        """
        if not any(map(RECOVERING.__contains__, map(_state, self._assigned.values()))):
            self.hurried = False
            self._client.readers.close()
            return []
        until = time.monotonic() + SLICE_S
        while True:
            now = time.monotonic()
            # Those that are through make room for the next: many short recoveries fit into one poll.
            busy = [
                each for each in self._assigned.values() if each.state in CATCHING_UP and each.ask_at <= now
            ]
            self.hurried = bool(busy) and not self._backoff.rests
            if now >= until or not self.hurried:
                break
            # Those that failed ask last: a broker that does not answer holds up no others.
            for assigned in sorted(busy, key=_failures)[:AT_ONCE]:
                self._step(assigned)
                if time.monotonic() >= until:
                    break
        finished = [each for each in self._assigned.values() if each.state is State.ANNOUNCING]
        if not finished:
            return []
        begun, now = self._announced(finished), time.monotonic()
        # They begin in few groups: a fetch that waits for records of the first group holds up the fetch of the next.
        self._begin_by = self._begin_by or now + TOGETHER_S
        if not begun or (self.hurried and now < self._begin_by):
            return []
        self._begin_by = 0.0
        return begun

    def _step(self, assigned: Assigned) -> None:
        """Bring a partition a little further."""
        began = time.monotonic()
        try:
            if not self._backoff.may_begin(assigned):
                return
            if assigned.start is None:
                self._find_start(assigned)
                return
            if assigned.recovery is None:
                if not self._client.is_described(assigned.topic) and not self._client.describe(
                    {each.topic for each in self._assigned.values() if each.state in RECOVERING}
                ):
                    assigned.wait_until(time.monotonic() + LOOK_S, assigned.waits_for)
                    return
                steps = recover(assigned, self._engine, self._client, self._settings, self._chosen)
                assigned.begin_recovery(steps)
            else:
                steps = assigned.recovery
            wait = next(steps)
            if wait is None:
                assigned.wait_until(assigned.ask_at, None)
            else:
                assigned.wait_until(time.monotonic() + wait.seconds, wait.hindrance)
        except StopIteration:
            assigned.end_recovery()
        except BaseException as error:
            assigned.recover_anew()
            self._engine.lose(assigned.topic, assigned.partition)
            if not isinstance(error, DedupError | KafkaException):
                if isinstance(error, Exception) and assigned.start is not None:
                    assigned.blame(assigned.start.offset)
                raise
            self._note_failure(assigned, error)
        finally:
            self._backoff.took(time.monotonic() - began)

    def _note_failure(self, assigned: Assigned, error: DedupError | KafkaException) -> None:
        """Have a recovery begin again later, or the error raised."""
        now = time.monotonic()
        hindrance: Hindrance | None = assigned.waits_for
        if isinstance(error, StoreUnavailableError):
            if hindrance != "store":
                logger.warning("%s[%d] waits for its store: %s", assigned.topic, assigned.partition, error)
            hindrance = "store"
        assigned.wait_until(now + ASK_AGAIN_S, hindrance)
        if isinstance(error, StoreUnavailableError):
            return
        if isinstance(error, KafkaException) and (
            is_retriable(error) or (_is_unknown_topic(error) and assigned.silent_s(now) <= UNKNOWN_S)
        ):
            self._backoff.failed(assigned)
            logger.warning("%s[%d]: recovery goes on later: %s", assigned.topic, assigned.partition, error)
        elif isinstance(error, KafkaException) and _is_unknown_topic(error):
            what = f"topic {assigned.topic!r} is unknown to the broker: {error}"
            self._callback_errors.keep(RecoveryError(f"{what}; does it exist, and may the group read it?"))
        else:
            self._callback_errors.keep(error)

    def _find_start(self, assigned: Assigned) -> None:
        """Ask where the group stands; a broker that does not answer now is asked again later."""
        wanted = TopicPartition(assigned.topic, assigned.partition, assigned.wanted)
        try:
            [committed] = self._client.committed([wanted], self._client.readers.timeout_s).values()
            assigned.starts_at(self._starts.start(wanted, committed))
            assigned.note_answer()
        except KafkaException as error:
            self._backoff.failed(assigned)
            self._backoff.put_off(each for each in self._assigned.values() if each.start is None)
            now = time.monotonic()
            if assigned.silent_s(now) > UNKNOWN_S and error.args[0].code() == _UNKNOWN_PARTITION:
                if self._client.knows_of(assigned.topic, assigned.partition):
                    # It has no leader for now, so that there is nobody to ask.
                    assigned.note_answer(now)
                    return
                raise RecoveryError(
                    f"{assigned.topic}[{assigned.partition}] is unknown to the broker: {error}; does the topic exist?"
                ) from error
            if not is_retriable(error):
                raise
            logger.warning(
                "%s[%d]: the group's offsets are not known yet (%s)",
                assigned.topic, assigned.partition, error,
            )  # fmt: skip

    def _announced(self, finished: list[Assigned]) -> list[Assigned]:
        """Return the partitions of which the group knows where their history begins; of others that is committed, again and again."""
        now = time.monotonic()
        known, due = [], []
        for assigned in finished:
            if (
                assigned.start is None
                or not assigned.start.at_once
                or assigned.commits.beginning is Beginning.KNOWN
            ):
                known.append(assigned)
            elif assigned.commits.beginning is Beginning.TO_ASK and assigned.ask_at <= now:
                assigned.wait_until(now + ASK_AGAIN_S, assigned.waits_for)
                due.append(assigned)
        if due:
            try:
                self._commits.beginnings(due)
            except KafkaException as error:
                logger.warning("the beginning of the history cannot be committed (%s); asking again", error)
        return known


def _is_unknown_topic(error: KafkaException) -> bool:
    """Whether a broker does not know the topic; it may just not have heard of it yet."""
    return bool(error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART)
