"""Keys of records as a run knows them: with redrive headers that name its group, or, without a group, both ways."""

from __future__ import annotations

from collections.abc import Mapping

from dedup_sdk.ids._columns import Fields, Ids, Need, ReadOnce
from dedup_sdk.ids._spec import GroupKeys, Redrivable, redriven_keys


class RunKeys:
    """Reads the keys of records for a run of a group (`dedup_sdk.ids._redrive`).

    Without a group a redrive header changes no key; then ``redriven`` has the keys that the headers of the records
    which were asked about last give besides, by row: the group that a header names knows the record by that one.
    """

    def __init__(self, keys: Redrivable, group: str | None) -> None:
        self.redriven: Mapping[int, bytes | None] = {}
        self._keys = keys
        self._of_group = None if group is None else GroupKeys(keys, group)

    @property
    def needs(self) -> frozenset[Need]:
        """The columns that are read."""
        return self._keys.needs | {"headers"}

    def digests(self, fields: Fields) -> Ids:
        """Return the keys of these records."""
        if self._of_group is not None:
            return self._of_group.digests(fields)
        shared = ReadOnce.of(fields)
        ids = self._keys.digests(shared)
        self.redriven = redriven_keys(self._keys, ids, shared, None)
        return ids
