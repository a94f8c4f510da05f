"""The application that sends: it retries until everything is confirmed, and so sends some flights more than once.

It is what most applications are: its client neither is idempotent nor retries by itself, so that a batch whose answer
got lost is *reported as failed although the broker has it*, and the application sends it again, with the same dedup ID and
at another offset. In addition a small share of flights is sent again later on, without any need: an outbox played
twice, a user who pressed the button twice.
"""

from __future__ import annotations

import random
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from dedup_sdk.demo.errors import DemoError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from confluent_kafka import KafkaError, Message

    from dedup_sdk.demo.flights import Flight

ID_HEADER = "dedup-id"
"""The header that bears the dedup ID."""

_SETTINGS = {
    "enable.idempotence": False,
    "retries": 0,
    "acks": "all",
    "linger.ms": 5,
    # Small requests, few at a time: a cut connection loses the answers of a thousand flights, not of all.
    "batch.size": 32_768,
    "max.in.flight.requests.per.connection": 5,
    "compression.type": "lz4",
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    # Cut connections are what this is about; each would be a line.
    "log_level": 0,
}
_REPEAT_AFTER_FLIGHTS = 2_000
_FLUSH_S = 30.0
_SEED = 2013


class RetryingProducer:
    """Sends flights until each is confirmed.

    Args:
        bootstrap: ``host:port``; the proxy's, where connections are to be cut.
        topic: where to.
        repeat_share: the share of flights that is sent again needlessly, 0 to 1; which ones is seeded.
    """

    def __init__(self, bootstrap: str, topic: str, *, repeat_share: float = 0.0) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, **_SETTINGS})
        self._topic = topic
        self._repeat_share = repeat_share
        self._random = random.Random(_SEED)  # noqa: S311 (which flights are sent twice is no secret)
        self._unconfirmed: deque[Flight] = deque()
        self._error: KafkaError | None = None
        self.repeated = 0
        """How many flights were sent again needlessly."""
        self.retried = 0
        """How many were sent again because the broker's answer was lost."""

    def send(self, flights: Iterable[Flight]) -> Iterator[int]:
        """Send the flights and yield how many were sent so far, at least every 1,000 and at the end, when all are confirmed.

        Raises:
            DemoError: the broker confirms nothing any more.
        """
        sent = 0
        repeats: deque[Flight] = deque()
        for flight in flights:
            self._produce(flight)
            sent += 1
            if self._random.random() < self._repeat_share:
                repeats.append(flight)
                self.repeated += 1
            if len(repeats) > _REPEAT_AFTER_FLIGHTS * self._repeat_share:
                self._produce(repeats.popleft())
            if sent % 1_000 == 0:
                self._resend()
                yield sent
        for flight in repeats:
            self._produce(flight)
        self._confirm_all()
        yield sent

    def _produce(self, flight: Flight) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    key=flight.key,
                    value=flight.value,
                    headers=[(ID_HEADER, flight.dedup_id.encode())],
                    on_delivery=partial(self._delivered, flight),
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return

    def _delivered(self, flight: Flight, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._unconfirmed.append(flight)
            self._error = error

    def _resend(self) -> None:
        """Send again what has failed until now."""
        for _ in range(len(self._unconfirmed)):
            self.retried += 1
            self._produce(self._unconfirmed.popleft())

    def _confirm_all(self) -> None:
        """Return when the broker has confirmed everything."""
        while True:
            if self._producer.flush(_FLUSH_S) > 0:
                raise DemoError(
                    f"the broker confirmed nothing for {_FLUSH_S:g} s ({self._error}): run the demo again"
                )
            if not self._unconfirmed:
                return
            self._resend()
