"""Consume, and write to Kafka, in one transaction: `DedupConsumer.transactions`.

    begin ─▶ messages ─▶ records that you produce ─▶ offsets, with their text ─▶ commit ─▶ messages are completed

Written over `DedupConsumer.transaction_offsets` and its two counterparts, which a loop of one's own can use as well.

`Committer` says what holds it together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Final, Literal, Self

from confluent_kafka import Message

from dedup_sdk._interruptions import is_interruption
from dedup_sdk._kafka.client.client_errors import handle_error
from dedup_sdk._kafka.consumer import DedupConsumer
from dedup_sdk._kafka.deliver.idle import IdleClock
from dedup_sdk._kafka.deliver.in_hand import InHand
from dedup_sdk._transactions.committer import Committer
from dedup_sdk._transactions.producer import Record
from dedup_sdk._transactions.settings import Headers, TransactionSettings
from dedup_sdk.errors import ConfigurationError, TransactionError

_WAIT_S: Final = 0.2


def record_of(
    topic: str,
    value: str | bytes | None = None,
    key: str | bytes | None = None,
    *,
    partition: int = -1,
    timestamp: int = 0,
    headers: Headers = (),
    own: tuple[str, str] | None = None,
) -> Record:
    """Return a record for `Committer.put`; ``own``: a header that is added, unless it is given."""
    added: list[tuple[str, str | bytes | None]] = [] if own is None else [own]
    if headers:
        given = list(headers.items() if isinstance(headers, Mapping) else headers)
        added = given if own is None or any(name == own[0] for name, _ in given) else [*given, own]
    return topic, value, key, partition, None, None, timestamp, added or None


class Transaction:
    """The messages of one transaction, in their order, and what is produced for them."""

    def __init__(self, block: TransactionBlock) -> None:
        self.messages: list[Message] = []
        """The messages that the application got."""
        self._block = block
        self._place = 0

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until the transaction is full, or its time is up."""
        take = self._block.take_into
        while (message := take(self)) is not None:
            self._place = 0
            yield message

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
        """Produce a record in this transaction; readers of committed records see it when that is committed.

        ``partition`` -1: chosen by the key. ``timestamp``: milliseconds since the epoch, 0: now. Waits while the
        client's queue is full. Raises `KafkaException` for a record that the client refuses, e.g. for its size, and
        `TransactionError` when the transaction is over. In a transaction that has failed the record goes nowhere: its
        message comes again.
        """
        if self._block.current is not self:
            raise TransactionError("the transaction is over: produce in its turn of the loop, not later")
        own = None
        if self.messages:
            own = self._block.committer.output_header(self.messages[-1], self._place)
            self._place += 1
        self._block.committer.put(
            record_of(topic, value, key, partition=partition, timestamp=timestamp, headers=headers, own=own)
        )


class TransactionBlock:
    """Transactions one after the other; see `DedupConsumer.transactions`. Use it in a ``with`` block, on one thread."""

    def __init__(
        self,
        consumer: DedupConsumer,
        in_hand: InHand,
        committer: Committer,
        given: TransactionSettings,
        *,
        idle: IdleClock,
        is_stopped: Callable[[], bool],
        forget_stop: Callable[[], None],
        begin_block: Callable[[TransactionBlock], None],
        end_block: Callable[[TransactionBlock], None],
    ) -> None:
        self._consumer, self._in_hand, self._idle = consumer, in_hand, idle
        self.committer, self._given = committer, given
        self._is_stopped, self._forget_stop = is_stopped, forget_stop
        self._begin_block, self._end_block = begin_block, end_block
        self.current: Transaction | None = None
        """The transaction under way: only with it messages are taken, and records produced."""
        self._first: Message | None = None
        """The first message of the current transaction, before the application asks for it."""
        self._until = 0.0
        self._place: Literal["before", "inside", "behind"] = "before"
        """Whether the block has begun, and ended."""

    ends_in_transactions: Final = True
    """Whether `has` tells which messages end in a transaction, and in no other way."""

    def lend(self, consumer: DedupConsumer) -> tuple[Committer, TransactionSettings]:
        """Return what `DedupConsumer.run` commits with, in place of the block; the transactions count as used then."""
        if self._consumer is not consumer:
            raise ConfigurationError(
                "transactions= are those of another consumer: give consumer.transactions(...)"
            )
        self._use()
        # To release the messages of an aborted transaction would let those with the same keys overtake them.
        self.committer.keep_messages()
        return self.committer, self._given

    def _use(self) -> None:
        if self._place != "before":
            raise RuntimeError("transactions() were used before: call it again for another block")
        self._place = "behind"

    # --- the block -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Begin: messages that you got before are completed, if asking for more does so."""
        self._use()
        try:
            self._begin_block(self)
            self._in_hand.begin_explicit(None)
            self.committer.open()
        except BaseException:
            self._end()
            raise
        self._place = "inside"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit the transaction, or abort it if an exception leaves the block."""
        try:
            if error is not None:
                self.committer.leave(error)
            else:
                self._finish()
        finally:
            self._place, self.current = "behind", None
            self._end()
            self._forget_stop()

    def _end(self) -> None:
        """Let go, also where a signal strikes that."""
        try:
            self._let_go()
        except BaseException as error:
            self._note(error)
            # A step may have been left out; each of them may be repeated.
            self._let_go()
            raise

    def _let_go(self) -> None:
        """Let go of the producer and of the messages; the consumer completes messages as before the block."""
        try:
            self.committer.close()
            if self._first is not None:
                self._consumer.transaction_aborted([self._first])
        finally:
            self._end_block(self)

    def log_in(self, username: str, password: str) -> None:
        """Use these credentials from the next login on, unless the producer is the application's."""
        self.committer.log_in(username, password)

    def has(self, message: Message) -> bool:
        """Whether a message is in the transaction under way, whose end is the message's."""
        # By identity: two messages without a key cannot be compared in older clients.
        return any(message is each for each in (self._first, *(self.committer.messages or ())))

    def __iter__(self) -> Iterator[Transaction]:
        """Yield transactions until `DedupConsumer.stop`, or ``idle_timeout`` seconds without a message."""
        while True:
            if self._place != "inside":
                raise RuntimeError(_NOT_INSIDE)
            self._finish()
            if not self._has_first():
                return
            transaction = Transaction(self)
            self.committer.begin(transaction.messages)
            self._until = time.monotonic() + self._given.seconds
            self.current = transaction
            yield transaction

    def _finish(self) -> None:
        """Commit the current transaction, or abort it, if the broker wants that or messages are gone."""
        self.current = None
        if self.committer.messages is not None:
            self._idle.heard()
            try:
                self.committer.commit()
            except BaseException as error:
                # Now: the application may go on with the block, and to commit once more would double the records.
                self.committer.leave(error)
                raise

    # --- messages ------------------------------------------------------------------------------------------------

    def _has_first(self) -> bool:
        """Wait for the first message of the next transaction; False at the end."""
        try:
            while self._first is None and not self._is_stopped():
                self._first = self._next(_WAIT_S)
                if self._first is None and self._idle.is_up:
                    return False
        except BaseException as error:
            self._note(error)
            raise
        return self._first is not None

    def take_into(self, transaction: Transaction) -> Message | None:
        """Add the next message to a transaction, and return it; None when that is full, over, or its time is up."""
        try:
            if transaction is not self.current or self.committer.failed:
                return None
            messages = transaction.messages
            message, self._first = self._first, None
            while message is None:
                left_s = self._until - time.monotonic()
                if left_s <= 0 or len(messages) >= self._given.max_messages or self._is_stopped():
                    return None
                message = self._next(min(left_s, _WAIT_S))
            messages.append(message)
        except BaseException as error:
            self._note(error)
            raise
        return message

    def _note(self, error: BaseException) -> None:
        """Note what came while a message was taken: after an interruption the transaction is aborted.

        Also if the application goes on with the block: the message may be in no place, or in the transaction already.
        """
        if is_interruption(error):
            self._in_hand.open_again()

    def _next(self, timeout_s: float) -> Message | None:
        message = self._consumer.poll(timeout_s)
        if message is not None and (error := message.error()) is not None:
            handle_error(error)
            return None
        return message


_NOT_INSIDE: Final = (
    "transactions() work in a block only: with consumer.transactions(...) as transactions: for transaction in "
    "transactions: ..."
)
