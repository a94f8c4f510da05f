"""The manifest of a snapshot: its files, the history that they cover, and checksums to verify them.

Layout of a snapshot folder::

    DIR/manifest.json               written last: without it there is no snapshot
    DIR/<partition>/<name>.sst      sorted files, by digest; within a layer of a partition their ranges do not overlap,
                                    nor share their first 4 bytes
    DIR/<partition>/<name>.filter   their filter words

``manifest.json`` is one JSON object with:

- ``format`` (5);
- the fields of `Manifest`, with ``partitions`` as a list of objects with the fields of `PartitionManifest`,
  their ``files`` as a list with the fields of `SortedFile`, and their ``gaps`` with those of `Gap`;
- ``marks`` and ``fingerprint`` of each partition and of the whole, which are the sums over their parts;
- ``checksum``: the SHA-256 of the same object without ``checksum``, written with sorted keys, without
  spaces, in ASCII.

The files of a partition are in one layer or several. A *layer* has marks of an interval of offsets, above those of all
layers before it: of an ID that several layers have, the mark in the last one counts. So a run that adds to a snapshot
writes a layer for what has come since, and lists the files that are there already. ``marks`` and ``fingerprint`` count
such an ID once a layer; `dedup_sdk._store.snapshot_source.read_source` merges the layers.

The checksum finds accidents; whoever writes a manifest can make one. So the declared sizes are bounded by the size that
so many marks can have (`SortedFile`), and a reader stops at the declared size.

`fitting_partition` decides whether a partition store may install a snapshot.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Self

from dedup_sdk._checks import why_unusable
from dedup_sdk._marks import Known, Progress
from dedup_sdk._masking import shown
from dedup_sdk._store.filter_words import BLOCK_BYTES, MOST_STEP_BYTES, PAGE_WORD_BYTES, WORD_BYTES
from dedup_sdk._store.fingerprint import FINGERPRINT_DIGITS, sum_fingerprints
from dedup_sdk._store.identity import MAX_INTEGER, Fields
from dedup_sdk._store.pages import MAX_PAYLOAD_BYTES
from dedup_sdk._store.paths import MAX_PARTITIONS
from dedup_sdk._store.protocol import Identity
from dedup_sdk._window import Window
from dedup_sdk.errors import ConfigurationError, SnapshotError

MANIFEST_NAME: Final = "manifest.json"
FORMAT: Final = 5
RANK_DIGITS: Final = 8
MAX_MANIFEST_BYTES: Final = 512 * 2**20
"""So many are read of one from anywhere, however long it is there.

The entry of a file takes up to 800 bytes, that of a partition 500: it is enough for 20 files in each of 30,000
partitions. A backfill adds up to 8 layers to a partition, mostly of one file each: that takes 190 MB.
"""
MAX_LAYERS: Final = 64
"""More than anybody writes: each is a generation of the store that installs it, with its open files."""
_FRAME_BYTES: Final = 2**20
"""More than RocksDB adds to a sorted file as a whole."""
_MARK_BYTES: Final = 256
"""More than a mark takes alone in its page: digest, three numbers, head and key of the page, its index entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedFile:
    """The entry of one sorted file.

    ``bytes`` and ``sha256`` are of ``NAME.sst``, ``filter_bytes`` and ``filter_sha256`` of ``NAME.filter``.
    ``smallest`` and ``largest`` are digests in hexadecimal; ``oldest_ms`` and ``newest_ms`` record
    timestamps; ``newest_number`` is the highest acceptance number, None without a count window;
    ``fingerprint`` is that of its marks; ``payloads`` counts the marks that have a payload; ``layer`` ascends with the
    offsets, from 0 on.
    Sizes have bounds: `most_bytes`, `filter_bounds`.
    """

    name: str
    marks: int
    bytes: int
    smallest: str
    largest: str
    oldest_ms: int
    newest_ms: int
    newest_number: int | None
    fingerprint: str
    sha256: str
    filter_bytes: int
    filter_sha256: str
    payloads: int = 0
    layer: int = 0

    @property
    def whole_bytes(self) -> int:
        """Bytes of the sorted file and of its filter words."""
        return self.bytes + self.filter_bytes


_smallest: Final = attrgetter("smallest")


def most_bytes(marks: int, payloads: int) -> int:
    """Return the most bytes of a sorted file: each mark in a page of its own, the payloads, and RocksDB's frame."""
    return _FRAME_BYTES + _MARK_BYTES * marks + MAX_PAYLOAD_BYTES * payloads


def filter_bounds(marks: int) -> tuple[int, int]:
    """Return the least and the most bytes of filter words: all marks in one block, or each in one of its own."""
    return BLOCK_BYTES + WORD_BYTES * marks, (
        BLOCK_BYTES + WORD_BYTES + PAGE_WORD_BYTES + MOST_STEP_BYTES
    ) * marks


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Offsets ``[begin, end)`` whose records were gone when the snapshot was made, so that their marks are missing."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionManifest:
    """One partition of a snapshot. Its marks are those of the completed offsets ``[low, high)``; ``high`` is the cut.

    - ``known``: how far back its marks go (0 and None as numbers without a count window). Of what a store may have
      dropped a manifest tells nothing: ``dropped_to`` and ``floor_number`` are 0.
    - ``marks``: the sum over ``files``.
    - ``committed``: the last offset that the group is known to have committed, None if unknown. A store
      restored from the snapshot detects a rewind by it.
    - ``era``: an ID of the last deliberate rewind of the group, by which a rewind is detected, too; empty if
      there was none, or it is unknown.
    - ``gaps``: ascending, inside ``[low, high)``.
    - ``epoch``: the leader epoch by which the broker tells whether its log still has the records below the
      cut, None if unknown.
    """

    partition: int
    low: int
    high: int
    known: Known
    marks: int
    files: tuple[SortedFile, ...] = ()
    committed: int | None = None
    era: str = ""
    gaps: tuple[Gap, ...] = ()
    epoch: int | None = None

    @property
    def layers(self) -> tuple[tuple[SortedFile, ...], ...]:
        """The files of each layer by their digests, the oldest layer first."""
        numbers = sorted({file.layer for file in self.files})
        in_order = sorted(self.files, key=_smallest)
        return tuple(tuple(file for file in in_order if file.layer == number) for number in numbers)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the marks of all layers, independent of their distribution over files."""
        return sum_fingerprints(file.fingerprint for file in self.files)

    @property
    def bytes(self) -> int:
        """Bytes of its sorted files and their filter words."""
        return sum(file.whole_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The description of a snapshot. ``created_ms`` is wall-clock time; ``window`` the text of a `Window`.

    Either ``group`` names the group that processed the history itself, or it is None and ``vouched`` says
    that the creator of the snapshot vouches that all of its records were processed. ``topic_id`` is empty
    where the broker does not report it. ``resharded_from``: partitions whose marks were also copied to the
    partition that ``partitioner`` assigns to their keys, among all of ``partitions``
    (`dedup_sdk._marks.elsewhere`); empty if not requested.
    """

    cluster: str
    topic: str
    topic_id: str
    id_spec: str
    digest: str
    isolation: str
    window: str
    group: str | None
    vouched: bool
    created_ms: int
    partitions: tuple[PartitionManifest, ...] = field(default=())
    resharded_from: tuple[int, ...] = ()
    partitioner: str = ""

    @classmethod
    def of_store(
        cls, identity: Identity, window: str, created_ms: int, partitions: tuple[PartitionManifest, ...]
    ) -> Self:
        """Return the manifest of a snapshot of a group's own store; ``identity`` is that of any of its partitions."""
        return cls(
            cluster=identity.cluster,
            topic=identity.topic,
            topic_id=identity.topic_id,
            id_spec=identity.id_spec,
            digest=identity.digest,
            isolation=identity.isolation,
            window=window,
            group=identity.group,
            vouched=False,
            created_ms=created_ms,
            partitions=partitions,
        )

    @property
    def marks(self) -> int:
        """The number of marks in all partitions."""
        return sum(entry.marks for entry in self.partitions)

    @property
    def bytes(self) -> int:
        """Bytes of all files except the manifest."""
        return sum(entry.bytes for entry in self.partitions)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the marks of all partitions: equal for snapshots with the same marks."""
        return sum_fingerprints(entry.fingerprint for entry in self.partitions)

    def partition(self, number: int) -> PartitionManifest | None:
        """Return the entry of a partition, None when the snapshot does not have it."""
        return next((entry for entry in self.partitions if entry.partition == number), None)


def write_manifest(folder: str | Path, manifest: Manifest) -> None:
    """Write ``manifest.json``, complete or not at all, after all other files were flushed to the disk."""
    path = Path(folder) / MANIFEST_NAME
    partial = path.with_suffix(".json.partial")
    with partial.open("wb") as file:
        file.write(manifest_bytes(manifest))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    # The new name is in the folder: without this a power cut may take the rename back.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return the content of ``manifest.json``."""
    content = _content(manifest)
    return json.dumps({**content, "checksum": _checksum(content)}, sort_keys=True, indent=1).encode("ascii")


def read_manifest(folder: str | Path) -> Manifest:
    """Read ``manifest.json`` and validate every field; `verify_snapshot` checks the files that it names.

    Raises `SnapshotError`, in one line that names the file, the field and its value.
    """
    path = Path(folder) / MANIFEST_NAME
    if why := why_unusable(folder):
        message = f"snapshot={shown(folder)} {why}; give the folder that the backfill wrote"
        raise SnapshotError(message)
    try:
        data = open_manifest(folder)
    except FileNotFoundError as error:
        message = (
            f"{path} does not exist: {shown(folder)} is not a snapshot, or its backfill did not finish; "
            "check the path, or run the backfill again"
        )
        raise SnapshotError(message) from error
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}; check the folder and its permissions"
        raise SnapshotError(message) from error
    return parse_manifest(data, path)


def open_manifest(folder: str | Path) -> bytes:
    """Return the bytes of ``manifest.json``, at most one more than a manifest may have; raises `OSError`."""
    # Non-blocking: a pipe of that name would block the reader for ever.
    descriptor = os.open(Path(folder) / MANIFEST_NAME, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123 (a descriptor)
        return file.read(MAX_MANIFEST_BYTES + 1)


def parse_manifest(data: bytes, path: Path | str) -> Manifest:
    """Parse the bytes of a ``manifest.json`` and validate every field; ``path`` names it in messages.

    Raises `SnapshotError`, in one line that names the file, the field and its value.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        message = f"{path} is larger than {MAX_MANIFEST_BYTES} bytes, so it is not a snapshot manifest; check the path"
        raise SnapshotError(message)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        message = f"{path} is not JSON: {error}; make the snapshot again"
        raise SnapshotError(message) from error
    fields = Fields(path, "", content)
    version = fields.integer("format", least=1)
    if version != FORMAT:
        remedy = "make the snapshot again" if version < FORMAT else "use the version that wrote it, or newer"
        raise fields.invalid("format", f"this version reads format {FORMAT}; {remedy}")
    checksum = fields.text("checksum")
    try:
        found = _checksum({key: value for key, value in content.items() if key != "checksum"})
    except RecursionError:
        message = f"{path} is nested too deeply for a manifest; make the snapshot again"
        raise SnapshotError(message) from None
    if found != checksum:
        raise fields.invalid(
            "checksum", "the manifest was changed after it was written; make the snapshot again"
        )
    return _manifest(fields)


_KNOWN_FIELDS: Final = ("since_ms", "since_number", "accepted", "newest_ms")


def as_written(manifest: Manifest) -> dict[str, Any]:
    """Return the fields of a manifest under the names of its file, those of its partitions without a level between."""
    content = asdict(manifest)
    for listed in content["partitions"]:
        known = listed.pop("known")
        listed |= {name: known[name] for name in _KNOWN_FIELDS}
    return content


def _content(manifest: Manifest) -> dict[str, object]:
    content = {"format": FORMAT, **as_written(manifest)}
    content |= {"marks": manifest.marks, "fingerprint": manifest.fingerprint}
    # A property, which `asdict` leaves out.
    for entry, listed in zip(manifest.partitions, content["partitions"], strict=True):
        listed["fingerprint"] = entry.fingerprint
    return content


def _checksum(content: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _manifest(fields: Fields) -> Manifest:
    manifest = Manifest(
        cluster=fields.text("cluster"),
        topic=fields.text("topic"),
        topic_id=fields.text("topic_id"),
        id_spec=fields.text("id_spec"),
        digest=fields.text("digest"),
        isolation=fields.text("isolation"),
        window=fields.text("window"),
        group=fields.optional_text("group"),
        vouched=fields.flag("vouched"),
        created_ms=fields.integer("created_ms"),
        partitions=tuple(_partition(entry) for entry in fields.objects("partitions")),
        # Snapshots of earlier versions have neither field.
        resharded_from=fields.integers("resharded_from", least=0) if fields.has("resharded_from") else (),
        partitioner=fields.text("partitioner") if fields.has("partitioner") else "",
    )
    numbers = [entry.partition for entry in manifest.partitions]
    if len(set(numbers)) != len(numbers):
        raise fields.invalid(
            "partitions", "a partition is listed twice; make the snapshot again", instead=numbers
        )
    _check_sums(fields, manifest.marks, manifest.fingerprint, "partitions")
    try:
        Window.parse(manifest.window)
    except ConfigurationError as error:
        raise fields.invalid("window", "it is not a valid window; make the snapshot again") from error
    return manifest


def _partition(fields: Fields) -> PartitionManifest:
    low = fields.integer("low", least=0)
    partition = PartitionManifest(
        partition=fields.integer("partition", least=0, most=MAX_PARTITIONS - 1),
        low=low,
        high=fields.integer("high", least=low),
        known=Known(
            since_ms=fields.optional_integer("since_ms", least=-1),
            since_number=fields.optional_integer("since_number", least=0),
            accepted=fields.integer("accepted", least=0),
            newest_ms=fields.integer("newest_ms", least=-1),
        ),
        marks=fields.integer("marks", least=0),
        files=tuple(_file(entry) for entry in fields.objects("files")),
        committed=fields.optional_integer("committed", least=0),
        era=fields.text("era"),
        gaps=tuple(_gap(entry) for entry in fields.objects("gaps")),
        epoch=fields.optional_integer("epoch", least=0),
    )
    names = [file.name for file in partition.files]
    if len(set(names)) != len(names):
        raise fields.invalid("files", "a file is listed twice; make the snapshot again", instead=names)
    _check_sums(fields, sum(file.marks for file in partition.files), partition.fingerprint, "files")
    ends = [low, *(end for gap in partition.gaps for end in (gap.begin, gap.end)), partition.high]
    if ends != sorted(ends):
        raise fields.invalid(
            "gaps", "they do not ascend from low to high; make the snapshot again", instead=ends
        )
    # A look-up reads one page, selected by the first 4 bytes of a digest.
    for layer in partition.layers:
        if any(
            later.smallest[:RANK_DIGITS] <= earlier.largest[:RANK_DIGITS]
            for earlier, later in pairwise(layer)
        ):
            raise fields.invalid(
                "files", "their digest ranges overlap; make the snapshot again", instead=names
            )
    return partition


def _check_sums(fields: Fields, marks: int, fingerprint: str, parts: str) -> None:
    """Raise `SnapshotError` for sums that differ from those over the parts."""
    if fields.integer("marks", least=0) != marks:
        raise fields.invalid("marks", f"it is not the sum over the {parts}; make the snapshot again")
    if fields.hexadecimal("fingerprint", digits=FINGERPRINT_DIGITS) != fingerprint:
        raise fields.invalid("fingerprint", f"it is not the sum over the {parts}; make the snapshot again")


def _gap(fields: Fields) -> Gap:
    begin = fields.integer("begin", least=0)
    return Gap(begin=begin, end=fields.integer("end", least=begin))


def _file(fields: Fields) -> SortedFile:
    oldest_ms = fields.integer("oldest_ms")
    smallest = fields.hexadecimal("smallest", digits=32)
    marks = fields.integer("marks", least=1)
    # A snapshot of before says neither: it has no payloads, and one layer.
    payloads = fields.integer("payloads", least=0, most=marks) if fields.has("payloads") else 0
    least_filter, most_filter = filter_bounds(marks)
    file = SortedFile(
        name=fields.file_name("name"),
        marks=marks,
        # The bound itself may not fit: each payload may have 2 GiB.
        bytes=fields.integer("bytes", least=1, most=min(most_bytes(marks, payloads), MAX_INTEGER)),
        smallest=smallest,
        largest=fields.hexadecimal("largest", digits=32),
        oldest_ms=oldest_ms,
        newest_ms=fields.integer("newest_ms", least=oldest_ms),
        newest_number=fields.optional_integer("newest_number", least=0),
        fingerprint=fields.hexadecimal("fingerprint", digits=FINGERPRINT_DIGITS),
        sha256=fields.hexadecimal("sha256", digits=64),
        filter_bytes=fields.integer("filter_bytes", least=least_filter, most=most_filter),
        filter_sha256=fields.hexadecimal("filter_sha256", digits=64),
        payloads=payloads,
        layer=fields.integer("layer", least=0, most=MAX_LAYERS - 1) if fields.has("layer") else 0,
    )
    if file.largest < smallest:
        raise fields.invalid("largest", f"it is below smallest={shown(smallest)}; make the snapshot again")
    return file


def fitting_partition(
    folder: str | Path, manifest: Manifest, identity: Identity, progress: Progress, *, numbered: bool
) -> PartitionManifest:
    """Return the snapshot's entry for this partition store, if it may be installed.

    Conditions:

    - the same cluster, topic, ID spec, digest and isolation level;
    - the same topic ID, unless one side does not know it;
    - the same group, unless the creator vouches for the snapshot. That is not enough where it has marks of
      other partitions: such a snapshot is made from the commits of one group, and the progress of any other
      group in those partitions is unknown;
    - acceptance numbers, if ``numbered``;
    - a cut not above ``high`` or ``committed`` of ``progress``, the progress to start with.

    Raises `SnapshotError` naming the first difference.
    """
    pairs = {
        name: (getattr(manifest, name), getattr(identity, name))
        for name in ("cluster", "topic", "id_spec", "digest", "isolation")
    }
    # Brokers of old versions tell no topic ID: then the name has to do.
    if manifest.topic_id and identity.topic_id:
        pairs["topic_id"] = (manifest.topic_id, identity.topic_id)
    if not manifest.vouched:
        pairs["group"] = (manifest.group, identity.group)
    for name, (theirs, ours) in pairs.items():
        if theirs != ours:
            message = (
                f"snapshot {folder} is of {name}={shown(theirs)}, not {shown(ours)}; give a snapshot of this "
                f"history"
            )
            raise SnapshotError(message)
    if manifest.vouched and manifest.resharded_from:
        message = (
            f"snapshot {folder} has marks of other partitions and names no group, so the progress of group "
            f"{shown(identity.group)} in them is unknown; make one with --partitions and --group"
        )
        raise SnapshotError(message)
    entry = manifest.partition(identity.partition)
    if entry is None:
        message = (
            f"snapshot {folder} has no partition {identity.partition}; "
            f"it has {[one.partition for one in manifest.partitions]}"
        )
        raise SnapshotError(message)
    # The commit, too: a store that is new or behind has nothing that says more.
    limit = max(progress.high, progress.committed or 0)
    if entry.high > limit:
        message = (
            f"snapshot {folder} reaches offset {entry.high} of partition {entry.partition}, beyond {limit}; "
            "make one up to that offset"
        )
        raise SnapshotError(message)
    if numbered and any(file.newest_number is None for file in entry.files):
        message = (
            f"snapshot {folder} has no acceptance numbers (window {shown(manifest.window)}); "
            "make it with a window by count"
        )
        raise SnapshotError(message)
    return entry
