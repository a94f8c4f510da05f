"""Into a memory that consumers share: the marks of a run's snapshot, loaded by Spark's tasks.

It is done when all files are written and before the snapshot is published: errors of a history are found
before, so that nothing of it is shared. A task that is tried again loads the same once more, which changes nothing
(`dedup_sdk.shared._protocol`).

Finished files are loaded, not the rows of the folding tasks: loaded marks cannot be taken back, and a
history may turn out to be inconsistent in the last task. An ID's remaining life counts from the end of its
partition's history, not from now: a group that is behind needs it that much longer. A client that
reconnects does not notice a quick restart of the server, which may have forgotten the marks. So the value that
tells one incarnation from the next (Redis' run IDs, PostgreSQL's start time) is asked for before and
after, and everything is loaded again where it changed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from dedup_sdk._marks import Int64s, Marks, cut_digests
from dedup_sdk._store.manifest import Manifest, SortedFile
from dedup_sdk._store.snapshot import read_file, read_files
from dedup_sdk.errors import ConfigurationError, SharedStoreError
from dedup_sdk.shared._breaker import FIRST_WAIT_S, MAX_WAIT_S
from dedup_sdk.shared._protocol import ClaimStore
from dedup_sdk.shared._scope import scoped_ids
from spark_backfill.base_reader import share_out
from spark_backfill.errors import BackfillError
from spark_backfill.fold import Task
from spark_backfill.offset_range import GRACE
from spark_backfill.session import LazySession
from spark_backfill.shared_options import SharedOptions

BATCH_IDS: Final = 5_000
PATIENCE_S: Final = 60.0
"""How long a server may be away in the middle: a restart, or until another one takes over."""
LOADS: Final = 3
"""How often all is loaded at most, where the server is started anew meanwhile."""
STEPS: Final = 64
"""The rest of a window is told to so many parts of it: the store takes one life for a batch."""
_FARTHEST_MS: Final = 2**52


Answer = TypeVar("Answer")


class SharedFile(NamedTuple):
    """One sorted file of a partition, which lies in ``folder``; ``newest_ms`` is where the partition's history ends."""

    folder: str
    file: SortedFile
    scope: bytes
    newest_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLoader:
    """A function for ``mapInArrow``: numbers of tasks in, how many marks of their files were loaded out.

    Raises `BackfillError` in the task where the store cannot be asked.
    """

    shared: SharedOptions
    tasks: tuple[tuple[SharedFile, ...], ...]
    window_ms: int
    patience_s: float = PATIENCE_S

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Load the files."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with closing(self.shared.server.connect()) as store:
                    loaded = sum(self._load(store, file) for file in self.tasks[number])
                yield pa.RecordBatch.from_arrays([pa.array([loaded], pa.int64())], ["loaded"])

    def _load(self, store: ClaimStore, given: SharedFile) -> int:
        copy = partial(read_file, Path(given.folder))
        pages = read_files([given.file], copy, place=given.folder, temp_dir=None)
        try:
            with _told():
                return sum(
                    load_marks(
                        store,
                        page,
                        given.scope,
                        newest_ms=given.newest_ms,
                        window_ms=self.window_ms,
                        patience_s=self.patience_s,
                    )
                    for page in pages
                )
        except ConfigurationError as error:
            # It was as it should be when the run began, and no option is wrong.
            raise BackfillError(str(error)) from None


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


def check_store(shared: SharedOptions | None, say: Callable[[str], None]) -> None:
    """Ask the store for the first time, if there is one, and report its warnings.

    Raises:
        BackfillError: it cannot be asked.
    """
    if shared is None:
        return
    heard = _Heard()
    log = logging.getLogger("dedup_adapters")
    log.addHandler(heard)
    try:
        with _told():
            made = shared.server.prepare()
    finally:
        log.removeHandler(heard)
    if made is not None:
        say(made)
    for line in heard.lines:
        say(f"warning: {line}")


def load_snapshot(
    session: LazySession,
    shared: SharedOptions,
    folder: Path,
    manifest: Manifest,
    group: str,
    *,
    window_ms: int,
    now_ms: int,
    say: Callable[[str], None],
    around: Callable[[Task], Task] = lambda task: task,
) -> int:
    """Load the marks of the group's snapshot, which all workers see at its folder; return how many those were.

    A server that was started anew may have forgotten marks, so that all is loaded again then.
    ``around`` wraps the task, for tests that let it fail.

    Raises:
        BackfillError: the server cannot be asked, or is started anew again and again.
        PySparkException: a task failed.
    """
    files = [
        SharedFile(
            str(folder / str(entry.partition)),
            file,
            shared.scope_of(
                group, manifest.topic, entry.partition, cluster=manifest.cluster, id_spec=manifest.id_spec
            ),
            min(entry.newest_ms, now_ms),
        )
        for entry in manifest.partitions
        for file in entry.files
    ]
    if not files:
        return 0
    where = f"the shared memory at {shared.server.shown}"
    with _told():
        before = patiently(shared.server.incarnation)
        for number in range(LOADS):
            if number:
                say(f"{where} was started anew, and may have forgotten what it was told: all is loaded again")
            loaded = load_files(session.get(), shared, files, window_ms=window_ms, around=around)
            after = patiently(shared.server.incarnation)
            if after == before:
                return loaded
            before = after
    raise BackfillError(
        f"{where} was started anew whenever it was loaded, {LOADS} times, and may have forgotten what it "
        "was told: see what ends it, and run it again"
    )


def load_files(
    spark: SparkSession,
    shared: SharedOptions,
    files: Sequence[SharedFile],
    *,
    window_ms: int,
    around: Callable[[Task], Task],
) -> int:
    """Load the files in Spark's tasks, once; return how many marks were loaded."""
    tasks = share_out(files, parallelism=spark.sparkContext.defaultParallelism)
    loader = SharedLoader(shared=shared, tasks=tasks, window_ms=window_ms)
    loaded = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(around(loader), "loaded long").collect()
    return sum(row["loaded"] for row in loaded)


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


def _near(timestamps: Int64s) -> Int64s:
    """Return timestamps as stores take them: times farther off are as far as they reach."""
    return np.clip(timestamps, -_FARTHEST_MS, _FARTHEST_MS)


@contextmanager
def _told() -> Generator[None]:
    try:
        yield
    except SharedStoreError as error:
        raise BackfillError(f"{error}; run it again then: what was loaded twice is loaded once") from None


class _Heard(logging.Handler):
    """Keeps warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.lines.append(record.getMessage())
