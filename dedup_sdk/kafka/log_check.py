"""Whether the log still is the one that the group saw: not truncated, led by an unclean election, restored from a backup, or made anew.

Nothing is lost where it is not: a record that cannot be told from one that was handled is delivered again. Marks stay, because their IDs were handled,
whatever became of the log; ``high``, the completions above it and the committed offset go back to where the log ceases to be
the one that the store knows. A window by count cannot tell how many IDs of its own were in the part that is gone, so that its coverage begins anew.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dedup_sdk.core.reach import NOTHING_KNOWN
from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.engine.partition import Partition
from dedup_sdk.errors import RecoveryError
from dedup_sdk.kafka.assignment import Start, Steps, Wait
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.reader import Slice, TailReader
from dedup_sdk.kafka.settings import ClientSettings
from dedup_sdk.marks import NO_MARKS, Int64s, Witness, cut_digests, elsewhere
from dedup_sdk.observe import PartitionEvent
from dedup_sdk.store.protocol import Loaded

logger = logging.getLogger("dedup_sdk")

UNDECIDED_LOOK_S = 0.5
"""Seconds between two looks whether a transaction has ended."""


def start_in_the_log(
    start: Start,
    held: Partition,
    engine: Deduplicator,
    client: Client,
    settings: ClientSettings,
    *,
    until: float | None = None,
) -> Steps[Start]:
    """Return where to start, and cut back the progress that ``held`` has loaded, where the log ends below the offsets that the group has completed.

    The same where the log is long enough, but has other records at the end of the range that only this store knows to be completed:
    by the leader epoch that the store has noted, as the broker says, or by the last record below its watermark. A log that is long enough, and decided only
    up to before where the group stands, is waited for (`wait_until_decided`), until a time (monotonic seconds) at most.

    Raises `RecoveryError` when that is so, nothing here tells how far the log is the old one, and
    ``auto.offset.reset=error``.
    """
    first, end = yield from _bounds_once_decided(start, held, client, until)
    loaded = held.loaded
    known = start.offset if loaded is None else max(start.offset, loaded.progress.high)
    completed = known if loaded is None else max(known, loaded.progress.completed_end)
    short = completed > end and completed > client.log_end(held.topic, held.partition)
    if not short and start.log_change is None:
        if loaded is None or start.reopened or completed == start.offset:
            return start
        if not (yield from _is_another(held, loaded, engine, client, decided=end)):
            return start
    same_until = yield from _up_to_where_the_broker_says(start, held, client, first=first, end=end)
    if loaded is None:
        if same_until is None and settings.reset == "error":
            what = f"the log ends at {end}" if known > end else "in a log that the broker no longer has"
            raise RecoveryError(
                f"{held.topic}[{held.partition}]: the group committed {start.offset}, but {what}; was it "
                "truncated or made anew? Reset the group's offsets"
            )
        common = first if same_until is None else same_until
    else:
        common = yield from _common_end(
            held, loaded, engine, client, first=first, end=min(end, known), same_until=same_until,
            contradicted_at=None if start.log_change is None else start.log_change.contradicted_at,
        )  # fmt: skip
        held.begin_with(_cut_back(held, loaded, common))
    # Of a log of which nothing is known all is read, also where it begins behind the place in the one before it.
    offset = common if loaded is None and same_until is None else min(start.offset, common)
    detail = f"offset {known} was completed or committed, the log ends at {end}"
    if known <= end:
        detail = f"offset {known} was completed or committed in a log that the broker no longer has"
    engine.tell(PartitionEvent("log-truncated", held.topic, held.partition, offset, detail))
    metadata = None if start.metadata is None else replace(start.metadata, done=None)
    if metadata is not None and (metadata.low > offset or (loaded is None and same_until is None)):
        metadata = replace(metadata, low=offset, complete=False)
    if metadata is not None and (same_until is None or offset > same_until or same_until <= first):
        # Nobody noted the epoch of the records behind it; or the log knows nothing of the epoch that was noted.
        metadata = replace(metadata, epoch=None)
    acknowledged = None if start.acknowledged is None else min(start.acknowledged, offset)
    return replace(start, offset=offset, metadata=metadata, at_once=True, acknowledged=acknowledged)


def _bounds_once_decided(
    start: Start, held: Partition, client: Client, until: float | None
) -> Steps[tuple[int, int]]:
    first, end = client.bounds(held.topic, held.partition)
    if start.offset > end and start.log_change is None:
        with closing(client.tail_reader(held.topic, held.partition)) as reader:
            yield from wait_until_decided(held, start.offset, reader, until=until)
        first, end = client.bounds(held.topic, held.partition)
    return first, end


def wait_until_decided(
    held: Partition, offset: int, reader: TailReader, *, until: float | None
) -> Steps[None]:
    """Wait until all of the log before ``offset``, which is not beyond its end, is decided for ``reader``, or until a time (monotonic seconds).

    A reset tool sets offsets up to the log's very end, and a member that reads at ``read_uncommitted`` commits up to there. At ``read_committed``
    a plain client gets nothing then until the open transaction has ended: only then it is known which records the group passed.
    Raises `KafkaException` when the broker does not say.
    """
    told = False
    while until is None or time.monotonic() < until:
        decided = reader.bounds()[1]
        if decided >= offset or reader.log_end() < offset:
            return
        if not told:
            logger.warning(
                "%s[%d]: the group stands at %d, and a transaction that began at %d is open: waiting for its end, which "
                "tells what the group has passed", held.topic, held.partition, offset, decided,
            )  # fmt: skip
            told = True
        yield Wait(UNDECIDED_LOOK_S, "transaction")


def _up_to_where_the_broker_says(
    start: Start, held: Partition, client: Client, *, first: int, end: int
) -> Steps[int | None]:
    """Return up to where the completed records are still in the log; None where the broker does not say."""
    same_until = None if start.log_change is None else start.log_change.same_until
    if same_until is None:
        # Above its end the client says first that the offset is not there, which tells nothing.
        within = replace(start, offset=min(start.offset, end))
        same_until = yield from until_where_it_is_the_same(within, held.topic, held.partition, client)
    return None if same_until is None else max(first, min(same_until, start.offset, end))


def until_where_it_is_the_same(start: Start, topic: str, partition: int, client: Client) -> Steps[int | None]:
    """Ask the broker up to where its log is the one that the group committed ``start`` of; None where nobody can say."""
    if start.leader_epoch is None:
        return None
    with closing(client.tail_reader(topic, partition)) as reader:
        return (yield from reader.same_until(start.offset, start.leader_epoch))


def _cut_back(held: Partition, loaded: Loaded, end: int) -> Loaded | None:
    """Return the loaded state without any completion from ``end`` on; None where nothing of it can be kept."""
    progress = loaded.progress
    if not held.tells_of_singles and progress.high > end:
        # The last IDs of sources, and the ends of units, cannot be taken back: they are folded anew.
        return None
    done = tuple((begin, min(stop, end)) for begin, stop in progress.done if begin < end)
    high = max(min(progress.high, end), min(progress.low, end))
    progress = replace(
        progress,
        low=min(progress.low, end),
        high=high,
        done=done,
        committed=None,
        epoch=None,
        witness=None,
        delta=False,
    )
    if held.window.count is not None and high < loaded.progress.high:
        # How many of the accepted ones lay behind the cut nobody knows. Their numbers stay given, so that the others seem to be longer ago.
        progress = replace(progress, since_ms=NOTHING_KNOWN, since_number=progress.accepted)
    recent = loaded.recent
    if recent.count and int(recent.offsets.max()) >= end:
        # Among recent marks an offset that is read again is in flight; the mark that had it before would be taken for that.
        held.store.flush(progress, recent)
        recent = NO_MARKS
    return replace(loaded, progress=progress, recent=recent)


def _is_another(
    held: Partition, loaded: Loaded, engine: Deduplicator, client: Client, *, decided: int
) -> Steps[bool]:
    """Whether the log is another one than that of which the store knows more completed records than the group has committed.

    By the leader epoch, as the broker says, or by the last completed record: a broker that was restored from a backup may have another one
    there in the same epoch. That the same one is there proves nothing: it may have been sent again, with its time, behind others.
    """
    progress = loaded.progress
    if progress.epoch is not None:
        with closing(client.tail_reader(held.topic, held.partition)) as reader:
            end = progress.completed_end
            same_until = yield from reader.same_until(end, progress.epoch)
        if same_until is not None and same_until < end:
            return True
    witness = progress.witness
    if witness is None:
        # It was cut away, and nothing was completed since: only the marks can tell.
        return True
    if witness.offset >= decided:
        return False
    return (yield from bears_witness(witness, held, engine, client)).same is False


class Testimony(NamedTuple):
    """Whether the log has a record that was completed (None: nothing is at its offset any more), and the leader epoch of the record there."""

    same: bool | None
    epoch: int | None = None


def bears_witness(
    witness: Witness, held: Partition, engine: Deduplicator, client: Client
) -> Steps[Testimony]:
    """Look whether the log has a record that was completed."""
    with closing(client.tail_reader(held.topic, held.partition)) as reader:
        first, end = reader.bounds()
        if not first <= witness.offset < end:
            return Testimony(None if witness.offset < first else False)
        for piece in reader.slices(witness.offset, witness.offset + 1, engine.keys):
            if piece is not None and piece.offsets:
                key = piece.digests[0]
                digest = held.keys.digest_of(key)
                found = Witness.of(piece.offsets[0], int(piece.timestamps[0]), digest)
                # A source keeps no time from the future: -1 stands for it.
                same = found.check == witness.check and witness.timestamp_ms in (-1, found.timestamp_ms)
                return Testimony(same, piece.epoch)
            yield None
    return Testimony(None)


def _common_end(
    held: Partition,
    loaded: Loaded,
    engine: Deduplicator,
    client: Client,
    *,
    first: int,
    end: int,
    same_until: int | None,
    contradicted_at: int | None,
) -> Steps[int]:
    """Return the first offset of the log that cannot be shown to be the one that this store knows, ``end`` if all can.

    A log parts at one place, so that everything before a proven record is the old log too. Where nothing of the
    last window is proven the search goes back to ``low``, and where nothing there is either, to that. ``same_until`` is the
    broker's answer: nothing before it is looked at, and it may lie before ``low``. Where the marks contradict a record
    (``contradicted_at``) the log parts there.
    """
    if contradicted_at is not None:
        return min(max(contradicted_at, first), end)
    window_ms = held.window.time_ms
    floor = begin = min(max(first, loaded.progress.low), end) if same_until is None else same_until
    search = _Search(held, loaded)
    with closing(client.tail_reader(held.topic, held.partition)) as reader:
        if window_ms is not None:
            begin = min(max(begin, reader.first_at(loaded.progress.newest_ms - window_ms) or begin), end)
        for start, stop in ((begin, end), (floor, begin)):
            search.over(start)
            for piece in reader.slices(start, stop, engine.keys):
                if piece is not None:
                    search.look(piece)
                yield None
            if search.proven:
                return search.end if search.parted else stop
    return floor


class _Search:
    """Compares a log with the marks, piece by piece.

    A record is *proven* when its ID was last seen at its very offset, with its timestamp. It is *known* when its ID was
    completed there or later: it need not be handled, but proves nothing of the records before it. A record without an ID, or
    of which all was forgotten, is neither.
    """

    def __init__(self, held: Partition, loaded: Loaded) -> None:
        self._held = held
        recent = loaded.recent
        rows = zip(
            cut_digests(recent.digests), recent.offsets.tolist(), recent.timestamps.tolist(), strict=True
        )
        # A journal may have an ID more than once, in the order of completion: the highest offset counts.
        self._recent = {
            digest: (offset, timestamp_ms)
            for digest, offset, timestamp_ms in sorted(rows, key=lambda row: row[1])
        }
        self.over(0)

    def over(self, begin: int) -> None:
        """Begin anew at an offset."""
        self.end = begin
        self.proven, self.parted = False, False

    def look(self, piece: Slice) -> int | None:
        """Move ``end`` behind the proven records, and the known ones directly behind these; return the last proven row."""
        offsets, timestamps = self._marks(piece)
        places = np.asarray(piece.offsets, np.int64)
        proven = np.flatnonzero((offsets == places) & (timestamps == piece.timestamps))
        last = int(proven[-1]) if proven.size else None
        if last is not None:
            self.proven, self.parted = True, False
        begin = 0 if last is None else last + 1
        # The mark of a source, or of a unit, tells the end of the last record only.
        known = (
            (offsets == places) & (timestamps == piece.timestamps)
            if not self._held.tells_of_singles
            else offsets >= places
        )
        if self._held.window.time_ms is not None:
            known &= piece.timestamps - timestamps <= self._held.window.time_ms
        unknown = np.flatnonzero(~known[begin:])
        if not self.parted:
            self.parted = bool(unknown.size)
            self.end = piece.offsets[begin + int(unknown[0])] if unknown.size else piece.end
        return last

    def _marks(self, piece: Slice) -> tuple[Int64s, Int64s]:
        """Return the offset and the timestamp of the mark of each record, -1 without one."""
        keyed = [row for row, digest in enumerate(piece.digests) if digest is not None]
        digests = [self._held.keys.mark_of(digest) for digest in piece.digests if digest is not None]
        marks = np.full((len(piece.digests), 2), -1, np.int64)
        if not keyed:
            return marks[:, 0], marks[:, 1]
        marks[keyed] = [self._recent.get(digest, (-1, -1)) for digest in digests]
        found = self._held.store.find(b"".join(digests), len(digests))
        for index, stored, timestamp_ms in zip(found.indexes, found.offsets, found.timestamps, strict=True):
            # One of another partition stands for all sightings here before its cut.
            offset = stored if stored >= 0 else elsewhere(stored) - 1
            if offset > marks[keyed[index], 0]:
                marks[keyed[index]] = offset, timestamp_ms
        return marks[:, 0], marks[:, 1]
