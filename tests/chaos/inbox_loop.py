"""The loop of a worker whose work lives in a database, as the page on databases has it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError

from dedup_adapters.sql import Inbox, KeptOffsets, OutOfOrderError, is_retryable
from dedup_sdk import DedupConsumer
from tests.chaos.journal import Journal
from tests.chaos.options import WorkerOptions
from tests.chaos.work_table import note

_PAUSE_S: Final = 0.05
_CONNECT_S: Final = 5


class InboxLoop:
    """Handles each message in a transaction with its ID, and with its offset where those are kept there."""

    def __init__(self, options: WorkerOptions, journal: Journal, drawn: random.Random) -> None:
        self._work_s = options.work_ms / 1_000
        self._run = Path(options.journal).stem
        self._journal, self._random = journal, drawn
        self._engine = create_engine(options.database, connect_args={"connect_timeout": _CONNECT_S})
        cluster = AdminClient({"bootstrap.servers": options.bootstrap, "log_level": 0})
        self.kept = KeptOffsets(cluster) if options.kept_offsets else None
        self._inbox = Inbox(self._engine, group=options.group, offsets=self.kept)

    def handle_all(self, consumer: DedupConsumer, is_over: Callable[[], bool]) -> None:
        """Handle messages until it is over; messages that the database does not take now come again."""
        while not is_over():
            for message in consumer:
                try:
                    self._handle(consumer, message)
                except (DBAPIError, OutOfOrderError) as error:
                    # The latter: messages rolled back have not come again yet.
                    if not isinstance(error, OutOfOrderError) and not is_retryable(error):
                        raise
                    time.sleep(_PAUSE_S)

    def _handle(self, consumer: DedupConsumer, message: Any) -> None:
        began_ns = time.monotonic_ns()
        partition, offset = message.partition(), message.offset()
        with (
            consumer.once(message),
            self._engine.begin() as connection,
            self._inbox.once(connection, message) as first,
        ):
            if first:
                time.sleep(self._random.uniform(0, 2 * self._work_s))
                note(connection, self._run, partition, offset, began_ns)
        self._journal.call(partition, offset, began_ns, "first" if first else "seen")
