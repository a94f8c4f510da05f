"""How a partition comes up to date before it delivers: its own store, a snapshot, a replay of the tail.

A generator that does a few milliseconds of work a step, so that it runs beside the poll loop and a rebalance never waits
for it. Each rung of the ladder is taken only if it gains ground.
"""

from __future__ import annotations

import logging
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
from dedup_sdk.kafka.log_changes import bears_witness, start_in_the_log, until_where_it_is_the_same
from dedup_sdk.kafka.recovery_news import RecoveryNews
from dedup_sdk.kafka.replay import Cut, replay
from dedup_sdk.kafka.settings import ClientSettings
from dedup_sdk.kafka.snapshots import start_from_snapshot
from dedup_sdk.lane.plan import StartPlan, plan_start
from dedup_sdk.observe import EventName, PartitionEvent
from dedup_sdk.rule_fingerprint import log_name, rule_digits
from dedup_sdk.store.protocol import DIGEST_NAME, Identity

logger = logging.getLogger("dedup_sdk")

LOCK_NEWS_S = 1.0
"""Seconds after which it is news that a partition waits for its store: a hand-over takes less."""
LOCK_LOOK_S = 0.01
"""Seconds between two looks whether another process has let a store go, at first."""
MAX_LOCK_LOOK_S = 1.0
"""The same after a long wait."""

History = Literal["none", "assume-processed"]
OnFullDisk = Literal["pause", "unverified"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySettings:
    """The user's choices: where snapshots are, and what to believe of an unknown past."""

    snapshot: tuple[str, ...]
    """Folders, folders of several snapshots, and URLs."""
    history: History
    on_full_disk: OnFullDisk = "pause"
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
    start = _without_another_rule(assigned, start, held, settings)
    until = None if chosen.timeout_s is None else assigned.taken_at + chosen.timeout_s
    start = yield from start_in_the_log(start, held, engine, client, settings, assigned=assigned, until=until)
    start = yield from _checked(start, held, engine, client)
    news = RecoveryNews(assigned, engine)
    while True:
        cut = yield from _cut_before_a_replay(start, held, client, chosen)
        if cut is None:
            assigned.start_again(start)
            plan, notes, cut = yield from _start_and_replay(
                assigned, start, held, engine, client, settings, chosen, news, until=until
            )
            if cut is None:
                _tell_what_is_done(assigned, start, held, plan)
                _note_the_end(assigned, start, held, plan, notes, began=began)
                news.end()
                return
            # It was cut meanwhile: among what was replayed may be what nobody has handled.
            held.loaded = None
        suspect = replace(start, suspect=True, same_until=cut.same_until)
        start = yield from start_in_the_log(
            suspect, held, engine, client, settings, assigned=assigned, until=until
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
        chosen = replace(chosen, snapshot=())
    plan = _plan(held, start, client, chosen)
    _tell_if_late(held, start, plan)
    if plan.beginning == "rewound":
        news.rewound(start.offset)
        if held.claims is not None:
            logger.warning(
                "%s[%d] was rewound, and the shared memory still knows what was completed: that stays hidden; to have it handled again, give "
                "Shared another prefix", assigned.topic, assigned.partition,
            )  # fmt: skip
    notes: list[str] = [plan.beginning]
    snapshots = chosen.snapshot if plan.whole and not held.forgets else ()
    if snapshots:
        identity = Identity(
            cluster=client.cluster_id(), group=settings.group, topic=assigned.topic, partition=assigned.partition,
            topic_id=client.topic_id(assigned.topic), id_spec=str(held.keys), isolation=settings.isolation,
        )  # fmt: skip
        with closing(client.tail_reader(assigned.topic, assigned.partition)) as reader:
            plan, note = yield from start_from_snapshot(
                held, plan, snapshots, identity, chosen.store_folder, news, reader.same_until
            )
        notes.append(note)
    else:
        held.start(plan)
    notes += _of_another_store(assigned, held, plan)
    yield
    cut: Cut | None = None
    if plan.replay_to > plan.replay_from:
        with closing(client.tail_reader(assigned.topic, assigned.partition)) as reader:
            cut = yield from replay(
                assigned, held, plan, reader=reader, engine=engine, until=until,
                waits_for_room=chosen.on_full_disk == "pause", news=news,
            )  # fmt: skip
        notes.append(f"replayed {assigned.replayed} records")
        cut = cut or (yield from _cut_before(start, held, client))
    return plan, notes, cut


def _tell_if_late(held: Partition, start: Start, plan: StartPlan) -> None:
    known = held.loaded.progress.committed if held.loaded else None
    if plan.beginning == "resumed" and known is not None and start.offset < known:
        logger.warning(
            "%s[%d]: a commit of %d came after that of %d, in the same era: nobody set the group back, so that nothing is handled "
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


def _without_another_rule(
    assigned: Assigned, start: Start, held: Partition, settings: ClientSettings
) -> Start:
    """Let the history begin where the group stands, where marks were made by another rule than now.

    What another ID spec or strategy hid was never handled: folded by this one, it would count as handled. Marks that are there stay: they
    are what was lived by this rule.
    """
    assigned.rule = rule_digits(held.keys, held.window, digest=DIGEST_NAME, isolation=settings.isolation)
    if start.metadata is None or start.metadata.rule == assigned.rule:
        return start
    logger.warning(
        "%s[%d]: up to offset %d the group went by another rule (%s, now %s): was the ID spec, the strategy, the kind of window or "
        "isolation.level changed? Nothing before it counts as handled; what depends on it is unverified until the window has filled",
        assigned.topic, assigned.partition, start.offset, start.metadata.rule, assigned.rule,
    )  # fmt: skip
    return replace(start, metadata=None, at_once=True)


def _checked(
    start: Start, held: Partition, engine: Deduplicator, client: Client
) -> Generator[None, None, Start]:
    """Believe what a commit's text says of offsets completed above it only where the log has the last of these records."""
    done = None if start.metadata is None else start.metadata.done
    if start.metadata is None or done is None or start.reopened:
        return start
    if (yield from bears_witness(done.witness, held, engine, client)):
        return start
    logger.warning(
        "%s[%d]: the text beside offset %d names a record at %d as completed which the log does not have: what is completed above "
        "that offset is not known, and is handed out again", held.topic, held.partition, start.offset, done.witness.offset,
    )  # fmt: skip
    return replace(start, metadata=replace(start.metadata, done=None), at_once=True)


def _tell_what_is_done(assigned: Assigned, start: Start, held: Partition, plan: StartPlan) -> None:
    """Have the partition hide what the group completed elsewhere above its committed offset."""
    done = None if start.metadata is None or plan.beginning == "rewound" else start.metadata.done
    assigned.told = done
    if done is not None:
        said = not start.at_once and done.ranges[0][0] >= start.offset
        assigned.done_asked = done.encode(start.offset) if said else ""
        held.tell_completed(done.ranges)


_OF_THE_RULE = ("format", "id_spec", "digest", "isolation", "window")
"""Fields of a store's identity that say by which rule, or in which format, it was made."""


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
            if error.field == "topic_id" and topic_id:
                _set_aside_foreign(assigned, engine, client, error, "topic-recreated")
            elif error.field in _OF_THE_RULE:
                _set_aside_foreign(assigned, engine, client, error, "rule-changed")
            else:
                raise
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


def _set_aside_foreign(
    assigned: Assigned, engine: Deduplicator, client: Client, error: ForeignStoreError, event: EventName
) -> None:
    """Keep a store apart whose marks mean nothing here: of a topic that was deleted, by another rule, or in an older format."""
    topic, partition = assigned.topic, assigned.partition
    kept = engine.set_aside(topic, partition, topic_id=client.topic_id(topic), cluster=client.cluster_id())
    offset = -1 if assigned.start is None else assigned.start.offset
    engine.tell(PartitionEvent(event, topic, partition, offset, f"{error}; it is kept as {kept}"))


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
    plan = plan_start(
        stored,
        committed=start.offset,
        low=low,
        era=era,
        complete=complete,
        new=start.new,
        vouched=start.metadata is not None,
    )
    unknown = stored is not None and stored.committed is None and not start.reopened
    if plan.keep and unknown and plan.progress.high > start.offset:
        logger.warning(
            "%s[%d]: its store takes offsets up to %d for processed, and the group has committed %d: those between were completed "
            "here, or a restored snapshot vouches for them, and are not delivered; if nobody processed them, remove the store",
            held.topic, held.partition, plan.progress.high, start.offset,
        )  # fmt: skip
    if start.reopened:
        # What was not committed yet must not look committed: after a crash the group's offset would seem to be set back.
        plan = replace(plan, progress=replace(plan.progress, committed=start.acknowledged))
    return plan
