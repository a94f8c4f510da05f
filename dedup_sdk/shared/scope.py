"""Whose IDs are the same in a shared memory: the name of a scope, and IDs within it."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Literal

from dedup_sdk.shared.protocol import ID_BYTES

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
    """Return the name of the scope that a record lies in; equal names share IDs.

    - ``partition``: the same ID in two partitions of a group's topic is two messages;
    - ``topic``: in two topics of a group;
    - ``group``: in two groups of a cluster;
    - ``global``: it is one, wherever it comes, also in two clusters.

    ``id_spec`` is the canonical text of the ID spec (``str(spec)``): what another spec reads is another ID, even where the bytes are equal.
    ``cluster`` is the cluster ID, or the name that stands for it; empty where the brokers have none. ``topic`` is the one that counts: for a
    retry topic that shares the scope of its origin, the origin. No two lists of parts have one name.
    """
    parts = {
        "partition": [cluster, group, topic, str(partition)],
        "topic": [cluster, group, topic],
        "group": [cluster, group],
        "global": [],
    }[scope]
    encoded = [part.encode() for part in (scope, prefix, id_spec, *parts)]
    return b"".join(len(part).to_bytes(4) + part for part in encoded)


def scoped_ids(name: bytes, digests: Iterable[bytes]) -> list[bytes]:
    """Return what IDs (digests of 16 bytes) are called in a scope: 16 bytes each, in the same order."""
    begun = sha256(name)
    scoped = []
    for digest in digests:
        hashed = begun.copy()
        hashed.update(digest)
        scoped.append(hashed.digest()[:ID_BYTES])
    return scoped
