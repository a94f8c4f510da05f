"""The text of every offset commit (Kafka's commit metadata): its format and its codec.

Kafka stores a short text with each committed offset. The text of this package says which part of the log the group has
processed, so that a consumer on any machine knows which records count as handled:

    dedup/2 at=1300/5f3a01bc fingerprint=3f9a01bc84d2e6f7.90c2e5d1aabb0c4d low=1200 complete=1 era=5f0c9a epoch=7
    done=eJz7z8...

(one line, with a single space between fields)

- ``at``, an offset, ``/`` and 8 hex digits: the committed offset that the text was written for, and the *seal*, a
  digest of group, topic and partition. A text that a tool copied to another offset, group or partition is void.
- ``fingerprint``, hex digits of the log, ``.`` and those of the rule: the inputs of every mark, namely the log of the
  offsets (`log_name`) and the rule (`dedup_sdk._rule_fingerprint`). Another rule hid records that were never handled,
  so a text with another fingerprint is void.
- ``low``, an offset: the beginning of the range that the group has processed without a gap. No record before it ever
  counts as handled.
- ``complete``, 0 or 1: 1 when the group was new at ``low``, so that its history lacks nothing before that.
- ``era``, up to 32 of ``0-9a-z``: a stretch of the history in which nobody set the group back. A rewind begins another
  one, and so does each commit without a valid text, wherever its offset lies, and a start without a commit (`new_era`).
- ``epoch``, a number, optional: the leader epoch when these records were read. With it the broker tells whether the log
  still has them. (Kafka's own commit field for the epoch is not used: brokers refuse commits by it.)
- ``done``, optional: the offsets completed above ``at``, which the next owner does not deliver.

``done`` is ``<ranges>.<timestamp>.<check>``:

- ``<ranges>``: alternating lengths from ``at`` on, each an unsigned LEB128 number: offsets not completed, offsets
  completed, and so on. Compressed by zlib, then Base64 with ``-`` and ``_``, without padding.
- ``<timestamp>``, ``<check>``: the fields of the `Witness` for the last record in the ranges. Where the log has another
  record at that offset, ``done`` is void.

Invariants:

- A text has at most `MOST_CHARACTERS` characters (the broker's ``offset.metadata.max.bytes``). Where not all ranges
  fit, the lowest ones stay.
- A text of another format, or with a field that this version does not know, is void: it proves nothing.
- The rule named in a void text is still used (`rule_named_in`). A user who vouches for the records before a commit does
  not vouch for the records that another rule hid there.
"""

from __future__ import annotations

import re
import secrets
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import sha256
from typing import Final

from dedup_sdk._core.ranges import Range, from_offset
from dedup_sdk._marks import Witness
from dedup_sdk._rule_fingerprint import NAMELESS

MOST_CHARACTERS: Final = 4_095
"""The longest text that a broker accepts, unless its ``offset.metadata.max.bytes`` says otherwise."""
_FORMAT: Final = "dedup/2 "
_VOID_SEAL: Final = "dedup/2 at=void"
_TEXT_PATTERN: Final = re.compile(
    r"dedup/2 at=(?P<at>\d{1,19})(?:/[0-9a-f]{8})? "
    r"fingerprint=(?P<log>(?:[0-9a-f]{8}){0,2})\.(?P<rule>[0-9a-f]{16}) low=(?P<low>\d{1,19}) "
    r"complete=(?P<complete>[01]) era=(?P<era>[0-9a-z]{0,32})(?: epoch=(?P<epoch>\d{1,9}))?"
    r"(?: done=(?P<done>[A-Za-z0-9_-]{1,4096}\.-?\d{1,19}\.[0-9a-f]{16}))?",
    re.ASCII,
)
_RULE_PATTERN: Final = re.compile(
    r"dedup/2 at=\S+ fingerprint=(?:[0-9a-f]{8}){0,2}\.(?P<rule>[0-9a-f]{16}) ", re.ASCII
)
_SEAL_PATTERN: Final = re.compile(r"(dedup/2 at=\d{1,19})(?:/([0-9a-f]{8}))? ", re.ASCII)
_SEAL_DIGITS: Final = 8
_SEAL_CHARACTERS: Final = 1 + _SEAL_DIGITS
_LOG_DIGITS: Final = 8
_ERA_BYTES: Final = 4
_MAX_OFFSET: Final = 2**63 - 1
_MAX_UNPACKED_BYTES: Final = 2**18
"""Limit for the unpacked lengths: a hostile text of 4,096 characters could unpack to far more bytes."""
_CONTINUES: Final = 0x80
_MAX_BITS: Final = 70


def new_era() -> str:
    """Return the name of an era that no host has seen."""
    return secrets.token_hex(_ERA_BYTES)


def log_name(cluster: str, topic_id: str) -> str:
    """Return the name of a log: 8 hex digits for the cluster ID, then 8 for the topic ID.

    The topic's digits are missing where the brokers have no topic IDs; without a cluster ID the name is empty.

    There are two hashes because a difference in each means something else for a commit. Offsets from another cluster
    were translated by the tool that copied the group, and are valid. Offsets with another topic ID of this cluster
    belong to a deleted topic: a consumer committed them before it noticed the deletion, and they are no start offset.
    With one hash, only the store on disk could tell the two cases apart. Another machine does not have that store, and
    once the old store was set aside, the new one belongs to the new topic.
    """
    if cluster in NAMELESS:
        return ""
    digits = sha256(cluster.encode()).hexdigest()[:_LOG_DIGITS]
    return digits + sha256(f"{cluster}/{topic_id}".encode()).hexdigest()[:_LOG_DIGITS] if topic_id else digits


def is_one_log(one: str, other: str) -> bool:
    """Whether two names (`log_name`) are equal in the digits that both have."""
    known = min(len(one), len(other))
    return one[:known] == other[:known]


def is_of_one_cluster(one: str, other: str) -> bool:
    """Whether two names (`log_name`) belong to one cluster."""
    return one[:_LOG_DIGITS] == other[:_LOG_DIGITS]


def topic_digits(name: str) -> str:
    """Return the topic's part of a name (`log_name`); empty where the brokers have no topic IDs."""
    return name[_LOG_DIGITS:]


class InvalidReason(Enum):
    """Why a commit's text is void, so that nothing is known of the group's history; the value is used in log lines."""

    NO_TEXT = "the commit has no metadata of this package"
    OTHER_FORMAT = "the commit's metadata has the format of another version of this package"
    OTHER_OFFSET = "the commit's metadata was written for another offset"
    OTHER_OWNER = "the commit's metadata was written for another group, topic or partition"
    UNREADABLE = "the commit's metadata cannot be parsed"
    TOPIC_BEFORE = "the commit's metadata belongs to an earlier topic of this name"
    OTHER_LOG = "the commit's metadata belongs to another log"
    OTHER_RULE = "the group used another rule up to that offset"


@dataclass(frozen=True, slots=True)
class CompletedAbove:
    """The offsets completed above a committed offset.

    ``ranges`` are half-open, ascending and not adjacent; ``witness`` identifies their last record. After a move that is
    None until recovery has read it: a text does not tell of them before.
    """

    ranges: tuple[Range, ...]
    witness: Witness | None

    def beginning_at(self, offset: int) -> CompletedAbove | None:
        """Return the part from an offset on; None without one."""
        above = from_offset(self.ranges, offset)
        return replace(self, ranges=above) if above else None

    def encode(self, at: int) -> str:
        """Return the value of ``done`` for a commit of offset ``at``; empty without a witness."""
        if self.witness is None:
            return ""
        lengths = bytearray()
        position = at
        for start, end in self.ranges:
            _append_leb128(lengths, start - position)
            _append_leb128(lengths, end - start)
            position = end
        packed = urlsafe_b64encode(zlib.compress(bytes(lengths), 9)).rstrip(b"=").decode()
        return f"{packed}.{self.witness.timestamp_ms}.{self.witness.check}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """The group's history up to a committed offset; the fields are those of the text.

    ``log`` (`log_name`) and ``rule`` (`dedup_sdk._rule_fingerprint`) are the two parts of the fingerprint.
    """

    low: int
    log: str = ""
    rule: str = "0" * 16
    era: str = ""
    complete: bool = False
    epoch: int | None = None
    done: CompletedAbove | None = None

    def text(self, at: int) -> str:
        """Return the text for a commit of offset ``at``, which `parse_metadata` reads."""
        epoch = "" if self.epoch is None else f" epoch={self.epoch}"
        done = "" if self.done is None or self.done.witness is None else f" done={self.done.encode(at)}"
        return (
            f"dedup/2 at={at} fingerprint={self.log}.{self.rule} low={self.low} "
            f"complete={int(self.complete)} era={self.era}{epoch}{done}"
        )

    def is_exact_above(self, at: int) -> bool:
        """Whether the log from ``low`` on decided the verdicts of the completed records above offset ``at``.

        A commit names no ``low`` before what else decided verdicts (`dedup_sdk._units.doubt`), but none above its
        offset either.
        """
        return self.complete or self.low < at

    def moved_forward(self, offset: int) -> CommitMetadata:
        """Return the history of a group that skips the records before ``offset``, beyond what it has completed.

        It begins there; what is completed behind the offset stays so. The leader epoch is not known any more: the
        records before the offset may be of a later one than those that the group has read.
        """
        done = None if self.done is None else self.done.beginning_at(offset)
        return replace(self, low=offset, complete=False, epoch=None, done=done)

    def with_done(
        self, ranges: Sequence[Range], at: int, witness_of: Callable[[int], Witness | None]
    ) -> CommitMetadata:
        """Return a copy with as many of the completed ranges as fit into a text for offset ``at``.

        ``witness_of`` returns the witness of an offset, None where it is not known.
        """
        return replace(self, done=fitting(ranges, at, self.room(at), witness_of))

    def room(self, at: int) -> int:
        """Return the number of characters that a text for ``at`` has left for the value of ``done``."""
        return MOST_CHARACTERS - len(replace(self, done=None).text(at)) - len(" done=") - _SEAL_CHARACTERS

    def is_of(self, log: str) -> bool:
        """Whether these offsets belong to this log; see `is_one_log`."""
        return is_one_log(self.log, log)

    def is_of_one_before(self, log: str) -> bool:
        """Whether these offsets belong to another topic ID of the same cluster: to a deleted topic of this name."""
        return not self.is_of(log) and is_of_one_cluster(self.log, log)


def parse_metadata(text: str | None, *, committed: int) -> CommitMetadata | None:
    """Parse the text of the commit of offset ``committed``.

    None when it is not valid: another client's or a reset tool's text, another format, or written for another offset.
    """
    match = _TEXT_PATTERN.fullmatch(text or "")
    if (
        match is None
        or int(match["at"]) != committed
        or committed > _MAX_OFFSET
        or int(match["low"]) > committed
    ):
        return None
    done = None
    if match["done"] is not None:
        done = decode(match["done"], committed)
        if done is None:
            return None
    return CommitMetadata(
        low=int(match["low"]),
        log=match["log"],
        rule=match["rule"],
        era=match["era"],
        complete=match["complete"] == "1",
        epoch=None if match["epoch"] is None else int(match["epoch"]),
        done=done,
    )


def why_void(text: str | None, *, committed: int) -> InvalidReason | None:
    """Return why `parse_metadata` returns None for this text; None where the text is valid."""
    if parse_metadata(text, committed=committed) is not None:
        return None
    if text is None or not text.startswith("dedup/"):
        return InvalidReason.NO_TEXT
    if not text.startswith(_FORMAT):
        return InvalidReason.OTHER_FORMAT
    if text.startswith(_VOID_SEAL):
        return InvalidReason.OTHER_OWNER
    match = _TEXT_PATTERN.fullmatch(text)
    return (
        InvalidReason.OTHER_OFFSET
        if match is not None and int(match["at"]) != committed
        else InvalidReason.UNREADABLE
    )


def sealed(text: str | None, group: str, topic: str, partition: int) -> str:
    """Return a text with the seal of this group and partition added.

    A text of another tool, and one that has a seal, is returned unchanged.
    """
    match = _SEAL_PATTERN.match(text or "")
    if text is None or match is None or match[2]:
        return text or ""
    return f"{match[1]}/{_seal(group, topic, partition)} {text[match.end() :]}"


def unsealed(text: str | None, group: str, topic: str, partition: int) -> str:
    """Return the text of a commit of this group and partition without its seal.

    A text of this package with another seal, or with none, is made void: its ``at`` is then no offset, and
    `parse_metadata` returns None for it.
    """
    match = _SEAL_PATTERN.match(text or "")
    if text is None or match is None:
        return text or ""
    at = match[1] if match[2] == _seal(group, topic, partition) else _VOID_SEAL
    return f"{at} {text[match.end() :]}"


def _seal(group: str, topic: str, partition: int) -> str:
    digest = sha256()
    for part in (group.encode(), topic.encode(), str(partition).encode()):
        digest.update(len(part).to_bytes(4) + part)
    return digest.hexdigest()[:_SEAL_DIGITS]


def done_part(text: str | None) -> str:
    """Return the value of ``done`` in a text of this package; empty where there is none."""
    return (text or "").partition(" done=")[2]


def rule_named_in(text: str | None) -> str | None:
    """Return the rule (16 hex digits) named in a text, whichever offset, group or log it was written for, or None."""
    match = _RULE_PATTERN.match(text or "")
    return None if match is None else match["rule"]


def decode(text: str, at: int) -> CompletedAbove | None:
    """Decode the result of `CompletedAbove.encode` for a commit of offset ``at``; None where it is not valid."""
    packed, timestamp, check = text.split(".")
    try:
        unpacker = zlib.decompressobj()
        lengths = unpacker.decompress(
            urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), _MAX_UNPACKED_BYTES
        )
    except (zlib.error, ValueError):
        return None
    numbers = _parse_leb128(lengths)
    if not unpacker.eof or unpacker.unused_data or not numbers or len(numbers) % 2:
        return None
    ranges: list[Range] = []
    position = at
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        if length == 0 or (gap == 0 and ranges):
            return None
        ranges.append((position + gap, position + gap + length))
        position = ranges[-1][1]
    if position > _MAX_OFFSET:
        return None
    return CompletedAbove(tuple(ranges), Witness(position - 1, int(timestamp), check))


def fitting(
    ranges: Sequence[Range], at: int, room: int, witness_of: Callable[[int], Witness | None]
) -> CompletedAbove | None:
    """Return as many of the ranges, the lowest first, as take at most ``room`` characters; None where none fits.

    ``witness_of`` returns the witness of an offset, None where it is not known; the last range kept must have one.
    """

    def attempt(count: int) -> CompletedAbove | None:
        while count:
            witness = witness_of(ranges[count - 1][1] - 1)
            if witness is not None:
                return CompletedAbove(tuple(ranges[:count]), witness)
            count -= 1
        return None

    # All first: nearly always there is room for all, and thousands of ranges take milliseconds at each attempt.
    fitting_count, most, middle = 0, len(ranges), len(ranges)
    while fitting_count < most:
        found = attempt(middle)
        if found is None or len(found.encode(at)) <= room:
            fitting_count = middle
        else:
            most = middle - 1
        middle = (fitting_count + most + 1) // 2
    return attempt(fitting_count)


def _append_leb128(lengths: bytearray, number: int) -> None:
    while number >= _CONTINUES:
        lengths.append(number % _CONTINUES | _CONTINUES)
        number //= _CONTINUES
    lengths.append(number)


def _parse_leb128(lengths: bytes) -> list[int]:
    """Return the numbers; an empty list where the last one is incomplete or one has more than 64 bits."""
    numbers: list[int] = []
    number = shift = 0
    for byte in lengths:
        number |= (byte % _CONTINUES) << shift
        shift += 7
        if shift > _MAX_BITS:
            return []
        if byte < _CONTINUES:
            numbers.append(number)
            number = shift = 0
    return [] if shift else numbers
