"""Orders of positions in logs: of PostgreSQL, Oracle, MySQL, MongoDB's change streams, and another Kafka."""

from __future__ import annotations

import re
from binascii import unhexlify
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, TypeAlias

from dedup_sdk.orders._numbers import MAX_INT64, MAX_UINT64, check_separator, unsigned
from dedup_sdk.orders._order import NamedOrder, Order, PartialOrder
from dedup_sdk.orders._sort_key import ONLY_ORIGIN, Comparison, SortKey

_LSN = re.compile(rb"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


@dataclass(frozen=True, slots=True)
class PostgresqlLsn(NamedOrder):
    """PostgreSQL's log sequence numbers; see `dedup_sdk.orders.postgresql_lsn`."""

    kind: ClassVar[str] = "postgresql-lsn"

    def sort_key(self, dedup_id: bytes, /) -> SortKey | None:
        """Return the sort key of a position such as ``16/B374D848``."""
        found = _LSN.fullmatch(dedup_id)
        return found and SortKey(ONLY_ORIGIN, int(found[1], 16) << 32 | int(found[2], 16))


def postgresql_lsn() -> Order:
    """PostgreSQL's log sequence numbers, type ``pg_lsn``: ``16/B374D848``, two hexadecimal numbers of 1 to 8 digits.

    All changes of a transaction may share one: join it with a field that distinguishes them, in a function
    of yours.
    """
    return PostgresqlLsn()


@dataclass(frozen=True, slots=True)
class OracleScn(NamedOrder):
    """Oracle's system change numbers; see `dedup_sdk.orders.oracle_scn`."""

    kind: ClassVar[str] = "oracle-scn"

    def sort_key(self, dedup_id: bytes, /) -> SortKey | None:
        """Return the sort key of a decimal number of at most 64 bits."""
        number = unsigned(dedup_id, MAX_UINT64)
        return None if number is None else SortKey(ONLY_ORIGIN, number)


def oracle_scn() -> Order:
    """Oracle's system change numbers in decimal text, at most 64 bits. Changes share them as they share an LSN."""
    return OracleScn()


MAX_SET_BYTES = 65_536
"""The length of the longest ID; a longer text is not a set."""

Intervals: TypeAlias = tuple[tuple[int, int], ...]
GtidSet: TypeAlias = Mapping[str, Intervals]

_SERVER_ID = rb"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_TAG = rb"[A-Za-z_][A-Za-z0-9_]{0,31}"
_GTID = re.compile(rb"(%s(?::%s)?):([0-9]{1,20})" % (_SERVER_ID, _TAG))
_SERVER = re.compile(_SERVER_ID)
_TAG_ONLY = re.compile(_TAG)
_BLANKS = b" \t\r\n"
_SHORT_BYTES = 2_048
_SETS_KEPT = 128  # mostly the last IDs of sources, which are compared with every record


@dataclass(frozen=True, slots=True)
class MysqlGtid(NamedOrder):
    """Single GTIDs; see `dedup_sdk.orders.mysql_gtid`."""

    kind: ClassVar[str] = "mysql-gtid"
    dense: ClassVar[bool] = True

    def sort_key(self, dedup_id: bytes, /) -> SortKey | None:
        """Return the sort key of ``uuid:23`` or ``uuid:tag:23``; the origin is the part before the number."""
        found = _GTID.fullmatch(dedup_id)
        if found is None:
            return None
        number = _transaction(found[2])
        return None if number is None else SortKey(found[1].lower().decode("ascii"), number)


def mysql_gtid() -> Order:
    """MySQL's single GTIDs: ``uuid:23`` or ``uuid:tag:23``, in either case, with numbers from 1.

    See MySQL's manual, "GTID Format and Storage". The server (with its tag) is the origin: numbers of two
    servers cannot be compared.
    """
    return MysqlGtid()


def compare_gtid_sets(last: bytes, new: bytes) -> Comparison:
    """Compare a new GTID set with the last one: it is newer when it includes the last one, and more."""
    before, after = read_gtid_set(last), read_gtid_set(new)
    if before is None or after is None:
        return Comparison.UNCOMPARABLE
    if before == after:
        return Comparison.SAME
    if _is_within(before, after):
        return Comparison.NEWER
    return Comparison.OLDER if _is_within(after, before) else Comparison.UNCOMPARABLE


def mysql_gtid_set() -> Order:
    """MySQL's GTID sets: ``uuid:1-5:11, uuid:tag:1-3``, compared by inclusion (``GTID_SUBSET()``).

    Blanks around the parts are allowed. A set that includes all of the last one and more is newer; two sets
    that each have a GTID that the other lacks are uncomparable. The empty set is malformed here.
    """
    return PartialOrder("mysql-gtid-set", compare_gtid_sets)


def read_gtid_set(text: bytes) -> GtidSet | None:
    """Return the intervals of each server (and tag), ascending and disjoint; None for anything else."""
    if len(text) > MAX_SET_BYTES:
        return None
    return _read_set(text) if len(text) > _SHORT_BYTES else _read_short(text)


def _read_set(text: bytes) -> GtidSet | None:
    found: dict[str, list[tuple[int, int]]] = {}
    for one_server in text.split(b","):
        server, *rest = (part.strip(_BLANKS) for part in one_server.split(b":"))
        if not _SERVER.fullmatch(server) or not rest:
            return None
        origin = server.lower()
        tagged = origin
        for index, part in enumerate(rest):
            interval = _interval(part)
            if interval is not None:
                found.setdefault(tagged.decode("ascii"), []).append(interval)
            elif _TAG_ONLY.fullmatch(part) and index + 1 < len(rest) and _interval(rest[index + 1]):
                tagged = origin + b":" + part.lower()
            else:
                return None
    return {origin: _merged(intervals) for origin, intervals in found.items()}


# A parsed set takes about fifty times the memory of its text, so that long ones are not cached.
_read_short = lru_cache(maxsize=_SETS_KEPT)(_read_set)


def _interval(text: bytes) -> tuple[int, int] | None:
    """Return the first and the last number of ``5`` or ``5-9``; None for anything else, or a reversed interval."""
    left, dash, right = text.partition(b"-")
    first = _transaction(left.strip(_BLANKS))
    last = _transaction(right.strip(_BLANKS)) if dash else first
    return (first, last) if first and last and first <= last else None


def _transaction(text: bytes) -> int | None:
    """Return a transaction's number, which begins at 1; None for anything else."""
    return unsigned(text, MAX_INT64) or None


def _merged(intervals: list[tuple[int, int]]) -> Intervals:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _is_within(inner: GtidSet, outer: GtidSet) -> bool:
    return all(
        origin in outer and _all_within(intervals, outer[origin]) for origin, intervals in inner.items()
    )


def _all_within(inner: Intervals, outer: Intervals) -> bool:
    """Whether each interval lies inside one of the others; both are ascending, and read once."""
    around = iter(outer)
    begins, ends = next(around)
    for first, last in inner:
        while ends < last:
            following = next(around, None)
            if following is None:
                return False
            begins, ends = following
        if first < begins:
            return False
    return True


_TIMESTAMP = 0x82  # the key string's type byte of a timestamp
_TIME_END = 9  # after it: 4 bytes of seconds, 4 of an increment, big-endian
_MAX_CHARACTERS = 65_536
_TOKEN_DATA = rb'\{\s*"_data"\s*:\s*"([0-9A-Fa-f]+)"\s*\}'
_TOKEN_DOCUMENT = re.compile(rb'\s*(?:%s|\{\s*"_id"\s*:\s*%s\s*\})\s*' % (_TOKEN_DATA, _TOKEN_DATA))


@dataclass(frozen=True, slots=True)
class MongodbResumeToken(NamedOrder):
    """Resume tokens; see `dedup_sdk.orders.mongodb_resume_token`."""

    kind: ClassVar[str] = "mongodb-resume-token"

    cluster_time_only: bool

    def sort_key(self, dedup_id: bytes, /) -> SortKey | None:
        """Return the sort key of a token's ``_data``, given as hexadecimal digits, or as a JSON document."""
        if len(dedup_id) > _MAX_CHARACTERS:
            return None
        if dedup_id.lstrip()[:1] == b"{":
            document = _TOKEN_DOCUMENT.fullmatch(dedup_id)
            if document is None:
                return None
            dedup_id = document[1] or document[2]
        try:
            token = unhexlify(dedup_id)
        except ValueError:
            return None
        if len(token) < _TIME_END or token[0] != _TIMESTAMP:
            return None
        return SortKey(
            ONLY_ORIGIN, int.from_bytes(token[1:_TIME_END], "big") if self.cluster_time_only else token
        )


def mongodb_resume_token(*, cluster_time_only: bool = False) -> Order:
    """Resume tokens of MongoDB's change streams (4.0 and later).

    The ID is the hexadecimal ``_data``, or a document ``{"_data": "82…"}``, also below ``_id``. A token
    begins with the cluster time (``82``, 4 bytes of seconds, 4 bytes of an increment), and tokens are
    ordered as bytes. ``cluster_time_only=True`` leaves out the rest: then all changes of one transaction,
    and of two shards in one tick, are the same.
    """
    return MongodbResumeToken(cluster_time_only)


_TOPIC = re.compile(rb"[A-Za-z0-9._-]{1,249}")
_NO_TOPICS = (b".", b"..")
_MAX_PARTITION = 2**31 - 1


@dataclass(frozen=True, slots=True)
class KafkaCoordinates(NamedOrder):
    """``topic-partition-offset``; see `dedup_sdk.orders.kafka_coordinates`."""

    kind: ClassVar[str] = "kafka-coordinates"
    dense: ClassVar[bool] = True

    separator: str

    def __post_init__(self) -> None:
        """Refuse an invalid separator."""
        check_separator(self.separator)

    def sort_key(self, dedup_id: bytes, /) -> SortKey | None:
        """Return the sort key of e.g. ``orders-0-42``, read from its end; the origin is ``(topic, partition)``."""
        separator = self.separator.encode()
        rest, _, offset_text = dedup_id.rpartition(separator)
        topic, _, partition_text = rest.rpartition(separator)
        partition, offset = unsigned(partition_text, _MAX_PARTITION), unsigned(offset_text, MAX_INT64)
        if partition is None or offset is None or not _TOPIC.fullmatch(topic) or topic in _NO_TOPICS:
            return None
        return SortKey((topic.decode("ascii"), partition), offset)


def kafka_coordinates(*, separator: str = "-") -> Order:
    """``topic-partition-offset`` of the record's original Kafka, or with another separator: ``orders/0/42``.

    It is read from the end, because topics may contain hyphens. Topic and partition are the origin. Do not
    use the record's *current* coordinates as a dedup ID: like any ID that a broker assigns on arrival, they
    differ for each duplicate.
    """
    return KafkaCoordinates(separator)
