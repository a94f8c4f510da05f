"""A consumer that runs as another user.

``python -m tests.support.other_user BOOTSTRAP STORE UID GID COUNT`` consumes so many messages of the topic "orders",
and prints a JSON object: their values, or the error. Without the rights of root, the user stays the same.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import Any

from dedup_sdk import DedupConsumer, Lookup
from dedup_sdk.errors import DedupError
from tests.mock.conftest import QUICK_CLIENT

LONGEST_S = 15.0
QUIET_S = 0.5


def consume(bootstrap: str, store: str, group: str, count: int) -> list[str]:
    """Return the values of the first ``count`` messages, and of those that come right behind."""
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        **QUICK_CLIENT,
    }
    found: list[str] = []
    with DedupConsumer(config, dedup=Lookup(id="header:dedup-id", window="7d"), store=store) as consumer:
        consumer.subscribe(["orders"])
        until = time.monotonic() + LONGEST_S
        while time.monotonic() < until:
            message = consumer.poll(QUIET_S)
            if message is not None:
                found.append((message.value() or b"").decode())
            elif len(found) >= count:
                break
    return found


def main(bootstrap: str, store: str, uid: int, gid: int, count: int) -> None:
    """Consume, and print what came."""
    with tempfile.TemporaryDirectory() as warm:
        # Loads every module: another user may not be allowed to read them.
        consume(bootstrap, warm, f"warm{uid}", 1)
    os.umask(0o022)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    told: dict[str, Any] = {}
    try:
        told["values"] = consume(bootstrap, store, "g", count)
    except DedupError as error:
        told["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(told))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
