"""Orders of IDs: whether a new ID is newer than the last one, the same, older, or uncomparable.

    from dedup_sdk import orders
    orders.integer().compare(b"41", b"42")     # Comparison.NEWER
    orders.order_of(my_function, version="1")   # my_function(last, new) -> 1 | 0 | -1 | None
    orders.named("snowflake(epoch_ms=5)")       # by the name that a store keeps

An order gives each ID a `SortKey`: an origin, and a rank within it. Sort keys of two origins cannot be
compared, and neither can malformed IDs; their records are delivered. This package needs no Kafka, store or
clock.

A record whose ID compares as the same as an earlier one is not delivered. So an order must read strictly,
and must never treat two different IDs as the same: ``1.2`` is not ``1.2.0``, a fraction of a second beyond
nanoseconds is malformed and not cut, and by default a resume token is compared as a whole, not by its time.
"""

from dedup_sdk.orders._identifiers import snowflake, ulid, uuid1, uuid6, uuid7
from dedup_sdk.orders._log_positions import (
    kafka_coordinates,
    mongodb_resume_token,
    mysql_gtid,
    mysql_gtid_set,
    oracle_scn,
    postgresql_lsn,
)
from dedup_sdk.orders._named import named
from dedup_sdk.orders._numbers import (
    big_endian,
    dotted_version,
    epoch_sequence,
    epoch_sequence_bytes,
    hybrid_clock,
    integer,
    little_endian,
)
from dedup_sdk.orders._order import Order, PartialOrder, order_of
from dedup_sdk.orders._sort_key import Comparison, SortKey, compare_sort_keys
from dedup_sdk.orders._timestamps import rfc3339, unix_time

__all__ = [
    "Comparison",
    "Order",
    "PartialOrder",
    "SortKey",
    "big_endian",
    "compare_sort_keys",
    "dotted_version",
    "epoch_sequence",
    "epoch_sequence_bytes",
    "hybrid_clock",
    "integer",
    "kafka_coordinates",
    "little_endian",
    "mongodb_resume_token",
    "mysql_gtid",
    "mysql_gtid_set",
    "named",
    "oracle_scn",
    "order_of",
    "postgresql_lsn",
    "rfc3339",
    "snowflake",
    "ulid",
    "unix_time",
    "uuid1",
    "uuid6",
    "uuid7",
]
