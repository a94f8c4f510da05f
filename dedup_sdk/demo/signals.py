"""A demo that is asked to end takes its children and its files with it."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_STATUS_OF_SIGNAL = 128


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into `SystemExit` (128 + the signal's number), so that every ``with`` block is left.

    Ctrl-C does that by itself. Call it in the main thread; the former handlers are put back at the end.
    """
    former = {number: signal.signal(number, _end) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(_STATUS_OF_SIGNAL + number)
