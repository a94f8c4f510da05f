"""How a partition comes up to date before it delivers: its own store, a snapshot, a replay of the tail.

A generator that does a few milliseconds of work a step, so that it runs beside the poll loop and a rebalance never waits
for it. Each rung of the ladder is taken only if it gains ground.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.engine.partition import Partition
from dedup_sdk.errors import ForeignStoreError, RecoveryError, StoreCorruptError, StoreError, StoreLockedError
from dedup_sdk.kafka.assigned import Assigned, Start
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.dead_letter_log import DeadLetterLog, GivenUp
from dedup_sdk.kafka.log_changes import start_in_the_log, until_where_it_is_the_same
from dedup_sdk.kafka.metadata import log_name
from dedup_sdk.kafka.mixed_reader import MixedReader, aborted_from
from dedup_sdk.kafka.reader import TailReader
from dedup_sdk.kafka.recovery_news import RecoveryNews
from dedup_sdk.kafka.replay import Cut, replay
from dedup_sdk.kafka.settings import ClientSettings
from dedup_sdk.kafka.snapshots import start_from_snapshot
from dedup_sdk.kafka.suppressed import without_what_was_given_up
from dedup_sdk.kafka.undecided import wait_until_decided
from dedup_sdk.lane.plan import OnRewind, StartPlan, plan_start
from dedup_sdk.observe import PartitionEvent
from dedup_sdk.store.protocol import Identity

logger = logging.getLogger("dedup_sdk")

LOCK_NEWS_S = 1.0
"""Seconds after which it is news that a partition waits for its store: a hand-over takes less."""
LOCK_LOOK_S = 0.01
"""Seconds between two looks whether another process has let a store go, at first."""
MAX_LOCK_LOOK_S = 1.0
"""The same after a long wait."""

_WRITER_BYTES = 4

History = Literal["none", "assume-processed"]
OnFullDisk = Literal["pause", "unverified"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySettings:
    """The user's choices: where snapshots are, and what to believe of an unknown past."""

    snapshot: tuple[str, ...]
    """Folders, folders of several snapshots, and URLs."""
    on_rewind: OnRewind
    history: History
    on_full_disk: OnFullDisk = "pause"
    dead_letters: DeadLetterLog | None = None
    store_folder: Path | None = None
    """Next to it a remote snapshot is fetched to; None: where temporary files go."""
    timeout_s: float | None = None
    """Seconds after which a partition starts without the rest of its past; None: never."""


def recover(
    assigned: Assigned,
    engine: Deduplicator,
    client: Client,
    settings: ClientSettings,
    chosen: RecoverySettings,
) -> Generator[None, None, None]:
    """Bring one partition up to date; when the generator ends, ``assigned.held`` may be fed from its start on.

    Raises `StoreError`, `SnapshotError` or `RecoveryError`; nothing is delivered then.
    """
    began = time.monotonic()
    start = assigned.start
    if start is None:
        raise RecoveryError(f"{assigned.topic}[{assigned.partition}] has no start")
    held = yield from _attach(assigned, engine, client)
    start = _without_anothers_history(assigned, start, client)
    start = _without_what_was_judged_otherwise(assigned, start, held)
    until = None if chosen.timeout_s is None else assigned.taken_at + chosen.timeout_s
    start = yield from start_in_the_log(
        start, held, engine, client, settings, chosen.dead_letters, assigned=assigned, until=until
    )
    news = RecoveryNews(assigned, engine)
    while True:
        cut = yield from _cut_before_a_replay(start, held, client, chosen)
        if cut is None:
            assigned.start_again(start)
            plan, notes, cut = yield from _start_and_replay(
                assigned, start, held, engine, client, settings, chosen, news, until=until
            )
            if cut is None:
                _note_the_end(assigned, start, held, plan, notes, began=began)
                news.end()
                return
            # It was cut meanwhile: among what was replayed may be what nobody has handled.
            held.loaded = None
        suspect = replace(start, suspect=True, same_until=cut.same_until)
        start = yield from start_in_the_log(
            suspect, held, engine, client, settings, chosen.dead_letters, assigned=assigned, until=until
        )


def _note_the_end(
    assigned: Assigned, start: Start, held: Partition, plan: StartPlan, notes: list[str], *, began: float
) -> None:
    assigned.held = held
    if start.metadata is not None:
        assigned.complete = start.metadata.complete
        if held.lane.high == start.offset:
            held.lane.learn_epoch(start.leader_epoch)
    else:
        assigned.complete = start.new and plan.progress.since_ms is None
    assigned.seconds = time.monotonic() - began
    assigned.note = ", ".join(notes)


def _cut_before_a_replay(
    start: Start, held: Partition, client: Client, chosen: RecoverySettings
) -> Generator[None, None, Cut | None]:
    """The same as `_cut_before`, asked where something is to be folded: what the log has now, nobody has handled."""
    if start.suspect or start.leader_epoch is None:
        return None
    plan = _plan(held, start, client, chosen)
    if plan.replay_to == plan.replay_from:
        return None
    return (yield from _cut_before(start, held, client))


def _cut_before(start: Start, held: Partition, client: Client) -> Generator[None, None, Cut | None]:
    """Return how the log parts from the one that the group committed, None where it does not, or nobody can say."""
    same_until = yield from until_where_it_is_the_same(start, held.topic, held.partition, client)
    return Cut(same_until) if same_until is not None and same_until < start.offset else None


def _start_and_replay(
    assigned: Assigned,
    start: Start,
    held: Partition,
    engine: Deduplicator,
    client: Client,
    settings: ClientSettings,
    chosen: RecoverySettings,
    news: RecoveryNews,
    *,
    until: float | None,
) -> Generator[None, None, tuple[StartPlan, list[str], Cut | None]]:
    """Begin with the store, a snapshot or nothing, and fold what is missing.

    Return what was planned, notes for the log, and how the log was cut, if it was meanwhile.
    """
    if until is not None and time.monotonic() >= until:
        # Nothing is replayed any more, so that nothing has to be left out of it.
        chosen = replace(chosen, snapshot=(), dead_letters=None)
    plan = _plan(held, start, client, chosen)
    assigned.aborted = aborted_from(start, settings, kept=plan.keep)
    _tell_if_late(held, start, plan)
    if plan.beginning == "rewound":
        news.rewound(start.offset)
        if held.claims is not None and chosen.on_rewind == "reprocess":
            logger.warning(
                "%s[%d] was rewound, and the shared memory still knows what was completed: that stays hidden; to have it handled again, give "
                "Shared another prefix", assigned.topic, assigned.partition,
            )  # fmt: skip
        plan = yield from without_what_was_given_up(held, plan, chosen.dead_letters)
    given_up = GivenUp()
    if chosen.dead_letters is not None and plan.replay_to > plan.replay_from and not held.forgets:
        given_up = yield from chosen.dead_letters.read(
            assigned.topic, assigned.partition, buried=plan.progress.buried
        )
    notes: list[str] = [plan.beginning]
    snapshots = chosen.snapshot if plan.whole and not held.forgets else ()
    if snapshots and (yield from given_up.spoils_marks(held, plan, client)):
        snapshots = ()
        notes.append("snapshot not taken")
    if snapshots:
        identity = Identity(
            cluster=client.cluster_id(), group=settings.group, topic=assigned.topic, partition=assigned.partition,
            topic_id=client.topic_id(assigned.topic), id_spec=str(held.keys), isolation=settings.isolation,
        )  # fmt: skip
        plan, note = yield from start_from_snapshot(
            held, plan, snapshots, identity, given_up, chosen.store_folder, news
        )
        notes.append(note)
    else:
        held.start(plan)
    notes += _of_another_store(assigned, held, plan)
    yield
    cut: Cut | None = None
    if plan.replay_to > plan.replay_from:
        with closing(_reader_of_the_history(assigned, plan, client)) as reader:
            if isinstance(reader, MixedReader):
                yield from wait_until_decided(assigned, plan.replay_to, reader, until=until)
            cut = yield from replay(
                assigned, held, plan, given_up, reader=reader, engine=engine, until=until,
                waits_for_room=chosen.on_full_disk == "pause", news=news,
            )  # fmt: skip
        notes.append(f"replayed {assigned.replayed} records")
        cut = cut or (yield from _cut_before(start, held, client))
    return plan, notes, cut


def _reader_of_the_history(assigned: Assigned, plan: StartPlan, client: Client) -> TailReader:
    if assigned.aborted is None or assigned.aborted <= plan.replay_from:
        return client.tail_reader(assigned.topic, assigned.partition)
    return client.mixed_reader(assigned.topic, assigned.partition, assigned.aborted)


def _tell_if_late(held: Partition, start: Start, plan: StartPlan) -> None:
    known = held.loaded.progress.committed if held.loaded else None
    if plan.beginning == "resumed" and known is not None and start.offset < known:
        logger.warning(
            "%s[%d]: a commit of %d came after that of %d, both by this store: nobody set the group back, so that nothing is handled "
            "again", held.topic, held.partition, start.offset, known,
        )  # fmt: skip


def _of_another_store(assigned: Assigned, held: Partition, plan: StartPlan) -> list[str]:
    """Return what the log says of a store that is not the one the partition had, and let it not pass for a new group's."""
    notes = ["damaged store set aside"] if assigned.set_aside else []
    if notes and plan.beginning == "new" and not held.forgets:
        # Nothing was committed, and yet there was a store: what it knew is not known to be nothing.
        held.lane.forget_all()
    return notes


def _without_anothers_history(assigned: Assigned, start: Start, client: Client) -> Start:
    """Leave out what a commit says of another log: a tool that copies groups translates offsets, not the text beside them."""
    assigned.log = log_name(client.cluster_id(), client.topic_id(assigned.topic))
    if start.metadata is None or start.metadata.is_of(assigned.log):
        return start
    if start.metadata.is_of_one_before(assigned.log):
        # A topic takes its group's offsets along when it is deleted: this one is of a consumer that did not hear of it.
        return replace(start, metadata=None, at_once=True, before_us=True, suspect=True, same_until=None)
    logger.warning(
        "%s[%d]: the text beside the committed offset %d is of another log (%s, this one is %s): was the group copied from another "
        "cluster? What came before is unverified", assigned.topic, assigned.partition, start.offset, start.metadata.log, assigned.log,
    )  # fmt: skip
    # What the broker says of its epochs compares this log with itself.
    return replace(start, metadata=None, at_once=True, before_us=True, same_until=None)


def _without_what_was_judged_otherwise(assigned: Assigned, start: Start, held: Partition) -> Start:
    """Let the history begin where the group stands, where units were judged before by another rule than now, or records by none.

    Folded by this one, an ID of a unit that was rejected would count as handled. Marks that are there stay: they are what was lived.
    """
    assigned.units = held.judged_by
    if start.metadata is None or start.metadata.units == held.judged_by:
        return start
    logger.warning(
        "%s[%d]: up to offset %d units were judged otherwise (%s, now %s): were `unit`, `unit_mode` or `window` changed? Nothing before it is "
        "made anew from the topic; what hangs on it is unverified until the window has filled, unless the store is still here",
        assigned.topic, assigned.partition, start.offset, start.metadata.units or "each record by itself",
        held.judged_by or "each record by itself",
    )  # fmt: skip
    known = replace(start.metadata, low=start.offset, complete=False, units=held.judged_by)
    return replace(start, metadata=known, at_once=True)


def _attach(assigned: Assigned, engine: Deduplicator, client: Client) -> Generator[None, None, Partition]:
    began, waited_s = time.monotonic(), -1.0
    topic_id = client.topic_id(assigned.topic)
    while True:
        try:
            held = engine.attach(
                assigned.topic, assigned.partition, topic_id=topic_id, cluster=client.cluster_id()
            )
        except StoreLockedError as error:
            # Meanwhile others recover.
            now, before_s = time.monotonic(), waited_s
            waited_s = now - began
            assigned.waits_for_lock = True
            assigned.ask_at = now + min(MAX_LOCK_LOOK_S, max(LOCK_LOOK_S, waited_s / 10))
            _tell_of_the_lock(assigned, engine, error, waited_s, before_s)
            yield
        except StoreCorruptError as error:
            _set_aside(assigned, engine, client, error)
            yield
        except ForeignStoreError as error:
            if error.field != "topic_id" or not topic_id:
                raise
            _set_aside_the_old_topics(assigned, engine, client, error)
            yield
        else:
            assigned.waits_for_lock = False
            return held


def _tell_of_the_lock(
    assigned: Assigned, engine: Deduplicator, error: StoreLockedError, waited_s: float, before_s: float
) -> None:
    """Say once that a partition waits for its store, where that takes longer than a hand-over, and once more, as a warning, later.

    ``before_s``: how long it had waited at the last look.
    """
    topic, partition, limit_s = assigned.topic, assigned.partition, engine.lock_wait_s
    if before_s < limit_s <= waited_s:
        detail = f"waited {limit_s:g} s and goes on waiting; nothing is delivered meanwhile: {error}"
        logger.warning("%s[%d]: store-locked: %s", topic, partition, detail)
        offset = -1 if assigned.start is None else assigned.start.offset
        engine.count(PartitionEvent("store-locked", topic, partition, offset, detail))
    elif before_s < LOCK_NEWS_S <= waited_s < limit_s:
        logger.info("%s[%d] waits for its store: %s", topic, partition, error)


def _set_aside_the_old_topics(
    assigned: Assigned, engine: Deduplicator, client: Client, error: ForeignStoreError
) -> None:
    """Keep the store of a topic that was deleted apart: its offsets mean nothing in the one of the same name."""
    topic, partition = assigned.topic, assigned.partition
    kept = engine.set_aside(topic, partition, topic_id=client.topic_id(topic), cluster=client.cluster_id())
    offset = -1 if assigned.start is None else assigned.start.offset
    engine.tell(PartitionEvent("topic-recreated", topic, partition, offset, f"{error}; it is kept as {kept}"))


def _set_aside(assigned: Assigned, engine: Deduplicator, client: Client, damage: StoreCorruptError) -> None:
    """Move a damaged store out of the way, with one line in the log: what it knew is made again from the topic."""
    topic, partition = assigned.topic, assigned.partition
    try:
        kept = engine.set_aside(
            topic, partition, topic_id=client.topic_id(topic), cluster=client.cluster_id()
        )
    except StoreLockedError:
        return
    except StoreError as error:
        raise RecoveryError(str(error)) from damage
    assigned.set_aside = True
    offset = -1 if assigned.start is None else assigned.start.offset
    engine.inform(
        PartitionEvent("store-damaged", topic, partition, offset, f"{damage}; it is kept as {kept}")
    )
    logger.error(
        "%s[%d]: its damaged store is kept as %s, and recovery begins with an empty one: %s",
        topic,
        partition,
        kept,
        damage,
    )


def _plan(held: Partition, start: Start, client: Client, chosen: RecoverySettings) -> StartPlan:
    stored = held.loaded.progress if held.loaded else None
    if start.new and stored is not None and stored.begun:
        logger.warning(
            "%s[%d]: the group has no committed offset, but its store has offsets %d to %d: were its commits deleted, or did they "
            "expire? It begins anew at %d; what came before is unverified", held.topic, held.partition, stored.low, stored.high, start.offset,
        )  # fmt: skip
    low, era, complete = start.offset, stored.era if stored else "", False
    if start.metadata is not None:
        low, era, complete = start.metadata.low, start.metadata.era, start.metadata.complete
    elif chosen.history == "assume-processed" and start.before_us:
        low = client.bounds(held.topic, held.partition)[0]
    on_rewind: OnRewind = "reprocess" if start.reprocess else chosen.on_rewind
    plan = plan_start(
        stored,
        committed=start.offset,
        low=low,
        era=era,
        complete=complete,
        new=start.new,
        on_rewind=on_rewind,
        buried=None if start.metadata is None else start.metadata.buried,
        writer="" if start.metadata is None else start.metadata.by,
    )
    unknown = stored is not None and stored.committed is None and not start.reopened
    if plan.keep and unknown and plan.progress.high > start.offset:
        logger.warning(
            "%s[%d]: its store takes offsets up to %d for processed, and the group has committed %d: those between were completed "
            "here, or a restored snapshot vouches for them, and are not delivered; if nobody processed them, remove the store",
            held.topic, held.partition, plan.progress.high, start.offset,
        )  # fmt: skip
    if not plan.progress.writer:
        plan = replace(plan, progress=replace(plan.progress, writer=secrets.token_hex(_WRITER_BYTES)))
    if start.reopened:
        # What was not committed yet must not look committed: after a crash the group's offset would seem to be set back.
        plan = replace(plan, progress=replace(plan.progress, committed=start.acknowledged))
    return plan
