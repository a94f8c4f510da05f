"""The application that sends: at a steady rate, again when no answer came, and now and then again for no reason.

Its client neither is idempotent nor retries by itself, so that a batch whose answer got lost is reported as failed
although the broker has it; what is sent again then is a real producer-side duplicate. Messages that belong together
are sent again together, also if only some of them failed: else a unit could have no end.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final
from zlib import crc32

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.chaos.options import ID_HEADER
from tests.support.producing import Outgoing

_SETTINGS: Final[dict[str, Any]] = {
    "enable.idempotence": False,
    "retries": 0,
    "acks": "all",
    "linger.ms": 5,
    "batch.size": 16_384,
    "max.in.flight.requests.per.connection": 5,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "request.timeout.ms": 3_000,
    "socket.timeout.ms": 4_000,
    "message.timeout.ms": 5_000,
    "topic.metadata.refresh.interval.ms": 1_000,
    "log_level": 0,
}
_TICK_S: Final = 0.02
_RESEND_SHARE: Final = 0.08
_RESEND_WITHIN_S: Final = 4.0
_CONFIRM_S: Final = 180.0
SILENCE_S: Final = 15.0
_KEYS: Final = 40

Recipe = Callable[[int, random.Random], Outgoing | list[Outgoing]]
"""Makes the n-th message, or those that are sent, and sent again, together."""


def plain(number: int, chosen: random.Random) -> Outgoing:
    """A message with an ID in a header, and one of a few keys."""
    key = b"key-%d" % chosen.randrange(_KEYS)
    return Outgoing(key=key, value=b"%d" % number, headers={ID_HEADER: b"id-%d" % number})


def repeating(number: int, chosen: random.Random) -> Outgoing:
    """A message that repeats any of those before it, every second time: whatever is forgotten shows."""
    known = number if number == 0 or chosen.random() < 0.5 else chosen.randrange(number)
    return Outgoing(
        key=b"key-%d" % (known % _KEYS), value=b"%d" % number, headers={ID_HEADER: b"id-%d" % known}
    )


@dataclass(slots=True)
class _Sending:
    """Messages that are sent together: how many of them have no report yet, and whether one failed."""

    messages: list[Outgoing]
    unreported: int
    failed: bool = False


class Sender:
    """Sends in a thread of its own.

    Args:
        bootstrap: the proxy's address.
        topic: where to.
        partitions: of the topic; may be raised later (`partitions`).
        per_second: new messages a second; resends come on top.
        seed: of keys and resends.
        recipe: of messages.
        skew_ms: how far the timestamp of resends may be off, milliseconds.
        strays: whether resends go to any partition.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        partitions: int,
        per_second: float,
        seed: int,
        recipe: Recipe = plain,
        skew_ms: int = 0,
        strays: bool = False,
    ) -> None:
        self.topic, self.partitions, self.per_second = topic, partitions, per_second
        self.sent = self.retried = self.repeated = 0
        self._config = {"bootstrap.servers": bootstrap, **_SETTINGS}
        self._producer = Producer(self._config)
        self._heard = time.monotonic()
        self._random = random.Random(seed)
        self._recipe = recipe
        self._skew_ms, self._strays = skew_ms, strays
        self._failed: deque[list[Outgoing]] = deque()
        self._again: list[tuple[float, int, list[Outgoing]]] = []
        self._ending = threading.Event()
        self._resending, self._reporting = threading.Lock(), threading.Lock()
        self._thread = threading.Thread(target=self._work, name="sender", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def pause(self) -> float:
        """Send nothing until `resume` gets the result, but send failed messages again."""
        per_second, self.per_second = self.per_second, 0.0
        return per_second

    def resume(self, per_second: float) -> None:
        """Go on."""
        self.per_second = per_second

    def stop(self) -> None:
        """End, when the broker has confirmed everything."""
        self._ending.set()
        self._thread.join()
        for _, _, messages in self._again:
            self._produce_all(messages)
        self._again = []
        self.confirm()

    def confirm(self) -> None:
        """Return when the broker has confirmed all messages sent so far; raises `TimeoutError` after three minutes."""
        deadline = time.monotonic() + _CONFIRM_S
        while self._producer.flush(1.0) > 0 or self._failed:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.topic}: the broker confirmed nothing for {_CONFIRM_S:g} s")
            self._resend()

    def _work(self) -> None:
        due = 0.0
        while not self._ending.wait(_TICK_S):
            due += self.per_second * _TICK_S
            while due >= 1:
                due -= 1
                self._new()
            while self.per_second and self._again and self._again[0][0] <= time.monotonic():
                self._produce_all(heapq.heappop(self._again)[2])
            self._producer.poll(0)
            self._resend()

    def _new(self) -> None:
        made = self._recipe(self.sent, self._random)
        messages = made if isinstance(made, list) else [made]
        self.sent += 1
        self._produce_all(messages)
        if self._random.random() < _RESEND_SHARE:
            self.repeated += 1
            at = time.monotonic() + self._random.uniform(0, _RESEND_WITHIN_S)
            if self._skew_ms:
                off_ms = self._random.randint(-self._skew_ms, self._skew_ms)
                messages = [replace(each, timestamp_ms=each.timestamp_ms + off_ms) for each in messages]
            if self._strays:
                messages = [
                    replace(each, partition=self._random.randrange(self.partitions)) for each in messages
                ]
            heapq.heappush(self._again, (at, self.repeated, messages))

    def _produce_all(self, messages: list[Outgoing]) -> None:
        sending = _Sending(messages, len(messages))
        for message in messages:
            self._produce(message, sending)

    def _produce(self, message: Outgoing, sending: _Sending) -> None:
        pairs = message.headers if isinstance(message.headers, list) else message.headers.items()
        partition = (
            crc32(message.key or b"") % self.partitions if message.partition < 0 else message.partition
        )
        try:
            self._producer.produce(
                self.topic,
                value=message.value,
                key=message.key,
                headers=list(pairs),
                partition=partition,
                timestamp=message.timestamp_ms,
                on_delivery=partial(self._delivered, sending),
            )
        except (BufferError, KafkaException):
            # A partition that this client has not heard of yet, or no broker for long: later.
            self._note_report(sending, failed=True)

    def _delivered(self, sending: _Sending, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self._heard = time.monotonic()
        self._note_report(sending, failed=error is not None)

    def _note_report(self, sending: _Sending, *, failed: bool) -> None:
        # The sender's thread and one that waits for confirmations both get reports.
        with self._reporting:
            sending.unreported -= 1
            sending.failed |= failed
            if sending.failed and not sending.unreported:
                self._failed.append(sending.messages)

    def _renew(self) -> None:
        """Take another client when this one has heard nothing for long: it may have forgotten every broker."""
        if self._failed and time.monotonic() - self._heard > SILENCE_S:
            # Its messages fail by then.
            self._producer.flush(_SETTINGS["message.timeout.ms"] / 1000 + 1)
            self._producer = Producer(self._config)
            self._heard = time.monotonic()

    def _resend(self) -> None:
        # Who waits for confirmations sends again beside the sender's own thread.
        with self._resending:
            self._renew()
            for _ in range(len(self._failed)):
                messages = self._failed.popleft()
                self.retried += len(messages)
                self._produce_all(messages)
