"""One transaction after the other: begin, records, commit or abort, and what is to be done when its end is unknown.

    begin ─▶ put ... ─▶ commit: offsets, with their text ─▶ messages are completed

What holds it together:

- **A message is completed when its transaction is known to be committed**, not before: an ID that the store has belongs
  to a record that readers can see. A store that a crash left behind is caught up from the topic, up to the group's
  offset, as after any crash.
- **The member's metadata are taken before the messages are looked at for the last time**: right before the offsets are
  sent the rebalance callbacks run, and each message must be in hand still. Metadata that are taken later could be those
  of a member that has lost its partitions, and come back: with an equal epoch brokers do not look at partitions
  (KIP-1251). Nor do they look at the member if its ID is empty, as between a loss and its callback: such metadata are
  not used.
- **Until the commit is asked for, nothing is committed**: whatever fails before is an abort. From there on an error
  that does not say so leaves open whether it was. Then a new producer with the same ``transactional.id`` ends the
  transaction, so that nothing can change any more, and the group's committed offsets tell. A producer of the
  application cannot be replaced here, so that its unknown end is raised.
- **While brokers are away the group hears from the consumer**, between two tries of a step. After `DedupConsumer.stop`
  the steps of a transaction share one time limit: a service that is told to end waits less for a broker.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from dedup_sdk._interruptions import is_interruption
from dedup_sdk._kafka.client.settings import ClientSettings, admin_settings
from dedup_sdk._kafka.consumer import DedupConsumer
from dedup_sdk._kafka.deliver.in_hand import InHand
from dedup_sdk._masking import error_text
from dedup_sdk._transactions.producer import (
    FENCED,
    Record,
    TransactionalProducer,
    TransactionFailedError,
    may_pass,
)
from dedup_sdk._transactions.settings import TransactionSettings
from dedup_sdk.errors import TransactionError

logger = logging.getLogger("dedup_sdk")

_PATIENCE_S: Final = 60.0
"""Seconds for a step of a transaction, while brokers are away."""
PAUSE_S: Final = 0.1
"""Seconds before a transaction that was aborted is tried again; each further pause is twice as long."""
_LONGEST_PAUSE_S: Final = 5.0
_MOST_ABORTS: Final = 10
"""With the pauses between them, half a minute."""


class _AbortError(Exception):
    """The transaction must be aborted, and is surely not committed; the text is told in a log line."""


class _UnknownError(Exception):
    """Whether the transaction was committed is not known."""


class Committer:
    """The transactions of one consumer; for the thread that asks for messages.

    ``is_subscribed`` returns whether the consumer is a member of its group, ``is_stopped`` whether its loop is to end:
    from then on the steps of a transaction wait ``stop_limit_s`` seconds at most.
    """

    def __init__(
        self,
        consumer: DedupConsumer,
        in_hand: InHand,
        given: TransactionSettings,
        *,
        settings: ClientSettings,
        is_subscribed: Callable[[], bool],
        is_stopped: Callable[[], bool],
        stop_limit_s: float,
    ) -> None:
        self._releases = True
        """Whether the messages of an aborted transaction are released, to come again."""
        self._consumer, self._in_hand, self._is_subscribed = consumer, in_hand, is_subscribed
        self._is_stopped, self._stop_limit_s = is_stopped, stop_limit_s
        self._gives_up_at: float | None = None
        """When (monotonic seconds) no step is repeated any more, since `stop` was seen."""
        self._id_header = given.id_header
        producer = given.producer
        if isinstance(producer, Mapping):
            # A static member's own outlives its process: the next one ends the transaction of a killed one at once.
            member = settings.client.get("group.instance.id") or uuid.uuid4().hex
            own = {"transactional.id": f"{settings.group}-{member}", **producer}
            producer = {**admin_settings(settings.client), **own}
        self._producer = TransactionalProducer(producer, goes_on=self.goes_on, option="producer")
        self._messages: Sequence[Message] | None = None
        """The messages that end in the transaction under way; None without one."""
        self._member: object = None
        """The group's metadata, of the time when that began."""
        self._asked: list[TopicPartition] | None = None
        """Its offsets, from the moment when its commit is asked for."""
        self.failed: str | None = None
        """Why it can only be aborted, as far as a record that was refused has told."""
        self._began_at = 0.0
        """When (monotonic seconds) it began."""
        self._aborts = 0
        """Transactions that were aborted since the last commit."""
        self._given_up: TransactionError | None = None
        """The error of a transaction whose end could not be settled: to try again has no use."""

    @property
    def messages(self) -> Sequence[Message] | None:
        """The messages that end in the transaction under way; None without one."""
        return self._messages

    def log_in(self, username: str, password: str) -> None:
        """Use these credentials from the next login on, unless the producer is the application's."""
        self._producer.log_in(username, password)

    def open(self) -> None:
        """Make the producer, and begin to use it; behind `InHand.begin_explicit`."""
        self._producer.open()
        try:
            self._initialise()
            # The offsets that transactions commit here are ours: hidden records may be committed beside them.
            self._consumer.transaction_offsets([])
            self._consumer.transaction_aborted([])
        except KafkaException as error:
            if may_pass(error.args[0]):
                raise TransactionError(f"transactions cannot begin: {error_text(error.args[0])}") from None
            raise

    def can_end(self, messages: Sequence[Message]) -> list[Message]:
        """Return those of these messages that can end in one transaction: see `InHand.can_end`."""
        return self._in_hand.can_end(messages)

    def keep_messages(self) -> None:
        """Release no messages of aborted transactions: the caller tries them again."""
        self._releases = False

    def close(self) -> None:
        """End; a transaction whose end nobody knows keeps its messages, which nothing may complete."""
        if self._messages is not None:
            self._in_hand.take_out_all(self._messages)
        self._producer.close()

    # --- a transaction -------------------------------------------------------------------------------------------

    def begin(self, messages: Sequence[Message]) -> None:
        """Begin a transaction in which these messages end; more may be added until `commit`."""
        # Each one has the whole time behind a stop: the handlers of a run may have needed that of the one before.
        self._gives_up_at = None
        self._member, self.failed = self._member_now(), None
        try:
            self._producer.begin(time.monotonic())
        except TransactionFailedError:
            # It has failed for good, e.g. because another process had its ID meanwhile.
            self._renew()
            self._producer.begin(time.monotonic())
        self._messages, self._began_at = messages, time.monotonic()

    def _member_now(self) -> object:
        """Return the group's metadata: of a member, if the consumer is subscribed."""
        until = time.monotonic() + _PATIENCE_S
        while True:
            metadata = self._consumer.consumer_group_metadata()
            # In this order: a member that has an ID now had it before.
            if not self._is_subscribed() or self._consumer.memberid():
                return metadata
            if time.monotonic() > until or not self.goes_on():
                raise TransactionError(
                    "the group does not let this consumer in again; close it, and start again"
                )
            time.sleep(PAUSE_S)

    def output_header(self, message: Message, place: int) -> tuple[str, str] | None:
        """Return the header for the ID of the record that is produced at this place for a message."""
        if self._id_header is None:
            return None
        # With the partition: the same ID in another one is another message.
        partition = f"{message.topic()}-{message.partition()}"
        return self._id_header, f"{partition}-{self._in_hand.output_id(message) or message.offset()}-{place}"

    def put(self, record: Record) -> None:
        """Produce a record; raises `KafkaException` for one that the client refuses."""
        try:
            self._producer.put(record, patience_s=_PATIENCE_S)
        except TransactionFailedError as failed:
            # No error of this record: the transaction is aborted, as after any other failure.
            self.failed = self.failed or self._cause(failed)

    def commit(self) -> bool:
        """Commit, and complete the messages; return whether that was done, else the transaction is aborted.

        Raises `TransactionError` if nobody can tell, or if it has failed too often.
        """
        messages = self._messages
        if messages is None:
            raise AssertionError("no transaction is under way")
        try:
            return self._is_committed(messages)
        except TransactionError as error:
            self._given_up = error
            raise

    def leave(self, error: BaseException) -> None:
        """Abort after an exception; an error of that is logged, so that it does not hide the first."""
        if error is self._given_up:
            if self._asked is None and self._messages is not None:
                # Surely not committed: readers need not wait until the transaction times out.
                self._producer.abort()
            return
        if is_interruption(error):
            # A message may be in no place.
            self._in_hand.open_again()
        try:
            if self._asked is not None:
                self._settle()
            elif self._messages is not None:
                self._abort(_AbortError(f"an exception: {type(error).__name__}"))
        except Exception as failure:
            logger.error(  # noqa: TRY400 (our own error has said all)
                "the transaction could not be aborted; close the consumer: the next one begins where the group's "
                "offsets are",
                exc_info=not isinstance(failure, TransactionError),
                extra={"event": "transaction-not-aborted"},
            )

    def _is_committed(self, messages: Sequence[Message]) -> bool:
        try:
            self._commit(messages)
        except _AbortError as abort:
            self._abort(abort)
            self._aborts += 1
            if self._aborts == _MOST_ABORTS:
                raise TransactionError(
                    f"{_MOST_ABORTS} transactions in a row were aborted, the last one because of: {abort}; their "
                    "messages come again with the next start"
                ) from None
            self._pause(min(PAUSE_S * 2 ** (self._aborts - 1), _LONGEST_PAUSE_S))
            return False
        except _UnknownError:
            return self._settle()
        self._note_committed()
        return True

    def _commit(self, messages: Sequence[Message]) -> None:
        if self.failed:
            raise _AbortError(self.failed)
        until = time.monotonic() + _PATIENCE_S
        try:
            self._producer.flush(until)
            self._asked = self._send_offsets(messages, until)
            self._producer.commit(until)
        except TransactionFailedError as failed:
            if failed.error.code() == KafkaError.OFFSET_METADATA_TOO_LARGE:
                # The same text would be refused for ever.
                raise TransactionError(_TOO_LONG) from None
            if failed.may_be_committed:
                raise _UnknownError from None
            raise _AbortError(self._cause(failed)) from None

    def _cause(self, failed: TransactionFailedError) -> str:
        """Return why a transaction failed: the client names another producer also where it took too long."""
        limit_s, took_s = self._producer.limit_s, time.monotonic() - self._began_at
        if failed.error.code() not in FENCED or (limit_s is not None and took_s < limit_s):
            return _told(failed)
        if limit_s is None:
            return (
                f"{_told(failed)}, or the transaction, which took {took_s:.1f} s, has taken longer than the "
                "transaction.timeout.ms of your Producer"
            )
        return (
            f"it took {took_s:.1f} s, and the broker ends a transaction after {limit_s:g} s (transaction.timeout.ms); "
            "give fewer max_messages, or raise that setting of the producer"
        )

    def _send_offsets(self, messages: Sequence[Message], until: float) -> list[TopicPartition]:
        """Send the offsets of the transaction, if they have anything new; return them."""
        while True:
            try:
                # Callbacks of rebalances run here, and whoever has lost a message sees that.
                offsets = self._consumer.transaction_offsets(messages)
                self._producer.send_offsets(offsets, self._member)
            except TransactionError as error:
                raise _AbortError(str(error)) from None
            except KafkaException as error:
                # A commit before has no answer yet.
                if not may_pass(error.args[0]) or time.monotonic() > until or not self.goes_on():
                    raise _AbortError(error_text(error.args[0])) from None
            except TransactionFailedError as failed:
                is_over = self._producer.is_stuck or not may_pass(failed.error) or time.monotonic() > until
                if is_over or not self.goes_on():
                    raise
            else:
                return offsets

    def _note_committed(self) -> None:
        self._consumer.transaction_committed(self._messages or (), self._asked or [])
        self._messages, self._asked, self._aborts = None, None, 0

    def _abort(self, abort: _AbortError) -> None:
        """Abort the transaction; released messages come again, as far as this consumer still has them."""
        logger.warning(
            "the transaction is aborted, and its messages come again: %s",
            abort,
            extra={"event": "transaction-aborted"},
        )
        if not self._producer.abort():
            self._renew()
        self._note_aborted()

    def _note_aborted(self) -> None:
        self._consumer.transaction_aborted((self._messages or ()) if self._releases else ())
        self._messages = self._asked = None

    def _settle(self) -> bool:
        """Find out whether the transaction was committed whose commit did not say so.

        Only partitions prove it in which one of its messages ends: an offset with a text that has the message was never
        the group's before. For others the group may have had the same since an earlier transaction.
        """
        ended = {(message.topic(), message.partition()) for message in self._messages or ()}
        asked = [tp for tp in self._asked or () if (tp.topic, tp.partition) in ended]
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
            self._note_aborted()
        return is_committed

    # --- the producer --------------------------------------------------------------------------------------------

    def _pause(self, seconds: float) -> None:
        """Wait; callbacks of rebalances run meanwhile."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0 and self.goes_on():
            time.sleep(min(left_s, PAUSE_S))

    def goes_on(self) -> bool:
        """Let the group hear from the consumer; return whether to wait on, which a stop ends."""
        self._consumer.consume(0)
        if self._is_stopped() and self._gives_up_at is None:
            self._gives_up_at = time.monotonic() + self._stop_limit_s
        return self._gives_up_at is None or time.monotonic() < self._gives_up_at

    def _initialise(self) -> None:
        """Have the broker end earlier transactions of this ID; raises `TransactionError`."""
        with _refused():
            try:
                self._producer.initialise(time.monotonic() + _PATIENCE_S)
            except TransactionFailedError as failed:
                if self._producer.is_ours or failed.error.code() != KafkaError._STATE:  # noqa: SLF001 (its public name)
                    raise
                # Your Producer was used before, and may be in a transaction that an interruption left open.
                self._producer.abort()

    def _renew(self) -> None:
        """Replace the producer: the new one ends the transaction of the old one. Not one of the application."""
        if not self._producer.is_ours:
            raise TransactionError(_USELESS if self._asked is None else _UNKNOWN)
        with _refused():
            self._producer.renew(time.monotonic() + _PATIENCE_S)


@contextmanager
def _refused() -> Generator[None]:
    try:
        yield
    except TransactionFailedError as failed:
        raise TransactionError(
            f"transactions cannot be used: {_told(failed)}; check transactional.id, access rights and the brokers"
        ) from None


def _told(failed: TransactionFailedError) -> str:
    """The cause of a failed transaction, for people."""
    return f"{'a record was not written: ' if failed.is_of_a_record else ''}{error_text(failed)}"


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
