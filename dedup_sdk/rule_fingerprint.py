"""The rule fingerprint: one short text for everything that the marks of a partition depend on.

A mark says "this group completed a record with this ID". Read by another ID spec, in another log, or at another isolation level, the
same sentence would hide messages that nobody handled. So history vouches only for the rule under which it was made. A fingerprint stands
in the identity of a store and in the text of every commit; where it differs from the consumer's own, the history counts for nothing.

Form: ``<log>.<rule>``

``log``
    which log the offsets are of: 8 hexadecimal digits of the cluster ID, then 8 of the topic ID (`log_name`). An ID that the brokers do
    not have is left out.
``rule``
    16 hexadecimal digits of the ID spec (with the order and the source of `LastId`, and the unit), the digest, the isolation level, and
    the kind of window: one that counts IDs numbers its marks, one by time does not. How *long* a window is does not belong to it,
    except where a unit is rejected as a whole: there it decides which records nobody handled.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from dedup_sdk.units.keys import UnitKeys
from dedup_sdk.window import Window

_LOG_DIGITS: Final = 8
_RULE_DIGITS: Final = 16
_NAMELESS: Final = ("", "unnamed")
"""What stands for the ID of a cluster that has none."""


def log_name(cluster: str, topic_id: str) -> str:
    """Return the digits of a log, by the IDs that its brokers gave: 8 of its cluster, and 8 of the topic.

    Without the latter where the brokers have no topic IDs; empty without a cluster ID.
    """
    names = [cluster, f"{cluster}/{topic_id}"] if topic_id else [cluster]
    return "".join(
        sha256(name.encode()).hexdigest()[:_LOG_DIGITS] for name in names if known_cluster(cluster)
    )


def known_cluster(cluster: str) -> str:
    """Return a cluster ID, or "" for what stands for one where the brokers have none."""
    return "" if cluster in _NAMELESS else cluster


def rule_digits(keys: object, window: Window, *, digest: str, isolation: str) -> str:
    """Return the digits of a rule; ``keys`` is what is read of a record (an ID spec, or the keys of sources or units)."""
    kind = "count" if window.count is not None else "time"
    judged = str(window) if isinstance(keys, UnitKeys) and keys.mode == "all-or-nothing" else kind
    parts = [str(keys), digest, isolation.lower(), kind, judged]
    encoded = b"".join(len(part.encode()).to_bytes(4) + part.encode() for part in parts)
    return sha256(encoded).hexdigest()[:_RULE_DIGITS]


def is_one_log(one: str, other: str) -> bool:
    """Whether two names (`log_name`) are of one log, as far as both of them say."""
    known = min(len(one), len(other))
    return one[:known] == other[:known]


def is_of_one_cluster(one: str, other: str) -> bool:
    """Whether two names (`log_name`) are of logs of one cluster."""
    return one[:_LOG_DIGITS] == other[:_LOG_DIGITS]


def topic_digits(name: str) -> str:
    """Return the part of a name (`log_name`) that is the topic's; empty where the brokers have no topic IDs."""
    return name[_LOG_DIGITS:]
