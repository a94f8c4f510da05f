"""Nothing may hang.

A run that is not over in time ends by an error that says where it stood, and else the whole process ends.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

GRACE_S: Final = 60.0
"""Seconds that an overdue scenario may take to put its things away."""
_UNJUDGED: Final = 2
_HERE: Final = str(Path(__file__).parent)


class OverdueError(RuntimeError):
    """Something was not over in time; the message says where the main thread stood."""


@contextmanager
def within(seconds: float, what: str, *, grace_s: float = GRACE_S) -> Generator[None]:
    """Raise `OverdueError` in the block once it has taken so long.

    End the process with status 2 if that does not end it. For the main thread only, and not inside another one:
    there is one alarm.
    """

    def ring(_: int, frame: FrameType | None) -> None:
        raise OverdueError(f"not over after {seconds:g} s; it stood at {_place(frame)}")

    def give_up() -> None:
        sys.stderr.write(f"{what}: not over {grace_s:g} s after its end; it stood at:\n")
        faulthandler.dump_traceback(all_threads=True)
        # Its children end with it.
        os._exit(_UNJUDGED)

    before = signal.signal(signal.SIGALRM, ring)
    last = threading.Timer(seconds + grace_s, give_up)
    last.daemon = True
    last.start()
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        last.cancel()


def _place(frame: FrameType | None) -> str:
    """Return a stack in one line, the innermost first: of this folder's files, and their last calls."""
    stack = traceback.extract_stack(frame)[::-1]
    own = [each for each in stack if each.filename.startswith(_HERE)]
    shown = own if not stack or stack[0] in own else [stack[0], *own]
    return " < ".join(f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in shown)
