"""Keys of records, read on the way past.

A reader that reads IDs only asks its spec for them, and shows it all fields.
"""

from __future__ import annotations

import pyarrow as pa

from dedup_sdk.ids._columns import Fields, Ids
from dedup_sdk.ids._spec import ReadsKeys


class KeyedSpec:
    """Gives the IDs of a spec, and remembers the keys of the records that it was asked about last."""

    def __init__(self, spec: ReadsKeys) -> None:
        self._spec = spec
        self._keys: list[bytes | None] = []

    def digests(self, fields: Fields) -> Ids:
        """Return the IDs of these records, as `IdSpec.digests`."""
        self._keys = fields.keys()
        return self._spec.digests(fields)

    def keys(self, count: int) -> pa.Array:
        """Return the keys of the records that were asked about last, of which there were ``count``.

        Arrow ``binary``.
        """
        if len(self._keys) != count:
            raise ValueError(f"{len(self._keys)} keys of {count} records; ask for them after each batch")
        return pa.array(self._keys, pa.binary())
