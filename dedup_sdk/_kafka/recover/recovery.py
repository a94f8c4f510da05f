"""Recovery of a partition between its assignment and its first delivery.

`recover` takes these steps, each only where it is needed:

1. `store`: open the local store, if it belongs to this log and this rule.
2. `history`: check that the log is still the one that store and group read; verify the completions above the committed
   offset in the commit's text; plan the start.
3. `snapshot`: install a snapshot, where the marks of a whole window are missing.
4. `replay`: read the tail of the topic up to the committed offset. Where records of that tail are gone from the log,
   coverage begins later.

Terms: *low* and *high* (the watermark) bound the range that is completed without a gap. The *tail* is the part of the
log from the end of the marks to the committed offset. *Coverage*: the part of the window in which no mark is missing.

`recover` is a generator whose steps take a few milliseconds each, so that it runs between polls and no rebalance waits
for it. A step yields None to continue at once, or a `Wait`. `RecoveryLoop` (`scheduler`) runs several side by side.
"""

from __future__ import annotations

import time
from dataclasses import replace

from dedup_sdk._commit_text import CommitMetadata, log_name
from dedup_sdk._core.reach import StartPlan
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._kafka.assign.assignment import Assigned, Recovered, Recovering, State, Steps
from dedup_sdk._kafka.assign.start import LogChange, Start
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.client.settings import ClientSettings
from dedup_sdk._kafka.recover.attempt import Attempt
from dedup_sdk._kafka.recover.history import check_log_if_needed, start_plan, valid_history
from dedup_sdk._kafka.recover.log_check import cut_store_back, find_log_cut
from dedup_sdk._kafka.recover.replay import replay
from dedup_sdk._kafka.recover.settings import Recovery
from dedup_sdk._kafka.recover.snapshot import start_from_snapshot
from dedup_sdk._kafka.recover.store import Opened, open_store
from dedup_sdk._marks import Witness
from dedup_sdk._masking import counted
from dedup_sdk._store.protocol import Loaded


def recover(
    assigned: Assigned,
    recovering: Recovering,
    engine: Deduplicator,
    client: Client,
    settings: ClientSettings,
    policy: Recovery,
) -> Steps[None]:
    """Recover one partition; at the end, it is `Recovered`, and accepts records from the start offset on.

    Raises `StoreError`, `SnapshotError`, `RecoveryError` or `KafkaException`; nothing is delivered then.
    """
    began = time.monotonic()
    attempt = Attempt(
        assigned, recovering, engine, client, settings, policy,
        cluster=client.cluster_id(), topic_id=client.topics.id_of(assigned.topic),
        until=None if policy.timeout is None else assigned.taken_at + policy.timeout,
    )  # fmt: skip
    recovering.log = log_name(attempt.cluster, attempt.topic_id)
    opened = yield from open_store(attempt)
    partition = opened.partition
    start, done_epoch = yield from valid_history(attempt, recovering.start, partition)
    while True:
        loaded = partition.loaded
        plan = start_plan(partition, start, client, policy)
        notes: list[str] = []
        cut: LogChange | None = None
        if plan.replay_to > plan.replay_from and start.log_change is None:
            # The log may have other records at the offsets to replay, which were never handled.
            cut = yield from find_log_cut(attempt, start)
        if cut is None:
            plan, notes, cut = yield from _fill(attempt, start, opened, plan)
            if cut is None:
                break
            if cut.of_store and loaded is not None:
                yield from cut_store_back(attempt, partition, loaded)
                continue
            # The log was cut during the replay: some of the replayed records may never have been handled.
            partition.begin_with(None)
        change = cut if start.log_change is None else start.log_change._replace(same_until=cut.same_until)
        start = yield from check_log_if_needed(attempt, replace(start, log_change=change), partition)
    done = None if start.metadata is None else start.metadata.done
    if start.metadata is not None and done is not None:
        # Records above the committed offset that the group has completed already must be hidden.
        partition.tell_completed(
            done.ranges, done_epoch, is_exact=start.metadata.is_exact_above(start.offset)
        )
    partition.read_from(start.offset)
    if start.metadata is not None and partition.flight.high == start.offset:
        partition.flight.learn_epoch(start.metadata.epoch)
    note, seconds = ", ".join(notes), time.monotonic() - began
    # A store that jumped has marks from before the history that the next commit vouches for.
    own = plan.progress.known.is_complete and plan.beginning != "jumped"
    complete = own if start.metadata is None else start.metadata.complete
    # There are no events where nothing was replayed or installed.
    was_told = assigned.state is State.REPLAYING
    assigned.be_ready(
        Recovered(recovering.start, recovering.log, partition, complete, done, note=note, seconds=seconds)
    )
    if was_told:
        engine.count(attempt.event("recovery-ended", f"{note}, {seconds:.2f} s"))


def _fill(
    attempt: Attempt, start: Start, opened: Opened, plan: StartPlan
) -> Steps[tuple[StartPlan, list[str], LogChange | None]]:
    """Have the partition know all marks up to its start; return how it began, notes on that, and how the log was cut.

    A cut of the log meanwhile makes the rest worthless; None: there was no cut.
    """
    recovering, commits, partition = attempt.recovering, attempt.assigned.commits, opened.partition
    if start is not recovering.start:
        # Not the committed offset: what was requested behind it must be committed again.
        recovering.start = start
        commits.forget_move()
        commits.ask_again()
    _keep_history(attempt, start, plan, partition.terms.rule)
    witness = _witness_before_tail(plan, partition.loaded)
    plan, notes = yield from _start_with_marks(attempt, start, opened, plan)
    if plan.replay_to <= plan.replay_from:
        return plan, notes, None
    with attempt.reader() as reader:
        cut = yield from replay(attempt, partition, plan, reader, witness)
    notes.append(f"replayed {counted(recovering.replayed, 'record')}")
    return plan, notes, cut or (yield from find_log_cut(attempt, start))


def _witness_before_tail(plan: StartPlan, loaded: Loaded | None) -> Witness | None:
    """Return the last record that the store completed, where the replay goes on from what the store has."""
    goes_on = loaded is not None and plan.keep and plan.replay_from == loaded.progress.high
    return loaded.progress.witness if goes_on and loaded is not None else None


def _keep_history(attempt: Attempt, start: Start, plan: StartPlan, rule: str) -> None:
    """Let the start keep the history that its store vouched for.

    If this attempt fails, the next one finds that store begun anew.
    """
    if start.metadata is None and plan.progress.low < start.offset:
        low, era = plan.progress.low, plan.progress.era
        kept = CommitMetadata(low=low, log=attempt.recovering.log, rule=rule, era=era, complete=False)
        attempt.learn(start, replace(start, metadata=kept))


def _start_with_marks(
    attempt: Attempt, start: Start, opened: Opened, plan: StartPlan
) -> Steps[tuple[StartPlan, list[str]]]:
    """Start with the marks of the store, of a snapshot, or with none; return the remaining plan, and notes on it."""
    assigned, engine, partition = attempt.assigned, attempt.engine, opened.partition
    if plan.beginning == "rewound":
        detail = "the group was set back, or moved by another program, below the offsets that this store has completed"
        if not assigned.was_moved_here:
            engine.count(attempt.event("rewound", detail, start.offset))
        if engine.gatekeeper is not None:
            engine.gatekeeper.rewound(assigned.topic, assigned.partition)
    notes: list[str] = [plan.beginning]
    if plan.whole and not partition.ephemeral and attempt.policy.snapshot and not attempt.is_over:
        identity = engine.identity_of(
            assigned.topic, assigned.partition, attempt.topic_id, attempt.cluster, partition.terms
        )
        with attempt.reader() as reader:
            plan, note = yield from start_from_snapshot(
                partition, plan, attempt.policy.snapshot, identity, engine.store_folder,
                attempt.begin, reader.same_until,
            )  # fmt: skip
        notes.append(note)
    else:
        partition.start(plan)
    if opened.was_damaged:
        notes.append("damaged store set aside")
        if plan.beginning == "new" and not partition.ephemeral:
            # The group has committed nothing, but the damaged store may have had marks.
            partition.memory.forget_all()
    return plan, notes
