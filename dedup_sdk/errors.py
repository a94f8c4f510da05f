"""The errors of this package.

    DedupError
    ├── ConfigurationError      a setting is wrong or contradicts a promise (also a ValueError)
    │   └── IdSpecError         an ID spec that cannot be read
    ├── StoreError              a key store cannot be opened, read or written
    │   ├── StoreLockedError    another process has the partition's database open
    │   ├── ForeignStoreError   the store belongs to another cluster, group, topic, ID spec or format
    │   ├── StoreCorruptError   the store's bytes are damaged
    │   └── StoreUnavailableError  it cannot be read or written for now: no room, or a disk that fails
    ├── SharedStoreError        a shared memory of consumers does not answer
    ├── OutboxError             an outbox cannot be opened, read or written
    │   ├── OutboxLockedError   another process has it open
    │   ├── OutboxDamagedError  its bytes are damaged
    │   └── OutboxFullError     it cannot be written for now: no room, or a disk that fails
    ├── SnapshotError           a snapshot is unreadable, incomplete, or of another history
    ├── MissingIdError          a record bears no ID, and the strategy says that this is a failure
    ├── RecoveryError           a partition could not be brought up to date
    ├── DeadLetterError         a handler failed after all attempts, and the dead letter could not be delivered
    ├── TransactionError        a transaction cannot be committed, or nobody can tell whether it was
    ├── BridgeError             a bridge cannot go on: its ends, or a record that the target refuses
    └── KafkaHelperError        a broker of ``dedup_sdk.testing`` could not be started

Each message has the event, the value, and the next step:

    try:
        consumer = DedupConsumer(...)
    except DedupError as error:
        sys.exit(str(error))

No message shows a password: `shown` prints each value, e.g. the argument that was refused, and masks credentials.
"""

from __future__ import annotations

from dedup_sdk._masking import shown as shown  # noqa: PLC0414 (public, for adapters)


class DedupError(Exception):
    """Root of the errors raised by this package."""


class ConfigurationError(DedupError, ValueError):
    """A setting is wrong, or contradicts a promise of this package."""


class IdSpecError(ConfigurationError):
    """An ID spec cannot be read; the message names the part and the accepted forms."""


class StoreError(DedupError):
    """A key store cannot be opened, read or written."""


class StoreLockedError(StoreError):
    """Another process (or another consumer of this one) has the partition's database open."""


class ForeignStoreError(StoreError):
    """The store on disk belongs to another cluster, group, topic, rule or format; the message names both values.

    ``field`` is the part of the identity that differs, ``format`` where it is the format.
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class StoreCorruptError(StoreError):
    """The bytes of a store are damaged; the files are left unchanged, for an investigation."""


class StoreUnavailableError(StoreError):
    """A store cannot be opened, read or written for now.

    Its disk is full, fails or is read-only, or the process may open no more files. The stored data is
    intact.
    """


class SharedStoreError(DedupError):
    """A shared memory of consumers does not answer, or refuses; the request may or may not have been executed.

    ``passes``: whether the error is retriable: the same request may succeed once the memory is back.
    """

    def __init__(self, message: str, *, passes: bool = True) -> None:
        super().__init__(message)
        self.passes = passes


class OutboxError(DedupError):
    """A producer's outbox cannot be opened, read or written, or is not an outbox."""


class OutboxLockedError(OutboxError):
    """Another process, or another producer of this one, has the outbox open."""


class OutboxDamagedError(OutboxError):
    """The bytes of an outbox are damaged; the file is left unchanged, or renamed on request."""


class OutboxFullError(OutboxError):
    """An outbox cannot be written for now; its queued messages are written, and then sent, once there is room."""


class SnapshotError(DedupError):
    """A snapshot is unreadable, incomplete, or not of this history."""


class MissingIdError(DedupError):
    """A record bears no usable ID, and the strategy was made with ``on_missing_id="fail"``."""


class RecoveryError(DedupError):
    """A partition's store could not be brought up to its group's committed offset."""


class DeadLetterError(DedupError):
    """A handler failed after all attempts, and the dead letter could not be sent; the message is delivered again."""


class TransactionError(DedupError):
    """A Kafka transaction cannot be committed, or whether it was committed cannot be found out."""


class BridgeError(DedupError):
    """A bridge cannot go on: one of its ends is missing or refuses it, or the target refuses a record."""


class KafkaHelperError(DedupError):
    """A broker or proxy of ``dedup_sdk.testing`` could not be started or used."""
