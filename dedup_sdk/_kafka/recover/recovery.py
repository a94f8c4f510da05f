"""Recovery of a partition between its assignment and its first delivery.

`recover` takes these steps, each only where it is needed:

1. `_open_store`: open the local store, if it belongs to this log and this rule.
2. `log_check.start_in_the_log`: check that the log is still the one that store and group read;
   `_verify_completed_above`: verify the completions above the committed offset in the commit's text.
3. `start_from_snapshot`: install a snapshot, where the marks of a whole window are missing.
4. `replay`: read the tail of the topic up to the committed offset.
5. `_replay_begin`: where records of that tail are gone from the log, let coverage begin later.

Terms: *low* and *high* (the watermark) bound the range that is completed without a gap. The *tail* is the part of the
log from the end of the marks to the committed offset. *Coverage*: the part of the window in which no mark is missing.

`recover` is a generator whose steps take a few milliseconds each, so that it runs between polls and no rebalance waits
for it. A step yields None to continue at once, or a `Wait`. `RecoveryLoop` runs several recoveries side by side, and
decides which continue, which wait, and which partitions may deliver.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

import numpy as np
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk._checks import choice, seconds
from dedup_sdk._core.reach import NOTHING_KNOWN, StartPlan, plan_start
from dedup_sdk._core.source_keys import lacked_fallback
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._engine.partition import Partition
from dedup_sdk._interruptions import is_interruption
from dedup_sdk._kafka.assign.assignment import (
    CATCHING_UP,
    RECOVERING,
    Assigned,
    Coordinates,
    LogChange,
    SetBack,
    Start,
    Starts,
    State,
    Steps,
    Wait,
    set_back,
)
from dedup_sdk._kafka.assign.commits import Beginning, Commits
from dedup_sdk._kafka.assign.log_check import ask_same_until, check_witness, read_witness, start_in_the_log
from dedup_sdk._kafka.client.client import ANSWER_S, Client, EndProbe, MetadataRequests
from dedup_sdk._kafka.client.client_errors import is_retriable
from dedup_sdk._kafka.client.commit_text import (
    CommitMetadata,
    CompletedAbove,
    InvalidReason,
    log_name,
    new_era,
)
from dedup_sdk._kafka.client.guards import CallbackErrors
from dedup_sdk._kafka.client.reader import Readers, TailReader
from dedup_sdk._kafka.client.settings import ClientSettings
from dedup_sdk._masking import counted, is_url, shown, shown_location
from dedup_sdk._metrics import EventName, Hindrance
from dedup_sdk._observe import PartitionEvent
from dedup_sdk._store.manifest import Manifest, PartitionManifest, fitting_partition
from dedup_sdk._store.protocol import Identity, Loaded
from dedup_sdk._store.snapshot_source import (
    SnapshotLocations,
    SnapshotSource,
    fetched,
    find_snapshots,
    scratch,
    snapshot_locations,
    why_unreadable,
)
from dedup_sdk._strategy import Lookup, Strategy
from dedup_sdk._window import Window, length_text
from dedup_sdk.errors import (
    ConfigurationError,
    DedupError,
    ForeignStoreError,
    RecoveryError,
    SnapshotError,
    StoreCorruptError,
    StoreError,
    StoreLockedError,
    StoreUnavailableError,
)

logger = logging.getLogger("dedup_sdk")

LOCK_LOG_AFTER_S = 1.0
"""Seconds after which the log says that a partition waits for the lock of its store: a hand-over takes less."""
LOCK_RETRY_S = 0.01
"""Seconds between two attempts to open a locked store, at first."""
MAX_LOCK_RETRY_S = 1.0
"""The same after a long wait."""
SILENT_S = 1.0
"""Seconds without a record after which a replay lets other recoveries go first."""
SILENT_RETRY_S = 0.1
"""Seconds between two attempts of such a replay to read."""
DISK_RETRY_S = 0.2
"""Seconds between two checks whether a full disk has room again."""
TELL_EVERY_S = 5.0
"""Seconds between two log lines about the progress of a replay."""

History = Literal["none", "assume-processed"]
WithoutCommit = Literal["resume", "reset"]
OnFullDisk = Literal["pause", "unverified"]
SameUntil = Callable[[int, int], Generator[None, None, int | None]]

_RULE_FIELDS = ("format", "id_spec", "digest", "isolation", "window")
"""Fields of a store's identity that name the rule and the format it was made with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How a partition gets the IDs that its store lacks, and how it goes on where that is not possible.

    Args:
        snapshot: a folder made by ``dedup backfill``, a folder of several, a URL (``s3://...``; needs
            ``dedup-sdk[remote]`` and fsspec's driver), or a list of these. If the local store is missing, the consumer
            installs the matching one that needs the shortest replay. Without one, the missing IDs are read from the
            topic, which takes longer, and reaches back only as far as the topic keeps its records.
        history: for a group that has committed offsets without this package. ``none``: no message before them is taken
            for handled, so that later copies of such messages are delivered (as unverified, until the window has
            passed). ``assume-processed``: all messages before them are, so that later copies are hidden; **if one of
            the messages was not handled, its copy is lost**. None: as ``none``, and each partition with such a
            commit logs a warning with both ways. The first start decides; ``dedup adopt`` changes ``none`` later.
        without_commit: for a group whose committed offsets are gone (they expired, or were deleted) while the store has
            the group's history. ``resume``: delivery goes on where the store ends, with one warning for each partition.
            ``reset``: delivery begins where ``auto.offset.reset`` says; all messages from there on are delivered again.
        set_back: for offsets below the committed one that your program assigns (``on_assign``, ``assign``). ``again``:
            all messages from there on are handled again. ``known``: the messages that the group has handled are not;
            delivery begins at the committed offset, unless the group's history does not reach back to yours. **Not for
            offsets that you keep elsewhere**: there, a lower offset says that messages were not handled. None: as
            ``again``, and the first such assignment logs a warning.
        timeout: seconds after which a partition starts although its store is not up to date: messages that depend on
            the missing part are delivered as unverified, and counted, until the window has passed; some of them are
            duplicates. None: the partition waits, and delivers nothing, until its store is up to date.
        on_full_disk: ``pause``: no new message is delivered until the store can be written. ``unverified``: messages go
            on, and their IDs are kept in memory only; when they become too many, they are dropped, and duplicates of
            them are delivered. Both end by themselves when there is room. Until then, a crash brings messages again
            that were completed since the last commit.

    Raises `ConfigurationError` for settings that are not valid, and for a snapshot that cannot be read as it stands: a
    URL without a driver, a file instead of a folder. A consumer reads one snapshot's manifest when it is made: where no
    folder has one that can be read, it logs a warning, because its stores may be up to date, and `SnapshotError` is
    raised when a partition needs the snapshot. URLs are tried only then.
    """

    snapshot: tuple[str, ...] = field(default=(), repr=False)  # a URL may contain a password
    history: History | None = None
    without_commit: WithoutCommit = "resume"
    set_back: SetBack | None = None
    timeout: float | None = None
    on_full_disk: OnFullDisk = "pause"

    if TYPE_CHECKING:
        # The constructor accepts more types than the fields have.
        def __init__(
            self,
            *,
            snapshot: SnapshotLocations | None = None,
            history: History | None = None,
            without_commit: WithoutCommit = "resume",
            set_back: SetBack | None = None,
            timeout: float | None = None,
            on_full_disk: OnFullDisk = "pause",
        ) -> None: ...

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` for the first invalid setting."""
        try:
            object.__setattr__(self, "snapshot", snapshot_locations(self.snapshot))
            if self.history is not None:
                choice("history", self.history, get_args(History))
            choice("without_commit", self.without_commit, get_args(WithoutCommit))
            if self.set_back is not None:
                choice("set_back", self.set_back, get_args(SetBack))
            if self.timeout is not None:
                seconds("timeout", self.timeout)
            choice("on_full_disk", self.on_full_disk, get_args(OnFullDisk))
        except ConfigurationError as error:
            raise ConfigurationError(f"Recovery(...): {error}") from None

    def check_strategy(self, strategy: Strategy) -> None:
        """Raise `ConfigurationError` for a snapshot that partitions of a strategy would never install."""
        if self.snapshot and isinstance(strategy, Lookup) and not strategy.persist:
            raise ConfigurationError(
                f"Recovery(...): snapshot={shown(', '.join(map(shown_location, self.snapshot)))} would never be "
                "installed: with persist=False a partition begins without IDs; leave snapshot out, or choose "
                "persist=True"
            )

    def try_folders(self) -> None:
        """Log a warning if no snapshot can be read; nothing with URLs, which are tried when a partition needs one."""
        if any(map(is_url, self.snapshot)):
            return
        if (error := why_unreadable(self.snapshot)) is not None:
            logger.warning(
                "Recovery(snapshot=...): no snapshot can be read now: %s. The consumer begins without it; poll() will "
                "raise this error if the store of a partition is missing or too old",
                error,
                extra={"event": "snapshot-unreadable"},
            )


@dataclass(slots=True)
class PartitionRecovery:
    """The shared state of the steps of one recovery, and its events for observers."""

    assigned: Assigned
    engine: Deduplicator
    client: Client
    settings: ClientSettings
    policy: Recovery
    cluster: str
    topic_id: str
    until: float | None = None
    """When (monotonic seconds) the partition starts without the rest of its history; None: never."""
    store_was_damaged: bool = False
    """Whether its store was damaged and set aside, so that recovery began with an empty store."""
    notes: list[str] = field(default_factory=list)
    start_reported: bool = False
    """Whether the event ``recovery-started`` was sent; there are no events where nothing is replayed or installed."""

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
        """Note that a replay or installation begins; the first one sends the event ``recovery-started``."""
        self.assigned.replay(detail)
        if not self.start_reported:
            self.start_reported = True
            self.engine.count(self.event("recovery-started", detail))

    def progress(self, offset: int, detail: str) -> None:
        """Note that a replay has reached an offset; send the event ``recovery-progress``."""
        self.assigned.replay(detail)
        self.engine.count(self.event("recovery-progress", detail, offset))


def recover(
    assigned: Assigned,
    engine: Deduplicator,
    client: Client,
    settings: ClientSettings,
    policy: Recovery,
) -> Steps[None]:
    """Recover one partition; at the end, ``assigned.engine_partition`` accepts records from the start offset on.

    Raises `StoreError`, `SnapshotError`, `RecoveryError` or `KafkaException`; nothing is delivered then.
    """
    began = time.monotonic()
    start = assigned.start
    if start is None:
        raise RecoveryError(f"{assigned.topic}[{assigned.partition}] has no start offset")
    recovery = PartitionRecovery(
        assigned, engine, client, settings, policy,
        cluster=client.cluster_id(), topic_id=client.topic_id(assigned.topic),
    )  # fmt: skip
    assigned.identify(log_name(recovery.cluster, recovery.topic_id))
    recovery.until = None if policy.timeout is None else assigned.taken_at + policy.timeout
    partition = yield from _open_store(recovery)
    start, done_epoch = yield from _validate_history(recovery, start, partition)
    while True:
        plan = start_plan(partition, start, client, policy)
        cut: LogChange | None = None
        if plan.replay_to > plan.replay_from and start.log_change is None:
            # The log may have other records at the offsets to replay, which were never handled.
            cut = yield from _find_log_cut(start, partition, client)
        if cut is None:
            if start is not assigned.start:
                assigned.begin_at(start)
            _keep_history(assigned, start, plan, partition.terms.rule)
            plan = yield from _from_store_or_snapshot(recovery, start, partition, plan)
            cut = yield from _replay_tail(recovery, start, partition, plan)
            if cut is None:
                break
            # The log was cut during the replay: some of the replayed records may never have been handled.
            partition.begin_with(None)
        change = cut if start.log_change is None else start.log_change._replace(same_until=cut.same_until)
        start = yield from _check_log_if_needed(recovery, replace(start, log_change=change), partition)
    done = None if start.metadata is None else start.metadata.done
    if done is not None:
        # Records above the committed offset that the group has completed already must be hidden.
        partition.tell_completed(done.ranges, done_epoch)
    partition.read_from(start.offset)
    if start.metadata is not None and partition.flight.high == start.offset:
        partition.flight.learn_epoch(start.metadata.epoch)
    note, seconds = ", ".join(recovery.notes), time.monotonic() - began
    # A store that jumped has marks from before the history that the next commit vouches for.
    own = plan.progress.is_complete and plan.beginning != "jumped"
    complete = own if start.metadata is None else start.metadata.complete
    assigned.be_ready(partition, complete=complete, completed_above=done, note=note, seconds=seconds)
    if recovery.start_reported:
        engine.count(recovery.event("recovery-ended", f"{note}, {seconds:.2f} s"))


def _keep_history(assigned: Assigned, start: Start, plan: StartPlan, rule: str) -> None:
    """Let the start keep the history that its store vouched for.

    If this attempt fails, the next one finds that store begun anew.
    """
    if start.metadata is None and plan.progress.low < start.offset:
        low, era = plan.progress.low, plan.progress.era
        kept = CommitMetadata(low=low, log=assigned.log, rule=rule, era=era, complete=False)
        assigned.learn(start, replace(start, metadata=kept))


# --- step 1: the local store ----------------------------------------------------------------------------------------


def _open_store(recovery: PartitionRecovery) -> Steps[Partition]:
    """Open the partition's store; wait while it is locked, and set it aside if damaged or of another topic or rule."""
    assigned, engine = recovery.assigned, recovery.engine
    began, waited_s = time.monotonic(), -1.0
    while True:
        try:
            return engine.attach(
                assigned.topic, assigned.partition, topic_id=recovery.topic_id, cluster=recovery.cluster
            )
        except StoreLockedError as error:
            before_s, waited_s = waited_s, time.monotonic() - began
            _report_lock_wait(recovery, error, waited_s, before_s)
            yield Wait(min(MAX_LOCK_RETRY_S, max(LOCK_RETRY_S, waited_s / 10)), "lock")
        except StoreCorruptError as damage:
            _quarantine_damaged_store(recovery, damage)
            yield None
        except ForeignStoreError as error:
            recreated = error.field == "topic_id" and bool(recovery.topic_id)
            if not recreated and error.field not in _RULE_FIELDS:
                raise
            kept = _quarantine_store(recovery)
            if kept is not None:
                name: EventName = "topic-recreated" if recreated else "rule-changed"
                engine.tell(recovery.event(name, f"{error}; it is kept as {kept}"))
            yield None


def _quarantine_damaged_store(recovery: PartitionRecovery, damage: StoreCorruptError) -> None:
    """Set the damaged store aside and report it; its marks are rebuilt from a snapshot or the topic."""
    try:
        kept = _quarantine_store(recovery)
    except StoreError as error:
        raise RecoveryError(str(error)) from damage
    if kept is not None:
        recovery.store_was_damaged = True
        recovery.engine.count(recovery.event("store-damaged", f"{damage}; it is kept as {kept}"))
        logger.error(
            "%s[%d]: its damaged store is kept as %s, and recovery begins with an empty one: %s",
            recovery.assigned.topic, recovery.assigned.partition, kept, damage,
            extra={"event": "store-damaged"},
        )  # fmt: skip


def _quarantine_store(recovery: PartitionRecovery) -> str | None:
    """Set the partition's store aside and return its new path; None where another process has opened it meanwhile."""
    topic, partition = recovery.assigned.topic, recovery.assigned.partition
    try:
        return recovery.engine.set_aside(
            topic, partition, topic_id=recovery.topic_id, cluster=recovery.cluster
        )
    except StoreLockedError:
        return None


def _report_lock_wait(
    recovery: PartitionRecovery, error: StoreLockedError, waited_s: float, before_s: float
) -> None:
    """Log that a partition waits for its store's lock: after `LOCK_LOG_AFTER_S` at INFO, after ``lock_wait`` a warning.

    ``waited_s`` and ``before_s``: the seconds waited so far, now and at the previous attempt.
    """
    topic, partition = recovery.assigned.topic, recovery.assigned.partition
    limit_s = recovery.engine.lock_wait_s
    if before_s < limit_s <= waited_s:
        detail = f"waited {limit_s:g} s and goes on waiting; nothing is delivered meanwhile: {error}"
        logger.warning("%s[%d]: store-locked: %s", topic, partition, detail, extra={"event": "store-locked"})
        recovery.engine.count(recovery.event("store-locked", detail))
    elif before_s < LOCK_LOG_AFTER_S <= waited_s < limit_s:
        logger.info(
            "%s[%d] waits for its store: %s", topic, partition, error, extra={"event": "store-waited-for"}
        )


# --- step 2: whether the history belongs to this log and this rule (see also log_check) -----------------------------


def _validate_history(
    recovery: PartitionRecovery, start: Start, partition: Partition
) -> Steps[tuple[Start, int | None]]:
    """Return where to start, with the part of the group's history that is valid for this log and this rule.

    Also the leader epoch of the last record completed above the committed offset, by the commit's text, or None.
    """
    assigned = recovery.assigned
    start = _start_with_store(assigned, start, partition, recovery.policy)
    if start.metadata is not None and not start.metadata.is_of(assigned.log):
        start = discard_other_log(assigned, start, start.metadata, recovery.policy)
    if start.rule not in (None, partition.terms.rule):
        start = _discard_other_rule(assigned, start, partition)
    if start.given is not None and start.metadata is None:
        start = replace(start, offset=start.given, given=None, must_commit_first=True)
    if start.void is not None:
        _log_void_reason(assigned, start, start.void, recovery.policy)
    start = yield from _check_log_if_needed(recovery, start, partition)
    if start.metadata is None or start.metadata.done is None:
        return start, None
    return (
        yield from _verify_completed_above(
            assigned, start, start.metadata, start.metadata.done, partition, recovery.engine, recovery.client
        )
    )


def _start_with_store(assigned: Assigned, start: Start, partition: Partition, policy: Recovery) -> Start:
    """Return the start of a group without a commit, or at an offset of the user's program, by what the store has.

    Without a commit nobody has moved the group: the store has its history. An offset that the program gave asks for the
    records from there on, as a seek does: if the store has completed one of them, the group is set back.
    """
    stored = None if partition.loaded is None else partition.loaded.progress
    if partition.loaded is None or stored is None or not stored.begun:
        if start.refused is not None:
            raise start.refused
        return start
    if start.new and start.by_reset and policy.without_commit == "resume":
        return _resume_without_commit(assigned, start, partition, partition.loaded)
    if start.refused is not None:
        raise start.refused
    if start.new:
        logger.warning(
            "%s[%d]: the group has no committed offset, but its store has offsets %d to %d. It begins at %d, as you "
            "have set, and records from there on are handled",
            assigned.topic, assigned.partition, stored.low, stored.high, start.offset,
            extra={"event": "commits-gone-reset"},
        )  # fmt: skip
        return replace(start, new=False)
    if not start.placed or stored.completed_end <= start.offset:
        return start
    metadata = None if start.metadata is None else set_back(start.metadata, start.offset)
    return replace(start, metadata=metadata, era=new_era(), must_commit_first=True)


def _resume_without_commit(assigned: Assigned, start: Start, partition: Partition, loaded: Loaded) -> Start:
    """Go on where the store ends: the group's commits are gone, which moves nobody.

    The store and the group enter a new era, in which the store keeps all that it knows. In the old one, which the group
    may have left since, the commit would vouch for what another host has completed before the group was set back.
    """
    stored = replace(loaded.progress, era=new_era())
    partition.begin_with(replace(loaded, progress=stored))
    otherwise = f"begin at {start.offset}"
    if start.refused is not None:
        otherwise = "raise an error"
    elif start.offset != stored.high:
        direction = "earlier" if start.offset < stored.high else "later"
        otherwise += f", which is {abs(stored.high - start.offset)} offsets {direction}"
    logger.warning(
        "%s[%d]: the group's commits are gone (they expired, or were deleted), but its store has completed offsets %d "
        "to %d: delivery goes on at %d; auto.offset.reset would %s. To begin elsewhere, use dedup rewind, or "
        'Recovery(without_commit="reset")',
        assigned.topic, assigned.partition, stored.low, stored.high, stored.high, otherwise,
        extra={"event": "commits-gone"},
    )  # fmt: skip
    metadata = CommitMetadata(
        low=stored.low, log=assigned.log, rule=partition.terms.rule, era=stored.era,
        complete=stored.is_complete, epoch=stored.epoch,
    )  # fmt: skip
    return replace(start, offset=stored.high, metadata=metadata, new=False, refused=None)


def _check_log_if_needed(recovery: PartitionRecovery, start: Start, partition: Partition) -> Steps[Start]:
    """Return where to start in the present log; no check where store and group have completed the same records."""
    if start.new or (
        partition.loaded is not None
        and partition.loaded.progress.high == start.offset
        and start.log_change is None
        # An offset that comes from the store itself proves nothing of the log.
        and not start.by_reset
        and (start.reopened or not partition.loaded.progress.done)
    ):
        # The check takes time for each partition. The client reports a log that ends below the next offset anyway.
        return start
    return (
        yield from start_in_the_log(
            start, partition, recovery.engine, recovery.client, recovery.settings, until=recovery.until
        )
    )


def discard_other_log(assigned: Assigned, start: Start, metadata: CommitMetadata, policy: Recovery) -> Start:
    """Discard a commit's text about another log: tools that copy groups translate the offsets, but not the texts."""
    if metadata.is_of_one_before(assigned.log):
        # Deleting a topic deletes its offsets: a consumer that had not noticed the deletion committed this one later.
        return replace(
            start,
            metadata=None,
            void=InvalidReason.TOPIC_BEFORE,
            void_rule=start.rule,
            must_commit_first=True,
            log_change=LogChange(),
        )
    logger.warning(
        "%s[%d]: the metadata of the committed offset %d belongs to another log (%s, this one is %s): was the group "
        "copied from another cluster? %s",
        assigned.topic, assigned.partition, start.offset, metadata.log, assigned.log, _records_before(policy),
        extra={"event": "commit-of-another-log"},
    )  # fmt: skip
    # The broker's answer about the leader epoch compares this log only with itself.
    change = None if start.log_change is None else start.log_change._replace(same_until=None)
    return replace(
        start,
        metadata=None,
        void=InvalidReason.OTHER_LOG,
        void_rule=start.rule,
        must_commit_first=True,
        log_change=change,
    )


def _discard_other_rule(assigned: Assigned, start: Start, partition: Partition) -> Start:
    """Discard a history made under another rule: it begins anew at the committed offset.

    Records that another ID spec or strategy hid were never handled; a replay under this rule would count them as
    handled. Marks in the store stay: they were made under this rule.

    During a rolling deployment, members with the old and the new rule void each other's texts at each hand-over: more
    records are delivered as unverified, none is lost.
    """
    logger.warning(
        "%s[%d]: up to offset %d the group used another rule (%s, now %s): was the ID spec, the strategy, the kind of "
        "window or isolation.level changed? No earlier record counts as handled; IDs that are not found are delivered "
        "as unverified until the window has filled",
        assigned.topic, assigned.partition, start.offset, start.rule, partition.terms.rule,
        extra={"event": "commit-of-another-rule"},
    )  # fmt: skip
    # The user cannot vouch for it either: records that the other rule hid were never handled.
    return replace(start, metadata=None, void=InvalidReason.OTHER_RULE, must_commit_first=True)


def _log_void_reason(assigned: Assigned, start: Start, void: InvalidReason, policy: Recovery) -> None:
    """Log why the commit's text is void, except for the reasons that are logged elsewhere: another log or rule."""
    if void in (InvalidReason.TOPIC_BEFORE, InvalidReason.OTHER_LOG, InvalidReason.OTHER_RULE):
        return
    if void is InvalidReason.NO_TEXT and policy.history is None:
        logger.warning(
            "%s[%d]: the group has committed %d without this package: of the earlier messages only those that this "
            "disk knows count as handled, and copies of the others are delivered. If your group has handled all of "
            'them, stop it and run dedup adopt, or set Recovery(history="assume-processed") before its first start: '
            "copies are hidden then, and the copy of a message that was not handled is lost. Set "
            'Recovery(history="none") to leave it as it is, without this line',
            assigned.topic, assigned.partition, start.offset,
            extra={"event": "commit-without-history"},
        )  # fmt: skip
        return
    is_expected = policy.history is not None
    logger.log(
        logging.INFO if is_expected else logging.WARNING,
        "%s[%d]: the group has committed %d, and %s: %s",
        assigned.topic, assigned.partition, start.offset, void.value, _records_before(policy),
        extra={"event": "history-assumed"},
    )  # fmt: skip


def _records_before(policy: Recovery) -> str:
    """Say in a log line how records before a committed offset are judged if the text of the commit is void."""
    if policy.history == "assume-processed":
        return "earlier records count as processed (history='assume-processed')"
    return "IDs that are not found are delivered as unverified until the window has filled"


def _verify_completed_above(
    assigned: Assigned,
    start: Start,
    metadata: CommitMetadata,
    done: CompletedAbove,
    partition: Partition,
    engine: Deduplicator,
    client: Client,
) -> Steps[tuple[Start, int | None]]:
    """Keep the commit's completions above its offset only where the log has the last of these records.

    Return that record's leader epoch, too: the log may be cut before the partition has read up to it. After a move the
    last record is only read: this process has just completed it.
    """
    witness = done.witness
    if witness is None:
        witness, epoch = yield from read_witness(done.ranges[-1], partition, engine, client)
        known = None if witness is None else replace(done, witness=witness)
        read = replace(start, metadata=replace(metadata, done=known))
        assigned.learn(start, read)
        return read, epoch
    found = yield from check_witness(witness, partition, engine, client)
    if found.same:
        return start, found.epoch
    logger.warning(
        "%s[%d]: the metadata of the committed offset %d names a completed record at %d which the log does not have: "
        "records completed above the committed offset are delivered again",
        partition.topic, partition.partition, start.offset, witness.offset,
        extra={"event": "commit-of-other-records"},
    )  # fmt: skip
    return replace(start, metadata=replace(metadata, done=None), must_commit_first=True), None


def _find_log_cut(start: Start, partition: Partition, client: Client) -> Steps[LogChange | None]:
    """Return how the log differs from the one that the group committed in; None if it does not, or is not known to."""
    same_until = yield from ask_same_until(start, partition.topic, partition.partition, client)
    return LogChange(same_until) if same_until is not None and same_until < start.offset else None


# --- the plan for steps 3 to 5 --------------------------------------------------------------------------------------


def start_plan(partition: Partition, start: Start, client: Client, policy: Recovery) -> StartPlan:
    """Return how the partition starts, from the progress of its store and the group's commit."""
    stored = partition.loaded.progress if partition.loaded else None
    where = partition.topic, partition.partition
    low, era, complete = start.offset, start.era, False
    if start.metadata is not None:
        low, era, complete = start.metadata.low, start.metadata.era, start.metadata.complete
    elif policy.history == "assume-processed" and start.is_unvouched:
        low = client.bounds(*where)[0]
    plan = plan_start(
        stored,
        committed=start.offset,
        low=low,
        era=era,
        complete=complete,
        new=start.new,
        vouched=start.metadata is not None,
        # A store of units serves another window, too, by which units end otherwise.
        same_rule=start.void is not InvalidReason.OTHER_RULE and partition.terms.gates is None,
    )
    if stored is not None and plan.beginning == "resumed" and start.offset < (stored.committed or 0):
        logger.warning(
            "%s[%d]: a commit of %d came after that of %d, in the same era: nobody set the group back, so that nothing "
            "is handled again", *where, start.offset, stored.committed,
            extra={"event": "late-commit"},
        )  # fmt: skip
    unknown = stored is not None and stored.committed is None and not start.reopened
    if plan.keep and unknown and plan.progress.high > start.offset:
        logger.warning(
            "%s[%d]: its store has offsets up to %d as processed, and the group has committed %d: those between were "
            "completed here, or come from a restored snapshot, and are not delivered; if they were never processed, "
            "remove the store",
            *where, plan.progress.high, start.offset,
            extra={"event": "rewound"},
        )  # fmt: skip
    if start.reopened:
        # Uncommitted offsets must not count as committed: after a crash the group's offset would look like a rewind.
        plan = replace(plan, progress=replace(plan.progress, committed=start.acknowledged))
    return plan


def _from_store_or_snapshot(
    recovery: PartitionRecovery, start: Start, partition: Partition, plan: StartPlan
) -> Steps[StartPlan]:
    """Start with the marks of the store, of a snapshot, or with none; return the remaining plan."""
    assigned = recovery.assigned
    if plan.beginning == "rewound":
        detail = "the group was set back, or moved by another program, below the offsets that this store has completed"
        if not assigned.was_moved_here:
            recovery.engine.count(recovery.event("rewound", detail, start.offset))
        if recovery.engine.gatekeeper is not None:
            recovery.engine.gatekeeper.rewound(assigned.topic, assigned.partition)
    recovery.notes = [plan.beginning]
    if plan.whole and not partition.ephemeral and recovery.policy.snapshot and not recovery.out_of_time():
        identity = Identity(
            cluster=recovery.cluster, group=recovery.settings.group, topic=assigned.topic, partition=assigned.partition,
            topic_id=recovery.topic_id, id_spec=partition.terms.id_spec, isolation=recovery.settings.isolation,
        )  # fmt: skip
        with recovery.reader() as reader:
            plan, note = yield from start_from_snapshot(
                partition,
                plan,
                recovery.policy.snapshot,
                identity,
                recovery.engine.store_folder,
                recovery.begin,
                reader.same_until,
            )
        recovery.notes.append(note)
    else:
        partition.start(plan)
    if recovery.store_was_damaged:
        recovery.notes.append("damaged store set aside")
        if plan.beginning == "new" and not partition.ephemeral:
            # The group has committed nothing, but the damaged store may have had marks.
            partition.memory.forget_all()
    return plan


# --- step 3: a snapshot ---------------------------------------------------------------------------------------------


class _Candidate(NamedTuple):
    """A snapshot that fits: its part for the partition, and the plan after its installation."""

    source: SnapshotSource
    part: PartitionManifest
    plan: StartPlan

    @property
    def tail(self) -> int:
        return self.plan.replay_to - self.plan.replay_from


def start_from_snapshot(
    partition: Partition,
    plan: StartPlan,
    places: Iterable[str],
    identity: Identity,
    beside: Path | None,
    begin: Callable[[str], object] = lambda _: None,
    same_until: SameUntil | None = None,
) -> Steps[tuple[StartPlan, str]]:
    """Start a partition from the best snapshot, else as planned; return the remaining plan and a note.

    The best snapshot fits and leaves the shortest tail to replay; of equals the newest. One log line says why others
    were passed over.

    Args:
        partition: the open partition.
        plan: how it starts without a snapshot.
        places: folders of one snapshot or of several, and URLs.
        identity: the identity of the partition's store, which a snapshot must match.
        beside: the store's folder; a remote snapshot is downloaded next to it.
        begin: is called with a line of text before a snapshot is installed.
        same_until: ``same_until(offset, epoch)`` asks the broker up to where the log before ``offset`` is the one of
            that leader epoch; None: the log is not checked.

    Raises `SnapshotError` where no snapshot can be read, or every one that fits is damaged.
    """
    found, passed_over = find_snapshots(places)
    yield None
    candidates: list[_Candidate] = []
    for source in found:
        try:
            part = _fitting_part(source.place, source.manifest, partition, plan, identity)
            yield from _check_log(source.place, part, same_until)
        except SnapshotError as misfit:
            passed_over.append(str(misfit))
        else:
            after = _plan_after_snapshot(part, plan)
            candidates.append(
                _Candidate(
                    source,
                    part,
                    _plan_after_resharding(part, after) if source.manifest.resharded_from else after,
                )
            )
    candidates.sort(key=lambda candidate: (candidate.tail, -candidate.source.manifest.created_ms))
    damage: SnapshotError | None = None
    for rank, candidate in enumerate(candidates):
        begin(f"installing snapshot {candidate.source.place}, then {candidate.tail} offsets to replay")
        try:
            with scratch(beside) as folder:
                here = yield from fetched(candidate.source, (candidate.part,), folder)
                yield from partition.install_steps(
                    here,
                    candidate.plan,
                    move=candidate.source.remote is not None,
                    manifest=candidate.source.manifest,
                )
        except SnapshotError as error:
            damage = error
            passed_over.append(str(error))
            continue
        passed_over += [
            f"{other.source.place} leaves {counted(other.tail, 'offset')}" for other in candidates[rank + 1 :]
        ]
        if passed_over:
            logger.info(
                "%s[%d]: snapshot %s taken, which leaves %d offsets; passed over: %s",
                partition.topic, partition.partition, candidate.source.place, candidate.tail, "; ".join(passed_over),
                extra={"event": "snapshot-taken"},
            )  # fmt: skip
        return candidate.plan, f"snapshot of {counted(candidate.part.marks, 'mark')}"
    if damage is not None:
        raise damage
    logger.warning(
        "%s[%d]: snapshot not taken: %s",
        partition.topic,
        partition.partition,
        "; ".join(passed_over),
        extra={"event": "snapshot-not-taken"},
    )
    partition.start(plan)
    return plan, "snapshot not taken"


def _fitting_part(
    folder: str | Path, manifest: Manifest, partition: Partition, plan: StartPlan, identity: Identity
) -> PartitionManifest:
    """Return the snapshot's part for this partition; raises `SnapshotError` with the reason if it does not fit.

    A snapshot that reaches beyond the committed offset would hide records that this group never handled. So would the
    history of another group, unless the user vouches for it with a snapshot that was made without a group.
    """
    lacked = lacked_fallback(manifest.id_spec, identity.id_spec)
    if lacked is not None:
        message = (
            f"snapshot {folder} has the marks of the sources, but none of the IDs that otherwise= looks up; the topic "
            f"is read instead. Make it with dedup backfill --otherwise {lacked} and the --otherwise-window of the "
            "consumer's Lookup"
        )
        raise SnapshotError(message)
    part = fitting_partition(
        folder, manifest, identity, plan.progress, numbered=partition.window.count is not None
    )
    ours, theirs = partition.window, Window.parse(manifest.window)
    if (ours.count or 0) > (theirs.count or 0) or (ours.count is None and theirs.count is not None):
        raise SnapshotError(
            f"its window is {theirs}, the consumer's is {ours}, and a snapshot lacks the ranks for that; make one with "
            "the consumer's window"
        )
    claims_history = part.low < part.high
    if not manifest.vouched and claims_history and part.low < plan.progress.low:
        raise SnapshotError(
            f"it begins at offset {part.low}, before this group's own history at {plan.progress.low}; make one with "
            "--group"
        )
    return part


def _check_log(folder: str | Path, part: PartitionManifest, same_until: SameUntil | None) -> Steps[None]:
    """Raise `SnapshotError` for a snapshot of records that the log no longer has, as far as the broker can tell."""
    if same_until is None or part.epoch is None or part.low == part.high:
        return
    end = yield from same_until(part.high, part.epoch)
    if end is not None and end < part.high:
        raise SnapshotError(
            f"snapshot {folder} reaches offset {part.high} of leader epoch {part.epoch}, which ends at {end} in the "
            "log now: the log was cut since; make a new one"
        )


def _plan_after_snapshot(part: PartitionManifest, plan: StartPlan) -> StartPlan:
    """Return the plan after the installation: offsets from the snapshot's end to the committed offset are replayed."""
    progress = plan.progress
    if part.high < progress.low:
        # Offsets between the snapshot's end and the group's own beginning are not known to be handled.
        progress = replace(progress, high=progress.low, newest_ms=part.newest_ms, accepted=part.accepted)
        if progress.since_ms is not None:
            progress = replace(progress, since_ms=NOTHING_KNOWN, since_number=part.accepted)
    else:
        progress = replace(progress, high=part.high, newest_ms=part.newest_ms, accepted=part.accepted)
        if plan.beginning != "new":
            progress = replace(progress, since_ms=part.since_ms, since_number=part.since_number)
        if part.low > progress.low and part.since_ms is None:
            # The snapshot covers its own range, which begins later than the group's history.
            progress = replace(progress, since_ms=NOTHING_KNOWN, since_number=part.accepted)
    return replace(plan, progress=progress, replay_from=progress.high, whole=False)


def _plan_after_resharding(part: PartitionManifest, plan: StartPlan) -> StartPlan:
    """Return the plan after a resharded snapshot: coverage begins at its ``since_ms``, also in a new partition."""
    since_ms = part.since_ms
    if since_ms is None:
        return plan
    known_ms = plan.progress.since_ms
    return replace(
        plan,
        progress=replace(plan.progress, since_ms=since_ms if known_ms is None else max(known_ms, since_ms)),
    )


# --- steps 4 and 5: the replay, and its beginning -------------------------------------------------------------------


def _replay_tail(
    recovery: PartitionRecovery, start: Start, partition: Partition, plan: StartPlan
) -> Steps[LogChange | None]:
    """Replay the missing tail, if any; return how the log was cut meanwhile, or None."""
    if plan.replay_to <= plan.replay_from:
        return None
    with recovery.reader() as reader:
        cut = yield from replay(recovery, partition, plan, reader)
    recovery.notes.append(f"replayed {counted(recovery.assigned.replayed, 'record')}")
    return cut or (yield from _find_log_cut(start, partition, recovery.client))


def replay(
    recovery: PartitionRecovery, partition: Partition, plan: StartPlan, reader: TailReader
) -> Steps[LogChange | None]:
    """Fold the IDs of the tail into the marks.

    Return how the log was cut if it ends below the tail's end, or has records of a later leader epoch in it; else None.
    """
    first, decided = reader.bounds()
    last = decided if plan.replay_to <= decided else reader.log_end()
    if plan.replay_to > last:
        return LogChange()
    if partition.ephemeral:
        partition.skip_to(plan.replay_to)
        return None
    if recovery.out_of_time() or plan.replay_to > decided:
        _start_without_replay(recovery, partition, plan)
        return None
    begin = yield from _replay_begin(partition, plan, reader, first)
    recovery.begin(f"replaying offsets {begin} to {plan.replay_to}")
    return (yield from _fold(recovery, partition, plan, reader, begin))


def _fold(
    recovery: PartitionRecovery, partition: Partition, plan: StartPlan, reader: TailReader, begin: int
) -> Steps[LogChange | None]:
    watch = ReplayWatch(
        f"{partition.topic}[{partition.partition}]", begin, plan.replay_to, recovery.until, recovery.progress
    )
    epoch = None if recovery.assigned.start is None else recovery.assigned.start.leader_epoch
    reached, heard = begin, time.monotonic()
    recovery.assigned.note_reached(begin, plan.replay_to)
    for batch in reader.slices(begin, plan.replay_to, recovery.engine.keys):
        if watch.is_over:
            _start_without_replay(recovery, partition, plan)
            return None
        if batch is None:
            # The broker is away, or the log has many aborted records here: other recoveries go first.
            yield Wait(SILENT_RETRY_S, "broker") if time.monotonic() - heard >= SILENT_S else None
            continue
        if epoch is not None and batch.epoch is not None and batch.epoch > epoch:
            # Stop before this batch is folded: later its records could not be told from handled ones.
            return LogChange(batch.offsets[0])
        partition.fold(batch.offsets, batch.timestamps, batch.digests, batch.end)
        reached, heard = batch.end, time.monotonic()
        recovery.assigned.replay(recovery.assigned.note, len(batch.offsets))
        recovery.assigned.note_reached(batch.end, plan.replay_to)
        watch.note(batch.end)
        recovery.engine.trim()
        yield None
        while partition.writer.disk_full and recovery.policy.on_full_disk == "pause":
            # Marks folded now could not be written.
            yield Wait(DISK_RETRY_S, "store")
    if reached < plan.replay_to:
        return LogChange()
    if partition.flight.high < plan.replay_to:
        partition.fold([], np.empty(0, np.int64), [], plan.replay_to)
    return None


def _start_without_replay(recovery: PartitionRecovery, partition: Partition, plan: StartPlan) -> None:
    """Start without the records that were not replayed within the timeout."""
    partition.skip_to(plan.replay_to)
    detail = "its timeout has passed; IDs that are not found are delivered as unverified until the window has filled"
    recovery.engine.tell(recovery.event("recovery-timeout", detail, plan.replay_to))


def _replay_begin(partition: Partition, plan: StartPlan, reader: TailReader, first: int) -> Steps[int]:
    """Return the first offset to replay; where relevant records are gone from the log, coverage begins later."""
    begin = earliest = min(max(plan.replay_from, first), plan.replay_to)
    if plan.whole and partition.window.time_ms is not None and not partition.depends_on_order:
        begin = yield from _one_window_back(partition, reader, earliest, plan.replay_to)
        # Retention may have deleted records meanwhile: then the window seems to begin at the first record of the log.
        first = max(first, reader.bounds()[0])
        earliest = min(max(plan.replay_from, first), plan.replay_to)
        begin = max(begin, earliest)
    if first > plan.replay_from and begin == earliest:
        # Deleted records matter only where the window does not begin after them.
        logger.warning(
            "%s[%d]: offsets %d to %d are gone from the log; IDs that are not found are delivered as unverified until "
            "the window has filled",
            partition.topic, partition.partition, plan.replay_from, first,
            extra={"event": "history-gone"},
        )  # fmt: skip
        partition.memory.pass_uncounted(first - plan.replay_from)
        partition.memory.forget_all()
    return begin


def _one_window_back(partition: Partition, reader: TailReader, low: int, end: int) -> Steps[int]:
    """Return where a replay must begin to rebuild all marks inside the window at ``end``; set when coverage begins."""
    newest_ms = yield from reader.newest_before(end, low)
    if newest_ms is None:
        return low
    # A record from the future counts as now: from its own timestamp the window would not reach back far enough.
    since_ms = partition.memory.reach.horizon_ms(min(newest_ms, int(time.time() * 1000)))
    first = reader.first_at(since_ms)
    if first is None or first <= low:
        return low
    partition.memory.reach.begin_at(since_ms)
    return min(first, end)


class ReplayWatch:
    """Reports the progress of one partition's replay of offsets ``[start, end)``.

    ``until`` (seconds of ``clock``) is its deadline. ``tell`` is called with the offset reached and each log line.
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
        self._report = tell
        self._began = self._last_logged = clock()

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self._until is not None and self._clock() >= self._until

    def note(self, offset: int) -> None:
        """Report every `TELL_EVERY_S` seconds: the offset reached, the rate and the remaining time."""
        now = self._clock()
        if now - self._last_logged < TELL_EVERY_S:
            return
        self._last_logged = now
        rate = (offset - self._start) / (now - self._began)
        left = "nothing has come yet"
        if rate > 0:
            left_ms = round((self._end - offset) / rate) * 1_000
            left = f"{length_text(left_ms, most_units=2)} to go"
        line = f"replayed up to offset {offset} of {self._end}, {rate:.0f} offsets a second, {left}"
        logger.info("%s: %s", self._name, line, extra={"event": "recovery"})
        self._report(offset, line)


SLICE_S = 0.05
"""Seconds of recovery work in one poll, at most."""
AT_ONCE = 2
"""Partitions that recover at the same time."""
TOGETHER_S = 0.5
"""Seconds that a recovered partition waits, at most, for running recoveries, so that they start together."""
ASK_AGAIN_S = 0.5
"""Seconds between two commits of the beginning of a history, and before a failed step is repeated."""
UNKNOWN_S = 10.0
"""Seconds after which a topic or partition that is unknown to the client or the broker counts as missing."""
_UNKNOWN_PARTITION: Final = KafkaError._UNKNOWN_PARTITION  # noqa: SLF001 (that is its public name)

MOST_ANSWER_S: Final = 4.0
"""The longest timeout in seconds of a request to a slow broker."""
BACKOFF_S: Final = 60.0
"""Seconds of backoff after a broker has not answered."""
AGAIN_S: Final = 0.5
"""Seconds before a partition repeats a failed request; doubled by each further failure."""
MOST_AGAIN_S: Final = 8.0
"""The longest such pause."""
LOOK_S: Final = 0.02
"""Seconds between two checks for the answer of a probe, which no poll waits for."""
_ANSWER_FACTOR: Final = 4.0
"""A request may take so many times as long as the last probe."""
_SLOW_STEP_S: Final = 0.1
"""A recovery step that took longer is followed by a rest."""
_REST_FACTOR: Final = 3.0
"""The rest lasts so many times as long as the step, at most `_MAX_REST_S`."""
_MAX_REST_S: Final = 2.0
Clock = Callable[[], float]

_state, _failures = attrgetter("state"), attrgetter("failures")


class Backoff:
    """Limits how long polls wait for brokers, and decides which recoveries may send requests.

    A poll waits for the answers to a recovery's requests. After a request was not answered in time, a recovery starts
    only when the leader of its partition has answered a probe, for which no poll waits. A hanging broker thus costs the
    other partitions one short wait, and a slow one gets the time that it needs.
    """

    def __init__(self, questions: MetadataRequests, readers: Readers, clock: Clock = time.monotonic) -> None:
        self._questions, self._readers, self._clock = questions, readers, clock
        self._active_until = self._rest_until = 0.0
        self._probes: dict[tuple[str, int], EndProbe] = {}
        readers.set_timeout(ANSWER_S)

    @property
    def is_active(self) -> bool:
        """Whether a broker did not answer within the last `BACKOFF_S` seconds."""
        return self._clock() < self._active_until

    def note_silence(self) -> None:
        """Record that a broker did not answer."""
        self._active_until = self._clock() + BACKOFF_S

    @property
    def rests(self) -> bool:
        """Whether recoveries must rest, because polls have waited long for them: active partitions have their turn."""
        return self._clock() < self._rest_until

    def may_begin(self, assigned: Assigned) -> bool:
        """Whether a recovery may send requests now, with its timeout set; false while its leader does not answer."""
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
        assigned.set_answer_time(min(max(ANSWER_S, _ANSWER_FACTOR * (probe.took_s or 0.0)), MOST_ANSWER_S))
        self._readers.set_timeout(assigned.answer_s)
        return True

    def took(self, seconds: float) -> None:
        """Record how long a recovery step took; while brokers are slow, a rest of several times that follows."""
        if self._readers.timeout_s != ANSWER_S:
            self._readers.set_timeout(ANSWER_S)
        if seconds > _SLOW_STEP_S and self.is_active:
            self._rest_until = self._clock() + min(_REST_FACTOR * seconds, _MAX_REST_S)

    def failed(self, assigned: Assigned) -> None:
        """Record that a request of a partition was not answered."""
        self.note_silence()
        self._put_off(assigned, self._clock(), assigned.waits_for)

    def put_off(self, partitions: Iterable[Assigned]) -> None:
        """Delay these partitions, because the same request of another one was not answered."""
        again = self._clock() + AGAIN_S
        for assigned in partitions:
            assigned.wait_until(max(assigned.ask_at, again), assigned.waits_for)

    def forget(self, topic: str, partition: int) -> None:
        """Drop the probe of a partition that was closed."""
        self._probes.pop((topic, partition), None)

    def _put_off(self, assigned: Assigned, now: float, hindrance: Hindrance | None) -> None:
        pause_s = AGAIN_S * 2 ** min(assigned.count_failure() - 1, 8)
        assigned.wait_until(now + min(pause_s, MOST_AGAIN_S), hindrance)
        self._questions.renew()


class RecoveryLoop:
    """Runs the recoveries of the partitions in ``assigned``, a slice per poll.

    Errors are kept in ``callback_errors``, and `poll` raises them.
    """

    def __init__(
        self,
        assigned: Mapping[Coordinates, Assigned],
        engine: Deduplicator,
        client: Client,
        settings: ClientSettings,
        policy: Recovery,
        *,
        callback_errors: CallbackErrors,
        starts: Starts,
        backoff: Backoff,
        commits: Commits,
    ) -> None:
        self._assigned = assigned
        self._engine, self._client, self._settings, self._policy = engine, client, settings, policy
        self._callback_errors, self._starts, self._backoff, self._commits = (
            callback_errors,
            starts,
            backoff,
            commits,
        )
        self._begin_by = 0.0
        self.hurried = False
        """Whether a recovery can make progress at once, so that the poll must not wait."""

    def work(self) -> list[Assigned]:
        """Continue the recoveries for at most `SLICE_S`; return the partitions that may deliver now.

        The tail readers are closed when no partition recovers, and served until then.
        """
        if not any(map(RECOVERING.__contains__, map(_state, self._assigned.values()))):
            self.hurried = False
            self._client.readers.close()
            return []
        if self._client.readers.open:
            self._client.readers.serve()
        until = time.monotonic() + SLICE_S
        while True:
            now = time.monotonic()
            # Finished ones make room for others: many short recoveries fit into one poll.
            runnable = [
                each for each in self._assigned.values() if each.state in CATCHING_UP and each.ask_at <= now
            ]
            self.hurried = bool(runnable) and not self._backoff.rests
            if now >= until or not self.hurried:
                break
            # Partitions that failed come last: a broker that does not answer must not delay the others.
            for assigned in sorted(runnable, key=_failures)[:AT_ONCE]:
                self.step(assigned)
                if time.monotonic() >= until:
                    break
        finished = [each for each in self._assigned.values() if each.state is State.ANNOUNCING]
        if not finished:
            return []
        begun, now = self._with_known_beginning(finished), time.monotonic()
        # Start them in few groups: a fetch that waits for records of one group delays the fetch of the next.
        self._begin_by = self._begin_by or now + TOGETHER_S
        if not begun or (self.hurried and now < self._begin_by):
            return []
        self._begin_by = 0.0
        return begun

    def step(self, assigned: Assigned) -> None:
        """Run one step of a partition's recovery."""
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
                steps = recover(assigned, self._engine, self._client, self._settings, self._policy)
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
            if is_interruption(error) or not self._is_noted(assigned, error):
                raise
        finally:
            self._backoff.took(time.monotonic() - began)

    def _is_noted(self, assigned: Assigned, error: BaseException) -> bool:
        """Note an error; return False for an unexpected one, which is to be raised at once."""
        if isinstance(error, DedupError | KafkaException):
            self._note_failure(assigned, error)
            return True
        if assigned.start is not None:
            assigned.note_unexpected_error(assigned.start.offset)
        return False

    def _note_failure(self, assigned: Assigned, error: DedupError | KafkaException) -> None:
        """Schedule a retry of the recovery, or keep the error for `poll` to raise."""
        now = time.monotonic()
        hindrance: Hindrance | None = assigned.waits_for
        if isinstance(error, StoreUnavailableError):
            self._tell_store_refused(assigned, error)
            hindrance = "store"
        assigned.wait_until(now + ASK_AGAIN_S, hindrance)
        if isinstance(error, StoreUnavailableError):
            return
        if isinstance(error, KafkaException) and (
            is_retriable(error) or (_is_unknown_topic(error) and assigned.silent_s(now) <= UNKNOWN_S)
        ):
            self._backoff.failed(assigned)
            logger.warning(
                "%s[%d]: recovery is repeated later: %s",
                assigned.topic,
                assigned.partition,
                error,
                extra={"event": "recovery-repeated"},
            )
        elif isinstance(error, KafkaException) and _is_unknown_topic(error):
            event = f"topic {shown(assigned.topic)} is unknown to the broker: {error}"
            self._callback_errors.keep(RecoveryError(f"{event}; does it exist, and may the group read it?"))
        else:
            self._callback_errors.keep(error)

    def _tell_store_refused(self, assigned: Assigned, error: StoreUnavailableError) -> None:
        """Log that a store cannot be opened, unless a partition waits for its store already: the cause is the same."""
        partitions = self._assigned.values()
        if any(each.waits_for == "store" for each in partitions):
            return
        logger.error(
            "%s[%d] waits for its store; %d of %d partitions have theirs, and later ones may wait as well: %s",
            assigned.topic, assigned.partition, sum(each.engine_partition is not None for each in partitions),
            len(partitions), error,
            extra={"event": "store-waited-for"},
        )  # fmt: skip

    def _find_start(self, assigned: Assigned) -> None:
        """Request the group's committed offset and set the start; a failed request is repeated later."""
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
                    # The partition exists, but has no leader at present.
                    assigned.note_answer(now)
                    return
                raise RecoveryError(
                    f"{assigned.topic}[{assigned.partition}] is unknown to the broker: {error}; does the topic exist?"
                ) from error
            if not is_retriable(error):
                raise
            logger.warning(
                "%s[%d]: the group's offsets are not known yet (%s); the request is repeated",
                assigned.topic, assigned.partition, error,
                extra={"event": "group-offsets-unknown"},
            )  # fmt: skip

    def _with_known_beginning(self, finished: list[Assigned]) -> list[Assigned]:
        """Return the partitions whose beginning is committed; commit that of the others, repeatedly."""
        now = time.monotonic()
        known, due = [], []
        for assigned in finished:
            if (
                assigned.start is None
                or not assigned.start.must_commit_first
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
                logger.warning(
                    "commit of where the history begins failed (%s); it is repeated",
                    error,
                    extra={"event": "beginning-commit-failed"},
                )
        return known


def _is_unknown_topic(error: KafkaException) -> bool:
    """Whether the broker does not know the topic, which may be new to it."""
    return bool(error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART)
