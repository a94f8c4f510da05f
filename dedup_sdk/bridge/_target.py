"""The target of a bridge: a producer, and the transaction that makes a batch atomic.

While a call that sends offsets does not return, the bridge does not poll, and the group's rebalance waits.
So such a call has a time limit, after which it is abandoned (`dedup_sdk._kafka.closing.call_with_timeout`);
the next producer with the same ``transactional.id`` ends the transaction.
"""

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
from dedup_sdk._kafka.client_errors import is_retriable, settings_refused, text_of
from dedup_sdk._kafka.closing import call_with_timeout
from dedup_sdk._kafka.settings import other_client
from dedup_sdk._masking import shown
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
_STEP_S: Final = 0.5
CALL_S: Final = 5.0
"""Seconds that a call of the target may take."""
OFFSETS_S: Final = 2.0
"""Seconds for adding the offsets of a batch to its transaction."""
_LEAST_BATCH_BYTES: Final = 1_000
_MOST_BATCH_BYTES: Final = 1_000_000
_TRANSACTION_REFUSALS: Final = frozenset({
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError._UNSUPPORTED_FEATURE, KafkaError.INVALID_TRANSACTION_TIMEOUT,  # noqa: SLF001 (that is its public name)
})  # fmt: skip
_RECORD_REFUSALS: Final = frozenset({
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP, KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError.POLICY_VIOLATION,
})  # fmt: skip
"""Errors of a single record. With any other error the target refuses all records, so that skipping would lose them."""
_SIZE_ERRORS: Final = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE}
)
_UNKNOWN_PARTITION: Final = frozenset({KafkaError._UNKNOWN_PARTITION})  # noqa: SLF001 (as above)
_SILENT: Final = KafkaError._TIMED_OUT  # noqa: SLF001 (as above)
_FATAL_ERROR: Final = KafkaError(
    KafkaError._FATAL,  # noqa: SLF001 (as above)
    "the producer has failed with a fatal error",
    fatal=True,
)
_FENCED: Final = frozenset({
    KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH,  # noqa: SLF001 (as above)
})  # fmt: skip


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
        with settings_refused(settings.client, "--to-client-config"):
            # It only reads metadata, so that it needs no producer ID, which a cluster may refuse.
            self._metadata_client = Producer({**other_client(settings.client), "enable.idempotence": False})
        keep_in_children(self)
        self._producer = self._metadata_client
        self._errors: list[KafkaError] = []
        self._batch_bytes = _MOST_BATCH_BYTES
        self._is_stuck = False
        """Whether a call of the producer hangs: the next producer of the same transactional ID ends its transaction."""
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
            self._make()
        except BatchFailedError as failed:
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
            self._make()
            return str(failed)
        return ""

    def write(self, copies: Iterable[Copy], commit: Commit | None, *, one_by_one: bool) -> None:
        """Write a batch, with the offsets in its transaction; return when the target has confirmed it.

        ``one_by_one``: wait for each record, so that a refused one is found. Raises `BatchFailedError` and
        `RecordRefusedError`; then you must call `abort_batch`, so that no part of the batch becomes
        visible.
        """
        self._errors.clear()
        try:
            self._write(copies, commit, time.monotonic() + _ATTEMPT_S, one_by_one=one_by_one)
        except KafkaException as error:
            # After a fatal error any call raises it.
            raise BatchFailedError(error.args[0]) from None
        except SystemError as error:
            # The same, if the client calls delivery callbacks while its exception is set.
            raise BatchFailedError(self._hidden_behind(error)) from None

    def _hidden_behind(self, error: SystemError) -> KafkaError:
        """Return the client's fatal error behind an error of the interpreter, which may have swallowed it."""
        hidden: BaseException | None = error
        while hidden is not None and not isinstance(hidden, KafkaException):
            hidden = hidden.__cause__ or hidden.__context__
        if hidden is None and self.is_transactional:
            try:
                # Each call about a transaction tells the fatal error again, with its own code.
                self._producer.begin_transaction()
            except KafkaException as again:
                hidden = again if again.args[0].fatal() else None
        return _FATAL_ERROR if hidden is None else hidden.args[0]

    def _write(
        self, copies: Iterable[Copy], commit: Commit | None, until: float, *, one_by_one: bool
    ) -> None:
        if self.is_transactional:
            self._with_retries(self._producer.begin_transaction, until)
        for copy in copies:
            self._put(copy, until)
            if one_by_one:
                try:
                    self._flush(until)
                except RecordsRefusedError as refused:
                    raise RecordRefusedError(copy.message, refused.error) from None
        self._flush(until)
        if not self.is_transactional:
            return
        # Once: during a rebalance the group refuses offsets, and waits for a member that would retry
        # instead of polling.
        if commit is not None and not call_with_timeout(
            OFFSETS_S + _STEP_S, self._send_offsets, self._producer, commit
        ):
            self._is_stuck = True
            raise BatchFailedError(KafkaError(_SILENT, "the group's coordinator does not answer"))
        self._with_retries(lambda: self._producer.commit_transaction(CALL_S), until)

    @staticmethod
    def _send_offsets(producer: Producer, commit: Commit) -> None:
        producer.send_offsets_to_transaction(commit.offsets, commit.member, OFFSETS_S)

    def abort_batch(self, failed: BatchFailedError | RecordRefusedError) -> None:
        """Abort the transaction of a failed `write`.

        Raises `BatchFailedError` while that is not certain, `BridgeError` when the producer is fenced.
        """
        error = failed.error
        if self._settings.transactional_id and error.code() in _FENCED:
            raise BridgeError(
                f"transactional.id={shown(self._settings.transactional_id)} was taken by another producer, or its "
                f"transaction timed out: {failed}; give each bridge an ID of its own"
            )
        if self.is_transactional and not error.fatal() and not self._is_stuck:
            try:
                self._producer.abort_transaction(CALL_S)
            except (KafkaException, SystemError):
                pass  # during a commit, or fenced: the next producer of this ID ends the transaction
            else:
                return
        self._renew()

    def serve(self) -> None:
        """Have the clients write their log lines and tell their events, which they do only when polled."""
        for client in {self._metadata_client, self._producer}:
            client.poll(0)

    def shrink(self) -> None:
        """Send smaller requests: a topic may accept records one by one that it refuses together."""
        if self._batch_bytes > _LEAST_BATCH_BYTES:
            self._batch_bytes = max(_LEAST_BATCH_BYTES, self._batch_bytes // 10)
            log.info(
                "bridge: the target refuses large requests; batch.size is %d bytes now",
                self._batch_bytes,
                extra={"event": "bridge-smaller-batches"},
            )
            # If no producer can be made now, the next batch fails and makes one.
            with suppress(BatchFailedError):
                self._renew()

    def close(self) -> None:
        """Abort an open transaction, and stop sending."""
        if self.is_transactional and self._producer is not self._metadata_client and not self._is_stuck:
            # Else readers of committed records would wait until it times out.
            with suppress(KafkaException, SystemError):
                self._producer.abort_transaction(CALL_S)
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
        with settings_refused(config, "--to-client-config"):
            self._producer = Producer(config)
        self._is_stuck = False
        if self.is_transactional:
            producer = self._producer
            self._with_retries(lambda: producer.init_transactions(CALL_S), time.monotonic() + START_S)

    def _renew(self) -> None:
        self._drop()
        self._make()

    def _drop(self) -> None:
        """Purge the producer: it would wait for its remaining messages."""
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
                    copy.topic, message.value(), copy.key, copy.partition,
                    timestamp=max(0, timestamp_ms) if kind else 0,
                    headers=copy.headers,  # type: ignore[arg-type]  # a list of pairs, or None
                )  # fmt: skip
            except BufferError:
                self._check_time(until)
                self._producer.poll(_STEP_S)
            except KafkaException as error:
                if error.args[0].code() in _RECORD_REFUSALS:
                    raise RecordRefusedError(message, error.args[0]) from None
                self._raise(error.args[0])
            else:
                return

    def _flush(self, until: float) -> None:
        left = 1
        while left:
            left = self._producer.flush(_STEP_S)
            if self._errors:
                record_errors = [error for error in self._errors if error.code() in _RECORD_REFUSALS]
                self._raise((record_errors or self._errors)[0])
            if left:
                self._check_time(until)

    @staticmethod
    def _raise(error: KafkaError) -> NoReturn:
        if error.code() in _RECORD_REFUSALS:
            raise RecordsRefusedError(error)
        if outcome_of(error) == "refused" and error.code() not in _UNKNOWN_PARTITION:
            raise BridgeError(
                f"the target refuses records: {error.str()}; check that its topics exist, and that the "
                "bridge may write them"
            )
        raise BatchFailedError(error)

    def _check_time(self, until: float) -> None:
        if self._is_ending() or time.monotonic() > until:
            raise BatchFailedError(KafkaError(_SILENT, "the target does not confirm"))

    def _with_retries(self, step: Callable[[], object], until: float) -> None:
        """Call a step of a transaction, and retry it while the broker is away."""
        while True:
            try:
                step()
            except KafkaException as error:
                cause = error.args[0]
                if not is_retriable(error) or cause.fatal() or cause.txn_requires_abort():
                    raise BatchFailedError(cause) from None
                log.debug("bridge: %s; asked again", text_of(error), extra={"event": "bridge-asked-again"})
                if self._is_ending() or time.monotonic() > until:
                    raise BatchFailedError(cause) from None
            else:
                return
