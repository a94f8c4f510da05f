"""Who sent a record, read on the way past.

A reader that reads IDs only asks its spec for them, and shows it all fields.
"""

from __future__ import annotations

import pyarrow as pa

from dedup_sdk.ids._columns import Fields, Headers, Ids
from dedup_sdk.ids._spec import ReadsKeys
from spark_backfill.findings.producer_codes import Producers, producer_codes


class WatchedSpec:
    """Gives the IDs of a spec, and remembers producers.

    These are the ones that a header named in the records that it was asked about last.
    """

    def __init__(self, spec: ReadsKeys, header: str) -> None:
        self._spec = spec
        self._header = header
        self._values: list[bytes | None] = []

    def digests(self, fields: Fields) -> Ids:
        """Return the IDs of these records, as `IdSpec.digests`."""
        self._values = [self._value(headers) for headers in fields.headers()]
        return self._spec.digests(fields)

    def producers(self, count: int) -> Producers:
        """Return the producers of the records that were asked about last, of which there were ``count``."""
        if len(self._values) != count:
            raise ValueError(
                f"{len(self._values)} producers of {count} records; ask for them after each batch"
            )
        return producer_codes(pa.array(self._values, pa.binary()))

    def _value(self, headers: Headers | None) -> bytes | None:
        for name, value in reversed(headers or ()):
            if name == self._header:
                return value
        return None
