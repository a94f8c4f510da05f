"""What a lane remembers of its IDs: the last one, and those seen shortly below it.

last
    the newest ID that was completed since the lane began, or began anew.
depth
    how much below the last one is remembered (``reorder_depth``): so many ranks where the order is dense, so many IDs elsewhere.
floor
    below all that is remembered. There something was forgotten, or came too late to be remembered (``forgot``); before that everything is known.
known
    None where all that was completed of the lane is known, since the beginning of the group's own history. Else how many IDs were taken in since less
    was known: with enough of them, nothing from before can matter.

A value of this kind is a fold over the completed records of a lane in offset order, so that a lane that lives, a replay and the
backfill come to the same one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from dedup_sdk.last.candidate import Candidate
from dedup_sdk.last.standing import Standing
from dedup_sdk.orders import Place
from dedup_sdk.orders.place import ONLY_ORIGIN


class Seen(ABC):
    """What is remembered; changes in place, `copy` before it is shared.

    A candidate's place is None exactly where the order gives its IDs none (`dedup_sdk.orders.PartialOrder`).
    """

    __slots__ = ("depth", "forgot", "known")

    def __init__(self, depth: int, *, known: int | None, forgot: bool) -> None:
        self.depth = depth
        self.known = known
        self.forgot = forgot

    def _count(self, taken: int) -> None:
        """Note that so many IDs were taken in."""
        if self.known is not None:
            # New IDs overtake at most ``depth`` others, are overtaken by as many, and come again behind as many newer ones: with so many
            # known, what came before lies below all that is remembered.
            self.known = self.known + taken if self.known + taken <= 3 * self.depth else None

    def doubt(self) -> None:
        """Note that IDs may be missing which were completed since the lane began."""
        self.known = 0

    @property
    @abstractmethod
    def last_id(self) -> bytes:
        """The last ID, as it came."""

    @abstractmethod
    def standing(self, candidate: Candidate) -> Standing:
        """Say how an ID stands to those remembered."""

    @abstractmethod
    def take(self, candidate: Candidate) -> Standing:
        """Remember a completed ID that is `Standing.NEWER` or `Standing.UNSEEN`, any other changes nothing; return how it stood."""

    def take_run(self, ids: Sequence[bytes], ranks: Sequence[Any]) -> None:
        """Remember completed IDs of one origin, each newer than the one before, the first newer than the last one."""
        origin = self.origin
        for id_bytes, rank in zip(ids, ranks, strict=True):
            self.take(Candidate(id_bytes, Place(origin, rank)))

    def take_number(self, id_bytes: bytes, number: int) -> Standing:
        """As `take`, of an ID whose rank is a number of the only origin."""
        return self.take(Candidate(id_bytes, Place(ONLY_ORIGIN, number)))

    def remembers(self, rank: Any, newest: Any, taken: int) -> bool:
        """Whether a rank of this origin was seen, and will be remembered after ``taken`` newer IDs up to rank ``newest``; False in doubt."""
        del rank, newest, taken
        return False

    @property
    @abstractmethod
    def origin(self) -> Any:
        """The origin of the last ID; None where the order knows none."""

    @property
    @abstractmethod
    def last_rank(self) -> Any:
        """The rank of the last ID; None where the order gives none."""

    @abstractmethod
    def copy(self) -> Seen:
        """Return another one that remembers the same."""

    @abstractmethod
    def encode(self) -> bytes:
        """Return its bytes (`dedup_sdk.last.seen_bytes`); equal for equal memories, at least nine."""
