"""A warning for keys that begin with the ID of a schema, where the key is the ID.

With each new schema, a message that is sent again would have another ID, and be delivered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from dedup_sdk.ids import IdSpec
from dedup_sdk.ids._spec import FRAMING_BYTES, is_framed

logger = logging.getLogger("dedup_sdk")

_LOOKED_AT: Final = 1_000
_IN_A_ROW: Final = 20
_MOST_SCHEMAS: Final = 2
"""Schemas change seldom; binary numbers in their place would differ."""
_INTEGER_BYTES: Final = frozenset({8})
"""An integer serializer writes so many, and a small number begins with zeros."""


class FramedKeys:
    """Looks at the keys of the first messages of a consumer, and warns once; ``is_over`` says that it has looked."""

    def __init__(self, specs: Iterable[IdSpec]) -> None:
        self._spec = next((each for each in specs if any(part.name == "key" for part in each.parts)), None)
        self.is_over = self._spec is None
        self._left = _LOOKED_AT
        self._begin_row()

    def _begin_row(self) -> None:
        self._row = 0
        self._schemas: set[bytes] = set()
        self._sizes: set[int] = set()

    def note(self, topic: str, keys: Iterable[bytes | None]) -> None:
        """Take keys of messages into account; ``topic``: that of one of them."""
        for key in keys:
            if self.is_over:
                return
            self._left -= 1
            self.is_over = not self._left
            if not is_framed(key) or not any(key[1:FRAMING_BYTES]):
                self._begin_row()
                continue
            self._row += 1
            self._schemas.add(key[1:FRAMING_BYTES])
            self._sizes.add(len(key))
            if len(self._schemas) > _MOST_SCHEMAS:
                self._begin_row()
            elif self._row >= _IN_A_ROW and self._sizes != _INTEGER_BYTES:
                self.is_over = True
                logger.warning(
                    "%s: the keys begin with a schema's ID (%d): by %s each new schema makes other IDs, so that "
                    "messages that are sent again with it are not recognised. If a schema registry's serializer wrote "
                    "the keys, use unframed-key in place of key, see docs/schema-registry.md",
                    topic, int.from_bytes(key[1:FRAMING_BYTES], "big"), self._spec,
                    extra={"event": "framed-keys"},
                )  # fmt: skip
