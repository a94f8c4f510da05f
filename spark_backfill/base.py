"""The base: an earlier snapshot that a run adds to, instead of reading all of its history again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dedup_sdk._masking import counted, shown
from dedup_sdk._store.manifest import Manifest, PartitionManifest
from dedup_sdk._store.snapshot import Copy, check_size, files_of, read_file
from dedup_sdk._store.snapshot_source import RemoteFiles, SnapshotSource, find_snapshots
from dedup_sdk._window import Window
from dedup_sdk.errors import SnapshotError
from spark_backfill.errors import IN_FULL, BackfillError

SameUntil = Callable[[int, int, int], int | None]
"""A function of partition, offset and leader epoch: `spark_backfill.kafka_log.KafkaLog.same_until`."""


@dataclass(frozen=True, slots=True)
class Base:
    """A snapshot that was found.

    ``stays``: it is the one at the output, whose files stay where they can.
    """

    source: SnapshotSource
    stays: bool = False

    @property
    def files(self) -> Path | RemoteFiles:
        """Its files: in a folder, or behind a URL."""
        return Path(self.source.place) if self.source.remote is None else self.source.remote.files

    @property
    def manifest(self) -> Manifest:
        """The snapshot's manifest."""
        return self.source.manifest

    @property
    def window(self) -> Window:
        """How long it remembers."""
        return Window.parse(self.manifest.window)


def entries_of(manifest: Manifest) -> Mapping[int, PartitionManifest]:
    """Return a base's entries by partition."""
    return {entry.partition: entry for entry in manifest.partitions}


def open_base(place: str) -> Base:
    """Read the manifest of a snapshot in a folder or behind a URL, and see that the files of a folder are all there.

    Their checksums are compared where they are read.

    Raises:
        SnapshotError: there is none, several are, or a file is missing or has another size.
        ConfigurationError: the driver of a URL is not installed.
    """
    found, _ = find_snapshots([place])
    if len(found) > 1:
        raise SnapshotError(
            f"base {place} holds {len(found)} snapshots ({found[0].place}, {found[1].place}, ...): name one of them"
        )
    base = Base(found[0])
    if base.source.remote is None:
        _check_files(base)
    return base


def check_base(
    base: Base, *, topic: str, id_spec: str, digest: str, isolation: str, group: str | None, window: Window
) -> None:
    """Refuse a base that is of something else than the run, as far as that is known before Kafka is asked.

    ``group`` None: the user vouches.

    Raises:
        BackfillError: naming the difference.
    """
    told = base.manifest
    if told.resharded_from:
        raise BackfillError(
            f"base {base.source.place} was re-sharded and has marks of other partitions: {IN_FULL}"
        )
    if any(file.payloads for entry in told.partitions for file in entry.files):
        raise BackfillError(
            f"base {base.source.place} has marks with payloads, which a run cannot add to: {IN_FULL}"
        )
    pairs = {
        "topic": (told.topic, topic),
        "id": (told.id_spec, id_spec),
        "digest": (told.digest, digest),
        "isolation": (told.isolation, isolation),
    }
    for name, (theirs, ours) in pairs.items():
        if theirs != ours:
            raise _another(base, name, theirs, ours)
    if told.group != group:
        theirs, ours = (
            "a history that was vouched for" if each is None else f"group {shown(each)}"
            for each in (told.group, group)
        )
        raise BackfillError(
            f"base {base.source.place} is of {theirs}, not of {ours}: give the base of this one, or {IN_FULL}"
        )
    if base.window == window:
        return
    if window.count is not None or base.window.count is not None:
        raise BackfillError(
            f"base {base.source.place} has the window {told.window}, not {window}: what a window by count "
            f"remembers depends on its size; {IN_FULL}"
        )


def check_base_log(base: Base, *, cluster: str, topic_id: str, partitions: Sequence[int]) -> None:
    """Refuse a base of another log; an empty ``topic_id`` says nothing.

    ``partitions`` are those of the topic, empty where nobody knows.

    Raises:
        BackfillError: naming the difference.
    """
    told = base.manifest
    if told.cluster != cluster:
        raise _another(base, "cluster", told.cluster, cluster)
    if told.topic_id and topic_id and told.topic_id != topic_id:
        raise _another(base, "topic ID", told.topic_id, topic_id)
    others = {entry.partition for entry in told.partitions} - set(partitions)
    if partitions and others:
        raise BackfillError(
            f"base {base.source.place} has partition {min(others)}, the topic has "
            f"{counted(len(partitions), 'partition')}: the base is of another topic; {IN_FULL}"
        )


def resumable(
    entry: PartitionManifest | None, *, low: int, high: int, vouched: bool, window: Window
) -> PartitionManifest | None:
    """Return a base's entry of a partition if ``[low, high)`` can begin with it, None where it is of no use.

    ``vouched``: the history goes as far back as anybody knows of it, so that it may begin with the base.

    Raises:
        BackfillError: the base has other offsets than the history.
    """
    if entry is None or (entry.high <= low and not vouched):
        return None
    what = f"partition {entry.partition}: the base"
    if entry.high > high:
        raise BackfillError(
            f"{what} reaches offset {entry.high}, and the history ends at {high}: the group was rewound, or "
            f"the log is another one; {IN_FULL}"
        )
    if entry.low > low:
        raise BackfillError(f"{what} begins at offset {entry.low}, and the history at {low}: {IN_FULL}")
    if window.count is None or vouched or entry.low == low:
        return entry
    raise BackfillError(
        f"{what} begins at offset {entry.low}, and the history at {low}: a window by count is counted from "
        f"there; {IN_FULL}"
    )


def cut_off_at(
    partition: int, high: int, epoch: int | None, last_epoch: int | None, same_until: SameUntil
) -> int | None:
    """Return where the log was cut since its records before ``high`` were read in leader epoch ``epoch``.

    None: it was not, as far as the broker can tell. ``last_epoch``: that at the end of the history; within one epoch no
    record is ever replaced. None stands for an epoch that nobody knows.
    """
    if epoch is None or epoch == last_epoch:
        return None
    end = same_until(partition, high, epoch)
    return None if end is None or end >= high else end


def check_base_epoch(entry: PartitionManifest, last_epoch: int | None, same_until: SameUntil) -> None:
    """Refuse a base's entry of records that the log no longer has; as `cut_off_at`.

    Raises:
        BackfillError: the log was cut below the base's end since, by an unclean election, and has other records there.
    """
    if entry.low == entry.high:
        return
    end = cut_off_at(entry.partition, entry.high, entry.epoch, last_epoch, same_until)
    if end is not None:
        raise BackfillError(
            f"partition {entry.partition}: the base reaches offset {entry.high} of leader epoch {entry.epoch}, which "
            f"ends at {end} in the log now: the log was cut since; {IN_FULL}"
        )


def _another(base: Base, name: str, theirs: str, ours: str) -> BackfillError:
    return BackfillError(
        f"base {base.source.place} is of {name} {shown(theirs)}, not {shown(ours)}: give the base of this history, "
        f"or {IN_FULL}"
    )


def copy_from(files: Path | RemoteFiles, partition: int) -> Copy:
    """Return the function that copies a partition's files from a folder, or from behind a URL."""
    if isinstance(files, Path):
        return partial(read_file, files / str(partition))
    return partial(files.fetch_file, partition)


def _check_files(base: Base) -> None:
    for entry in base.manifest.partitions:
        for file in entry.files:
            for suffix, size, _ in files_of(file):
                path = Path(base.source.place, str(entry.partition), f"{file.name}{suffix}")
                try:
                    check_size(f"base: {path}", path.stat().st_size, size)
                except OSError as error:
                    raise SnapshotError(
                        f"base: {path} cannot be read: {error.strerror}; copy the snapshot again, or {IN_FULL}"
                    ) from None
