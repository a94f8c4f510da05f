"""The notes of a worker that copies messages in transactions: the records it got, and how each of its writes ended.

One line each, without a sync: a killed process has written what it has written, and the machine does not die.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Message, TopicPartition

from dedup_sdk import DedupConsumer
from tests.chaos.history import Call, Delivery, End, Notice

_SUFFIX: Final = ".copies"


def notes_of(journal: str | Path) -> Path:
    """Return the file of these notes, beside the journal of a run."""
    return Path(journal).with_suffix(_SUFFIX)


class CopyNotes:
    """Writes the notes of one run; from several threads."""

    def __init__(self, journal: str) -> None:
        self._file = os.open(notes_of(journal), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._run = Path(journal).stem
        self._writes: dict[tuple[int, int], list[int]] = {}
        """The last write of each message whose transaction has not ended."""
        self._transactions = 0

    def got(self, message: Message, poll: int, at_ns: int, *, by_key: bool) -> None:
        """Note a record that the consumer handed out; ``by_key``: the order of its key is kept, and no other one."""
        key = (message.key() or b"").decode() if by_key else None
        self._write(["got", message.partition(), message.offset(), poll, at_ns, key])

    def copied(self, message: Message, began_ns: int) -> bytes:
        """Return the record for a message that was handled now."""
        place = [message.partition() or 0, message.offset() or 0]
        return json.dumps([self._run, *place, began_ns, time.monotonic_ns()]).encode()

    def wrote(self, message: Message, record: bytes) -> None:
        """Remember the write of a message until its transaction ends."""
        self._writes[message.partition() or 0, message.offset() or 0] = json.loads(record)[1:]

    def ended(self, messages: Iterable[Message], *, is_committed: bool) -> None:
        """Note the end of a transaction."""
        places = [(message.partition() or 0, message.offset() or 0) for message in messages]
        writes = [self._writes.pop(place) for place in places if place in self._writes]
        if places:
            self._transactions += 1
            partitions = sorted({partition for partition, _ in places})
            self._write(["end", self._transactions, is_committed, writes, time.monotonic_ns(), partitions])

    def _write(self, line: list[Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


class CopyingConsumer(DedupConsumer):
    """A consumer that notes how its transactions end; ``notes`` is set before the first one."""

    notes: CopyNotes

    def transaction_committed(self, messages: Iterable[Message], offsets: list[TopicPartition]) -> None:
        """See `DedupConsumer`."""
        named = list(messages)
        super().transaction_committed(named, offsets)
        self.notes.ended(named, is_committed=True)

    def transaction_aborted(self, messages: Iterable[Message]) -> None:
        """See `DedupConsumer`."""
        named = list(messages)
        super().transaction_aborted(named)
        self.notes.ended(named, is_committed=False)


def read_notes(journal: Path, run: str) -> Iterator[Delivery | End | Notice]:
    """Yield what a run noted; a last line without its end was never finished.

    The messages of an aborted transaction come again, which is a `Notice`.
    """
    path = notes_of(journal)
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else []:
        kind, *rest = json.loads(line)
        if kind == "got":
            partition, offset, poll, at_ns, key = rest
            yield Delivery(run, poll, partition, offset, at_ns, "" if key is None else key)
            continue
        transaction, is_committed, writes, at_ns, partitions = rest
        yield from (End(Call(run, *write), transaction, is_committed=is_committed) for write in writes)
        if not is_committed:
            yield Notice(run, "aborted", frozenset(partitions), at_ns)
