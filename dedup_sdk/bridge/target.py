"""The end that records go to: a producer, and the transaction in which a batch is written whole or not at all."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple, NoReturn

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from dedup_sdk.bridge.settings import TargetSettings
from dedup_sdk.bridge.topics import Topics
from dedup_sdk.errors import BridgeError
from dedup_sdk.inherited import keep_in_children
from dedup_sdk.kafka.passing import passes
from dedup_sdk.kafka.refusals import settings_refused, text_of
from dedup_sdk.kafka.within import within
from dedup_sdk.producer.failures import fate

log = logging.getLogger("dedup_sdk")

Transactions = Literal["auto", "always", "never"]
START_S: Final = 30.0
"""Seconds that an end may take to answer when a bridge starts."""
_ATTEMPT_S: Final = 60.0
"""Seconds for one batch: a group puts a member out that is silent for long."""
_STEP_S: Final = 0.5
_CALL_S: Final = 5.0
_OFFSETS_S: Final = 2.0
_LEAST_BATCH_BYTES: Final = 1_000
_MOST_BATCH_BYTES: Final = 1_000_000
_NOT_ALLOWED: Final = frozenset({
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.UNSUPPORTED_VERSION,
    KafkaError._UNSUPPORTED_FEATURE, KafkaError.INVALID_TRANSACTION_TIMEOUT,  # noqa: SLF001 (that is its public name)
})  # fmt: skip
_OF_A_RECORD: Final = frozenset({
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP, KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT, KafkaError.POLICY_VIOLATION,
})  # fmt: skip
"""What the target may say of a record for what it is. Whatever else it refuses it would refuse of all: to leave that out would be to lose them."""
_SIZES: Final = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE}
)
_NOT_HEARD_OF: Final = frozenset({KafkaError._UNKNOWN_PARTITION})  # noqa: SLF001 (as above)
_SILENT: Final = KafkaError._TIMED_OUT  # noqa: SLF001 (as above)
_DONE_FOR: Final = KafkaError(KafkaError._FATAL, "the producer has failed for good", fatal=True)  # noqa: SLF001 (as above)
_FENCED: Final = frozenset({
    KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH,  # noqa: SLF001 (as above)
})  # fmt: skip


class Copy(NamedTuple):
    """A record as it goes to the target; ``partition`` -1: where the client puts its key."""

    message: Any
    topic: str
    partition: int
    key: bytes | None
    headers: Sequence[tuple[str, bytes | None]] | None


class Commit(NamedTuple):
    """What the group has read when a batch is written, as part of its transaction."""

    offsets: list[TopicPartition]
    member: object


class FailedError(Exception):
    """A batch was not written, and may be later; ``error`` says why. Whether its transaction was committed may be unknown."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(error.str())
        self.error = error


class DoubtfulError(FailedError):
    """A batch was not written because of some of its records: written one by one they will show."""

    @property
    def is_size(self) -> bool:
        """Whether it was too large: it may be that only as a whole."""
        return self.error.code() in _SIZES


class RefusedError(Exception):
    """The target will not take a record as it is."""

    def __init__(self, message: Any, error: KafkaError) -> None:
        super().__init__(error.str())
        self.message, self.error = message, error


class Target:
    """Writes batches.

    Args:
        settings: see `TargetSettings`.
        is_ending: whether the bridge was asked to end: nothing is waited for then.
    """

    def __init__(self, settings: TargetSettings, is_ending: Callable[[], bool]) -> None:
        self._settings, self._is_ending = settings, is_ending
        self._transactional_id = settings.transactional_id or f"dedup-bridge-{uuid.uuid4().hex}"
        with settings_refused(settings.client, "--to"):
            # It only asks: it needs no number of a producer's, which a cluster may refuse.
            self._asker = Producer({**settings.client, "enable.idempotence": False})
        keep_in_children(self)
        self._producer = self._asker
        self._errors: list[KafkaError] = []
        self._batch_bytes = _MOST_BATCH_BYTES
        self._is_stuck = False
        """Whether a call of the producer's did not come back: the next one of its ID ends what it began."""
        self.topics = Topics(self._asker.list_topics)
        self.is_transactional = False
        self.scatters_empty_keys = settings.scatters_empty_keys

    def cluster_id(self) -> str:
        """Return the cluster's ID; raises `KafkaException`."""
        return self._asker.list_topics(timeout=_CALL_S).cluster_id or ""

    def open(self, transactions: Transactions) -> str:
        """Make the producer; return why it is one without transactions where they were to be chosen, else "".

        Raises `BridgeError` where they are wanted, and the target does not allow them, or nobody answers.
        """
        self.is_transactional = transactions != "never"
        try:
            self._make()
        except FailedError as failed:
            if self._is_ending():
                return ""
            if failed.error.code() not in _NOT_ALLOWED:
                raise BridgeError(
                    f"the target's transactions cannot be used: {failed}; see to its transaction coordinator, or give --transactions never"
                ) from None
            if transactions == "always":
                raise BridgeError(
                    f"the target does not allow transactions: {failed}; allow them, or give --transactions auto"
                ) from None
            self.is_transactional = False
            self._make()
            return str(failed)
        return ""

    def write(self, copies: Iterable[Copy], commit: Commit | None, *, singly: bool) -> None:
        """Write a batch, with the offsets in its transaction; return when the target has it.

        ``singly``: record by record, so that one that is refused is known. Raises `FailedError` and `RefusedError`: nothing was written, or
        `abandon` sees to it.
        """
        self._errors.clear()
        try:
            self._write(copies, commit, time.monotonic() + _ATTEMPT_S, singly=singly)
        except KafkaException as error:
            # A producer that has failed for good says so from any call.
            raise FailedError(error.args[0]) from None
        except SystemError as error:
            # The same, where the client goes on to delivery reports with its exception set.
            cause = error.__cause__
            raise FailedError(cause.args[0] if isinstance(cause, KafkaException) else _DONE_FOR) from None

    def _write(self, copies: Iterable[Copy], commit: Commit | None, until: float, *, singly: bool) -> None:
        if self.is_transactional:
            self._steadily(self._producer.begin_transaction, until)
        for copy in copies:
            self._put(copy, until)
            if singly:
                try:
                    self._flush(until)
                except DoubtfulError as doubtful:
                    raise RefusedError(copy.message, doubtful.error) from None
        self._flush(until)
        if not self.is_transactional:
            return
        # Once: while the group rebalances they are not taken, and it waits for a member that only retries and does not poll.
        if commit is not None and not within(
            _OFFSETS_S + _STEP_S, self._send_offsets, self._producer, commit
        ):
            self._is_stuck = True
            raise FailedError(KafkaError(_SILENT, "the group's coordinator does not answer"))
        self._steadily(lambda: self._producer.commit_transaction(_CALL_S), until)

    @staticmethod
    def _send_offsets(producer: Producer, commit: Commit) -> None:
        producer.send_offsets_to_transaction(commit.offsets, commit.member, _OFFSETS_S)

    def abandon(self, failed: FailedError | RefusedError) -> None:
        """End what `write` left open, so that nobody sees it; raises `FailedError` while that is not certain, `BridgeError` when fenced for good."""
        error = failed.error
        if self._settings.transactional_id and error.code() in _FENCED:
            raise BridgeError(
                f"transactional.id={self._settings.transactional_id!r} was taken by another producer, or its transaction ran out of time: "
                f"{failed}; give each bridge an ID of its own"
            )
        if self.is_transactional and not error.fatal() and not self._is_stuck:
            try:
                self._producer.abort_transaction(_CALL_S)
            except (KafkaException, SystemError):
                pass  # in the middle of a commit, or fenced: the next producer of this ID ends it
            else:
                return
        self._renew()

    def shrink(self) -> None:
        """Have fewer records go in one request: a topic may take records that it does not take together."""
        if self._batch_bytes > _LEAST_BATCH_BYTES:
            self._batch_bytes = max(_LEAST_BATCH_BYTES, self._batch_bytes // 10)
            log.info("bridge: the target takes less at once; batch.size is %d bytes now", self._batch_bytes)
            # If it cannot be made now, the next batch fails and makes it.
            with suppress(FailedError):
                self._renew()

    def close(self) -> None:
        """End; what was not written whole is not seen by anybody who reads what is committed."""
        if self.is_transactional and self._producer is not self._asker and not self._is_stuck:
            # Else those who read what is committed would wait for its end.
            with suppress(KafkaException, SystemError):
                self._producer.abort_transaction(_CALL_S)
        self._drop()

    def _make(self) -> None:
        config = {
            **self._settings.client,
            "delivery.report.only.error": True,
            "on_delivery": self._delivered,
        }
        if self._batch_bytes < _MOST_BATCH_BYTES:
            config["batch.size"] = self._batch_bytes
        if self.is_transactional:
            config["transactional.id"] = self._transactional_id
        with settings_refused(config, "--to"):
            self._producer = Producer(config)
        self._is_stuck = False
        if self.is_transactional:
            producer = self._producer
            self._steadily(lambda: producer.init_transactions(_CALL_S), time.monotonic() + START_S)

    def _renew(self) -> None:
        self._drop()
        self._make()

    def _drop(self) -> None:
        """Have the producer send no more: what it still has would hold up its end."""
        self._producer.purge()
        with suppress(KafkaException, SystemError):
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self._errors.append(error)

    def _put(self, copy: Copy, until: float) -> None:
        message = copy.message
        kind, timestamp_ms = message.timestamp()
        while True:
            try:
                self._producer.produce(
                    copy.topic, message.value(), copy.key, copy.partition, timestamp=max(0, timestamp_ms) if kind else 0,
                    headers=copy.headers,  # type: ignore[arg-type]  # a list of pairs, or None
                )  # fmt: skip
            except BufferError:
                self._check_time(until)
                self._producer.poll(_STEP_S)
            except KafkaException as error:
                if error.args[0].code() in _OF_A_RECORD:
                    raise RefusedError(message, error.args[0]) from None
                self._raise(error.args[0])
            else:
                return

    def _flush(self, until: float) -> None:
        left = 1
        while left:
            left = self._producer.flush(_STEP_S)
            if self._errors:
                ill = [error for error in self._errors if error.code() in _OF_A_RECORD]
                self._raise((ill or self._errors)[0])
            if left:
                self._check_time(until)

    @staticmethod
    def _raise(error: KafkaError) -> NoReturn:
        if error.code() in _OF_A_RECORD:
            raise DoubtfulError(error)
        if fate(error) == "refused" and error.code() not in _NOT_HEARD_OF:
            raise BridgeError(
                f"the target does not take records: {error.str()}; see that its topics are there, and that the bridge may write them"
            )
        raise FailedError(error)

    def _check_time(self, until: float) -> None:
        if self._is_ending() or time.monotonic() > until:
            raise FailedError(KafkaError(_SILENT, "the target does not confirm"))

    def _steadily(self, step: Callable[[], object], until: float) -> None:
        """Take a step of a transaction, again while the broker is away."""
        while True:
            try:
                step()
            except KafkaException as error:
                cause = error.args[0]
                if not passes(error) or cause.fatal() or cause.txn_requires_abort():
                    raise FailedError(cause) from None
                log.debug("bridge: %s; asked again", text_of(error))
                if self._is_ending() or time.monotonic() > until:
                    raise FailedError(cause) from None
            else:
                return
