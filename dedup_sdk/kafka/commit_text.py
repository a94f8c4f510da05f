"""The text beside every committed offset: its layout, and its codec.

Kafka keeps a short text beside a committed offset. Ours says which part of the log the group has processed, so that a consumer on any machine
knows what it may take for seen:

    dedup/2 at=1300/5f3a01bc fingerprint=3f9a01bc84d2e6f7.90c2e5d1aabb0c4d low=1200 complete=1 era=5f0c9a epoch=7 done=eJz7z8...

=============== ================================= =====================================================================================
field           form                              meaning
=============== ================================= =====================================================================================
``at``          offset ``/`` 8 hex digits         The offset that the text was written for, and the *seal*: a digest of its group, topic
                                                  and partition. Tools copy texts to other offsets, groups and partitions: there it is void.
``fingerprint`` log ``.`` rule, hex digits        Everything that marks depend on: the log of the offsets (`log_name`), and the rule
                                                  (`dedup_sdk.rule_fingerprint`). Another rule hid records that were never handled, so a
                                                  text with another fingerprint is void.
``low``         offset                            Where the part of the log begins that the group has processed without a gap; nothing before
                                                  it is ever taken for seen.
``complete``    0 or 1                            1 when the group was new at ``low``, so that nothing is missing before it.
``era``         up to 32 of ``0-9a-z``            Changes when an operator rewinds on purpose; empty until then.
``epoch``       number, optional                  The partition's leader epoch when these records were read: by it the broker knows whether
                                                  the log still has them. (Kafka has a field of its own for it, and refuses commits by it.)
``done``        see below, optional               The offsets completed above ``at``: the next owner does not hand them out again.
=============== ================================= =====================================================================================

``done`` is ``<ranges>.<timestamp>.<check>``:

``<ranges>``
    lengths by turns, each an unsigned LEB128 number: how many offsets are open, how many are completed, and so on, from ``at`` on;
    compressed by zlib, then Base64 with ``-`` and ``_``, without padding.
``<timestamp>``, ``<check>``
    those of the `Witness` that the last record in the ranges is. Where the log has another record there, ``done`` is void.

A broker takes `MOST_CHARACTERS` characters (``offset.metadata.max.bytes``). Where not everything fits, the nearest ranges stay. A text of another
format, or with a field that this version does not know, counts as none: a text that is not understood vouches for nothing. Its rule is
believed also where a text is void here (`rule_named_in`): whoever vouches for the records before a commit does not vouch for those that another
rule hid there.
"""

from __future__ import annotations

import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import sha256
from typing import Final

from dedup_sdk.core.ranges import Range
from dedup_sdk.marks import Witness
from dedup_sdk.rule_fingerprint import NAMELESS

MOST_CHARACTERS: Final = 4_095
"""What a broker takes beside an offset, unless its ``offset.metadata.max.bytes`` says otherwise."""
_FORMAT: Final = "dedup/2 "
_OTHERS_SEAL: Final = "dedup/2 at=void"
_FORM: Final = re.compile(
    r"dedup/2 at=(?P<at>\d{1,19})(?:/[0-9a-f]{8})? fingerprint=(?P<log>(?:[0-9a-f]{8}){0,2})\.(?P<rule>[0-9a-f]{16}) low=(?P<low>\d{1,19}) "
    r"complete=(?P<complete>[01]) era=(?P<era>[0-9a-z]{0,32})(?: epoch=(?P<epoch>\d{1,9}))?"
    r"(?: done=(?P<done>[A-Za-z0-9_-]{1,4096}\.-?\d{1,19}\.[0-9a-f]{16}))?",
    re.ASCII,
)
_RULE: Final = re.compile(
    r"dedup/2 at=\S+ fingerprint=(?:[0-9a-f]{8}){0,2}\.(?P<rule>[0-9a-f]{16}) ", re.ASCII
)
_SEAL: Final = re.compile(r"(dedup/2 at=\d{1,19})(?:/([0-9a-f]{8}))? ", re.ASCII)
_SEAL_DIGITS: Final = 8
_SEAL_CHARACTERS: Final = 1 + _SEAL_DIGITS
_LOG_DIGITS: Final = 8
_MOST_OFFSET: Final = 2**63 - 1
_MOST_BYTES: Final = 2**18
"""At most so many bytes of lengths are unpacked: a hostile text of 4,096 characters could hold far more."""
_CONTINUES: Final = 0x80
_MOST_BITS: Final = 70


def log_name(cluster: str, topic_id: str) -> str:
    """Return the digits of a log: 8 of the cluster ID, and 8 of the topic ID.

    The latter are missing where the brokers have no topic IDs; all are without a cluster ID.

    Two hashes, not one, because they mean different things beside a commit. Offsets of another cluster were translated
    by the tool that copied them. Those of another topic ID of this cluster belong to a deleted topic, were committed by
    a consumer that had not heard of it, and do not say where to go on. One hash of both would leave the distinction to
    the store on disk, which another machine does not have, and which belongs to the new topic as soon as the old store
    was set aside.
    """
    if cluster in NAMELESS:
        return ""
    digits = sha256(cluster.encode()).hexdigest()[:_LOG_DIGITS]
    return digits + sha256(f"{cluster}/{topic_id}".encode()).hexdigest()[:_LOG_DIGITS] if topic_id else digits


def is_one_log(one: str, other: str) -> bool:
    """Whether two names (`log_name`) agree, as far as both are known."""
    known = min(len(one), len(other))
    return one[:known] == other[:known]


def is_of_one_cluster(one: str, other: str) -> bool:
    """Whether two names (`log_name`) belong to one cluster."""
    return one[:_LOG_DIGITS] == other[:_LOG_DIGITS]


def topic_digits(name: str) -> str:
    """Return the topic's part of a name (`log_name`); empty where the brokers have no topic IDs."""
    return name[_LOG_DIGITS:]


class Void(Enum):
    """Why nothing is known of a group's history before a committed offset: the text beside it is void. The value says so in the log."""

    NO_TEXT = "there is no text of this package beside it"
    OTHER_FORMAT = "the text beside it has the format of another version of this package"
    OTHER_OFFSET = "the text beside it was written for another offset"
    OTHER_OWNER = "the text beside it was written for another group, topic or partition"
    UNREADABLE = "the text beside it cannot be read"
    TOPIC_BEFORE = "the text beside it is of the topic that had this name before"
    OTHER_LOG = "the text beside it is of another log"
    OTHER_RULE = "the group went by another rule up to there"


@dataclass(frozen=True, slots=True)
class CompletedAbove:
    """Half-open ranges of completed offsets, ascending, apart, and above the committed offset; ``witness`` is their last record."""

    ranges: tuple[Range, ...]
    witness: Witness

    def encode(self, at: int) -> str:
        """Return the value of ``done`` for a commit of offset ``at``."""
        lengths = bytearray()
        position = at
        for start, end in self.ranges:
            _put(lengths, start - position)
            _put(lengths, end - start)
            position = end
        packed = urlsafe_b64encode(zlib.compress(bytes(lengths), 9)).rstrip(b"=").decode()
        return f"{packed}.{self.witness.timestamp_ms}.{self.witness.check}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """What a group says of its history up to a committed offset; the fields are those of the text.

    ``log`` (`log_name`) and ``rule`` (`dedup_sdk.rule_fingerprint`) are the two parts of the fingerprint.
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
        done = "" if self.done is None else f" done={self.done.encode(at)}"
        return f"dedup/2 at={at} fingerprint={self.log}.{self.rule} low={self.low} complete={int(self.complete)} era={self.era}{epoch}{done}"

    def with_done(
        self, ranges: Sequence[Range], at: int, witness_of: Callable[[int], Witness | None]
    ) -> CommitMetadata:
        """Return the same with as many of the completed ranges as a text for offset ``at`` has room for.

        ``witness_of`` gives the witness of an offset, None where it is not known.
        """
        return replace(self, done=fitting(ranges, at, self.room(at), witness_of))

    def room(self, at: int) -> int:
        """Return how many characters a text for ``at`` has left for the value of ``done``."""
        return MOST_CHARACTERS - len(replace(self, done=None).text(at)) - len(" done=") - _SEAL_CHARACTERS

    def is_of(self, log: str) -> bool:
        """Whether these offsets are of this log; see `is_one_log`."""
        return is_one_log(self.log, log)

    def is_of_one_before(self, log: str) -> bool:
        """Whether these offsets are of another topic of this log's cluster: beside a commit, of the one that had its name before."""
        return not self.is_of(log) and is_of_one_cluster(self.log, log)


def parse_metadata(text: str | None, *, committed: int) -> CommitMetadata | None:
    """Read the text beside the offset ``committed``.

    None when it is not ours (another client's, a reset tool's, of another format), or was written for another offset.
    """
    form = _FORM.fullmatch(text or "")
    if (
        form is None
        or int(form["at"]) != committed
        or committed > _MOST_OFFSET
        or int(form["low"]) > committed
    ):
        return None
    done = None
    if form["done"] is not None:
        done = decode(form["done"], committed)
        if done is None:
            return None
    return CommitMetadata(
        low=int(form["low"]),
        log=form["log"],
        rule=form["rule"],
        era=form["era"],
        complete=form["complete"] == "1",
        epoch=None if form["epoch"] is None else int(form["epoch"]),
        done=done,
    )


def why_void(text: str | None, *, committed: int) -> Void | None:
    """Return why `parse_metadata` returns None for the text beside the offset ``committed``; None where it does not."""
    if parse_metadata(text, committed=committed) is not None:
        return None
    if text is None or not text.startswith("dedup/"):
        return Void.NO_TEXT
    if not text.startswith(_FORMAT):
        return Void.OTHER_FORMAT
    if text.startswith(_OTHERS_SEAL):
        return Void.OTHER_OWNER
    form = _FORM.fullmatch(text)
    return Void.OTHER_OFFSET if form is not None and int(form["at"]) != committed else Void.UNREADABLE


def sealed(text: str | None, group: str, topic: str, partition: int) -> str:
    """Return a text of ours with the seal of this group and partition. Any other text, and one with a seal, stays as it is."""
    form = _SEAL.match(text or "")
    if text is None or form is None or form[2]:
        return text or ""
    return f"{form[1]}/{_seal(group, topic, partition)} {text[form.end() :]}"


def unsealed(text: str | None, group: str, topic: str, partition: int) -> str:
    """Return a text that was read beside a commit of this group and partition, without its seal.

    A text of ours with another seal, or with none, is made void: ``at`` is then no offset, so that `parse_metadata` returns None for it.
    """
    form = _SEAL.match(text or "")
    if text is None or form is None:
        return text or ""
    at = form[1] if form[2] == _seal(group, topic, partition) else _OTHERS_SEAL
    return f"{at} {text[form.end() :]}"


def _seal(group: str, topic: str, partition: int) -> str:
    digest = sha256()
    for part in (group.encode(), topic.encode(), str(partition).encode()):
        digest.update(len(part).to_bytes(4) + part)
    return digest.hexdigest()[:_SEAL_DIGITS]


def done_part(text: str | None) -> str:
    """Return the value of ``done`` in a text of ours; empty where there is none."""
    return (text or "").partition(" done=")[2]


def rule_named_in(text: str | None) -> str | None:
    """Return the rule (16 hexadecimal digits) that a text of ours names, whatever offset, group or log it was written for; None without one."""
    form = _RULE.match(text or "")
    return None if form is None else form["rule"]


def decode(text: str, at: int) -> CompletedAbove | None:
    """Read what `CompletedAbove.encode` wrote for a commit of offset ``at``; None where it is not that."""
    packed, timestamp, check = text.split(".")
    try:
        unpacker = zlib.decompressobj()
        lengths = unpacker.decompress(urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), _MOST_BYTES)
    except (zlib.error, ValueError):
        return None
    numbers = _numbers(lengths)
    if not unpacker.eof or unpacker.unused_data or not numbers or len(numbers) % 2:
        return None
    ranges: list[Range] = []
    position = at
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        if length == 0 or (gap == 0 and ranges):
            return None
        ranges.append((position + gap, position + gap + length))
        position = ranges[-1][1]
    if position > _MOST_OFFSET:
        return None
    return CompletedAbove(tuple(ranges), Witness(position - 1, int(timestamp), check))


def fitting(
    ranges: Sequence[Range], at: int, room: int, witness_of: Callable[[int], Witness | None]
) -> CompletedAbove | None:
    """Return as many of the ranges, the nearest first, as take at most ``room`` characters; None where none does.

    ``witness_of`` gives the witness of an offset, None where it is not known; the last range must have one.
    """

    def attempt(count: int) -> CompletedAbove | None:
        while count:
            witness = witness_of(ranges[count - 1][1] - 1)
            if witness is not None:
                return CompletedAbove(tuple(ranges[:count]), witness)
            count -= 1
        return None

    fits, most = 0, len(ranges)
    while fits < most:
        middle = (fits + most + 1) // 2
        found = attempt(middle)
        if found is None or len(found.encode(at)) <= room:
            fits = middle
        else:
            most = middle - 1
    return attempt(fits)


def _put(lengths: bytearray, number: int) -> None:
    while number >= _CONTINUES:
        lengths.append(number % _CONTINUES | _CONTINUES)
        number //= _CONTINUES
    lengths.append(number)


def _numbers(lengths: bytes) -> list[int]:
    """Return the numbers, none where the last one is not whole or one has more than 64 bits."""
    numbers: list[int] = []
    number = shift = 0
    for byte in lengths:
        number |= (byte % _CONTINUES) << shift
        shift += 7
        if shift > _MOST_BITS:
            return []
        if byte < _CONTINUES:
            numbers.append(number)
            number = shift = 0
    return [] if shift else numbers
