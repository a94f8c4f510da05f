"""All that is looked for in the IDs of a consumer's messages, to warn of a spec that does not fit them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from dedup_sdk._advice.framed_keys import FramedKeys
from dedup_sdk._advice.missing_ids import MissingIds
from dedup_sdk._strategy import LastId, Strategy
from dedup_sdk.ids import Ids
from dedup_sdk.ids._columns import ReadOnce


class IdAdvice:
    """Looks at batches of messages; ``is_looking``: also at one in which no ID is missing, and no function failed."""

    def __init__(self, strategy: Strategy) -> None:
        source = strategy.source if isinstance(strategy, LastId) else None
        self._framed_keys = FramedKeys([strategy.id] if source is None else [strategy.id, source])
        self._missing_ids = MissingIds(strategy.id, strategy.window_of, source=source)
        self._look_on()

    def note(self, topics: Sequence[str], messages: Sequence[Any], ids: Ids, fields: ReadOnce) -> None:
        """Take the messages of a batch into account: the topic, the ID and the fields of each."""
        if not self._framed_keys.is_over:
            self._framed_keys.note(topics[0], fields.keys())
        if ids.missing or fields.failures or self._missing_ids.counting:
            self._missing_ids.note(topics, messages, ids, fields.failures)
        self._look_on()

    def look(self, ending: Collection[str]) -> None:
        """Warn where enough time has passed, or partitions of topics are ``ending``."""
        self._missing_ids.look(ending)
        self._look_on()

    def _look_on(self) -> None:
        self.is_looking = self._missing_ids.counting or not self._framed_keys.is_over
