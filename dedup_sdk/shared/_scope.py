"""Scopes: where equal IDs are the same message. The name of a scope, and IDs within it."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Literal

from dedup_sdk._checks import choice
from dedup_sdk.shared._protocol import ID_BYTES

Scope = Literal["partition", "topic", "group", "global"]


def scope_name(
    scope: Scope,
    *,
    id_spec: str,
    cluster: str = "",
    prefix: str = "",
    group: str = "",
    topic: str = "",
    partition: int = 0,
) -> bytes:
    """Return the name of a record's scope; records whose scopes have equal names share IDs.

    - ``partition``: the same ID in two partitions of a group's topic is two messages;
    - ``topic``: the same ID in two topics of a group is two messages;
    - ``group``: the same ID in two groups of a cluster is two messages;
    - ``global``: the same ID is one message everywhere, also in two clusters.

    ``id_spec`` is the canonical text of the ID spec (``str(spec)``): IDs of different specs never match,
    even where the bytes are equal. ``cluster`` is the cluster ID, or the name configured for it; empty
    where the brokers have none. For a retry topic that shares the scope of its origin, ``topic`` is the
    origin. The encoding is injective: different parts give different names. Raises `ConfigurationError` for another
    ``scope``.
    """
    choice("scope", scope, ("partition", "topic", "group", "global"))
    parts = {
        "partition": [cluster, group, topic, str(partition)],
        "topic": [cluster, group, topic],
        "group": [cluster, group],
        "global": [],
    }[scope]
    encoded = [part.encode() for part in (scope, prefix, id_spec, *parts)]
    return b"".join(len(part).to_bytes(4) + part for part in encoded)


def scoped_ids(name: bytes, digests: Iterable[bytes]) -> list[bytes]:
    """Return the IDs (digests of 16 bytes) as keys in a scope: 16 bytes each, in the same order."""
    # The name is hashed once for all IDs.
    begun = sha256(name)
    scoped = []
    for digest in digests:
        hashed = begun.copy()
        hashed.update(digest)
        scoped.append(hashed.digest()[:ID_BYTES])
    return scoped
