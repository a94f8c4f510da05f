"""A run that is asked to end leaves its ``with`` blocks in order, with the exit status that shells expect."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STATUS_OF_SIGNAL: Final = 128

NOT_WRITTEN: Final = "no snapshot was written"
KEPT: Final = "no snapshot was written; the partitions that are finished are kept: run again with --resume"
MAYBE_WRITTEN: Final = "the snapshot may be there: look before you start again"
WRITTEN: Final = "the snapshot is there"


class EndedError(BaseException):
    """A signal asked the process to end; no `Exception`, so that nothing takes it for a failure of its own.

    ``status`` is the exit status: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP; ``outcome`` says in words what
    has become of the snapshot.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = _STATUS_OF_SIGNAL + number
        self.outcome = NOT_WRITTEN

    def tell(self, outcome: str) -> None:
        """Take note of what has become of the snapshot."""
        self.outcome = outcome

    def __str__(self) -> str:
        """The line that a user reads."""
        asked = (
            "interrupted" if self.status == _STATUS_OF_SIGNAL + signal.SIGINT else f"ended by {self.args[0]}"
        )
        return f"{asked}; {self.outcome}"


def ended_by(error: BaseException | None) -> EndedError | None:
    """Return what has ended the process where that led to an error: PySpark asks the JVM once more on the way out."""
    while error is not None and not isinstance(error, EndedError):
        error = error.__context__
    return error


def end_in_order() -> None:
    """Let SIGINT, SIGTERM and SIGHUP raise `EndedError` in the main thread, the first one only.

    It does nothing in another thread.
    """
    if threading.current_thread() is threading.main_thread():
        for number in _ENDING:
            signal.signal(number, _end)


@contextmanager
def ending_in_order() -> Iterator[None]:
    """`end_in_order` inside the block; the former handlers are put back behind it."""
    former = {number: signal.getsignal(number) for number in _ENDING}
    end_in_order()
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in former.items():
                signal.signal(number, handler)


def _end(number: int, _: FrameType | None) -> NoReturn:
    # Asked a second time, the same cleaning up goes on.
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise EndedError(number)
