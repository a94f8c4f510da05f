"""Transactions of `DedupConsumer.run`: what handlers have produced is committed together, and then they have ended.

    handler ─▶ output, in memory ─▶ begin ─▶ records ─▶ offsets ─▶ commit ─▶ messages are completed

- **A transaction begins when its handlers have returned.** So no handler holds one open: readers wait for no slow
  handler, and no transaction takes too long. A call that raises has produced nothing; the next one begins anew.
- **A message with a key follows the one before it when that one's handler has returned**, as without transactions, and
  is in the same transaction, or in a later one.
- **A transaction ends only messages that the text of its offsets can name**: all, or those below the first one that has
  not ended. Others wait, so that the next owner of their partition never takes them for unhandled.
- **An aborted transaction is tried again with the same output**, of the messages that are in hand still. To release
  them would let messages with the same keys overtake them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from dedup_sdk._kafka.consumer import DedupConsumer
from dedup_sdk._runner.tasks import Coordinates, Task
from dedup_sdk._transactions.committer import Committer
from dedup_sdk._transactions.producer import Record
from dedup_sdk._transactions.settings import Headers
from dedup_sdk._transactions.transactions import TransactionBlock, record_of
from dedup_sdk.errors import TransactionError

if TYPE_CHECKING:
    from confluent_kafka import Message


class Output:
    """The records of one call of a handler; see `Produce`. For one thread."""

    def __init__(self, committer: Committer, message: Message) -> None:
        self.records: list[Record] = []
        self._committer, self._message = committer, message
        self._is_open = True

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        *,
        partition: int = -1,
        timestamp: int = 0,
        headers: Headers = (),
    ) -> None:
        """Produce a record with the others of this call; see `Produce`."""
        if not self._is_open:
            raise TransactionError("the handler has returned: produce in its call, not later")
        own = self._committer.output_header(self._message, len(self.records))
        self.records.append(
            record_of(topic, value, key, partition=partition, timestamp=timestamp, headers=headers, own=own)
        )

    def close(self) -> None:
        """Take no more."""
        self._is_open = False


class EndsInTransactions:
    """Messages whose handlers have returned end in transactions: see `dedup_sdk._runner.runner.Ends`.

    ``most``: the most messages of a transaction.
    """

    in_transactions: Final = True

    def __init__(
        self,
        consumer: DedupConsumer,
        block: TransactionBlock,
        handler: Callable[..., object],
        *,
        most: int,
    ) -> None:
        self._consumer, self._handler = consumer, handler
        self._committer, given = block.lend(consumer)
        self._seconds, self._most = given.seconds, min(most, given.max_messages)
        self._kept: dict[Task, None] = {}
        self._due_at = 0.0
        self._has_failed = False
        self._lacks_room = False
        """Whether some messages could not end in the last transaction, because the text of its offsets was full."""

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self) -> None:
        """See `Ends`."""
        self._committer.open()

    def call(self, task: Task) -> object:
        """See `Ends`."""
        output = Output(self._committer, task.message)
        try:
            result = self._handler(task.message, output.produce)
        finally:
            output.close()
        task.keep(output.records)
        return result

    def handled(self, tasks: Sequence[Task]) -> None:
        """See `Ends`."""
        if tasks and not self._kept:
            self._due_at = time.monotonic() + self._seconds
        self._kept |= dict.fromkeys(tasks)

    def kept(self, partitions: Collection[Coordinates] | None = None) -> list[Task]:
        """See `Ends`."""
        # A copy, which is made in one step: `_commit` takes tasks out meanwhile.
        return [task for task in list(self._kept) if partitions is None or task.coordinates in partitions]

    def forget(self, partitions: Collection[Coordinates] | None) -> None:
        """See `Ends`."""
        for task in self.kept(partitions):
            del self._kept[task]

    def work(self) -> None:
        """See `Ends`."""
        is_full = len(self._kept) >= self._most and not self._lacks_room
        if self._kept and (is_full or time.monotonic() >= self._due_at):
            self._commit()

    def finish(self) -> None:
        """See `Ends`."""
        # What is left is given back: none of its output was committed.
        while self._kept and not self._has_failed and self._commit() and self._committer.goes_on():
            pass

    def log_in(self, username: str, password: str) -> None:
        """See `Ends`."""
        self._committer.log_in(username, password)

    def close(self) -> None:
        """See `Ends`."""
        self._committer.close()

    def _commit(self) -> bool:
        """Try a transaction; False if no message can end in one now."""
        in_hand = self._in_hand()
        tasks = self._with_room(in_hand)
        self._lacks_room = len(tasks) < len(in_hand)
        if not tasks:
            self._due_at = time.monotonic() + self._seconds
            return False
        try:
            self._committer.begin([task.message for task in tasks])
            for task in tasks:
                for record in task.output:
                    self._committer.put(record)
            if self._committer.commit():
                for task in tasks:
                    self._kept.pop(task, None)
                self._due_at = time.monotonic() + self._seconds
        except BaseException as error:
            self._has_failed = True
            self._committer.leave(error)
            # Those that are in a transaction without a known end are nobody's: to give them back could double them.
            self._kept = {} if self._committer.messages is not None else self._kept
            raise
        return True

    def _with_room(self, tasks: list[Task]) -> list[Task]:
        """Return those tasks whose messages can end in one transaction."""
        named = set(map(id, self._committer.can_end([task.message for task in tasks])))
        return [task for task in tasks if id(task.message) in named]

    def _in_hand(self) -> list[Task]:
        """Return the next tasks whose messages this consumer still has; the others come again."""
        tasks: list[Task] = []
        lost: list[Task] = []
        # The lowest offsets first: these can end also where the text is full.
        for task in sorted(self._kept, key=attrgetter("offset"))[: self._most]:
            (tasks if self._consumer.holds(task.message) else lost).append(task)
        for task in lost:
            # E.g. its lease in the shared memory is over.
            self._kept.pop(task, None)
        if lost:
            self._consumer.transaction_aborted([task.message for task in lost])
        return tasks
