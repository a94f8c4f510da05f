"""The snapshots of one topic and group, and which of them may go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from dedup_sdk.errors import SnapshotError
from dedup_sdk.store.manifest import MANIFEST_NAME
from dedup_sdk.store.snapshot_source import Source
from dedup_sdk.store.sorted_file import FILTER_SUFFIX, SORTED_SUFFIX

BESIDE_NAMES = ("report.json", "findings.json")
"""What a backfill leaves beside the files of a snapshot."""


def newest_first(found: Iterable[Source]) -> list[Source]:
    """Return snapshots by when they were made; of the same moment by name."""
    return sorted(found, key=lambda each: (-each.manifest.created_ms, each.place))


def one_family(found: Sequence[Source], topic: str | None = None, group: str | None = None) -> list[Source]:
    """Return the snapshots of this topic and group, the newest first; ``group`` "" are those that were made without one.

    Raises `SnapshotError` when there is none, or they are of several topics, groups or clusters.
    """
    kept = newest_first(
        each
        for each in found
        if (topic is None or each.manifest.topic == topic)
        and (group is None or (each.manifest.group or "") == group)
    )
    if not kept:
        there = sorted({f"{each.manifest.topic} of {each.manifest.group or 'no group'}" for each in found})
        raise SnapshotError(f"there is no such snapshot: what is there is of {', '.join(there)}")
    for name in ("topic", "group", "cluster"):
        values = sorted({str(getattr(each.manifest, name)) for each in kept})
        if len(values) > 1:
            remedy = "list and remove them apart" if name == "cluster" else f"say which by --{name}"
            raise SnapshotError(f"the snapshots are of several: {name} {', '.join(values)}; {remedy}")
    return kept


def superfluous(family: Sequence[Source], keep: int, before_ms: int | None = None) -> list[Source]:
    """Return what is not among the ``keep`` newest (at least one) and, where a time is given, was made before it."""
    if keep < 1:
        raise SnapshotError(f"keep={keep} would leave no snapshot; keep at least 1")
    beyond = newest_first(family)[keep:]
    return [each for each in beyond if before_ms is None or each.manifest.created_ms < before_ms]


def remove_snapshot(source: Source) -> list[str]:
    """Remove what a manifest names, the manifest first, so that what is left of an interruption is no snapshot.

    Returns the names of what else is in its folder, which stays. Raises `SnapshotError` when something cannot be removed.
    """
    if source.remote is not None:
        source.remote.remove()
        return []
    folder = Path(source.place)
    try:
        (folder / MANIFEST_NAME).unlink()
        for entry in source.manifest.partitions:
            for file in entry.files:
                for suffix in (SORTED_SUFFIX, FILTER_SUFFIX):
                    (folder / str(entry.partition) / f"{file.name}{suffix}").unlink(missing_ok=True)
            _remove_empty(folder / str(entry.partition))
        for name in BESIDE_NAMES:
            (folder / name).unlink(missing_ok=True)
        _remove_empty(folder)
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    except OSError as error:
        raise SnapshotError(
            f"{folder} cannot be removed: {error.strerror}; remove the rest by hand"
        ) from None


def _remove_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
