"""`DedupProducer`: a `confluent_kafka.Producer` that writes each message and its dedup key to disk first."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import Producer

from dedup_sdk._checks import choice, configuration, flag, local_path, seconds, text, whole
from dedup_sdk._fork_safety import keep_in_children
from dedup_sdk._masking import counted, shown
from dedup_sdk.errors import ConfigurationError, OutboxError, OutboxLockedError
from dedup_sdk.producer._client_adapter import ClientAdapter, PartitionChooser
from dedup_sdk.producer._keys import KeyMaker, ProducerKeys
from dedup_sdk.producer._outbox import Outbox, OutboxCounters
from dedup_sdk.producer._outgoing import HeaderValue, Outgoing, as_bytes, pack_headers, pairs, usable_id
from dedup_sdk.producer._pipeline import OnRefused, Pipeline, Queued
from dedup_sdk.producer._settings import OnDelivery, producer_settings

if TYPE_CHECKING:
    from types import TracebackType

log = logging.getLogger("dedup_sdk")

OnDamage = Literal["raise", "set-aside"]
Headers = Mapping[str, HeaderValue] | Iterable[tuple[str, HeaderValue]]
MOST_WAITING: Final = 1_000_000
UNKNOWN_TOPIC_S: Final = 30.0
"""Seconds that a topic may be unknown before a message without a key is refused; the same as the client's limit."""
_SLICE_S: Final = 0.1
_PAUSE_S: Final = 0.005
_LOCK_LOOK_S: Final = 0.05
_MOST_PARTITION: Final = 2**31 - 1


class DedupProducer(Producer):
    """A `confluent_kafka.Producer` with an outbox: each message and its dedup key are on disk before they are sent.

        with DedupProducer({"bootstrap.servers": "localhost:9092"}, outbox="var/outbox") as producer:
            producer.produce("orders", value)
            producer.persist()                      # from here on it will be sent, even if this process
            dies

    If the process dies, the next one resends each unconfirmed message with the same key, so that a
    `DedupConsumer` hides the duplicate. A message leaves the outbox when the broker has confirmed it.

    Args:
        config: as for `confluent_kafka.Producer`.
        outbox: a folder, private to the user and of one producer at a time, or an outbox such as
            `dedup_adapters.sql_outbox.SqlOutbox`.
        keys: makes the keys; default `ProducerKeys()`.
        id_header: the header that contains the key. A message that has this header already keeps it.
        on_refused: called as ``on_refused(error, message)`` for a message that is never accepted as it is
            (too large, unknown topic, no right to write); if it returns true, the message is removed. Else
            it stays in the outbox, and is sent again at the next start.
        on_damage: the reaction to a damaged outbox: ``raise``, or ``set-aside``: rename it, log it, and
            begin with an empty one.
        fsync: whether persisted messages survive a power cut; false: only the death of the process.
        most_waiting: the number of unconfirmed messages above which `produce` raises `BufferError`.
        lock_wait: seconds to wait for another process that has the outbox open.
        close_timeout: seconds that `close` waits for confirmations; unconfirmed messages stay in the
            outbox.

    Raises `ConfigurationError` for settings that would break a promise, `OutboxError` for an unusable
    outbox, and the errors of `confluent_kafka.Producer`. All methods are safe for threads. After a fork the
    child must make its own producer.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        /,
        *,
        outbox: str | Path | Outbox,
        keys: KeyMaker | None = None,
        id_header: str = "dedup-id",
        on_refused: OnRefused | None = None,
        on_damage: OnDamage = "raise",
        fsync: bool = True,
        most_waiting: int = MOST_WAITING,
        lock_wait: float = 5.0,
        close_timeout: float = 10.0,
        **client_arguments: Any,
    ) -> None:
        choice("on_damage", on_damage, ("raise", "set-aside"))
        flag("fsync", fsync)
        text("id_header", id_header)
        if not id_header:
            raise ConfigurationError("id_header='' is no name; give a header's, e.g. 'dedup-id'")
        for name, function in (("keys", keys), ("on_refused", on_refused)):
            if function is not None and not callable(function):
                raise ConfigurationError(f"{name}={shown(function)}: give a function")
        self._most_waiting = whole("most_waiting", most_waiting, advice="give how many, e.g. 100_000")
        self._close_timeout_s = seconds("close_timeout", close_timeout)
        lock_wait_s = seconds("lock_wait", lock_wait)
        given = configuration("the configuration", {} if config is None else config, client="Producer")
        settings = producer_settings({**given, **client_arguments})
        self._id_header = id_header
        self._keys: KeyMaker = ProducerKeys() if keys is None else keys
        self._on_delivery = settings.on_delivery
        self._closed = self._forked = False
        opened = _outbox(outbox, on_damage, lock_wait_s=lock_wait_s, fsync=fsync)
        _open(opened, lock_wait_s)
        try:
            super().__init__(settings.client)
            client = ClientAdapter(
                super().produce,
                PartitionChooser(super().list_topics, UNKNOWN_TOPIC_S),
                id_header=id_header,
                scatters_empty_keys=settings.scatters_empty_keys,
            )
            self._pipeline = Pipeline(opened, client, on_refused)
        except BaseException:
            opened.close()
            raise
        _PRODUCERS.add(keep_in_children(self))

    # --- sending
    # -------------------------------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        callback: OnDelivery | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: Headers | None = None,
        *,
        dedup_id: str | bytes | None = None,
    ) -> None:
        """Queue a message, as `confluent_kafka.Producer.produce` does; it is sent when it is on disk.

        ``dedup_id`` is the message's dedup key, if you have a better one than ``keys`` makes: one that your
        program would give to the same message after a restart. The delivery callback is called once, from
        `poll` or `flush`, when the message is confirmed or refused.

        Raises `BufferError` when too many messages wait, `OutboxError` when the outbox has failed or the
        producer is closed, `KafkaException` after a fatal error of the client.
        """
        pipeline = self._alive()
        if pipeline.fatal is not None:
            raise KafkaException(pipeline.fatal)
        if pipeline.open >= self._most_waiting:
            raise BufferError(f"{self._most_waiting} messages wait for the broker; poll(), or wait")
        _check(topic, partition, timestamp)
        packed = None
        if headers:
            dedup_id, packed = self._own_header(headers, dedup_id)
        message = Outgoing(
            usable_id(self._keys() if dedup_id is None else as_bytes("dedup_id", dedup_id)),
            topic,
            partition,
            key if key.__class__ is bytes else as_bytes("key", key),
            value if value.__class__ is bytes else as_bytes("value", value),
            timestamp or time.time_ns() // 1_000_000,
            packed,
        )
        pipeline.put(Queued(message, on_delivery or callback or self._on_delivery))

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = -1,
        callback: OnDelivery | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> int:
        """Queue several messages, as `confluent_kafka.Producer.produce_batch` does; return how many were queued.

        A message that was not queued has the error in its ``_error``. A message may also have ``headers``
        and ``dedup_id``.
        """
        queued = 0
        for message in messages:
            given = {"partition": partition} | {name: of for name, of in message.items() if name != "_error"}
            if not (given.get("on_delivery") or given.get("callback")):
                given["on_delivery"] = on_delivery or callback
            try:
                self.produce(topic, **given)
            except BufferError:
                message["_error"] = KafkaError(KafkaError._QUEUE_FULL)  # noqa: SLF001 (that is its public name)
            else:
                queued += 1
        return queued

    def persist(self, timeout: float | None = None) -> None:
        """Return when every message queued before is on disk: this process or the next one will send it.

        Raises `OutboxError` when the outbox cannot be written (`OutboxFullError`: for now), or ``timeout``
        seconds have passed. The messages stay queued, and are written as soon as possible.
        """
        pipeline = self._alive()
        barrier = pipeline.barrier()
        if not pipeline.await_barrier(barrier, timeout):
            raise OutboxError(
                f"the queued messages are not on disk after {timeout} s; call persist() again, or check the disk"
            )
        if barrier.error is not None:
            raise barrier.error

    def poll(self, timeout: float = -1) -> int:
        """Call delivery and other callbacks, and return the number of reports.

        Waits for a callback at most ``timeout`` seconds (-1: no limit).
        """
        pipeline = self._alive()
        until = None if timeout < 0 else time.monotonic() + timeout
        while True:
            count = pipeline.report_refusals()
            left_s = (
                0.0
                if count
                else _SLICE_S
                if until is None
                else min(_SLICE_S, max(0.0, until - time.monotonic()))
            )
            count += super().poll(left_s)
            if count or (until is not None and time.monotonic() >= until):
                return count

    def flush(self, timeout: float = -1) -> int:
        """Wait until every message is confirmed or refused; return the number of messages that are not.

        Waits at most ``timeout`` seconds (-1: no limit), and not after a fatal error of the client, which the next
        `produce` raises: unconfirmed messages stay in the outbox. Raises `OutboxError` if the outbox has failed.
        """
        pipeline = self._alive()
        until = None if timeout < 0 else time.monotonic() + timeout
        while pipeline.open and pipeline.fatal is None and pipeline.failed is None:
            left_s = _SLICE_S if until is None else min(_SLICE_S, until - time.monotonic())
            if left_s <= 0:
                break
            pipeline.report_refusals()
            if not super().flush(left_s):
                # The client has no messages: they are still being written, or wait for others.
                time.sleep(_PAUSE_S)
        pipeline.report_refusals()
        return pipeline.open

    def close(self) -> bool:
        """Wait up to ``close_timeout`` seconds for confirmations, and close.

        Unconfirmed messages stay in the outbox for the next producer. Messages that could not be written to
        it (the disk is full, or the outbox has failed) are lost with this producer: their callbacks are
        called with ``_PURGE_QUEUE``, and `OutboxError` is raised.
        """
        if self._closed or self._forked:
            return True
        try:
            left = self.flush(self._close_timeout_s)
        finally:
            self._closed = True
            self._pipeline.end()
            # The client would wait for the messages that it still has.
            super().purge()
            super().poll(0)
            done = super().close()
        kept = left - self._pipeline.unwritten
        if kept > 0:
            log.warning(
                "outbox: %s not confirmed; what is in the outbox stays there, and the next producer sends it",
                counted(kept, "message"),
                extra={"event": "outbox-unconfirmed"},
            )
        self._pipeline.report_unwritten()
        return done

    @property
    def counters(self) -> OutboxCounters:
        """The totals so far."""
        return self._pipeline.counters

    def __len__(self) -> int:
        return self._pipeline.open

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- not available with an outbox
    # ------------------------------------------------------------------------------------

    def purge(
        self,
        in_queue: bool = True,  # noqa: FBT001, FBT002 (the client's signature)
        in_flight: bool = True,  # noqa: FBT001, FBT002 (as above)
        blocking: bool = True,  # noqa: FBT001, FBT002 (as above)
    ) -> NoReturn:
        """Refused: purged messages would return from the outbox at the next start."""
        del in_queue, in_flight, blocking
        raise OutboxError(
            "messages of an outbox cannot be purged; close() leaves unconfirmed messages to the next producer"
        )

    # --- inside
    # ----------------------------------------------------------------------------------------------------------

    def _alive(self) -> Pipeline:
        pipeline = self._pipeline
        if self._forked:
            raise OutboxError(
                "this producer was made before the fork, and its outbox belongs to the parent; make one in each process"
            )
        if self._closed:
            raise OutboxError("this producer is closed; make another one")
        if pipeline.failed is not None:
            raise pipeline.failed
        return pipeline

    def _own_header(
        self, headers: Headers, dedup_id: str | bytes | None
    ) -> tuple[str | bytes | None, bytes | None]:
        """Return the dedup key from the headers, else the given one, and the other headers packed."""
        given = pairs(headers)
        bearing = [value for name, value in given if name == self._id_header]
        if not bearing:
            return dedup_id, pack_headers(given)
        if len(bearing) > 1 or dedup_id is not None or bearing[0] is None:
            raise ValueError(
                f"the dedup key is given {len(bearing) + (dedup_id is not None)} times, or is null; give it once, "
                f"as dedup_id= or as header {shown(self._id_header)}"
            )
        return bearing[0], pack_headers([pair for pair in given if pair[0] != self._id_header])

    def _after_fork(self) -> None:
        self._forked = True


def _check(topic: object, partition: object, timestamp: object) -> None:
    """Raise for arguments that a caller without a type checker may pass."""
    if not isinstance(topic, str) or not topic:
        raise TypeError(f"topic={shown(topic)}: give the topic's name")
    if not isinstance(partition, int) or not -1 <= partition <= _MOST_PARTITION:
        raise ValueError(f"partition={shown(partition)}: give a partition's number, or -1")
    if not isinstance(timestamp, int) or timestamp < 0:
        raise ValueError(f"timestamp={shown(timestamp)}: give milliseconds since 1970, or 0 for now")


def _outbox(given: str | Path | Outbox, on_damage: OnDamage, *, lock_wait_s: float, fsync: bool) -> Outbox:
    if isinstance(given, str | Path):
        folder = local_path("outbox=", given, advice="give a folder, e.g. 'var/outbox'")
        # Some builds of Python have no SQLite, and consumers need none.
        from dedup_sdk.producer._sqlite_outbox import SqliteOutbox

        return SqliteOutbox(
            folder, lock_wait_s=lock_wait_s, fsync=fsync, set_damage_aside=on_damage == "set-aside"
        )
    if not all(
        callable(getattr(given, name, None))
        for name in ("open", "apply", "after", "read", "fresh", "count", "close")
    ):
        raise ConfigurationError(f"outbox={shown(given)}: give a folder, e.g. 'var/outbox', or an outbox")
    return given


def _open(outbox: Outbox, lock_wait_s: float) -> None:
    """Open an outbox; another process may just have been killed, and its lock not be free yet."""
    deadline = time.monotonic() + lock_wait_s
    while True:
        try:
            outbox.open()
        except OutboxLockedError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_LOCK_LOOK_S)
        else:
            return


def _after_fork() -> None:
    for producer in list(_PRODUCERS):
        producer._after_fork()  # noqa: SLF001 (of this module's own class)


_PRODUCERS: Final[weakref.WeakSet[DedupProducer]] = weakref.WeakSet()
os.register_at_fork(after_in_child=_after_fork)
