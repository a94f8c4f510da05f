"""ID specs as Spark columns: the digest of `dedup_sdk.ids._columns`, computed by the JVM alone.

``json:``, ``cloudevents`` and ``py:`` have no such column; they go through the SDK's own code
(`spark_backfill.id_batches`).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own documentation writes it so)

from dedup_sdk._marks import DIGEST_BYTES
from dedup_sdk.ids import MAX_ID_BYTES, IdSpec, Leaf
from dedup_sdk.ids._redrive import REDRIVE_HEADER, redrive_prefix
from spark_backfill.id_batches import REDRIVEN

_OF_THE_JVM: Final = frozenset({"header", "key", "value"})


def jvm_computes(spec: IdSpec) -> bool:
    """Whether Spark computes the digest without Python."""
    return all(leaf.kind in _OF_THE_JVM for leaf in spec.describe())


def with_digests(
    records: DataFrame, spec: IdSpec, *others: str, group: str | None = None, with_redriven: bool = False
) -> DataFrame:
    """Return ``partition``, ``offset``, ``timestamp_ms``, ``digest`` and others of each record.

    A digest has 16 bytes, and is null without an ID. ``records`` has the columns of Spark's Kafka source (with
    headers where the spec needs them), and ``timestamp_ms``. ``group`` and ``with_redriven``: as in
    `spark_backfill.id_batches.digester`.
    """
    digest = digest_column(spec)
    place = ("partition", "offset", "timestamp_ms")
    if "headers" not in records.columns:
        nothing = [F.lit(None).cast("binary").alias(REDRIVEN)] if with_redriven else []
        return records.select(*place, digest.alias("digest"), *others, *nothing)
    header = header_column(REDRIVE_HEADER)
    prefix = bytearray(redrive_prefix(group))
    redriven = F.when(F.substring(header, 1, len(prefix)) == F.lit(prefix), _hashed(F.concat(digest, header)))
    if group is not None:
        return records.select(*place, F.coalesce(redriven, digest).alias("digest"), *others)
    added = [redriven.alias(REDRIVEN)] if with_redriven else []
    return records.select(*place, digest.alias("digest"), *others, *added)


def digest_column(spec: IdSpec) -> Column:
    """Return the digest of a spec that `jvm_computes`: binary, null where the record has no ID."""
    parts = [_part(leaf) for leaf in spec.describe()]
    total = parts[0] if len(parts) == 1 else F.concat(*parts)
    message = F.concat(*[block for part in parts[:-1] for block in (_length(part), part)], parts[-1])
    # A null part makes the concatenation null, and the condition with it.
    return F.when(F.octet_length(total) <= MAX_ID_BYTES, _hashed(message))


def _hashed(message: Column) -> Column:
    return F.unhex(F.substring(F.sha2(message, 256), 1, 2 * DIGEST_BYTES))


def _part(leaf: Leaf) -> Column:
    return header_column(leaf.argument) if leaf.kind == "header" else F.col(leaf.kind)


def header_column(name: str) -> Column:
    """Return the value of the last header of that name: binary, null where there is none."""

    def named(header: Column) -> Column:
        return header["key"] == F.lit(name)

    return F.try_element_at(F.filter("headers", named), F.lit(-1))["value"]


def _length(part: Column) -> Column:
    """The part's length as 4 bytes, big-endian."""
    return F.unhex(F.lpad(F.hex(F.octet_length(part)), 8, "0"))
