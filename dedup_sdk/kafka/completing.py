"""How messages end, one by one, and when what ended is in the key store."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from dedup_sdk.engine.partition import Partition
from dedup_sdk.errors import StoreCorruptError, StoreUnavailableError
from dedup_sdk.kafka.intake import Doubt, Intake
from dedup_sdk.lane.chunk import APART, OFFERED

logger = logging.getLogger("dedup_sdk")


class Completing(Intake):
    """Completing and releasing single messages; what a crash on the same disk can repeat."""

    def complete(self, message: Any) -> None:
        """Remember a message as done. From any thread.

        It is in the store when this returns; with ``durability="commit"`` when offsets are committed. Where the store turns out
        to be damaged, or its disk is full, it may come again after a crash.
        """
        with self._steady(bears_faults=True):
            partition = self._taken_out(message)
            if partition is not None:
                self._hand.offer(partition.complete([message.offset()]))
                self._write([partition])
                self._tidy_at = 0.0

    def release(self, message: Any) -> None:
        """Hand a message back: it is delivered again before new ones, while its twins stay parked. From any thread.

        One that waits for that already is left there, and counted as stale.
        """
        with self._steady():
            if message.error() is None and self._hand.waits(message):
                self._engine.counters.stale += 1
                return
            partition = self._taken_out(message)
            if partition is not None:
                self._hand.offer(partition.release([message.offset()]))
                self._tidy_at = 0.0

    def holds(self, message: Any) -> bool:
        """Whether a message that was handed out is still ours to handle: neither over, nor of a partition that went. From any thread.

        Ask right before the work begins where messages wait in a queue; a handler that runs by then is not stopped. With a shared memory
        it is also False where another consumer may have the message, because this process was stopped, or cut off, for longer than a
        lease: then it is taken back, and is delivered again unless it is completed elsewhere. To find that out the memory may be asked.
        """
        with self._lock:
            if self._closed or message.error() is not None:
                return False
            partition = self._partition_of(message.topic(), message.partition())
            place = None if partition is None else partition.lane.place(message.offset())
            if (
                partition is None
                or place is None
                or place.chunk.states[place.row] not in (OFFERED, APART)
                or place.chunk.items[place.row] is not message
            ):
                return False
            claims = self._engine.claims
            if claims is None or claims.holds(partition, place):
                return True
            self._hand.take_out(message)
            self._tidy_at = 0.0
            return False

    def _taken_out(self, message: Any) -> Partition | None:
        """Take a message out of implicit completion; None (and counted) for an event, or a partition not ours any more."""
        partition = None
        if message.error() is None and self._session.gave(message):
            self._hand.take_out(message)
            partition = self._partition_of(message.topic(), message.partition())
        self._engine.counters.stale += partition is None
        return partition

    @staticmethod
    def _heed(error: KafkaError) -> None:
        """Raise a fatal error of the client, log any other."""
        if error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001 (that is its public name)
            raise KafkaException(error)
        logger.warning("%s: %s", error.name(), error.str())

    @contextlib.contextmanager
    def _steady(self, *, bears_faults: bool = False) -> Iterator[None]:
        """Keep other threads out; what fails inside may have left a partition half way (see `dedup_sdk.kafka.intake`).

        ``bears_faults``: a damaged store, or a full disk, is no error here: the next call for messages sees to it.
        """
        with self._lock:
            self._check_open()
            try:
                yield
            except KafkaException:
                raise
            except (StoreCorruptError, StoreUnavailableError):
                self._doubtful, self._tidy_at = True, 0.0
                if not bears_faults:
                    raise
            except BaseException:
                self._doubtful, self._tidy_at = True, 0.0
                raise

    @contextlib.contextmanager
    def once(self, message: Any) -> Iterator[Any]:
        """Complete a message at the end of the block; release it when the block raises, and let the exception go on.

        The block runs in any case: where messages wait in a queue, ask `holds` first.
        """
        with self._steady():
            self._taken_out(message)
        try:
            yield message
        except BaseException:
            self.release(message)
            raise
        self.complete(message)

    # --- when it is written --------------------------------------------------------------------------------------

    def _complete_below(self, below: dict[tuple[str, int], int] | None, *, write: bool = True) -> None:
        """Complete what was handed out below these offsets; None: all of it that counts without being named."""
        if self._torn is Doubt.LANES or self._doubtful:
            return
        if self._by_commit:
            if below is None and self._settings.only_stored:
                return
            for coordinates in list(self._session.assigned if below is None else below):
                held = self._partition_of(*coordinates)
                if held is not None:
                    self._hand.finish_below(held, None if below is None else below[coordinates])
                    if write:
                        held.persist()
            return
        if not self._implicit:
            return
        if below is None:
            touched = self._hand.finish()
        else:
            touched = [
                p
                for (topic, number), end in below.items()
                for p in self._hand.finish_up_to(topic, number, end - 1)
            ]
        self._write(touched)

    def _tidy(self) -> None:
        super()._tidy()
        if self._durability == "record":
            # The next call comes here again, also while there is something to hand out.
            self._tidy_at = 0.0
