"""Which part of the group's history is valid for this log and this rule, and how the partition starts by that.

The history is told by the text of the group's commit (`dedup_sdk._commit_text`), and by the progress of
the local store. Both are compared with the log of now: `dedup_sdk._kafka.recover.log_check`.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from dedup_sdk._commit_text import CommitMetadata, CompletedAbove, InvalidReason, new_era
from dedup_sdk._core.reach import StartPlan, plan_start
from dedup_sdk._engine.partition import Partition
from dedup_sdk._kafka.assign.assignment import Assigned, Steps
from dedup_sdk._kafka.assign.start import LogChange, Start, set_back
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.recover.attempt import Attempt
from dedup_sdk._kafka.recover.log_check import check_witness, read_witness, start_in_the_log
from dedup_sdk._kafka.recover.settings import Recovery
from dedup_sdk._store.protocol import Loaded

logger = logging.getLogger("dedup_sdk")


def valid_history(attempt: Attempt, start: Start, partition: Partition) -> Steps[tuple[Start, int | None]]:
    """Return where to start, with the part of the group's history that is valid for this log and this rule.

    Also the leader epoch of the last record completed above the committed offset, by the commit's text, or None.
    """
    start = _start_with_store(attempt, start, partition)
    if start.metadata is not None and not start.metadata.is_of(attempt.recovering.log):
        start = discard_other_log(attempt, start, start.metadata)
    if start.rule not in (None, partition.terms.rule):
        start = _discard_other_rule(start, partition)
    if start.given is not None and start.metadata is None:
        start = replace(start, offset=start.given, given=None, must_commit_first=True)
    if start.void is not None:
        _log_void_reason(attempt.assigned, start, start.void, attempt.policy)
    start = yield from check_log_if_needed(attempt, start, partition)
    if start.metadata is None or start.metadata.done is None:
        return start, None
    return (
        yield from _verify_completed_above(attempt, start, start.metadata, start.metadata.done, partition)
    )


def _start_with_store(attempt: Attempt, start: Start, partition: Partition) -> Start:
    """Return the start of a group without a commit, or at an offset of the user's program, by what the store has.

    Without a commit nobody has moved the group: the store has its history. An offset that the program gave asks for the
    records from there on, as a seek does: if the store has completed one of them, the group is set back.
    """
    stored = None if partition.loaded is None else partition.loaded.progress
    if partition.loaded is None or stored is None or not stored.begun:
        if start.refused is not None:
            raise start.refused
        return start
    if start.new and start.by_reset and attempt.policy.without_commit == "resume":
        return _resume_without_commit(attempt, start, partition, partition.loaded)
    if start.refused is not None:
        raise start.refused
    if start.new:
        logger.warning(
            "%s[%d]: the group has no committed offset, but its store has offsets %d to %d. It begins at %d, as you "
            "have set, and records from there on are handled",
            partition.topic, partition.partition, stored.low, stored.high, start.offset,
            extra={"event": "commits-gone-reset"},
        )  # fmt: skip
        return replace(start, new=False)
    if not start.placed or stored.completed_end <= start.offset:
        return start
    metadata = None if start.metadata is None else set_back(start.metadata, start.offset)
    return replace(start, metadata=metadata, era=new_era(), must_commit_first=True)


def _resume_without_commit(attempt: Attempt, start: Start, partition: Partition, loaded: Loaded) -> Start:
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
        partition.topic, partition.partition, stored.low, stored.high, stored.high, otherwise,
        extra={"event": "commits-gone"},
    )  # fmt: skip
    # From which offset on the log decides the verdicts of units, only the lost text said.
    has_units = partition.terms.gates is not None
    metadata = CommitMetadata(
        low=stored.high if has_units else stored.low, log=attempt.recovering.log, rule=partition.terms.rule,
        era=stored.era, complete=stored.known.is_complete and not has_units, epoch=stored.epoch,
    )  # fmt: skip
    return replace(start, offset=stored.high, metadata=metadata, new=False, refused=None)


def _differ(epoch: int | None, other: int | None) -> bool:
    """Whether two leader epochs are known, and different."""
    return epoch is not None and other is not None and epoch != other


def check_log_if_needed(attempt: Attempt, start: Start, partition: Partition) -> Steps[Start]:
    """Return where to start in the present log.

    There is no check where store and group have completed the same records, in the same leader epoch as far as it is
    known. Where the store is behind the group, the replay compares the last record that the store completed.
    """
    stored = None if partition.loaded is None else partition.loaded.progress
    epoch = None if start.metadata is None else start.metadata.epoch
    if start.new or (
        stored is not None
        and stored.high == start.offset
        and start.log_change is None
        # An offset that comes from the store itself proves nothing of the log.
        and not start.by_reset
        and (start.reopened or not (stored.done or _differ(epoch, stored.epoch)))
    ):
        # The check takes time for each partition. The client reports a log that ends below the next offset anyway.
        return start
    return (yield from start_in_the_log(attempt, start, partition))


def discard_other_log(attempt: Attempt, start: Start, metadata: CommitMetadata) -> Start:
    """Discard a commit's text about another log: tools that copy groups translate the offsets, but not the texts."""
    assigned, log = attempt.assigned, attempt.recovering.log
    change: LogChange | None
    if metadata.is_of_one_before(log):
        # Deleting a topic deletes its offsets: a consumer that had not noticed the deletion committed this one later.
        void, change = InvalidReason.TOPIC_BEFORE, LogChange()
    else:
        logger.warning(
            "%s[%d]: the metadata of the committed offset %d belongs to another log (%s, this one is %s): was the "
            "group copied from another cluster? %s",
            assigned.topic, assigned.partition, start.offset, metadata.log, log, _records_before(attempt.policy),
            extra={"event": "commit-of-another-log"},
        )  # fmt: skip
        void, change = InvalidReason.OTHER_LOG, start.log_change
        if change is not None:
            # The broker's answer about the leader epoch compares this log only with itself.
            change = change._replace(same_until=None)
    return replace(
        start, metadata=None, void=void, void_rule=start.rule, must_commit_first=True, log_change=change
    )


def _discard_other_rule(start: Start, partition: Partition) -> Start:
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
        partition.topic, partition.partition, start.offset, start.rule, partition.terms.rule,
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
    attempt: Attempt, start: Start, metadata: CommitMetadata, done: CompletedAbove, partition: Partition
) -> Steps[tuple[Start, int | None]]:
    """Keep the commit's completions above its offset only where the log has the last of these records.

    Return that record's leader epoch, too: the log may be cut before the partition has read up to it. After a move the
    last record is only read: this process has just completed it.
    """
    witness = done.witness
    if witness is None:
        witness, epoch = yield from read_witness(attempt, done.ranges[-1], partition)
        known = None if witness is None else replace(done, witness=witness)
        read = replace(start, metadata=replace(metadata, done=known))
        attempt.learn(start, read)
        return read, epoch
    found = yield from check_witness(attempt, witness, partition)
    if found.same:
        return start, found.epoch
    logger.warning(
        "%s[%d]: the metadata of the committed offset %d names a completed record at %d which the log does not have: "
        "records completed above the committed offset are delivered again",
        partition.topic, partition.partition, start.offset, witness.offset,
        extra={"event": "commit-of-other-records"},
    )  # fmt: skip
    return replace(start, metadata=replace(metadata, done=None), must_commit_first=True), None


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
