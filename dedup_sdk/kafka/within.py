"""A call that is left to itself when it does not come back in time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def within(limit_s: float, call: Callable[..., object], *arguments: Any) -> bool:
    """Return whether a call was over in time, and raise what it raised; else it goes on by itself, and what it uses is its own.

    For what the client may not come back from: it sends a transaction's offsets through a connection that it has to open first, and waits
    for that whatever the timeout (librdkafka, issue 5456).
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call(*arguments)
        except BaseException as error:  # noqa: BLE001 (raised by the caller)
            raised.append(error)

    thread = threading.Thread(target=run, name="dedup-client-call", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        return False
    if raised:
        raise raised[0]
    return True
