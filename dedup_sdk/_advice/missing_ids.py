"""Warnings for an ID spec that does not fit the records of a topic, and for an ID function that raises.

A record without an ID is delivered and counted, so a misspelt header name switches deduplication off without an error.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from dedup_sdk._kafka.client.fields import MessageFields
from dedup_sdk._masking import masked_text
from dedup_sdk._window import Window
from dedup_sdk.ids import Ids, IdSpec
from dedup_sdk.ids._columns import FailedCall

logger = logging.getLogger("dedup_sdk")

RECORDS: Final = 1_000
"""Records of a topic that are looked at, from the first one without an ID on."""
LEAST: Final = 20
"""So many of them are enough after `WAIT_S`, and when partitions of the topic end."""
WAIT_S: Final = 60.0
_MOST_PERCENT: Final = 90
_MOST_NAMES: Final = 12
_MOST_CHARACTERS: Final = 100
"""Header names are other people's text: so many are kept, cut to so many characters."""
_FRAMED: Final = b"\0"
"""The first byte of a value that a schema registry's serializer wrote."""


@dataclass(slots=True)
class _Topic:
    """The records of one topic that were looked at: how many, why IDs are missing, and what those records have.

    ``since`` is the time of the first one (monotonic seconds); ``framed`` are malformed values that begin with byte 0.
    """

    since: float
    seen: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    headers: dict[str, None] = field(default_factory=dict)
    framed: int = 0
    failure: FailedCall | None = None


class MissingIds:
    """Logs one warning for each topic in which more than 90 % of the records have no ID.

    It is due after `RECORDS` records; after `WAIT_S` seconds, or when partitions end, `LEAST` are enough. Counting
    begins with the batch of the first record without an ID. The first exception of an ID function is logged at once.

    ``source``: the spec of the source, if there is one. ``counting``: whether a topic is looked at, so that batches
    without a missing ID count, too.
    """

    def __init__(
        self,
        id_spec: IdSpec,
        window_of: Callable[[str], Window],
        *,
        source: IdSpec | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counting = False
        self._id_spec, self._window_of, self._clock = id_spec, window_of, clock
        parts = id_spec.parts + (() if source is None else source.parts)
        self._kinds = {part.name for part in parts}
        self._reads_headers = any("headers" in part.needs for part in parts)
        self._told_failure = False
        self._topics: dict[str, _Topic | None] = {}
        """By topic: None once it is decided."""

    def note(
        self,
        topics: Sequence[str],
        messages: Sequence[Any],
        ids: Ids,
        failures: Mapping[str, FailedCall] | None = None,
    ) -> None:
        """Take the messages of a batch into account.

        ``topics`` has the topic of each; ``failures``, by topic, the first exception of an ID function.
        """
        failures = failures or {}
        for topic in {topics[row] for row in ids.missing} - self._topics.keys():
            self._topics[topic] = None if self._window_of(topic).is_off else _Topic(self._clock())
        if failures and not self._told_failure:
            self._tell_failure(failures)
        rows_of: dict[str, list[int]] = {}
        for row, topic in enumerate(topics):
            rows_of.setdefault(topic, []).append(row)
        for topic, rows in rows_of.items():
            if (looked_at := self._topics.get(topic)) is not None:
                looked_at.failure = looked_at.failure or failures.get(topic)
                self._take(topic, looked_at, rows, messages, ids)
        self._count_on()

    def look(self, ending: Collection[str] = ()) -> None:
        """Warn where it is due: after `WAIT_S`, or because partitions of topics are ``ending``."""
        now = self._clock()
        for topic, looked_at in self._topics.items():
            if looked_at is not None and (topic in ending or now >= looked_at.since + WAIT_S):
                self._decide(topic, looked_at)
        self._count_on()

    def _count_on(self) -> None:
        self.counting = any(each is not None for each in self._topics.values())

    def _tell_failure(self, failures: Mapping[str, FailedCall]) -> None:
        for topic, failure in failures.items():
            if not self._window_of(topic).is_off:
                self._told_failure = True
                logger.warning(
                    "%s has no ID by %s: %s raised %s; correct the function, or have it return None for a record "
                    "without an ID (later errors are only counted, as unkeyed.failed)",
                    failure.place, self._id_spec, failure.function, masked_text(failure.error),
                    extra={"event": "id-function-raised"},
                )  # fmt: skip
                return

    def _take(
        self, topic: str, looked_at: _Topic, rows: Sequence[int], messages: Sequence[Any], ids: Ids
    ) -> None:
        for row in islice(rows, RECORDS - looked_at.seen):
            looked_at.seen += 1
            if row in ids.missing:
                looked_at.reasons[ids.missing[row]] += 1
                self._look_into(looked_at, messages[row], ids.missing[row])
        if looked_at.seen >= RECORDS:
            self._decide(topic, looked_at)
            self._topics[topic] = None

    def _look_into(self, looked_at: _Topic, message: Any, reason: str) -> None:
        fields = MessageFields([message])
        if reason == "malformed" and "json" in self._kinds:
            looked_at.framed += (fields.values()[0] or b"").startswith(_FRAMED)
        if self._reads_headers:
            # Not `headers()` of the message: a name that is not valid UTF-8 could crash the process.
            for name, _ in fields.headers()[0] or ():
                if len(looked_at.headers) <= _MOST_NAMES:
                    looked_at.headers.setdefault(name[:_MOST_CHARACTERS])

    def _decide(self, topic: str, looked_at: _Topic) -> None:
        """Warn of a topic, and look at it no more, if enough of its records have no ID."""
        missing = looked_at.reasons.total()
        if looked_at.seen >= min(LEAST, RECORDS) and missing * 100 > looked_at.seen * _MOST_PERCENT:
            self._topics[topic] = None
            logger.warning(
                "%s: %d of %d records have no ID by %s (%s), so their duplicates are not recognised; %s",
                topic, missing, looked_at.seen, self._id_spec,
                ", ".join(f"{reason}: {count}" for reason, count in looked_at.reasons.most_common()),
                self._remedy(looked_at),
                extra={"event": "records-without-id"},
            )  # fmt: skip

    def _remedy(self, looked_at: _Topic) -> str:
        """Return what these records have, and the next step, for the most frequent reason."""
        [(reason, count)] = looked_at.reasons.most_common(1)
        if reason == "failed" and looked_at.failure is not None:
            place, function, error = looked_at.failure
            return f"e.g. at {place}, {function} raised {masked_text(error)}: correct the function"
        if reason == "malformed" and looked_at.framed * 2 > count:
            return (
                "these values begin with the byte 0, like those of a schema registry (Avro, Protobuf): take a function "
                "with the registry's deserializer as the ID spec, see docs/schema-registry.md"
            )
        if reason == "malformed" and self._kinds & {"json", "cloudevents"}:
            return "these values are not JSON in UTF-8: correct the ID spec, or the producer"
        if reason == "not-scalar" and self._kinds & {"py", "function"}:
            return "the function has to return a str or an int: correct it"
        if not self._reads_headers:
            return "correct the ID spec, or the producer"
        names = list(islice(looked_at.headers, _MOST_NAMES))
        more = ", ..." if len(looked_at.headers) > len(names) else ""
        have = f"the headers {', '.join(map(repr, names))}{more}" if names else "no headers"
        return f"these records have {have}: correct the ID spec, or the producer"
