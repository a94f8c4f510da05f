"""The target of a bridge: its topics, and a producer whose batches are transactions, where the target allows that."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple, NoReturn

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.cimpl import Producer

from dedup_sdk._fork_safety import keep_in_children
from dedup_sdk._kafka.client.client_errors import settings_refused
from dedup_sdk._kafka.client.settings import other_client
from dedup_sdk._masking import shown
from dedup_sdk._transactions.producer import (
    CALL_S,
    FENCED,
    RECORD_REFUSALS,
    TransactionalProducer,
    TransactionFailedError,
)
from dedup_sdk.bridge._routes import PartitionCounts
from dedup_sdk.bridge._settings import TargetSettings
from dedup_sdk.errors import BridgeError
from dedup_sdk.producer._client_adapter import outcome_of

log = logging.getLogger("dedup_sdk")

Transactions = Literal["auto", "always", "never"]
START_S: Final = 30.0
"""Seconds that source and target may take to answer at the start."""
_ATTEMPT_S: Final = 60.0
"""Seconds for one batch: a group removes a member that does not poll for long."""
_OPTION: Final = "--to-client-config"
_LEAST_BATCH_BYTES: Final = 1_000
_MOST_BATCH_BYTES: Final = 1_000_000
_TRANSACTION_REFUSALS: Final = frozenset({
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError._UNSUPPORTED_FEATURE, KafkaError.INVALID_TRANSACTION_TIMEOUT,  # noqa: SLF001 (that is its public name)
})  # fmt: skip
_SIZE_ERRORS: Final = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE}
)
_UNKNOWN_PARTITION: Final = frozenset({KafkaError._UNKNOWN_PARTITION})  # noqa: SLF001 (as above)


class Copy(NamedTuple):
    """A record for the target; ``partition`` -1: the client chooses it by the key."""

    message: Any
    topic: str
    partition: int
    key: bytes | None
    headers: Sequence[tuple[str, bytes | None]] | None


class Commit(NamedTuple):
    """The group's offsets after a batch, to be part of its transaction."""

    offsets: list[TopicPartition]
    member: object


class BatchFailedError(Exception):
    """A batch was not written, and is retried; whether its transaction was committed may be unknown."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(error.str())
        self.error = error


class RecordsRefusedError(BatchFailedError):
    """A batch was refused because of some of its records; they are found by writing the records one by one."""

    @property
    def is_too_large(self) -> bool:
        """Whether the reason is size; perhaps only the request was too large."""
        return self.error.code() in _SIZE_ERRORS


class RecordRefusedError(Exception):
    """The target refuses one record as it is."""

    def __init__(self, message: Any, error: KafkaError) -> None:
        super().__init__(error.str())
        self.message, self.error = message, error


class Target:
    """Writes batches.

    Args:
        settings: see `TargetSettings`.
        is_ending: returns whether the bridge was stopped: then no call waits.
    """

    def __init__(self, settings: TargetSettings, is_ending: Callable[[], bool]) -> None:
        self._settings, self._is_ending = settings, is_ending
        self._transactional_id = settings.transactional_id or f"dedup-bridge-{uuid.uuid4().hex}"
        with settings_refused(settings.client, _OPTION):
            # It only reads metadata, so that it needs no producer ID, which a cluster may refuse.
            self._metadata_client = Producer({**other_client(settings.client), "enable.idempotence": False})
        keep_in_children(self)
        self._producer: TransactionalProducer | None = None
        self._batch_bytes = _MOST_BATCH_BYTES
        self.topics = PartitionCounts(self._metadata_client.list_topics)
        self.is_transactional = False
        self.scatters_empty_keys = settings.scatters_empty_keys

    def cluster_id(self) -> str:
        """Return the cluster's ID; raises `KafkaException`."""
        return self._metadata_client.list_topics(timeout=CALL_S).cluster_id or ""

    def open(self, transactions: Transactions) -> str:
        """Make the producer; with ``auto``, return why it has no transactions, else "".

        Raises `BridgeError` where transactions are required and not allowed, or the coordinator does not answer.
        """
        self.is_transactional = transactions != "never"
        try:
            self._open()
        except TransactionFailedError as failed:
            if self._is_ending():
                return ""
            if failed.error.code() not in _TRANSACTION_REFUSALS:
                raise BridgeError(
                    f"the target's transactions cannot be used: {failed}; check its transaction "
                    "coordinator, or give --transactions never"
                ) from None
            if transactions == "always":
                raise BridgeError(
                    f"the target does not allow transactions: {failed}; allow them, or give --transactions auto"
                ) from None
            self.is_transactional = False
            self._open()
            return str(failed)
        return ""

    def _open(self) -> None:
        config = dict(self._settings.client)
        if self.is_transactional:
            config["transactional.id"] = self._transactional_id
        self._drop()
        self._producer = TransactionalProducer(config, goes_on=lambda: not self._is_ending(), option=_OPTION)
        self._producer.open()
        if self.is_transactional:
            self._producer.initialise(time.monotonic() + START_S)

    def write(self, copies: Iterable[Copy], commit: Commit | None, *, one_by_one: bool) -> None:
        """Write a batch, with the offsets in its transaction; return when the target has confirmed it.

        ``one_by_one``: wait for each record, so that a refused one is found. Raises `BatchFailedError` and
        `RecordRefusedError`; then you must call `abort_batch`, so that no part of the batch becomes
        visible.
        """
        producer = self._opened
        until = time.monotonic() + _ATTEMPT_S
        try:
            if self.is_transactional:
                producer.begin(until)
            else:
                producer.forget_errors()
            self._put(copies, producer, until, one_by_one=one_by_one)
            producer.flush(until)
            if not self.is_transactional:
                return
            if commit is not None:
                # Once: during a rebalance the group refuses offsets, and waits for a member that would retry
                # instead of polling.
                producer.send_offsets(commit.offsets, commit.member)
            producer.commit(until)
        except TransactionFailedError as failed:
            if failed.is_of_a_record:
                self._raise(failed.error)
            raise BatchFailedError(failed.error) from None

    @property
    def _opened(self) -> TransactionalProducer:
        if self._producer is None:
            raise AssertionError("the target was not opened")
        return self._producer

    def _put(
        self, copies: Iterable[Copy], producer: TransactionalProducer, until: float, *, one_by_one: bool
    ) -> None:
        for copy in copies:
            kind, timestamp_ms = copy.message.timestamp()
            sent_ms = max(0, timestamp_ms) if kind else 0
            value, headers = copy.message.value(), copy.headers
            record = (copy.topic, value, copy.key, copy.partition, None, None, sent_ms, headers)
            try:
                producer.put(record, patience_s=until - time.monotonic())
            except KafkaException as error:
                if error.args[0].code() in RECORD_REFUSALS:
                    raise RecordRefusedError(copy.message, error.args[0]) from None
                self._raise(error.args[0])
            if one_by_one:
                try:
                    producer.flush(until)
                except TransactionFailedError as failed:
                    if failed.error.code() in RECORD_REFUSALS:
                        raise RecordRefusedError(copy.message, failed.error) from None
                    raise

    @staticmethod
    def _raise(error: KafkaError) -> NoReturn:
        """Raise the error of a record."""
        if error.code() in RECORD_REFUSALS:
            raise RecordsRefusedError(error)
        # With another error the target refuses all records, so that skipping would lose them.
        if outcome_of(error) == "refused" and error.code() not in _UNKNOWN_PARTITION:
            raise BridgeError(
                f"the target refuses records: {error.str()}; check that its topics exist, and that the "
                "bridge may write them"
            )
        raise BatchFailedError(error)

    def abort_batch(self, failed: BatchFailedError | RecordRefusedError) -> None:
        """Abort the transaction of a failed `write`.

        Raises `BatchFailedError` while that is not certain, `BridgeError` when the producer is fenced.
        """
        error = failed.error
        if self._settings.transactional_id and error.code() in FENCED:
            raise BridgeError(
                f"transactional.id={shown(self._settings.transactional_id)} was taken by another producer, or its "
                f"transaction timed out: {failed}; give each bridge an ID of its own"
            )
        if not (self.is_transactional and not error.fatal() and self._opened.abort()):
            self._renew()

    def serve(self) -> None:
        """Have the clients write their log lines and tell their events, which they do only when polled."""
        self._metadata_client.poll(0)
        self._opened.serve()

    def shrink(self) -> None:
        """Send smaller requests: a topic may accept records one by one that it refuses together."""
        if self._batch_bytes > _LEAST_BATCH_BYTES:
            self._batch_bytes = max(_LEAST_BATCH_BYTES, self._batch_bytes // 10)
            log.info(
                "bridge: the target refuses large requests; batch.size is %d bytes now",
                self._batch_bytes,
                extra={"event": "bridge-smaller-batches"},
            )
            self._opened.change({"batch.size": self._batch_bytes})
            # If no producer can be made now, the next batch fails and makes one.
            with suppress(BatchFailedError):
                self._renew()

    def close(self) -> None:
        """Abort an open transaction, and stop sending."""
        if self._producer is not None and self.is_transactional:
            # Else readers of committed records would wait until it times out.
            self._producer.abort()
        self._drop()

    def _renew(self) -> None:
        try:
            self._opened.renew(time.monotonic() + START_S)
        except TransactionFailedError as failed:
            raise BatchFailedError(failed.error) from None

    def _drop(self) -> None:
        if self._producer is not None:
            self._producer.close()
