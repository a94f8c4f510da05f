"""Standard streams that can be written to, whatever the process was started with."""

from __future__ import annotations

import io
import os
import sys


def ready_streams() -> None:
    r"""Give a stream that was closed at the start (``>&-``) the null device; write what an encoding lacks as ``\xNN``.

    Without it the file that is opened next would take the place of a closed stream, and get what is printed.
    """
    # In the order of their numbers: what is opened takes the lowest that is free.
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY), encoding="utf-8")
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            null = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(null, "w", encoding="utf-8", errors="backslashreplace"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
