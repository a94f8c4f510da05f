"""Which log a bridge's offsets are of, and the text beside a commit that says so.

    dedup-bridge/1 log=3f9a01bc84d2e6f7 ids=plain

``log`` is as `dedup_sdk.kafka.metadata.log_name` gives it. ``ids=plain``: records are named without their topic's ID, because the brokers had
none when the group began with this topic; left out where they had. A text that is not known counts as none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING

from dedup_sdk.rule_fingerprint import is_of_one_cluster, is_one_log, topic_digits

Place = tuple[str, int]
"""Topic and partition."""
_FORM: Final = re.compile(r"dedup-bridge/1 log=((?:[0-9a-f]{8}){1,2})( ids=plain)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Log:
    """Which log a partition's offsets are of, and how its records are named; ``name`` is empty where nobody can say."""

    name: str
    plain: bool = False

    @property
    def mark(self) -> str:
        """What tells this topic's records from those of another one of its name: eight hexadecimal digits, or nothing."""
        return "" if self.plain else topic_digits(self.name)

    def known_as(self, now: str) -> Log:
        """Return the same log, of which more may be known by now; its records keep their names."""
        gained = bool(self.name) and not topic_digits(self.name) and bool(topic_digits(now))
        return Log(max(self.name, now, key=len), plain=self.plain or gained)

    def __str__(self) -> str:
        """The text that `parse_log` reads; empty where nothing is known."""
        return self.name and f"dedup-bridge/1 log={self.name}{' ids=plain' if self.plain else ''}"


class Beginning(NamedTuple):
    """Where a partition is read from; ``offset`` None: nothing is known of that. ``anew``: its topic is not the one that was read before."""

    log: Log
    offset: int | None
    anew: bool = False
    translated: bool = False
    """Whether a tool brought the committed offset from another cluster."""


def lane_name(cluster: str, place: Place, log: Log) -> str:
    """Return what the IDs of a partition's records begin with: ``CLUSTER.TOPIC~MARK-PARTITION``; topics without IDs have no mark.

    No topic's name has a ``~`` in it.
    """
    topic, partition = place
    return f"{cluster}.{topic}{log.mark and '~' + log.mark}-{partition}"


def parse_log(text: str | None) -> Log | None:
    """Read a commit's text; None when it is not a bridge's."""
    form = _FORM.fullmatch(text or "")
    return None if form is None else Log(form[1], plain=form[2] is not None)


def beginning(now: str, committed: int, text: str | None, *, stood: Log | None, at: int | None) -> Beginning:
    """Return where to begin, or to go on.

    Args:
        now: the log as the brokers name it.
        committed: the group's offset, below zero without one.
        text: what lies beside it.
        stood: what this member took the log for until now, None where it only begins.
        at: how far it had copied there, None where it did not get to anything.
    """
    if stood is not None and not is_one_log(stood.name, now):
        return Beginning(Log(now), OFFSET_BEGINNING, anew=True)
    told = parse_log(text) if committed >= 0 else None
    if stood is not None and at is not None:
        return Beginning(stood.known_as(now), at)
    offset = committed if committed >= 0 else None
    if told is None:
        return Beginning(Log(now) if stood is None else stood.known_as(now), offset)
    if is_one_log(told.name, now):
        return Beginning(told.known_as(now), offset)
    if is_of_one_cluster(told.name, now):
        return Beginning(Log(now), OFFSET_BEGINNING, anew=True)
    return Beginning(Log(now), offset, translated=True)
