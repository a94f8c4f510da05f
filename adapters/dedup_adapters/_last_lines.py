"""The last lines of the log, for a page that everybody in the network may read.

A line may quote other people's text, e.g. the error of a handler, and with it an ID or a value. So the page shows the
text of the package itself, with numbers and topics; each other text in it is shown as ``…``, unless the line is one of
`OF_THE_SYSTEM`. The name of the line's event leads to the log, which has the whole text.
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Final

LOGGER: Final = "dedup_sdk"
HIDDEN: Final = "…"
OF_THE_SYSTEM: Final = frozenset({
    "rebalance", "partitions-ready", "recovery", "recovery-started", "recovery-progress", "recovery-ended",
    "client-error", "commit-failed", "commit-refused", "commit-on-revoke-failed", "broker-asked-again",
    "group-offsets-unknown", "start-offset-unknown", "topic-recreated", "log-truncated", "offset-out-of-range",
    "recovery-timeout", "store-locked", "rewound", "window-beyond-retention", "window-too-short",
})  # fmt: skip
"""Events whose lines quote only brokers, the client and this package, none of which knows an ID or a value."""
_KEPT: Final = 20
_PLACEHOLDER: Final = re.compile(r"%(?:%|[-#0 +]*[\d.]*[a-zA-Z])")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the log: ``at`` is the time of day in UTC."""

    at: str
    level: str
    text: str


class LastLines(logging.Handler):
    """Keeps the last lines of this package's loggers; it changes no level, and writes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: deque[LogLine] = deque(maxlen=_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        at = time.strftime("%H:%M:%S", time.gmtime(record.created))
        try:
            self._kept.append(LogLine(at, record.levelname, public_text(record)))
        except Exception:  # noqa: BLE001 (a text that does not fit its arguments must not end the loop)
            self.handleError(record)
        self._write_if_alone(record)

    def _write_if_alone(self, record: logging.LogRecord) -> None:
        """Write a line to stderr where the program has no handler: Python does so only while there is none at all."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(each is not self for each in logger.handlers):
                return
            logger = logger.parent if logger.propagate else None
        last = logging.lastResort
        if last is not None and record.levelno >= last.level:
            last.handle(record)

    def lines(self) -> list[LogLine]:
        """Return the kept lines, the newest first; from any thread."""
        self.acquire()
        try:
            return list(reversed(self._kept))
        finally:
            self.release()


def public_text(record: logging.LogRecord) -> str:
    """Return a line's text without texts that others may have written."""
    event = getattr(record, "event", None)
    if event in OF_THE_SYSTEM or not record.args:
        text = record.getMessage()
    else:
        given = iter(record.args if isinstance(record.args, tuple) else ())
        known = _places(record)
        text = _PLACEHOLDER.sub(lambda found: _shown(found[0], given, known), str(record.msg))
    return f"{text} ({event})" if HIDDEN in text and event else text


def _places(record: logging.LogRecord) -> set[object]:
    """Return the texts that stand for the partition that a line is about."""
    topic, partition, offset = (getattr(record, name, None) for name in ("topic", "partition", "offset"))
    return set() if topic is None else {topic, f"{topic}[{partition}]", f"{topic}[{partition}]@{offset}"}


def _shown(placeholder: str, given: Iterator[object], known: set[object]) -> str:
    if placeholder == "%%":
        return "%"
    value = next(given, HIDDEN)
    is_known = isinstance(value, int | float) or (isinstance(value, str) and value in known)
    return placeholder % value if is_known else HIDDEN


_LOCK: Final = Lock()


def last_lines() -> LastLines:
    """Return the one keeper of this process; the first call begins to keep lines."""
    with _LOCK:
        logger = logging.getLogger(LOGGER)
        for each in logger.handlers:
            if isinstance(each, LastLines):
                return each
        made = LastLines()
        logger.addHandler(made)
        return made
