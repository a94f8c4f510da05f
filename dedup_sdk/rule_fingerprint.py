"""The rule fingerprint: one short text for everything that the marks of a partition depend on.

A mark means "this group completed a record with this ID". With another ID spec, in another log, or at another isolation level it would hide
messages that were never handled. So marks and commits are valid only under the rule that made them. The identity of a store and the text of
every commit contain the fingerprint; where it differs from the consumer's own, they do not count.

Form: ``<log>.<rule>``

``log``
    the log of the offsets: 8 hexadecimal digits of the cluster ID, then 8 of the topic ID (`log_name`). An ID that the brokers do
    not have is left out.
``rule``
    16 hexadecimal digits of the ID spec (with the order and the source of `LastId`, and the unit), the digest, the isolation level, and
    the kind of window: one that counts IDs numbers its marks, one by time does not. The *length* of a window is no part of it,
    except where a unit is rejected as a whole: there the length decides which records were never handled.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from dedup_sdk.units.keys import UnitKeys
from dedup_sdk.window import Window

_LOG_DIGITS: Final = 8
_RULE_DIGITS: Final = 16
_NAMELESS: Final = ("", "unnamed")
"""Placeholders for the ID of a cluster without one."""


def log_name(cluster: str, topic_id: str) -> str:
    """Return the digits of a log: 8 of the cluster ID, and 8 of the topic ID.

    The latter are missing where the brokers have no topic IDs; all are without a cluster ID.

    Two hashes, not one, because they mean different things beside a commit. Offsets of another cluster were translated
    by the tool that copied them. Those of another topic ID of this cluster belong to a deleted topic, were committed by
    a consumer that had not heard of it, and do not say where to go on. One hash of both would leave the distinction to
    the store on disk, which another machine does not have, and which belongs to the new topic as soon as the old store
    was set aside.
    """
    if cluster in _NAMELESS:
        return ""
    digits = sha256(cluster.encode()).hexdigest()[:_LOG_DIGITS]
    return digits + sha256(f"{cluster}/{topic_id}".encode()).hexdigest()[:_LOG_DIGITS] if topic_id else digits


def known_cluster(cluster: str) -> str:
    """Return a cluster ID, or "" for a placeholder."""
    return "" if cluster in _NAMELESS else cluster


def rule_digits(keys: object, window: Window, *, digest: str, isolation: str) -> str:
    """Return the digits of a rule; ``keys`` are the strategy's keys (an ID spec, or the keys of sources or units)."""
    kind = "count" if window.count is not None else "time"
    judged = str(window) if isinstance(keys, UnitKeys) and keys.mode == "all-or-nothing" else kind
    parts = [str(keys), digest, isolation.lower(), kind, judged]
    digest_of = sha256()
    for part in map(str.encode, parts):
        digest_of.update(len(part).to_bytes(4) + part)
    return digest_of.hexdigest()[:_RULE_DIGITS]


def is_one_log(one: str, other: str) -> bool:
    """Whether two names (`log_name`) agree, as far as both are known."""
    known = min(len(one), len(other))
    return one[:known] == other[:known]


def is_of_one_cluster(one: str, other: str) -> bool:
    """Whether two names (`log_name`) belong to one cluster."""
    return one[:_LOG_DIGITS] == other[:_LOG_DIGITS]


def topic_digits(name: str) -> str:
    """Return the topic's part of a name (`log_name`); empty where the brokers have no topic IDs."""
    return name[_LOG_DIGITS:]
