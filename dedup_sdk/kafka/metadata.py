"""The text that travels with every committed offset.

Kafka keeps a short text beside a committed offset. Ours says which part of the log this group has really processed, so that a consumer
on any machine knows what it may take for seen:

    dedup/2 at=1300 fingerprint=3f9a01bc84d2e6f7.90c2e5d1aabb0c4d low=1200 complete=1 era=5f0c9a epoch=7 done=eJz7z8...

``at``
    the offset that this text was written for. Tools copy texts to other offsets: there it says nothing.
``fingerprint``
    everything that marks depend on (`dedup_sdk.rule_fingerprint`). Where it is not the reader's own, the text says nothing: what another
    rule hid was never handled.
``low``
    where the part of the log begins that the group has processed without a gap; nothing before it is ever taken for seen.
``complete``
    1 when the group's own history begins at ``low`` (it was new then), so that nothing is missing before it.
``era``
    changes when an operator rewinds on purpose; empty until then.
``epoch``
    the partition's leader epoch when these records were read, left out where the broker does not say: by it the broker
    knows whether the log still has them. (Not the field that Kafka has for it: what refuses a commit there is of no use.)
``done``
    what is completed above ``at`` (`dedup_sdk.kafka.completed_above`), left out where nothing is.

A text of another format, or with a field that this version does not know, counts as none: what is not understood vouches for nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final

from confluent_kafka import Uuid

from dedup_sdk.kafka import completed_above
from dedup_sdk.kafka.completed_above import CompletedAbove
from dedup_sdk.rule_fingerprint import is_of_one_cluster, is_one_log

MOST_CHARACTERS: Final = 4_096
"""What a broker takes beside an offset, unless its ``offset.metadata.max.bytes`` says otherwise."""
_FORM: Final = re.compile(
    r"dedup/2 at=(?P<at>\d{1,19}) fingerprint=(?P<log>(?:[0-9a-f]{8}){0,2})\.(?P<rule>[0-9a-f]{16}) low=(?P<low>\d{1,19}) "
    r"complete=(?P<complete>[01]) era=(?P<era>[0-9a-z]{0,32})(?: epoch=(?P<epoch>\d{1,9}))?"
    rf"(?: done=(?P<done>{completed_above.PATTERN}))?",
    re.ASCII,
)
_MOST_OFFSET: Final = 2**63 - 1
_NO_ID: Final = str(Uuid(0, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """What a group says of its history up to a committed offset; ``low`` is an offset, ``era`` at most 32 lower-case letters and digits.

    ``log`` and ``rule`` are the two parts of the fingerprint (`dedup_sdk.rule_fingerprint`).
    """

    low: int
    log: str = ""
    rule: str = "0" * 16
    era: str = ""
    complete: bool = False
    epoch: int | None = None
    done: CompletedAbove | None = None

    def text(self, at: int) -> str:
        """Return the text for a commit of offset ``at``, which `parse_metadata` reads."""
        epoch = "" if self.epoch is None else f" epoch={self.epoch}"
        done = "" if self.done is None else f" done={self.done.encode(at)}"
        return f"dedup/2 at={at} fingerprint={self.log}.{self.rule} low={self.low} complete={int(self.complete)} era={self.era}{epoch}{done}"

    def room(self, at: int) -> int:
        """Return how many characters a text for ``at`` has left for ``done``."""
        return MOST_CHARACTERS - len(replace(self, done=None).text(at)) - len(" done=")

    def is_of(self, log: str) -> bool:
        """Whether these offsets are of this log; see `is_one_log`."""
        return is_one_log(self.log, log)

    def is_of_one_before(self, log: str) -> bool:
        """Whether these offsets are of another topic of this log's cluster: beside a commit, of the one that had its name before."""
        return not self.is_of(log) and is_of_one_cluster(self.log, log)


def done_part(text: str | None) -> str:
    """Return what a text of ours says of offsets completed above its own; empty where it says nothing of them."""
    return (text or "").partition(" done=")[2]


def topic_id_of(description: Any) -> str:
    """Return the ID in a `confluent_kafka.admin.TopicDescription`; empty where brokers have none, for which the client shows one of zeros."""
    topic_id = str(description.topic_id or _NO_ID)
    return "" if topic_id == _NO_ID else topic_id


def parse_metadata(text: str | None, *, committed: int) -> CommitMetadata | None:
    """Read the text beside the offset ``committed``.

    None when it is not ours (another client's, a reset tool's, of another format), or was written for another offset.
    """
    form = _FORM.fullmatch(text or "")
    if (
        form is None
        or int(form["at"]) != committed
        or committed > _MOST_OFFSET
        or int(form["low"]) > committed
    ):
        return None
    done = None
    if form["done"] is not None:
        done = completed_above.decode(form["done"], committed)
        if done is None:
            return None
    return CommitMetadata(
        low=int(form["low"]),
        log=form["log"],
        rule=form["rule"],
        era=form["era"],
        complete=form["complete"] == "1",
        epoch=None if form["epoch"] is None else int(form["epoch"]),
        done=done,
    )
