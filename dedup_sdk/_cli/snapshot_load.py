"""``dedup snapshots load``: the IDs of a finished snapshot, into a store that consumers share.

Loading the same once more changes nothing (`dedup_sdk.shared._protocol`), so a load that was ended is run again. The
remaining life of an ID counts from the end of its partition's history, not from now: a group that is behind needs it
that much longer. A client that reconnects does not notice a quick restart of the server, which may have forgotten the
marks. So the value that tells one incarnation from the next (Redis' run IDs, PostgreSQL's start time) is asked for
before and after, and everything is loaded again where it changed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from functools import partial
from threading import Event
from typing import Annotated, Final, NamedTuple, TypeVar

import numpy as np
import typer

from dedup_sdk._checks import why_unusable
from dedup_sdk._cli.console import tell
from dedup_sdk._cli.options import Json, Quiet
from dedup_sdk._cli.shared_servers import OpenServer, SharedServer
from dedup_sdk._cli.snapshots import SnapshotPlace, only_one
from dedup_sdk._core.reach import GRACE
from dedup_sdk._core.source_keys import source_spec_of
from dedup_sdk._marks import Int64s, Marks, cut_digests
from dedup_sdk._masking import shown
from dedup_sdk._rule_fingerprint import known_cluster
from dedup_sdk._store.manifest import Manifest, PartitionManifest, SortedFile
from dedup_sdk._store.snapshot import read_files
from dedup_sdk._store.snapshot_source import SnapshotSource, in_parallel, read_source
from dedup_sdk._units.keys import spec_in_units
from dedup_sdk._window import Window
from dedup_sdk.errors import ConfigurationError, SharedStoreError, SnapshotError
from dedup_sdk.shared._breaker import FIRST_WAIT_S, MAX_WAIT_S
from dedup_sdk.shared._protocol import ClaimStore
from dedup_sdk.shared._scope import Scope, scope_name, scoped_ids

BATCH_IDS: Final = 5_000
PATIENCE_S: Final = 60.0
"""How long a server may be away in the middle: a restart, or until another one takes over."""
LOADS: Final = 3
"""How often all is loaded at most, where the server is started anew meanwhile."""
STEPS: Final = 64
"""The rest of a window is told to so many parts of it: the store takes one life for a batch."""
_FARTHEST_MS: Final = 2**52

Answer = TypeVar("Answer")


class Place(NamedTuple):
    """Where in a store the IDs go; see the command's options."""

    scope: Scope
    group: str
    cluster: str | None
    prefix: str
    origin: str | None

    def name(self, manifest: Manifest, partition: int) -> bytes:
        """Return the name of the scope of a partition's records, as a consumer has it."""
        return scope_name(
            self.scope,
            id_spec=manifest.id_spec,
            cluster=known_cluster(manifest.cluster) if self.cluster is None else self.cluster,
            prefix=self.prefix,
            group=self.group,
            topic=self.origin or manifest.topic,
            partition=partition,
        )


def load_snapshot(
    source: SnapshotSource, server: OpenServer, place: Place, say: Callable[[str], None]
) -> int:
    """Load all marks of a snapshot; return how many were still alive.

    Raises:
        SharedStoreError: the server cannot be asked, or is started anew again and again.
        SnapshotError: a file differs from the manifest.
    """
    store, where = server.store, f"the shared store at {server.shown}"
    before = patiently(store.incarnation)
    for number in range(LOADS):
        if number:
            say(f"{where} was started anew, and may have forgotten what it was told: all is loaded again")
        loaded = load_files(source, store, place)
        after = patiently(store.incarnation)
        if after == before:
            return loaded
        before = after
    raise SharedStoreError(
        f"{where} was started anew whenever it was loaded, {LOADS} times, and may have forgotten what it "
        "was told: see what ends it, and run it again"
    )


def load_files(source: SnapshotSource, store: ClaimStore, place: Place) -> int:
    """Load the marks of a snapshot once, some files at a time; return how many were still alive."""
    manifest, loaded = source.manifest, list[int]()
    window_ms = time_window_ms(manifest)

    def load(stop: Event, *, entry: PartitionManifest, file: SortedFile | None = None) -> None:
        # A record from the future counts as one of the time when the snapshot was made.
        newest_ms = min(entry.known.newest_ms, manifest.created_ms)
        name, copy = place.name(manifest, entry.partition), partial(source.copy, entry.partition)
        place_of = f"{source.place}/{entry.partition}"
        read = (
            read_source(source, entry)
            if file is None
            else read_files([file], copy, place=place_of, temp_dir=None)
        )
        # An error that somebody keeps must not keep the temporary folder.
        with closing(read) as pages:
            for page in pages:
                if stop.is_set():
                    return
                loaded.append(
                    load_marks(
                        store, page, name, newest_ms=newest_ms, window_ms=window_ms, patience_s=PATIENCE_S
                    )
                )

    tasks = [
        task
        for entry in manifest.partitions
        # Layers have marks of the same IDs, which must be merged.
        for task in (
            [partial(load, entry=entry)]
            if len(entry.layers) > 1
            else [partial(load, entry=entry, file=file) for file in entry.files]
        )
    ]
    for _ in in_parallel(tasks):
        pass
    return sum(loaded)


def time_window_ms(manifest: Manifest) -> int:
    """Return how long the IDs of a snapshot are remembered.

    Raises:
        SnapshotError: they are none that a shared store can have.
    """
    if source_spec_of(manifest.id_spec) is not None:
        raise SnapshotError("the snapshot is of LastId: a shared store has IDs that are looked up")
    if spec_in_units(manifest.id_spec) is not None:
        raise SnapshotError("the snapshot has marks of units: what a unit leaves is not shared")
    window = Window.parse(manifest.window)
    if window.count is not None or window.time_ms is None:
        raise SnapshotError(
            f"the snapshot's window is {window}: a shared store forgets by time alone; make one of e.g. 7d"
        )
    return window.time_ms


def load_marks(
    store: ClaimStore,
    marks: Marks,
    scope: bytes,
    *,
    newest_ms: int,
    window_ms: int,
    patience_s: float = 0.0,
) -> int:
    """Load marks of different IDs, each for the rest of the window; return their number.

    A store that is away is waited for. A consumer that lived until ``newest_ms``, where the history of the
    partition ends, would have an ID last seen at ``t`` for ``window - (newest - t)`` more. To that comes a
    sixteenth of the window, as everywhere, and up to 1/64 since batches have one life.
    """
    left = left_ms(marks.timestamps, newest_ms=newest_ms, window_ms=window_ms)
    timestamps = _near(marks.timestamps)
    digests = cut_digests(marks.digests)
    loaded = 0
    for life_ms in np.unique(left[left > 0]).tolist():
        rows = np.flatnonzero(left == life_ms)
        for begin in range(0, len(rows), BATCH_IDS):
            part = rows[begin : begin + BATCH_IDS]
            ids = scoped_ids(scope, [digests[row] for row in part.tolist()])
            load = partial(store.load, ids, timestamps_ms=timestamps[part].tolist(), window_ms=life_ms)
            patiently(load, patience_s=patience_s)
            loaded += len(ids)
    return loaded


def left_ms(timestamps: Int64s, *, newest_ms: int, window_ms: int) -> Int64s:
    """Return how long each mark lasts from now on (ms), 0 or less where it does not.

    One without a timestamp lasts for the window.
    """
    step = max(1, window_ms // STEPS)
    left = window_ms + window_ms // GRACE - (newest_ms - _near(timestamps))
    rounded = np.minimum(-(-left // step) * step, window_ms)
    return np.where(timestamps < 0, np.int64(window_ms), np.where(left > 0, rounded, np.int64(0)))


def _near(timestamps: Int64s) -> Int64s:
    """Return timestamps as stores take them: times farther off are as far as they reach."""
    return np.clip(timestamps, -_FARTHEST_MS, _FARTHEST_MS)


def patiently(ask: Callable[[], Answer], *, patience_s: float = PATIENCE_S) -> Answer:
    """Ask a store, and again while it is away, for so long.

    Raises:
        SharedStoreError: it is away for longer, or refuses.
    """
    until = time.monotonic() + patience_s
    pause_s = FIRST_WAIT_S
    while True:
        try:
            return ask()
        except SharedStoreError as error:
            left_s = until - time.monotonic()
            if not error.passes or left_s <= 0:
                raise
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, MAX_WAIT_S)


class _Warnings(logging.Handler):
    """Tells the warnings of a store."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(f"warning: {record.getMessage()}")


@contextmanager
def _warnings_to(say: Callable[[str], None]) -> Generator[None]:
    log, handler = logging.getLogger("dedup_adapters"), _Warnings(say)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


ToStore = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="The shared store: redis://HOST:PORT/DB (rediss://, unix://, of a cluster redis+cluster://, "
        "rediss+cluster://), or postgresql+psycopg://HOST:PORT/DATABASE.",
        show_default=False,
    ),
]
InScope = Annotated[Scope, typer.Option("--scope", help="The consumers' Shared(scope=...).")]
ForGroup = Annotated[
    str | None,
    typer.Option(
        "--group",
        help="The group whose consumers look there [default: the snapshot's]. You vouch that it handled all of a "
        "snapshot that names no group.",
        show_default=False,
    ),
]
OfCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="The consumers' Shared(cluster=...) [default: the ID of the snapshot's cluster].",
        show_default=False,
    ),
]
WithPrefix = Annotated[
    str, typer.Option("--prefix", help="The consumers' Shared(prefix=...).", show_default=False)
]
FromOrigin = Annotated[
    str | None,
    typer.Option(
        "--origin",
        metavar="TOPIC",
        help="The topic whose scope this one shares, as in Shared(origins=...).",
        show_default=False,
    ),
]
Keys = Annotated[
    str | None,
    typer.Option("--keys", help="RedisStore(prefix=...), if it is given there.", show_default=False),
]
Buckets = Annotated[
    int | None,
    typer.Option("--buckets", help="RedisStore(buckets=...), if it is given there.", show_default=False),
]
InTable = Annotated[
    str | None,
    typer.Option("--table", help="SharedStore(table=...), if it is given there.", show_default=False),
]
InSchema = Annotated[
    str | None,
    typer.Option("--schema", help="SharedStore(schema=...), if it is given there.", show_default=False),
]


def load(
    *,
    place: SnapshotPlace,
    url: ToStore,
    scope: InScope = "topic",
    group: ForGroup = None,
    cluster: OfCluster = None,
    prefix: WithPrefix = "",
    origin: FromOrigin = None,
    keys: Keys = None,
    buckets: Buckets = None,
    table: InTable = None,
    schema: InSchema = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Load the IDs of a snapshot into a store that consumers share.

    **Examples**

        dedup snapshots load snapshot redis://localhost:6379/0
        dedup snapshots load s3://bucket/snapshot postgresql+psycopg://localhost/work --scope group

    You can run it again at any time, also beside consumers: claims stay with their owner, and no lifetime gets
    shorter. It waits 60 seconds for a server that is away. A missing table is made, and a line says so. Needs the
    extra `[redis]`, or `[sql]` and the driver. With `--json` one object, `{"marks", "store"}`.
    """
    texts = {"--cluster": cluster, "--origin": origin, "--group": group, "--prefix": prefix}
    for option, value in (texts | {"--keys": keys, "--table": table, "--schema": schema}).items():
        if value == "" and option in {"--cluster", "--origin", "--group"}:
            raise ConfigurationError(f"{option} is empty; give a value, or leave it out")
        if value and (why := why_unusable(value)):
            raise ConfigurationError(f"{option} {shown(value)} {why}; give the text that the consumers have")
    say: Callable[[str], None] = (lambda _line: None) if quiet else tell
    # Whatever is wrong with the URL is told before anything is read.
    server = SharedServer(url=url, keys=keys, buckets=buckets, table=table, schema=schema).connect()
    with closing(server.store), _warnings_to(say):
        source = only_one(place)
        time_window_ms(source.manifest)
        at = Place(scope, _owner(source, group), cluster, prefix, origin)
        if made := server.prepare():
            say(made)
        marks = load_snapshot(source, server, at, say)
    say(f"{marks:,} IDs of group {shown(at.group)} are in the shared store at {server.shown}")
    if json_output:
        typer.echo(json.dumps({"marks": marks, "store": server.shown}))


def _owner(source: SnapshotSource, group: str | None) -> str:
    """Return the group whose IDs these are."""
    own = source.manifest.group
    if group is None and own is None:
        raise ConfigurationError(
            f"{source.place} names no group, and consumers take all of it for handled: give --group if that "
            "group has handled it"
        )
    if group is not None and own is not None and group != own:
        raise ConfigurationError(
            f"{source.place} is of group {shown(own)}, not of {shown(group)}: leave --group out"
        )
    return group or own or ""
