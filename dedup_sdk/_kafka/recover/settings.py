"""The settings of recovery, which the user chooses: `Recovery`."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from dedup_sdk._checks import choice, seconds
from dedup_sdk._kafka.assign.start import SetBack
from dedup_sdk._masking import is_url, shown, shown_location
from dedup_sdk._store.snapshot_source import SnapshotLocations, snapshot_locations, why_unreadable
from dedup_sdk._strategy import Lookup, Strategy
from dedup_sdk.errors import ConfigurationError

logger = logging.getLogger("dedup_sdk")

HistoryChoice = Literal["none", "assume-processed"]
WithoutCommit = Literal["resume", "reset"]
OnFullDisk = Literal["pause", "unverified"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How a partition gets the IDs that its store lacks, and how it goes on where that is not possible.

    Args:
        snapshot: a folder made by ``dedup backfill``, a folder of several, a URL (``s3://...``; needs
            ``dedup-sdk[remote]`` and fsspec's driver), or a list of these. If the local store is missing, the consumer
            installs the matching one that needs the shortest replay. Without one, the missing IDs are read from the
            topic, which takes longer, and reaches back only as far as the topic keeps its records.
        history: for a group that has committed offsets without this package. ``none``: no message before them is taken
            for handled, so that later copies of such messages are delivered (as unverified, until the window has
            passed). ``assume-processed``: all messages before them are, so that later copies are hidden; **if one of
            the messages was not handled, its copy is lost**. None: as ``none``, and each partition with such a
            commit logs a warning with both ways. The first start decides; ``dedup adopt`` changes ``none`` later.
        without_commit: for a group whose committed offsets are gone (they expired, or were deleted) while the store has
            the group's history. ``resume``: delivery goes on where the store ends, with one warning for each partition.
            ``reset``: delivery begins where ``auto.offset.reset`` says; all messages from there on are delivered again.
        set_back: for offsets below the committed one that your program assigns (``on_assign``, ``assign``). ``again``:
            all messages from there on are handled again. ``known``: the messages that the group has handled are not;
            delivery begins at the committed offset, unless the group's history does not reach back to yours. **Not for
            offsets that you keep elsewhere**: there, a lower offset says that messages were not handled. None: as
            ``again``, and the first such assignment logs a warning.
        timeout: seconds after which a partition starts although its store is not up to date: messages that depend on
            the missing part are delivered as unverified, and counted, until the window has passed; some of them are
            duplicates. None: the partition waits, and delivers nothing, until its store is up to date.
        on_full_disk: ``pause``: no new message is delivered until the store can be written. ``unverified``: messages go
            on, and their IDs are kept in memory only; when they become too many, they are dropped, and duplicates of
            them are delivered. Both end by themselves when there is room. Until then, a crash brings messages again
            that were completed since the last commit.

    Raises `ConfigurationError` for settings that are not valid, and for a snapshot that cannot be read as it stands: a
    URL without a driver, a file instead of a folder. A consumer reads one snapshot's manifest when it is made: where no
    folder has one that can be read, it logs a warning, because its stores may be up to date, and `SnapshotError` is
    raised when a partition needs the snapshot. URLs are tried only then.
    """

    snapshot: tuple[str, ...] = field(default=(), repr=False)  # a URL may contain a password
    history: HistoryChoice | None = None
    without_commit: WithoutCommit = "resume"
    set_back: SetBack | None = None
    timeout: float | None = None
    on_full_disk: OnFullDisk = "pause"

    if TYPE_CHECKING:
        # The constructor accepts more types than the fields have.
        def __init__(
            self,
            *,
            snapshot: SnapshotLocations | None = None,
            history: HistoryChoice | None = None,
            without_commit: WithoutCommit = "resume",
            set_back: SetBack | None = None,
            timeout: float | None = None,
            on_full_disk: OnFullDisk = "pause",
        ) -> None: ...

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` for the first invalid setting."""
        try:
            object.__setattr__(self, "snapshot", snapshot_locations(self.snapshot))
            if self.history is not None:
                choice("history", self.history, get_args(HistoryChoice))
            choice("without_commit", self.without_commit, get_args(WithoutCommit))
            if self.set_back is not None:
                choice("set_back", self.set_back, get_args(SetBack))
            if self.timeout is not None:
                seconds("timeout", self.timeout)
            choice("on_full_disk", self.on_full_disk, get_args(OnFullDisk))
        except ConfigurationError as error:
            raise ConfigurationError(f"Recovery(...): {error}") from None

    def check_strategy(self, strategy: Strategy) -> None:
        """Raise `ConfigurationError` for a snapshot that partitions of a strategy would never install."""
        if self.snapshot and isinstance(strategy, Lookup) and not strategy.persist:
            raise ConfigurationError(
                f"Recovery(...): snapshot={shown(', '.join(map(shown_location, self.snapshot)))} would never be "
                "installed: with persist=False a partition begins without IDs; leave snapshot out, or choose "
                "persist=True"
            )

    def try_folders(self) -> None:
        """Log a warning if no snapshot can be read; nothing with URLs, which are tried when a partition needs one."""
        if any(map(is_url, self.snapshot)):
            return
        if (error := why_unreadable(self.snapshot)) is not None:
            logger.warning(
                "Recovery(snapshot=...): no snapshot can be read now: %s. The consumer begins without it; poll() will "
                "raise this error if the store of a partition is missing or too old",
                error,
                extra={"event": "snapshot-unreadable"},
            )
