"""A warning for an ID spec that does not fit the records of a topic.

A record without an ID is delivered and counted, so a misspelt header name switches deduplication off without an error.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from dedup_sdk._kafka.fields import MessageFields
from dedup_sdk._window import Window
from dedup_sdk.ids import Ids

logger = logging.getLogger("dedup_sdk")

RECORDS: Final = 1_000
"""Records of a topic that are looked at, from the first one without an ID on."""
_MOST_PERCENT: Final = 90
_MOST_NAMES: Final = 12
_MOST_CHARACTERS: Final = 100
"""Header names are other people's text: so many are kept, cut to so many characters."""


@dataclass(slots=True)
class _Topic:
    """The records of one topic that were looked at: how many, why IDs are missing, and the headers of those records."""

    seen: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    headers: dict[str, None] = field(default_factory=dict)


class MissingIds:
    """Logs one warning for each topic in which more than 90 % of `RECORDS` records have no ID.

    Counting begins with the batch of the first record without an ID.

    ``counting``: whether a topic is looked at, so that batches without a missing ID count, too.
    """

    def __init__(self, id_spec: str, window_of: Callable[[str], Window]) -> None:
        self.counting = False
        self._id_spec, self._window_of = id_spec, window_of
        self._topics: dict[str, _Topic | None] = {}
        """By topic: None once it is decided."""

    def note(self, topics: Sequence[str], messages: Sequence[Any], ids: Ids) -> None:
        """Take the messages of a batch into account; ``topics`` has the topic of each."""
        for topic in {topics[row] for row in ids.missing} - self._topics.keys():
            self._topics[topic] = None if self._window_of(topic).is_off else _Topic()
        for topic, looked_at in self._topics.items():
            if looked_at is not None:
                self._look(topic, looked_at, topics, messages, ids)
        self.counting = any(each is not None for each in self._topics.values())

    def _look(
        self, topic: str, looked_at: _Topic, topics: Sequence[str], messages: Sequence[Any], ids: Ids
    ) -> None:
        rows = (row for row, name in enumerate(topics) if name == topic)
        for row in islice(rows, RECORDS - looked_at.seen):
            looked_at.seen += 1
            if row in ids.missing:
                looked_at.reasons[ids.missing[row]] += 1
                # Not `headers()` of the message: a name that is not valid UTF-8 could crash the process.
                for name, _ in MessageFields([messages[row]]).headers()[0] or ():
                    if len(looked_at.headers) <= _MOST_NAMES:
                        looked_at.headers.setdefault(name[:_MOST_CHARACTERS])
        if looked_at.seen >= RECORDS:
            self._topics[topic] = None
            if looked_at.reasons.total() * 100 > RECORDS * _MOST_PERCENT:
                self._warn(topic, looked_at)

    def _warn(self, topic: str, looked_at: _Topic) -> None:
        names = list(islice(looked_at.headers, _MOST_NAMES))
        more = ", ..." if len(looked_at.headers) > len(names) else ""
        logger.warning(
            "%s: %d of %d records have no ID by %s (%s), so their duplicates are not recognised; these records have "
            "%s: correct the ID spec, or the producer",
            topic, looked_at.reasons.total(), looked_at.seen, self._id_spec,
            ", ".join(f"{reason}: {count}" for reason, count in looked_at.reasons.most_common()),
            f"the headers {', '.join(map(repr, names))}{more}" if names else "no headers",
        )  # fmt: skip
