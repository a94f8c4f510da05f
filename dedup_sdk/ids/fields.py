"""The fields of records that an ID spec reads, column by column.

Only the columns that a spec needs (`IdSpec.needs`) are read, each at most once a batch, because reading
the headers of a Kafka message costs about as much as reading the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, Protocol, cast

if TYPE_CHECKING:
    from dedup_sdk.record import Record

Need = Literal["headers", "key", "value", "record"]
Headers = Sequence[tuple[str, bytes | None]]

_name_of = itemgetter(0)


class Fields(Protocol):
    """The fields of ``count`` records; each method returns a list of that length, in the order of the records."""

    @property
    def count(self) -> int:
        """The number of records."""

    def headers(self) -> list[Headers | None]:
        """Return the headers of each record, in Kafka's order, with repetitions; None or empty where there are none."""

    def keys(self) -> list[bytes | None]:
        """Return the key of each record."""

    def values(self) -> list[bytes | None]:
        """Return the value of each record; None for a tombstone."""

    def records(self) -> list[Record]:
        """Return the records themselves."""


class RecordFields:
    """The fields of `Record` objects."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records

    @property
    def count(self) -> int:
        """The number of records."""
        return len(self._records)

    def headers(self) -> list[Headers | None]:
        """Return the headers of each record."""
        return [record.headers for record in self._records]

    def keys(self) -> list[bytes | None]:
        """Return the key of each record."""
        return [record.key for record in self._records]

    def values(self) -> list[bytes | None]:
        """Return the value of each record."""
        return [record.value for record in self._records]

    def records(self) -> list[Record]:
        """Return the records themselves."""
        return list(self._records)


class ReadOnce:
    """Fields shared by several parts of a spec: each column is read at most once."""

    @classmethod
    def of(cls, fields: Fields) -> ReadOnce:
        """Return the fields shared; unchanged if they already are."""
        return fields if isinstance(fields, cls) else cls(fields)

    def __init__(self, source: Fields) -> None:
        self._source = source
        self._only: tuple[str, list[bytes | None]] | None = None
        self._by_name: list[dict[str, bytes | None]] | None = None
        self._headers: list[Headers | None] | None = None
        self._keys: list[bytes | None] | None = None
        self._values: list[bytes | None] | None = None
        self._records: list[Record] | None = None

    @property
    def count(self) -> int:
        """The number of records."""
        return self._source.count

    def headers(self) -> list[Headers | None]:
        """Return the headers of each record."""
        if self._headers is None:
            self._headers = self._source.headers()
        return self._headers

    def header(self, wanted: str) -> list[bytes | None]:
        """Return the value of each record's last header of exactly this name, None where there is none.

        Most records have a single header: that case is tried first, because it is the cheapest. Else a dictionary is made for each record,
        in which the last of several headers wins as well.
        """
        if self._only is not None and self._only[0] == wanted:
            return self._only[1]
        if self._by_name is None:
            headers = self.headers()
            try:
                values = [value for [(name, value)] in cast("list[Headers]", headers) if name == wanted]
            except (TypeError, ValueError):
                values = []
            if len(values) == len(headers):
                self._only = wanted, values
                return values
            self._by_name = [dict(pairs or ()) for pairs in headers]
        return [each.get(wanted) for each in self._by_name]

    def has_header(self, wanted: str) -> bool:
        """Whether any record has a header of exactly this name; uses the columns read before."""
        if self._only is not None:
            return wanted == self._only[0] and self.count > 0
        if self._by_name is not None:
            return any([wanted in each for each in self._by_name])  # noqa: C419 (half the time of a generator)
        return wanted in map(_name_of, chain.from_iterable(filter(None, self.headers())))

    def keys(self) -> list[bytes | None]:
        """Return the key of each record."""
        if self._keys is None:
            self._keys = self._source.keys()
        return self._keys

    def values(self) -> list[bytes | None]:
        """Return the value of each record."""
        if self._values is None:
            self._values = self._source.values()
        return self._values

    def records(self) -> list[Record]:
        """Return the records themselves."""
        if self._records is None:
            self._records = self._source.records()
        return self._records
