"""Writing texts for the commits of a group that existed before, so that its earlier messages count as handled.

The user vouches for the messages from the beginning of the log up to the committed offset. No offset moves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dedup_sdk._admin.group_offsets import CommitInLog, GroupOffsets, NewCommit
from dedup_sdk._commit_text import CommitMetadata, new_era, rule_named_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The adoption of one partition: its commit, and the metadata for it (None: it stays as it is).

    ``text`` says what the commit has now, ``note`` why it stays, or what you vouch for.
    """

    stands: CommitInLog
    metadata: CommitMetadata | None = None
    text: str
    note: str = ""

    @property
    def offsets(self) -> int:
        """The number of offsets that count as handled when the text is written."""
        if self.metadata is None or self.stands.committed is None:
            return 0
        return self.stands.committed - self.metadata.low


def plan_adoption(offsets: GroupOffsets, rule: str, partitions: Iterable[int] = ()) -> list[Adoption]:
    """Return the adoption of ``partitions`` (default: all of the topic) by a rule, without changing anything."""
    found, log, era = offsets.read(partitions), offsets.log(), new_era()
    adoptions = [adopted(each, CommitMetadata(low=each.first, log=log, rule=rule, era=era)) for each in found]
    if any(each.committed is not None for each in found):
        return adoptions
    why = offsets.why_no_commit()
    return [replace(each, note=why) for each in adoptions]


def commits_of(adoptions: Iterable[Adoption]) -> list[NewCommit]:
    """Return the commits of the adoptions that write a text."""
    return [
        NewCommit(each.stands.partition, each.stands.committed, each.metadata)
        for each in adoptions
        if each.metadata is not None and each.stands.committed is not None
    ]


def adopted(stands: CommitInLog, wanted: CommitMetadata) -> Adoption:
    """Return the adoption of one partition; ``wanted`` is the text where the commit has none.

    Nobody can vouch for records before a commit by another rule: those that the rule hid were never handled.
    """
    committed, now = stands.committed, stands.metadata
    if committed is None:
        return Adoption(stands=stands, text="none", note="the group has committed nothing")
    text = _text_now(stands)
    if reason := _why_not(stands, wanted):
        return Adoption(stands=stands, text=text, note=reason)
    if now is None or not now.is_of(wanted.log):
        return Adoption(stands=stands, metadata=wanted, text=text)
    if now.complete or now.low <= stands.first:
        return Adoption(stands=stands, text=text, note="all of its messages count as handled already")
    # In the same era: a new one would be a rewind for the stores, and drop the records completed above the commit.
    return Adoption(
        stands=stands,
        metadata=replace(now, low=stands.first),
        text=text,
        note=f"you vouch for the messages before {now.low}",
    )


def _text_now(stands: CommitInLog) -> str:
    if stands.metadata is not None:
        return f"history from {stands.metadata.low}"
    return "void" if stands.text.startswith("dedup/") else "none"


def _why_not(stands: CommitInLog, wanted: CommitMetadata) -> str:
    """Return why the commit stays as it is; empty where it can be adopted."""
    committed, now = stands.committed or 0, stands.metadata
    if now is not None and now.is_of_one_before(wanted.log):
        return "its commit is of a deleted topic of this name"
    rule = rule_named_in(stands.text)
    if rule not in (None, wanted.rule):
        return (
            f"its text has another rule ({rule}, this one is {wanted.rule}); check --id, --window. If an earlier dedup "
            "adopt wrote that text by mistake, and no consumer ran since, commit the same offset without a text "
            "(kafka-consumer-groups.sh --reset-offsets --to-current), and adopt again"
        )
    if committed < stands.first:
        return f"the log begins at {stands.first}, after its commit"
    if committed > stands.end:
        return f"the log ends at {stands.end}, before its commit"
    return ""
