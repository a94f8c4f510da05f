"""Where a partition's database lies: ``<store>/<cluster>/<group>/<topic>/<partition>/``.

Names are percent-encoded (UTF-8), so that no name can leave the store's folder; ``.`` and ``..`` become ``%2E`` and
``%2E%2E``, an empty name ``%``; a name of more than 255 bytes keeps its first 180 and ends in ``%`` and 32 hexadecimal digits of
its SHA-256. Every folder is made with mode 0700: what lies inside is for its owner only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from dedup_sdk.errors import StoreError
from dedup_sdk.store.protocol import Identity

_MOST_BYTES: Final = 255
_KEPT_BYTES: Final = 180
_DOTS: Final = {"": "%", ".": "%2E", "..": "%2E%2E"}
PRIVATE: Final = 0o700


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFolder:
    """A partition's database as its path names it; the identity inside says it in full (`read_partition`)."""

    path: Path
    cluster: str
    group: str
    topic: str
    partition: int


def escape(name: str) -> str:
    """Return a file name for any text, another one for every other text."""
    escaped = _DOTS.get(name) or quote(name, safe="")
    if len(escaped) <= _MOST_BYTES:
        return escaped
    return f"{escaped[:_KEPT_BYTES]}%{sha256(name.encode(errors='surrogatepass')).hexdigest()[:32]}"


def unescape(name: str) -> str:
    """Return the text that `escape` was given (cut, if it was too long)."""
    return "" if name == "%" else unquote(name)


def partition_folder(root: Path, identity: Identity) -> Path:
    """Return the folder of a partition's database."""
    names = (identity.cluster, identity.group, identity.topic)
    return root.joinpath(*map(escape, names), str(identity.partition))


def make_private(root: Path, folder: Path) -> None:
    """Make ``root``, ``folder`` below it and everything in between, each with mode 0700.

    Raises `StoreError` naming the folder when that fails.
    """
    try:
        root.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        for parent in reversed([folder, *folder.parents[: len(folder.relative_to(root).parts) - 1]]):
            parent.mkdir(mode=PRIVATE, exist_ok=True)
            parent.chmod(PRIVATE)
    except OSError as error:
        message = f"store folder {folder} cannot be made: {error.strerror}; check store= and its permissions"
        raise StoreError(message) from error


def list_partitions(path: str | Path) -> list[PartitionFolder]:
    """Return the partitions stored under a store's folder, ascending; none when it is not there."""
    return sorted(
        _partitions(Path(path)), key=lambda entry: (entry.cluster, entry.group, entry.topic, entry.partition)
    )


def _partitions(root: Path) -> Iterator[PartitionFolder]:
    for current in root.glob("*/*/*/*/CURRENT"):
        folder = current.parent
        if folder.name.isascii() and folder.name.isdecimal():
            cluster, group, topic = map(unescape, folder.relative_to(root).parts[:3])
            yield PartitionFolder(
                path=folder, cluster=cluster, group=group, topic=topic, partition=int(folder.name)
            )
