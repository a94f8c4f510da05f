"""Resume tokens of MongoDB's change streams."""

from __future__ import annotations

import re
from binascii import unhexlify
from dataclasses import dataclass

from dedup_sdk.orders.order import Order, order_name
from dedup_sdk.orders.place import ONLY_ORIGIN, Place

_TIMESTAMP = 0x82  # the key string's type byte of a timestamp
_TIME_END = 9  # after it: 4 bytes of seconds, 4 of an increment, big-endian
_MAX_CHARACTERS = 65_536
_DATA = rb'\{\s*"_data"\s*:\s*"([0-9A-Fa-f]+)"\s*\}'
_DOCUMENT = re.compile(rb'\s*(?:%s|\{\s*"_id"\s*:\s*%s\s*\})\s*' % (_DATA, _DATA))


@dataclass(frozen=True, slots=True)
class MongodbResumeToken(Order):
    """Resume tokens; see `dedup_sdk.orders.mongodb_resume_token`."""

    cluster_time_only: bool

    @property
    def name(self) -> str:
        """The identity of this order."""
        return order_name("mongodb-resume-token", cluster_time_only=self.cluster_time_only)

    def place(self, dedup_id: bytes, /) -> Place | None:
        """Return the place of the ``_data`` of a token, alone in hexadecimal digits, or as a JSON document."""
        if len(dedup_id) > _MAX_CHARACTERS:
            return None
        if dedup_id.lstrip()[:1] == b"{":
            document = _DOCUMENT.fullmatch(dedup_id)
            if document is None:
                return None
            dedup_id = document[1] or document[2]
        try:
            token = unhexlify(dedup_id)
        except ValueError:
            return None
        if len(token) < _TIME_END or token[0] != _TIMESTAMP:
            return None
        return Place(
            ONLY_ORIGIN, int.from_bytes(token[1:_TIME_END], "big") if self.cluster_time_only else token
        )
