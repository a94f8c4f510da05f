"""A producer whose records stand or fall together, for `DedupConsumer.transactions` and for the bridge.

    begin ─▶ put ... ─▶ flush ─▶ send_offsets ─▶ commit        or, at any place: abort

Each step is repeated while brokers are away, up to a time of the caller, who is asked in between whether to go on. What
fails for good is a `TransactionFailedError`, after which the transaction can only be aborted. Its ``may_be_committed``
is true where the commit was asked for: then nobody can tell, until the next producer with the same ``transactional.id``
has ended the transaction (`renew`).

- **A call that sends offsets may wait for ever** while their coordinator is away (librdkafka issue 5456). It has a time
  limit, after which its producer is left alone, and replaced.
- **A fatal error may hide** behind a `SystemError`, if the client calls delivery callbacks while its exception is set.
- **An error of one record** is in its delivery report. The error that the client then has for the transaction may name
  another cause: the error of the report is the one that is raised.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.cimpl import Producer

from dedup_sdk._fork_safety import keep_in_children
from dedup_sdk._kafka.client.client_errors import is_retriable, settings_refused
from dedup_sdk._kafka.client.closing import call_with_timeout

logger = logging.getLogger("dedup_sdk")

CALL_S: Final = 5.0
"""Seconds that one call of the client may take."""
OFFSETS_S: Final = 5.0
"""Seconds for adding offsets to a transaction."""
_DEFAULT_LIMIT_MS: Final = 60_000
"""The client's own ``transaction.timeout.ms``."""
_STEP_S: Final = 0.2
"""Seconds of one wait, after which the caller is asked whether to go on."""
_GRACE_S: Final = 0.5
"""Seconds beyond the time limit of a call, after which it counts as one that never returns."""
_SILENT: Final = KafkaError._TIMED_OUT  # noqa: SLF001 (its public name)
_FATAL_ERROR: Final = KafkaError(
    KafkaError._FATAL,  # noqa: SLF001 (as above)
    "the producer has failed with a fatal error",
    fatal=True,
)
_OF_THE_TRANSACTION: Final = frozenset({KafkaError._STATE, KafkaError._FATAL, KafkaError._FENCED})  # noqa: SLF001 (as above)
"""Errors of a record that was refused because its transaction, or the producer, has failed."""
FENCED: Final = frozenset({
    KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH,  # noqa: SLF001 (as above)
})  # fmt: skip
"""Errors of a producer whose ID another one has taken, or whose transaction took too long."""
RECORD_REFUSALS: Final = frozenset({
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP, KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError.POLICY_VIOLATION,
})  # fmt: skip
"""Errors of a single record."""


Record = tuple[str, str | bytes | None, str | bytes | None, int, None, None, int, Any]
"""The arguments of the client's ``produce`` in their order: topic, value, key, partition (-1: chosen by the key),
callback, on_delivery, timestamp (ms since the epoch, 0: now), headers. Given by name they take it twice the time."""


class TransactionFailedError(Exception):
    """A transaction can only be aborted.

    ``may_be_committed``: nobody can tell whether it was committed. ``is_of_a_record``: the error is one of a record's
    delivery.
    """

    def __init__(
        self, error: KafkaError, *, may_be_committed: bool = False, is_of_a_record: bool = False
    ) -> None:
        super().__init__(error.str())
        self.error, self.may_be_committed, self.is_of_a_record = error, may_be_committed, is_of_a_record


class TransactionalProducer:
    """A producer, or one after the other. For one thread.

    Args:
        settings: the client's, or a producer of the application, which is never replaced. Without a
            ``transactional.id`` only `put` and `flush` are of use.
        goes_on: called between two tries; false: give up.
        option: where the user gave the settings, for messages.

    Its client is made by `open`.
    """

    _client: Producer

    def __init__(
        self,
        settings: Mapping[str, Any] | Producer,
        *,
        goes_on: Callable[[], bool],
        option: str,
    ) -> None:
        self._goes_on, self._option = goes_on, option
        self._settings: dict[str, Any] = {}
        self._errors: list[KafkaError] = []
        """Errors of delivery reports since `begin`."""
        self.is_stuck = False
        """Whether a call does not return: only the next producer can end the transaction (`renew`)."""
        self.is_ours = isinstance(settings, Mapping)
        """Whether the producer can be replaced."""
        if isinstance(settings, Mapping):
            reports = {"delivery.report.only.error": True, "on_delivery": self._delivered}
            self._settings = {**reports, **settings}
        else:
            self._client = settings

    def open(self) -> None:
        """Make the client, unless it is the application's; raises `ConfigurationError` for settings that it refuses."""
        if self.is_ours:
            self._client = self._made()

    def _made(self) -> Producer:
        with settings_refused(self._settings, self._option):
            client = Producer(self._settings)
        keep_in_children(self)
        self.is_stuck = False
        return client

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self._errors.append(error)

    def log_in(self, username: str, password: str) -> None:
        """Use these credentials from the next login on, unless the producer is the application's."""
        if self.is_ours:
            self._settings |= {"sasl.username": username, "sasl.password": password}
            if "_client" in vars(self):
                self._client.set_sasl_credentials(username, password)

    def change(self, settings: Mapping[str, Any]) -> None:
        """Use further settings from the next `renew` on."""
        self._settings |= settings

    def serve(self) -> None:
        """Have the client write its log lines, and tell its events, which it does only when polled."""
        self._client.poll(0)

    @property
    def limit_s(self) -> float | None:
        """The seconds after which the broker ends a transaction; None for a producer of the application."""
        if not self.is_ours:
            return None
        return float(self._settings.get("transaction.timeout.ms", _DEFAULT_LIMIT_MS)) / 1_000

    # --- the transaction -----------------------------------------------------------------------------------------

    def initialise(self, until: float) -> None:
        """Have the broker end earlier transactions of this ID; ``until``: monotonic seconds."""
        self._repeat(lambda: self._client.init_transactions(CALL_S), until)

    def begin(self, until: float) -> None:
        """Begin a transaction."""
        # Reports of the one before come when the client is polled, also if that was aborted.
        while self._step(lambda: self._client.poll(0)):
            pass
        self.forget_errors()
        self._repeat(self._client.begin_transaction, until)

    def forget_errors(self) -> None:
        """Forget the errors of earlier records."""
        self._errors.clear()

    def put(self, record: Record, *, patience_s: float) -> None:
        """Produce a record, as for the client. Waits while its queue is full, at most so many seconds.

        Raises `KafkaException` for a record that the client refuses.
        """
        until: float | None = None
        while True:
            try:
                self._client.produce(*record)
            except BufferError:
                until = until or time.monotonic() + patience_s
                self._check_time(until)
                self._step(lambda: self._client.poll(_STEP_S))
            except KafkaException as error:
                cause = error.args[0]
                if not (cause.fatal() or cause.code() in _OF_THE_TRANSACTION):
                    raise
                raise self._failed(cause) from None
            except SystemError as error:
                raise TransactionFailedError(self._hidden_behind(error)) from None
            else:
                return

    def flush(self, until: float) -> None:
        """Wait until the broker has confirmed all records."""
        left = 1
        while left:
            left = self._step(lambda: self._client.flush(_STEP_S))
            if self._errors:
                raise self._failed(self._errors[0], is_of_a_record=True)
            if left:
                self._check_time(until)

    def send_offsets(self, offsets: list[TopicPartition], member: object) -> None:
        """Add offsets to the transaction, if there are any; ``member``: the group's metadata. Tried once.

        In a rebalance the group refuses offsets, and may wait for a member that would repeat them here.
        """
        if offsets:
            send = self._client.send_offsets_to_transaction
            self._step(lambda: self._in_time(OFFSETS_S, send, offsets, member, OFFSETS_S))

    def commit(self, until: float) -> None:
        """Commit; returns when the transaction is known to be committed."""
        commit = self._client.commit_transaction
        try:
            self._repeat(lambda: self._in_time(CALL_S, commit, CALL_S), until)
        except TransactionFailedError as failed:
            if failed.error.txn_requires_abort():
                raise self._failed(failed.error) from None
            failed.may_be_committed = True
            raise

    def abort(self) -> bool:
        """Abort; false where that is not certain: then the next producer of this ID has to (`renew`)."""
        if self.is_stuck:
            return False
        try:
            self._in_time(CALL_S, self._client.abort_transaction, CALL_S)
        except (KafkaException, SystemError, TransactionFailedError):
            return False
        return True

    def renew(self, until: float) -> None:
        """Replace the producer: the new one ends the transaction of the old one."""
        # The old one stays until there is a new one: an interruption between them leaves one that can be used.
        self._forget_unsent(self._client)
        self._client = self._made()
        if "transactional.id" in self._settings:
            self.initialise(until)

    def close(self) -> None:
        """End: forget the records that are not sent, and the client, unless that is the application's. Nothing follows.

        Without this the client would live until a garbage collection: its delivery reports refer to this object.
        """
        client = vars(self).pop("_client", None)
        if client is not None and self.is_ours:
            self._forget_unsent(client)

    @staticmethod
    def _forget_unsent(client: Producer) -> None:
        """Forget the records that are not sent: the end of the client would wait for them."""
        with suppress(KafkaException, SystemError):
            client.purge()
            client.poll(0)

    # --- steps ---------------------------------------------------------------------------------------------------

    def _in_time(self, limit_s: float, call: Callable[..., object], *arguments: Any) -> None:
        if not call_with_timeout(limit_s + _GRACE_S, call, *arguments):
            self.is_stuck = True
            raise TransactionFailedError(KafkaError(_SILENT, "the coordinator does not answer"))

    def _repeat(self, step: Callable[[], object], until: float) -> None:
        """Make a step, and repeat it while the broker is away."""
        while True:
            try:
                self._step(step)
            except TransactionFailedError as failed:
                if self.is_stuck or not may_pass(failed.error):
                    raise
                logger.debug("%s; asked again", failed, extra={"event": "transaction-asked-again"})
                if time.monotonic() > until or not self._goes_on():
                    raise
            else:
                return

    def _step(self, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except KafkaException as error:
            raise TransactionFailedError(error.args[0]) from None
        except SystemError as error:
            raise TransactionFailedError(self._hidden_behind(error)) from None

    def _hidden_behind(self, error: SystemError) -> KafkaError:
        """Return the client's fatal error behind an error of the interpreter, which may have swallowed it."""
        hidden: BaseException | None = error
        while hidden is not None and not isinstance(hidden, KafkaException):
            hidden = hidden.__cause__ or hidden.__context__
        if hidden is None:
            try:
                # Each call about a transaction tells the fatal error again, with its own code.
                self._client.begin_transaction()
            except KafkaException as again:
                hidden = again if again.args[0].fatal() else None
        return _FATAL_ERROR if hidden is None else hidden.args[0]

    def _failed(self, cause: KafkaError, *, is_of_a_record: bool = False) -> TransactionFailedError:
        """Return the error of a transaction: a record's, if the broker has refused one as it is, else ``cause``."""
        for error in self._errors:
            if error.code() in RECORD_REFUSALS:
                return TransactionFailedError(error, is_of_a_record=True)
        return TransactionFailedError(cause, is_of_a_record=is_of_a_record)

    def _check_time(self, until: float) -> None:
        if time.monotonic() > until or not self._goes_on():
            raise TransactionFailedError(KafkaError(_SILENT, "the broker does not confirm the records"))


def may_pass(error: KafkaError) -> bool:
    """Whether the same call may succeed later."""
    return is_retriable(KafkaException(error)) and not (error.fatal() or error.txn_requires_abort())
