"""How a partition comes up to date before it delivers: its own store, a snapshot, a replay of the tail.

A generator that does a few milliseconds of work a step, so that it runs beside the poll loop and a rebalance never waits
for it. Each rung of the ladder is taken only if it gains ground.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.engine.partition import Partition
from dedup_sdk.errors import RecoveryError, SnapshotError, StoreLockedError
from dedup_sdk.kafka.assigned import Assigned, Start
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.reader import TailReader
from dedup_sdk.kafka.settings import ClientSettings
from dedup_sdk.lane.plan import OnRewind, StartPlan, plan_start
from dedup_sdk.store.manifest import Manifest, PartitionManifest, read_manifest
from dedup_sdk.window import Window

logger = logging.getLogger("dedup_sdk")

LOCK_WAIT_S = 30.0
"""Seconds to wait for the previous owner on this host to let go of a partition's database."""

History = Literal["none", "assume-processed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySettings:
    """The user's choices: a snapshot folder, and what to believe of an unknown past."""

    snapshot: str | None
    on_rewind: OnRewind
    history: History


def recover(
    assigned: Assigned, engine: Deduplicator, client: Client, settings: ClientSettings, chosen: RecoverySettings
) -> Generator[None, None, None]:
    """Bring one partition up to date; when the generator ends, ``assigned.held`` may be fed from its start on.

    Raises `StoreError`, `SnapshotError` or `RecoveryError`; nothing is delivered then.
    """
    began = time.monotonic()
    start = assigned.start
    if start is None:
        raise RecoveryError(f"{assigned.topic}[{assigned.partition}] has no start")
    held = yield from _attach(assigned, engine, client)
    plan = _plan(held, start, client, chosen)
    notes: list[str] = [plan.beginning]
    if plan.whole and plan.replay_to > plan.replay_from:
        plan, note = _take_snapshot(held, plan, settings, chosen, client.cluster_id(), client.topic_id(assigned.topic))
        notes += note
    else:
        held.start(plan)
    yield
    if plan.replay_to > plan.replay_from:
        reader = TailReader(settings, assigned.topic, assigned.partition)
        try:
            yield from _replay(assigned, held, plan, reader, engine, client)
        finally:
            reader.close()
        notes.append(f"replayed {assigned.replayed} records")
    assigned.held = held
    assigned.complete = start.new if start.metadata is None else start.metadata.complete
    assigned.seconds = time.monotonic() - began
    assigned.note = ", ".join(notes)


def _attach(assigned: Assigned, engine: Deduplicator, client: Client) -> Generator[None, None, Partition]:
    deadline = time.monotonic() + LOCK_WAIT_S
    topic_id = client.topic_id(assigned.topic)
    while True:
        try:
            return engine.attach(assigned.topic, assigned.partition, topic_id=topic_id, cluster=client.cluster_id())
        except StoreLockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            yield


def _plan(held: Partition, start: Start, client: Client, chosen: RecoverySettings) -> StartPlan:
    stored = held.loaded.progress if held.loaded else None
    low, era, complete = start.offset, stored.era if stored else "", False
    if start.metadata is not None:
        low, era, complete = start.metadata.low, start.metadata.era, start.metadata.complete
    elif chosen.history == "assume-processed" and not start.new:
        low = client.bounds(held.topic, held.partition)[0]
    on_rewind: OnRewind = "reprocess" if start.reprocess else chosen.on_rewind
    return plan_start(
        stored, committed=start.offset, low=low, era=era, complete=complete, new=start.new, on_rewind=on_rewind
    )


def _take_snapshot(
    held: Partition, plan: StartPlan, settings: ClientSettings, chosen: RecoverySettings, cluster: str, topic_id: str
) -> tuple[StartPlan, list[str]]:
    """Start from the snapshot if there is one that fits, else from nothing; return the plan that remains."""
    if chosen.snapshot is None:
        held.start(plan)
        return plan, []
    manifest = read_manifest(chosen.snapshot)
    part = next((p for p in manifest.partitions if p.partition == held.partition), None)
    misfit = _misfit(manifest, part, plan, settings, held, cluster, topic_id)
    if misfit or part is None:
        held.start(plan)
        logger.warning("%s[%d]: snapshot %s not taken: %s", held.topic, held.partition, chosen.snapshot, misfit)
        return plan, ["snapshot not taken"]
    progress = replace(
        plan.progress, high=part.high, since_ms=part.since_ms, accepted=part.accepted, since_number=part.since_number,
        newest_ms=part.newest_ms,
    )  # fmt: skip
    plan = replace(plan, progress=progress, replay_from=part.high, whole=False)
    held.install(chosen.snapshot, plan)
    return plan, [f"snapshot of {part.marks} marks"]


def _misfit(
    manifest: Manifest, part: PartitionManifest | None, plan: StartPlan, settings: ClientSettings, held: Partition,
    cluster: str, topic_id: str,
) -> str:  # fmt: skip
    """Say why a snapshot must not be taken, or nothing.

    A cut beyond the committed offset would make duplicates of records that this group never handled; so would the
    history of another group, unless the user vouches for it by giving a snapshot made without one.
    """
    if part is None:
        return f"it has no partition {held.partition}"
    for name, theirs, ours in (
        ("cluster", manifest.cluster, cluster), ("topic", manifest.topic, held.topic), ("topic ID", manifest.topic_id, topic_id),
        ("ID spec", manifest.id_spec, held.id_spec), ("isolation level", manifest.isolation, settings.isolation),
    ):  # fmt: skip
        if theirs != ours:
            return f"its {name} is {theirs!r}, here it is {ours!r}"
    size, theirs_size = held.window.count, Window.parse(manifest.window).count
    if (size or 0) > (theirs_size or 0) or (size is None and theirs_size is not None):
        return f"its window is {manifest.window}, here it is {held.window}, and ranks cannot be made up"
    if part.high > plan.replay_to:
        return f"its cut {part.high} lies beyond the committed offset {plan.replay_to}"
    if manifest.group is not None and manifest.group != settings.group:
        return f"it is the history of group {manifest.group!r}, here it is {settings.group!r}"
    if manifest.group is not None and part.low < plan.progress.low:
        return f"it begins at {part.low}, before this group's own history at {plan.progress.low}"
    return ""


def _replay(
    assigned: Assigned, held: Partition, plan: StartPlan, reader: TailReader, engine: Deduplicator, client: Client
) -> Iterator[None]:
    first, last = client.bounds(held.topic, held.partition)
    if plan.replay_to > last:
        raise RecoveryError(
            f"{held.topic}[{held.partition}]: the group committed {plan.replay_to}, but the log ends at {last}; was the topic "
            "truncated or made anew? Reset the group's offsets"
        )
    begin = plan.replay_from
    window = engine.strategy.window
    if plan.whole and window.time_ms is not None and window.count is None:
        begin = _one_window_back(held, reader, begin, plan.replay_to, client)
    if first > begin:
        logger.warning(
            "%s[%d]: offsets %d to %d are gone from the log; what hangs on them is unverified until the window has filled",
            held.topic, held.partition, begin, first,
        )  # fmt: skip
        held.lane.forget_all()
        begin = min(first, plan.replay_to)
    for piece in reader.slices(begin, plan.replay_to, engine.strategy.id):
        if piece is not None:
            held.fold(piece.offsets, piece.timestamps, piece.digests, piece.end)
            assigned.replayed += len(piece.offsets)
            engine.trim()
        yield
    if held.lane.high < plan.replay_to:
        held.fold([], np.empty(0, np.int64), [], plan.replay_to)


def _one_window_back(
    held: Partition, reader: TailReader, low: int, end: int, client: Client
) -> int:
    """Return where a fold may begin that gives every mark alive at ``end``, and note from when the marks are known."""
    newest = reader.newest_before(end, low)
    if newest is None:
        return low
    since_ms = held.lane.horizon_ms(newest)
    first = client.first_at(held.topic, held.partition, since_ms)
    if first is None or first <= low:
        return low
    held.lane.since_ms = since_ms
    return min(first, end)
