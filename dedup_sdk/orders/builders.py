"""The orders that are shipped, each by the name of what it compares. Their arguments are keywords only.

IDs are bytes: text is ASCII, digits are ``0`` to ``9`` (no other script's), nothing is trimmed. What does not fit the form is
malformed: uncomparable, so that its message is delivered. Leading zeros are read as what they are, zeros: ``007`` is 7.
Two IDs of equal places are the same message to whoever asks the order; so an order is for IDs that name one message each.
"""

from __future__ import annotations

from typing import Literal

from dedup_sdk.orders.coordinates import KafkaCoordinates
from dedup_sdk.orders.database_logs import OracleScn, PostgresqlLsn
from dedup_sdk.orders.decimals import Integer
from dedup_sdk.orders.fixed_width import FixedWidth
from dedup_sdk.orders.hybrid_clock import HybridClock
from dedup_sdk.orders.mongodb import MongodbResumeToken
from dedup_sdk.orders.mysql import MysqlGtid, compare_gtid_sets
from dedup_sdk.orders.order import Order
from dedup_sdk.orders.partial_order import PartialOrder
from dedup_sdk.orders.sequences import EpochSequence, EpochSequenceBytes
from dedup_sdk.orders.snowflake import Snowflake
from dedup_sdk.orders.timestamps import Rfc3339, UnixTime
from dedup_sdk.orders.ulid import Ulid
from dedup_sdk.orders.uuids import Uuid7, UuidTime
from dedup_sdk.orders.versions import DottedVersion

TWITTER_EPOCH_MS = 1_288_834_974_657


def integer() -> Order:
    """Whole numbers in decimal text of at most 100 digits: ``42``, ``-7``, ``007``; no plus, no blanks."""
    return Integer()


def big_endian(*, width: int = 8, signed: bool = False) -> Order:
    """Whole numbers of exactly ``width`` bytes (1 to 64), most significant byte first, as Java and the network write them.

    ``signed``: two's complement. Raises `ConfigurationError` for another width.
    """
    return FixedWidth("big", width, signed)


def little_endian(*, width: int = 8, signed: bool = False) -> Order:
    """Whole numbers of exactly ``width`` bytes, least significant byte first; else as `big_endian`."""
    return FixedWidth("little", width, signed)


def epoch_sequence(*, separator: str = ":") -> Order:
    """``epoch:sequence`` in decimal text, each an unsigned number of 64 bits: ``7:1042``, and after a restart ``8:0``.

    The epoch grows with each life of the producer, which counts anew in it: any sequence of a later epoch is newer. (Kafka's own
    producers are fenced by the same rule, see KIP-98.) ``separator`` is one ASCII sign.
    """
    return EpochSequence(separator)


def epoch_sequence_bytes(*, epoch_bytes: int = 4, sequence_bytes: int = 8) -> Order:
    """Epoch, then sequence, as unsigned big-endian numbers of 1 to 8 bytes each and nothing between; see `epoch_sequence`."""
    return EpochSequenceBytes(epoch_bytes, sequence_bytes)


def ulid() -> Order:
    """ULIDs (github.com/ulid/spec): 26 letters of Crockford's base 32 in either case, or their 16 bytes.

    As python-ulid reads them: ``I``, ``L``, ``O`` and ``U`` are no letters of it, and a text above ``7ZZZ…``, which needs more than 128
    bits, is malformed. Within a millisecond the order is that of the randomness, which is the order of creation only for a monotonic generator.
    """
    return Ulid()


def uuid1(*, by_node: bool = True) -> Order:
    """UUIDs of version 1 (RFC 9562, section 5.1): by time, then by clock sequence.

    The node is the origin: two nodes have two clocks, and the RFC promises no order between them, so that their IDs cannot
    be compared. Give each node a lane of its own; or, where their clocks agree well enough, ``by_node=False``: then all are
    compared by time, clock sequence, and node. When a node's clock is set back its clock sequence changes (section 5.1), and
    what it makes until the old time has come again is older.
    """
    return UuidTime(1, by_node)


def uuid6(*, by_node: bool = False) -> Order:
    """UUIDs of version 6 (RFC 9562, section 5.6): by time, clock sequence, and node, which is the order of their bytes (6.11).

    The node is no origin here, since it should be random in each ID (section 5.6). Where your generator keeps it, as it
    may, ``by_node=True`` makes it one, as in `uuid1`.
    """
    return UuidTime(6, by_node)


def uuid7() -> Order:
    """UUIDs of version 7 (RFC 9562, section 5.7): the order of their bytes (6.11), so by milliseconds first.

    Within a millisecond that is the order of creation only for a generator with one of the methods of section 6.2.
    """
    return Uuid7()


def snowflake(
    *,
    epoch_ms: int = TWITTER_EPOCH_MS,
    machine_bits: int = 10,
    sequence_bits: int = 12,
    by_machine: bool = False,
) -> Order:
    """Snowflakes in decimal text, below 2^63: from the top the milliseconds since ``epoch_ms``, machine, sequence.

    Defaults are Twitter's (github.com/twitter-archive/snowflake: 41 bits of time, 10 of machine, 12 of sequence); Discord's are
    ``epoch_ms=1420070400000``. IDs of all machines are compared, as that service keeps their clocks together ("k-sorted");
    ``by_machine=True`` makes each machine an origin of its own. Raises `ConfigurationError` when the bits leave no room for a time.
    """
    return Snowflake(epoch_ms, machine_bits, sequence_bits, by_machine)


def rfc3339() -> Order:
    """Timestamps of RFC 3339: ``1985-04-12T23:20:50.52Z``, ``1996-12-19T16:39:57-08:00``.

    Compared as moments, whatever their offset; ``-00:00`` is UTC (section 4.3), ``t``, ``z`` and a blank for the ``T`` are read
    (section 5.6). Up to nine digits of a second's fraction: more are malformed, as cutting them could make two one. A leap
    second (``:60``) is one only at the end of a month in UTC (5.7), and lies between :59 and the next day.
    """
    return Rfc3339()


def unix_time(*, unit: Literal["s", "ms", "us", "ns"]) -> Order:
    """Decimal numbers of ``unit`` since 1970, a minus and a fraction down to the nanosecond allowed: ``1700000000.25``."""
    return UnixTime(unit)


def hybrid_clock(*, separator: str = ".", logical_digits: int | None = None) -> Order:
    """Hybrid logical clocks (Kulkarni et al. 2014): ``physical.logical``, unsigned decimals of 64 and of 32 bits.

    By physical time, then by the logical count; both are whole numbers. ``logical_digits``: the count has exactly so many digits, else
    it is malformed. Give 10 for CockroachDB's decimals (``1532379923319195777.0000000010``): where something on the way has cut the zeros
    at their end, ten would pass for one. A clock packed into 64 bits (48 of time, 16 of count) is compared by `big_endian` or `integer`.
    """
    return HybridClock(separator, logical_digits)


def postgresql_lsn() -> Order:
    """PostgreSQL's log sequence numbers, type ``pg_lsn``: ``16/B374D848``, two hexadecimal numbers of 1 to 8 digits.

    All changes of a transaction may share one: join it with what tells them apart, in a callable of yours.
    """
    return PostgresqlLsn()


def oracle_scn() -> Order:
    """Oracle's system change numbers in decimal text, at most 64 bits. Changes share them as they share an LSN."""
    return OracleScn()


def mysql_gtid() -> Order:
    """MySQL's single GTIDs (manual, "GTID Format and Storage"): ``uuid:23`` or ``uuid:tag:23``, either case, numbers from 1.

    The server (with its tag) is the origin: numbers of two servers cannot be compared.
    """
    return MysqlGtid()


def mysql_gtid_set() -> Order:
    """MySQL's GTID sets: ``uuid:1-5:11, uuid:tag:1-3``, blanks around the parts allowed; compared by inclusion (``GTID_SUBSET()``).

    A set that has all of the last one and more is newer; two of which each has something that the other lacks are
    uncomparable. The empty set is malformed here: an empty ID says nothing.
    """
    return PartialOrder("mysql-gtid-set", compare_gtid_sets)


def mongodb_resume_token(*, cluster_time_only: bool = False) -> Order:
    """Resume tokens of MongoDB's change streams (4.0 and later): the hexadecimal ``_data``, or ``{"_data": "82…"}``, also below ``_id``.

    A token begins with the cluster time (``82``, 4 bytes of seconds, 4 of an increment), and tokens are in order as bytes.
    ``cluster_time_only=True`` leaves out the rest: then all changes of one transaction, and of two shards in one tick, are the same.
    """
    return MongodbResumeToken(cluster_time_only)


def kafka_coordinates(*, separator: str = "-") -> Order:
    """``topic-partition-offset`` of the Kafka that a record was first in, or with another ``separator``: ``orders/0/42``.

    Read from the end, as topics may have hyphens. Topic and partition are the origin. Where a record lies *now* is no dedup key: as any ID that a broker gives a
    message when it arrives, it is another one for each duplicate.
    """
    return KafkaCoordinates(separator)


def dotted_version() -> Order:
    """Numbers joined by dots, up to 32 of up to 20 digits: ``1.9`` < ``1.10`` < ``1.10.0`` < ``1.10.2``; no letters.

    Missing parts are none, not zeros: ``1.10`` is older than ``1.10.0``, not the same, because what is the same is not delivered.
    """
    return DottedVersion()
