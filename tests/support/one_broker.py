"""One real broker for all processes of a command: ``python -m tests.support.one_broker make -j4 test-rest test-spark``.

The command finds its address in ``DEDUP_TEST_BOOTSTRAP``. Where there is no broker, the command runs without it, and
its tests say what is missing.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, suppress

from tests.support.brokers import NoBrokerError, real_broker
from tests.support.commands import end_by_signals, run
from tests.support.strictness import nothing_may_be_skipped


def main(command: list[str]) -> int:
    """Start a broker, run a command, end the broker, and return the command's status; 1 after an interruption."""
    end_by_signals()
    try:
        with ExitStack() as ends:
            variables = dict(os.environ)
            with suppress(NoBrokerError):
                broker = ends.enter_context(real_broker(container_required=nothing_may_be_skipped()))
                print(f"broker of all parts: {broker.why}", flush=True)  # noqa: T201
                variables["DEDUP_TEST_BOOTSTRAP"] = broker.bootstrap
            return run(command, variables)
    except KeyboardInterrupt:
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
