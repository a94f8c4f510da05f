"""Which records a group gave up (its dead letters): they were not handled, so that nothing of them is remembered.

Read in the driver, after the group's commits: a dead letter is confirmed before its message may be committed, so that
everything below the cut that was given up is in the topic by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import KafkaException

from dedup_sdk.errors import DedupError
from dedup_sdk.kafka.dead_letter_log import DeadLetterLog
from dedup_sdk.kafka.settings import client_settings
from spark_backfill.errors import BackfillError
from spark_backfill.stretch import NOTHING_KNOWN_MS, Stretch


@dataclass(frozen=True, slots=True)
class GivenUpRecords:
    """Coordinates of what is folded and was given up: offsets by partition, ascending; empty for none.

    ``since_ms``: of records older than that (ms) nobody knows any more whether they were, because the beginning of the
    dead-letter topic is gone; None: it is known of all. ``known_from``: the same by partition and offset, of records before that one,
    because the topic is not there, or lacks dead letters that are named (`dedup_sdk.kafka.dead_letter_log`).
    """

    offsets: Mapping[int, Sequence[int]]
    since_ms: int | None = None
    known_from: Mapping[int, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many records these are."""
        return sum(map(len, self.offsets.values()))

    def cut(self, stretches: Sequence[Stretch]) -> tuple[Stretch, ...]:
        """Return the stretches, so that no mark is kept that may be of a record given up that nobody knows of any more."""
        if self.since_ms is None:
            return tuple(stretches)
        since_ms = min(self.since_ms, NOTHING_KNOWN_MS)
        return tuple(
            replace(
                each,
                keep_from_ms=max(since_ms, each.keep_from_ms or 0),
                complete=False,
                known_from_ms=since_ms if each.complete else each.known_from_ms,
                unknown_before_ms=max(since_ms, each.unknown_before_ms or 0),
            )
            for each in stretches
        )

    def known(self, stretches: Sequence[Stretch]) -> tuple[Stretch, ...]:
        """Return the stretches without the records of which nobody knows, by offset, whether they were given up."""
        return tuple(_known(each, self.known_from.get(each.partition, 0)) for each in stretches)


def _known(stretch: Stretch, known_from: int) -> Stretch:
    if known_from > stretch.begin:
        return replace(
            stretch,
            begin=min(known_from, stretch.high),
            complete=False,
            # Before a gap nothing is known from there on.
            known_from_ms=stretch.known_from_ms
            if stretch.gaps and known_from < (stretch.log_from or 0)
            else None,
            base=None,
        )
    if stretch.base is None or known_from <= stretch.base.floor:
        return stretch
    return replace(stretch, base=stretch.base._replace(floor=known_from))


NONE_GIVEN_UP = GivenUpRecords({})


def read_given_up(
    bootstrap: str,
    settings: Mapping[str, str],
    stretches: Sequence[Stretch],
    *,
    topic: str,
    group: str,
    named: str | None,
    buried: Mapping[int, int],
    say: Callable[[str], None],
) -> GivenUpRecords:
    """Read what the group gave up of the stretches.

    ``named`` is the dead-letter topic, which has to be there; None: ``GROUP.dead-letters``, where no such topic means that
    nothing was given up, but what ``buried`` tells of (`dedup_sdk.kafka.metadata`). ``settings`` are librdkafka's.

    Raises:
        BackfillError: the topic that was named is not there, or cannot be read.
    """
    config: dict[str, Any] = {**settings, "bootstrap.servers": bootstrap, "group.id": group}
    letters = f"{group}.dead-letters" if named is None else named
    log = DeadLetterLog(client_settings(config), letters, expected=named is not None)
    try:
        for _ in log.read(topic, 0, buried=max(buried.values(), default=None)):
            pass
    except (DedupError, KafkaException) as error:
        raise BackfillError(f"dead-letter topic {letters!r}: {error}; check --dead-letters") from None
    if named is not None and not log.there:
        raise BackfillError(
            f"dead-letter topic {letters!r} does not exist at {bootstrap}: check --dead-letters"
        )
    if buried and not log.there:
        say(
            f"group {group} has given up messages and there is no topic {letters}: records before the last of them are left out; "
            "give --dead-letters if it has another name"
        )
    known_from: dict[int, int] = {}
    offsets: dict[int, list[int]] = {}
    since_ms = None
    for each in stretches:
        known = log.known(topic, each.partition, buried.get(each.partition))
        since_ms = known.since_ms
        if known.known_from:
            known_from[each.partition] = known.known_from
        begin = each.begin if each.base is None else each.low
        found = sorted(offset for offset in known.digests if begin <= offset < each.high)
        if found:
            offsets[each.partition] = found
    if known_from and log.there:
        say(
            f"dead letters of group {group} are missing in topic {letters}, in partitions {sorted(known_from)} of {topic}: records before "
            "those are left out; was it deleted and made anew, is it compacted, or had it another name?"
        )
    if since_ms is not None:
        say(
            f"the beginning of dead-letter topic {letters} is gone: sightings older than what is left of it are left out; "
            "keep dead letters longer than the window"
        )
    return GivenUpRecords(offsets, since_ms, known_from)
