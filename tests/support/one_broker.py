"""One real broker for all processes of a command: ``python -m tests.support.one_broker make -j4 test-rest test-spark``.

The command finds its address in ``DEDUP_TEST_BOOTSTRAP``. Where there is no broker, the command runs without it, and
its tests say what is missing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress

from tests.support.brokers import NoBrokerError, real_broker
from tests.support.strictness import nothing_may_be_skipped


def main(command: list[str]) -> int:
    """Start a broker, run a command, end the broker, and return the command's status."""
    # Both end the command, and then the broker: a terminal tells the command by itself, `timeout` and `kill` do not.
    signal.signal(signal.SIGTERM, _interrupt)
    with ExitStack() as ends:
        variables = dict(os.environ)
        with suppress(NoBrokerError):
            broker = ends.enter_context(real_broker(container_required=nothing_may_be_skipped()))
            print(f"broker of all parts: {broker.why}", flush=True)  # noqa: T201
            variables["DEDUP_TEST_BOOTSTRAP"] = broker.bootstrap
        # What make has open for its jobs is open in the command, too.
        process = subprocess.Popen(command, env=variables, close_fds=False)
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            return process.wait() or 1


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
