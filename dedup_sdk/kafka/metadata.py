"""The string that travels with every committed offset.

Kafka keeps a short text beside a committed offset. Ours says where the stretch of log begins that this group has really
processed without a gap, so that a consumer on any machine knows what it may take for seen:

    dedup/1 low=1200 era=5f0c9a complete=1 epoch=7 log=3f9a01bc84d2e6f7 by=5d0c77e1 aborted=1200 units=90c2e5d1

``low``
    the first offset of that stretch; nothing before it is ever taken for seen.
``era``
    changes when an operator rewinds on purpose; empty until then.
``complete``
    1 when the group's own history begins at ``low`` (it was new then), so that nothing is missing before it.
``epoch``
    the partition's leader epoch when these records were read, left out where the broker does not say: by it the broker
    knows whether the log still has them. (Not the field that Kafka has for it: what refuses a commit there is of no use.)
``log``
    which log these offsets are of (`log_name`), left out where nobody says: a tool that copies a group to another cluster
    (MirrorMaker 2) translates the offset and leaves the text as it is; and a consumer that has not heard that its topic was made anew
    commits in the new one what it knows of the old.
``by``
    which key store it was committed from (`dedup_sdk.progress.Progress.writer`): one of its own commits that arrives after a later
    one is told from a group that somebody has set back.
``aborted``
    from which offset on the group read records of aborted transactions too (``isolation.level=read_uncommitted``), left out where it does
    not: before it nobody handled them, so that they must not be folded.
``units``
    how all since ``low`` was judged where records belong to units (`dedup_sdk.units.judged.judged_by`), left out where each was judged for
    itself: by another rule another unit is rejected, so that what nobody has handled would be remembered.

A text with a field that this version does not know counts as none, on purpose: what is not understood vouches for nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from confluent_kafka import Uuid

_FORM = re.compile(
    r"dedup/1 low=(\d{1,19}) era=([0-9a-z]{0,32}) complete=([01])(?: epoch=(\d{1,9}))?(?: log=((?:[0-9a-f]{8}){1,2}))?"
    r"(?: by=([0-9a-f]{8}))?(?: aborted=(\d{1,19}))?"
    r"(?: units=([0-9a-f]{8}))?",
    re.ASCII,
)
_MAX_OFFSET = 2**63 - 1
_DIGITS = 8
_NO_ID: Final = str(Uuid(0, 0))
_NAMELESS = ("", "unnamed")
"""What stands for the ID of a cluster that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """What a commit says beside its offset; ``low`` is an offset, ``era`` at most 32 lower-case letters and digits.

    ``log`` is as `log_name` gives it, ``units`` as `judged_by` does.
    """

    low: int
    era: str = ""
    complete: bool = False
    epoch: int | None = None
    log: str = ""
    by: str = ""
    aborted: int | None = None
    units: str = ""

    def __str__(self) -> str:
        """The text that `parse_metadata` reads."""
        epoch = "" if self.epoch is None else f" epoch={self.epoch}"
        log = f" log={self.log}" if self.log else ""
        by = f" by={self.by}" if self.by else ""
        aborted = "" if self.aborted is None else f" aborted={self.aborted}"
        units = f" units={self.units}" if self.units else ""
        told = f"{epoch}{log}{by}{aborted}{units}"
        return f"dedup/1 low={self.low} era={self.era} complete={int(self.complete)}{told}"

    def is_of(self, log: str) -> bool:
        """Whether these offsets are of this log; see `is_one_log`."""
        return is_one_log(self.log, log)

    def is_of_one_before(self, log: str) -> bool:
        """Whether these offsets are of another topic of this log's cluster: beside a commit, of the one that had its name before."""
        return not self.is_of(log) and is_of_one_cluster(self.log, log)


def topic_id_of(description: Any) -> str:
    """Return the ID in a `confluent_kafka.admin.TopicDescription`; empty where brokers have none, for which the client shows one of zeros."""
    topic_id = str(description.topic_id or _NO_ID)
    return "" if topic_id == _NO_ID else topic_id


def log_name(cluster: str, topic_id: str) -> str:
    """Return hexadecimal digits that tell a topic's log from others, by the IDs that its brokers gave: eight of its cluster, and eight of the topic.

    Without the latter where the brokers have no topic IDs; empty without a cluster's.
    """
    named = [cluster, f"{cluster}/{topic_id}"] if topic_id else [cluster]
    return "".join(sha256(name.encode()).hexdigest()[:_DIGITS] for name in named if cluster not in _NAMELESS)


def is_one_log(one: str, other: str) -> bool:
    """Whether two names (`log_name`) are of one log, as far as both of them say."""
    known = min(len(one), len(other))
    return one[:known] == other[:known]


def is_of_one_cluster(one: str, other: str) -> bool:
    """Whether two names (`log_name`) are of logs of one cluster."""
    return one[:_DIGITS] == other[:_DIGITS]


def topic_digits(name: str) -> str:
    """Return the part of a name (`log_name`) that is the topic's; empty where the brokers have no topic IDs."""
    return name[_DIGITS:]


def parse_metadata(text: str | None, *, committed: int | None = None) -> CommitMetadata | None:
    """Read a commit's text; None when it is not ours (another client's, a reset tool's, a newer format's).

    ``committed`` is the offset beside it: a history that begins beyond it is not what the group committed here.
    """
    form = _FORM.fullmatch(text or "")
    if form is None or max(int(form[1]), int(form[7] or 0)) > _MAX_OFFSET:
        return None
    if committed is not None and int(form[1]) > committed:
        return None
    return CommitMetadata(
        low=int(form[1]),
        era=form[2],
        complete=form[3] == "1",
        epoch=None if form[4] is None else int(form[4]),
        log=form[5] or "",
        by=form[6] or "",
        aborted=None if form[7] is None else int(form[7]),
        units=form[8] or "",
    )
