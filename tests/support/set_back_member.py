"""A member in a process of its own that handles some messages, and leaves in order or is killed inside a handler.

    python -m tests.support.set_back_member BOOTSTRAP GROUP TOPIC STORE COUNT END COMMIT_MS [RULE]

It prints the offset of each message that it has handled. ``END``: ``leave``, or ``kill``. With ``RULE`` set to
``compare`` it breaks a rule: a commit without a text is compared with what its store remembers.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from dedup_sdk import DedupConsumer, Lookup, header
from dedup_sdk._core.reach import plan_start
from dedup_sdk._kafka import recovery

_SILENT_S = 1.0


def _compare_with_the_store() -> None:
    def compare(stored: Any, **named: Any) -> Any:
        known = stored is not None and not named["vouched"]
        return plan_start(stored, **{**named, "era": stored.era if known else named["era"]})

    vars(recovery)["plan_start"] = compare


def main() -> None:
    """Handle messages; see above."""
    bootstrap, group, topic, store, count, end, commit_ms, *rule = sys.argv[1:]
    if rule == ["compare"]:
        _compare_with_the_store()
    settings = {
        "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
        "session.timeout.ms": 2_000, "heartbeat.interval.ms": 200, "auto.commit.interval.ms": int(commit_ms),
    }  # fmt: skip
    dedup = Lookup(id=header("dedup-id"), window="1d")
    with DedupConsumer(settings, dedup=dedup, store=store, idle_timeout=_SILENT_S) as consumer:
        consumer.subscribe([topic])
        left = int(count)
        for message in consumer:
            sys.stdout.write(f"{message.offset()}\n")
            sys.stdout.flush()
            left -= 1
            if not left:
                if end == "kill":
                    # Commits arrive; the store would note them with its next write, which never comes.
                    time.sleep(0.3)
                    os.kill(os.getpid(), signal.SIGKILL)
                break


if __name__ == "__main__":
    main()
