"""Consume, and write to Kafka, in one transaction: `DedupConsumer.transactions`.

    begin ─▶ messages ─▶ records that you produce ─▶ offsets, with their text ─▶ commit ─▶ messages are completed

Written over `DedupConsumer.transaction_offsets` and its two counterparts, which a loop of one's own can use as well.

What holds it together:

- **A message is completed when its transaction is known to be committed**, not before: an ID that the store has belongs
  to a record that readers can see. A store that a crash left behind is caught up from the topic, up to the group's
  offset, as after any crash.
- **The member's metadata are taken with the first message of a transaction**, and right before the offsets are sent
  the rebalance callbacks run, and each message must be in hand still. Metadata that are taken later could be those of a
  member that has lost its partitions, and come back: with an equal epoch brokers do not look at partitions (KIP-1251).
  Nor do they look at the member if its ID is empty, as between a loss and its callback: such metadata are not used.
- **Until the commit is asked for, nothing is committed**: whatever fails before is an abort. From there on an error
  that does not say so leaves open whether it was. Then a new producer with the same ``transactional.id`` ends the
  transaction, so that nothing can change any more, and the group's committed offsets tell. A producer of the
  application cannot be replaced here, so that its unknown end is raised.
- **A call that sends offsets may wait for ever** while their coordinator is away (librdkafka issue 5456). It has a time
  limit, after which its producer is left alone and replaced. Meanwhile the group hears from the consumer.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.cimpl import Producer

from dedup_sdk._checks import seconds as checked_seconds
from dedup_sdk._checks import whole
from dedup_sdk._fork_safety import keep_in_children
from dedup_sdk._interruptions import is_interruption
from dedup_sdk._kafka.client_errors import handle_error, is_retriable, settings_refused
from dedup_sdk._kafka.closing import call_with_timeout
from dedup_sdk._kafka.settings import ClientSettings, admin_settings
from dedup_sdk._masking import error_text, shown
from dedup_sdk.errors import ConfigurationError, TransactionError

if TYPE_CHECKING:
    from dedup_sdk._kafka.consumer import DedupConsumer
    from dedup_sdk._kafka.loop import FetchLoop, IdleClock

logger = logging.getLogger("dedup_sdk")

_WAIT_S: Final = 0.2
_CALL_S: Final = 5.0
"""Seconds for one call of the producer, after which the group hears from the consumer."""
_PATIENCE_S: Final = 60.0
"""Seconds for a step of a transaction, while brokers are away."""
PAUSE_S: Final = 0.1
"""Seconds before a transaction that was aborted is tried again; each further pause is twice as long."""
_LONGEST_PAUSE_S: Final = 5.0
_MOST_ABORTS: Final = 10
"""With the pauses between them, half a minute."""
_MOST_MESSAGES: Final = 100_000


Headers = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]


class _AbortError(Exception):
    """The transaction must be aborted, and is surely not committed; ``cause`` is told in a log line."""

    def __init__(self, cause: str, *, is_stuck: bool = False) -> None:
        super().__init__(cause)
        self.cause, self.is_stuck = cause, is_stuck


class _UnknownError(Exception):
    """Whether the transaction was committed is not known."""


class Transaction:
    """The messages of one transaction, in their order, and what is produced for them."""

    def __init__(self, loop: Transactions, member: object) -> None:
        self.messages: list[Message] = []
        """The messages that the application got."""
        self._member = member
        """The group's metadata of the moment when the first message came."""
        self._loop = loop
        self._place = 0

    @property
    def member(self) -> object:
        """The group's metadata."""
        return self._member

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until the transaction is full, or its time is up."""
        while (message := self._loop.next_message(self)) is not None:
            self.messages.append(message)
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
        if not self._loop.is_current(self):
            raise TransactionError("the transaction is over: produce in its turn of the loop, not later")
        given = list(headers.items() if isinstance(headers, Mapping) else headers)
        if self.messages:
            given += self._loop.output_header(self.messages[-1], self._place, given)
            self._place += 1
        self._loop.put(
            topic, value=value, key=key, partition=partition, timestamp=timestamp, headers=given or None
        )


class Transactions:
    """Transactions one after the other; see `DedupConsumer.transactions`. Use it in a ``with`` block, on one thread."""

    def __init__(
        self,
        consumer: DedupConsumer,
        loop: FetchLoop,
        producer: Mapping[str, Any] | Producer,
        *,
        settings: ClientSettings,
        idle: IdleClock,
        is_stopped: Callable[[], bool],
        forget_stop: Callable[[], None],
        is_subscribed: Callable[[], bool],
        set_block: Callable[[Transactions | None], None],
        max_messages: int,
        seconds: float,
        id_header: str | None,
    ) -> None:
        self._consumer, self._loop, self._idle = consumer, loop, idle
        self._is_stopped, self._forget_stop, self._is_subscribed = is_stopped, forget_stop, is_subscribed
        self._set_block = set_block
        self._max_messages = whole("max_messages", max_messages, most=_MOST_MESSAGES, advice="give e.g. 1000")
        self._seconds, self._id_header = checked_seconds("seconds", seconds), id_header
        self._config: dict[str, Any] = {}
        if isinstance(producer, Mapping):
            own = {"transactional.id": f"{settings.group}-{uuid.uuid4().hex}", **producer}
            self._config = {**admin_settings(settings.client), **own}
            self._producer = self._made()
        elif isinstance(producer, Producer):
            self._producer = producer
        else:
            raise ConfigurationError(
                f"producer={shown(producer)}: give settings, e.g. {{'transactional.id': 'billing-1'}}, or a Producer"
            )
        self._current: Transaction | None = None
        self._first: Message | None = None
        """The first message of the current transaction, before the application asks for it."""
        self._until = 0.0
        self._asked: list[TopicPartition] | None = None
        """The offsets of the current transaction, from the moment when its commit is asked for."""
        self._failed: str | None = None
        """Why the current transaction can only be aborted, as far as a record that was refused has told."""
        self._aborts = 0
        """Transactions that were aborted since the last commit."""
        self._given_up: TransactionError | None = None
        """The error of a transaction whose end could not be settled: to try again has no use."""
        self._place: Literal["before", "inside", "behind"] = "before"
        """Whether the block has begun, and ended."""

    # --- the block -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Begin: messages that you got before are completed, if asking for more does so."""
        if self._place != "before":
            raise RuntimeError("transactions() were used before: call it again for another block")
        self._set_block(self)
        try:
            self._initialise()
            self._loop.begin_explicit(None)
            # The offsets that transactions commit here are ours: hidden records may be committed beside them.
            self._consumer.transaction_offsets([])
            self._consumer.transaction_aborted([])
        except BaseException as error:
            self._loop.end_explicit()
            self._set_block(None)
            if isinstance(error, KafkaException) and may_pass(error):
                raise TransactionError(f"transactions cannot begin: {error_text(error.args[0])}") from None
            raise
        self._place = "inside"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit the transaction, or abort it if an exception leaves the block."""
        try:
            if error is not None:
                self._leave(error)
            else:
                try:
                    self._finish()
                except BaseException as failure:
                    self._leave(failure)
                    raise
        finally:
            self._place = "behind"
            if self._current is not None:
                # Nobody knows how it ended: nothing may complete its messages.
                self._loop.take_out_all(self._current.messages)
            if self._first is not None:
                self._consumer.transaction_aborted([self._first])
            self._loop.end_explicit()
            self._set_block(None)
            self._forget_stop()
            if self._config:
                self._drop()

    def _leave(self, error: BaseException) -> None:
        """Abort after an exception of the block; an error of that is logged, so that it does not hide the first."""
        if error is self._given_up:
            return
        try:
            if self._asked is not None:
                self._settle()
            elif self._current is not None:
                self._abort(_AbortError(f"an exception left the block: {type(error).__name__}"))
            if is_interruption(error):
                # A message may be in no place.
                self._loop.open_again()
        except Exception as failure:
            logger.error(  # noqa: TRY400 (our own error has said all)
                "the transaction could not be aborted; close the consumer: the next one begins where the group's "
                "offsets are",
                exc_info=not isinstance(failure, TransactionError),
                extra={"event": "transaction-not-aborted"},
            )

    def log_in(self, username: str, password: str) -> None:
        """Use these credentials from the next login on, unless the producer is the application's."""
        if self._config:
            self._config |= {"sasl.username": username, "sasl.password": password}
            self._producer.set_sasl_credentials(username, password)

    def is_current(self, transaction: Transaction) -> bool:
        """Whether this transaction is under way."""
        return transaction is self._current and self._place == "inside"

    def has(self, message: Message) -> bool:
        """Whether a message is in the transaction under way, whose end is the message's."""
        current = self._current
        # By identity: two messages without a key cannot be compared in older clients.
        return message is self._first or (
            current is not None and any(message is each for each in current.messages)
        )

    def __iter__(self) -> Iterator[Transaction]:
        """Yield transactions until `DedupConsumer.stop`, or ``idle_timeout`` seconds without a message."""
        while True:
            if self._place != "inside":
                raise RuntimeError(_NOT_INSIDE)
            self._finish()
            if not self._has_first():
                return
            self._begin()
            if self._current is not None:
                self._until = time.monotonic() + self._seconds
                yield self._current

    def _begin(self) -> None:
        transaction = Transaction(self, self._member())
        self._failed = None
        try:
            self._producer.begin_transaction()
        except KafkaException:
            # It has failed for good, e.g. because another process had its ID meanwhile.
            self._renew()
            self._producer.begin_transaction()
        self._current = transaction

    def _member(self) -> object:
        """Return the group's metadata: of a member, if the consumer is subscribed."""
        until = time.monotonic() + _PATIENCE_S
        while True:
            metadata = self._consumer.consumer_group_metadata()
            # In this order: a member that has an ID now had it before.
            if not self._is_subscribed() or self._consumer.memberid():
                return metadata
            if time.monotonic() > until:
                raise TransactionError(
                    "the group does not let this consumer in again; close it, and start again"
                )
            self._consumer.consume(0)
            time.sleep(PAUSE_S)

    # --- messages ------------------------------------------------------------------------------------------------

    def _has_first(self) -> bool:
        """Wait for the first message of the next transaction; False at the end."""
        while self._first is None and not self._is_stopped():
            self._first = self._next(_WAIT_S)
            if self._first is None and self._idle.is_up:
                return False
        return self._first is not None

    def next_message(self, transaction: Transaction) -> Message | None:
        """Return the next message of a transaction; None when it is full, over, or its time is up."""
        if not self.is_current(transaction) or self._failed:
            return None
        message, self._first = self._first, None
        while message is None:
            left_s = self._until - time.monotonic()
            if left_s <= 0 or len(transaction.messages) >= self._max_messages or self._is_stopped():
                return None
            message = self._next(min(left_s, _WAIT_S))
        return message

    def _next(self, timeout_s: float) -> Message | None:
        message = self._consumer.poll(timeout_s)
        if message is None:
            return None
        if (error := message.error()) is not None:
            handle_error(error)
            return None
        self._idle.heard()
        return message

    # --- records -------------------------------------------------------------------------------------------------

    def output_header(
        self, message: Message, place: int, given: Iterable[tuple[str, Any]]
    ) -> list[tuple[str, str]]:
        """Return the header for the ID of the record that is produced at this place for a message."""
        if self._id_header is None or any(name == self._id_header for name, _ in given):
            return []
        # With the partition: the same ID in another one is another message.
        partition = f"{message.topic()}-{message.partition()}"
        return [(self._id_header, f"{partition}-{self._loop.output_id(message) or message.offset()}-{place}")]

    def put(self, topic: str, **record: Any) -> None:
        """Produce a record."""
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                try:
                    self._producer.produce(topic, **record)
                except BufferError:
                    if time.monotonic() > until:
                        raise
                    self._producer.poll(PAUSE_S)
                    continue
            except KafkaException as error:
                cause = error.args[0]
                if not (cause.fatal() or cause.code() in _OF_THE_TRANSACTION):
                    raise
                # No error of the record: the loop aborts, as after any other failure.
                self._failed = self._failed or error_text(cause)
                return
            else:
                return

    # --- the end of a transaction --------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Commit the current transaction, or abort it, if the broker wants that or messages are gone."""
        if (transaction := self._current) is None:
            return
        self._idle.heard()
        try:
            self._end(transaction)
        except TransactionError as error:
            self._given_up = error
            raise

    def _end(self, transaction: Transaction) -> None:
        try:
            self._commit(transaction)
        except _AbortError as abort:
            self._abort(abort)
            self._aborts += 1
            if self._aborts == _MOST_ABORTS:
                raise TransactionError(
                    f"{_MOST_ABORTS} transactions in a row were aborted, the last one because of: {abort.cause}; their "
                    "messages come again with the next start"
                ) from None
            time.sleep(min(PAUSE_S * 2 ** (self._aborts - 1), _LONGEST_PAUSE_S))
        except _UnknownError:
            self._settle()
        else:
            self._note_committed()

    def _commit(self, transaction: Transaction) -> None:
        if self._failed:
            raise _AbortError(self._failed)
        self._flush()
        self._asked = self._send_offsets(transaction)
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                if call_with_timeout(_CALL_S + 1, self._producer.commit_transaction, _CALL_S):
                    return
            except KafkaException as error:
                cause = error.args[0]
                if cause.txn_requires_abort():
                    raise _AbortError(error_text(cause)) from None
                if not may_pass(error):
                    raise _UnknownError from None
            else:
                raise _UnknownError
            if time.monotonic() > until:
                raise _UnknownError
            self._consumer.consume(0)

    def _flush(self) -> None:
        until = time.monotonic() + _PATIENCE_S
        while self._unsent():
            if time.monotonic() > until:
                raise _AbortError("the broker does not confirm the records")
            self._consumer.consume(0)

    def _unsent(self) -> int:
        """Wait for records that the broker has not confirmed; return their number. A fatal error is raised here."""
        try:
            return self._producer.flush(_WAIT_S)
        except KafkaException as error:
            raise _AbortError(error_text(error.args[0])) from None

    def _send_offsets(self, transaction: Transaction) -> list[TopicPartition]:
        """Send the offsets of a transaction, if they have anything new; return them. Raises `_AbortError`."""
        until = time.monotonic() + _PATIENCE_S
        send = self._producer.send_offsets_to_transaction
        while True:
            try:
                # Callbacks of rebalances run here, and whoever has lost a message sees that.
                offsets = self._consumer.transaction_offsets(transaction.messages)
                if not offsets or call_with_timeout(_CALL_S + 1, send, offsets, transaction.member, _CALL_S):
                    return offsets
            except TransactionError as error:
                raise _AbortError(str(error)) from None
            except KafkaException as error:
                cause = error.args[0]
                if cause.code() == KafkaError.OFFSET_METADATA_TOO_LARGE:
                    # The same text would be refused for ever.
                    raise TransactionError(_TOO_LONG) from None
                if not may_pass(error) or time.monotonic() > until:
                    raise _AbortError(error_text(cause)) from None
            else:
                raise _AbortError("the group's coordinator does not answer", is_stuck=True)

    def _note_committed(self) -> None:
        transaction, offsets = self._current, self._asked or []
        if transaction is not None:
            self._consumer.transaction_committed(transaction.messages, offsets)
        self._current, self._asked, self._aborts = None, None, 0

    def _abort(self, abort: _AbortError) -> None:
        """Abort the current transaction; its messages come again, as far as this consumer still has them."""
        logger.warning(
            "the transaction is aborted, and its messages come again: %s",
            abort.cause,
            extra={"event": "transaction-aborted"},
        )
        if abort.is_stuck or not self._is_aborted():
            self._renew()
        if self._current is not None:
            self._consumer.transaction_aborted(self._current.messages)
        self._current = self._asked = None

    def _is_aborted(self) -> bool:
        with suppress(KafkaException):
            return call_with_timeout(_CALL_S + 1, self._producer.abort_transaction, _CALL_S)
        return False

    def _settle(self) -> None:
        """Find out whether the transaction was committed whose commit did not say so."""
        transaction, asked = self._current, self._asked or []
        self._renew()
        if not asked:
            raise TransactionError(_UNKNOWN)
        try:
            found = self._consumer.committed([TopicPartition(tp.topic, tp.partition) for tp in asked], 30)
        except KafkaException as error:
            raise TransactionError(f"{_UNKNOWN}: {error_text(error.args[0])}") from error
        is_committed = any(
            tp.error is None and (tp.offset, tp.metadata) == (ours.offset, ours.metadata)
            for tp, ours in zip(found, asked, strict=True)
        )
        logger.warning(
            "the broker did not say whether a transaction was committed: by the group's offsets it %s",
            "was" if is_committed else "was not",
            extra={"event": "transaction-settled"},
        )
        if is_committed:
            self._note_committed()
        else:
            self._consumer.transaction_aborted([] if transaction is None else transaction.messages)
            self._current = self._asked = None

    # --- the producer --------------------------------------------------------------------------------------------

    def _made(self) -> Producer:
        with settings_refused(self._config, "producer"):
            producer = Producer(self._config)
        keep_in_children(self)
        return producer

    def _initialise(self) -> None:
        """Have the broker end earlier transactions of this ID; raises `TransactionError`."""
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self._producer.init_transactions(_CALL_S)
            except KafkaException as error:
                cause = error.args[0]
                if not self._config and cause.code() == KafkaError._STATE:  # noqa: SLF001 (its public name)
                    # Your Producer was used before, and may be in a transaction that an interruption left open.
                    with suppress(KafkaException):
                        self._producer.abort_transaction(_CALL_S)
                    return
                if not may_pass(error) or time.monotonic() > until:
                    raise TransactionError(
                        f"transactions cannot be used: {error_text(cause)}; check transactional.id, access rights and "
                        "the brokers"
                    ) from None
                self._consumer.consume(0)
            else:
                return

    def _renew(self) -> None:
        """Replace the producer: the new one ends the transaction of the old one. Not one of the application."""
        if not self._config:
            raise TransactionError(_USELESS if self._asked is None else _UNKNOWN)
        self._drop()
        self._producer = self._made()
        self._initialise()

    def _drop(self) -> None:
        """Forget what is not sent: the producer would wait for it."""
        with suppress(KafkaException):
            self._producer.purge()
            self._producer.poll(0)


def may_pass(error: KafkaException) -> bool:
    """Whether the same call may succeed later."""
    cause = error.args[0]
    return is_retriable(error) and not (cause.fatal() or cause.txn_requires_abort())


_UNKNOWN: Final = (
    "nobody can tell whether the transaction was committed; close the consumer and the producer: the next consumer "
    "begins where the group's offsets are"
)
_USELESS: Final = (
    "the transaction is not committed, and your Producer cannot abort it; close the consumer and the producer: the "
    "next consumer begins where the group's offsets are"
)
_TOO_LONG: Final = (
    "the broker refuses the text of the group's offsets; raise its offset.metadata.max.bytes to 4096, which is the "
    "default"
)
_NOT_INSIDE: Final = (
    "transactions() work in a block only: with consumer.transactions(...) as transactions: for transaction in "
    "transactions: ..."
)
_OF_THE_TRANSACTION: Final = frozenset({KafkaError._STATE, KafkaError._FATAL, KafkaError._FENCED})  # noqa: SLF001
"""Errors of a record that was refused because its transaction, or the producer, has failed."""
