"""A program that is told to end: by SIGTERM, by Ctrl-C, once and twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from dedup_sdk import ConfigurationError
from tests.support.consuming import PATIENCE_S, committed, numbers, values

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

LOOPS = {
    "iteration": """
    for message in consumer:
        handle(message)
""",
    "poll": """
    while not caught:
        message = consumer.poll(0.2)
        if message is not None:
            handle(message)
""",
    "run": """
    consumer.run(handle, workers=2)
""",
}
PROGRAM = """
import sys, time
from dedup_sdk import DedupConsumer, Lookup

def handle(message):
    # In one piece: handlers run side by side.
    sys.stdout.write(message.value().decode() + "\\n")
    sys.stdout.flush()
    time.sleep(0.02)

with DedupConsumer(
    {{
        "bootstrap.servers": sys.argv[1], "group.id": "g", "auto.offset.reset": "earliest", "log_level": 0,
        # The mock cluster's rebalances take as long.
        "session.timeout.ms": 1200, "heartbeat.interval.ms": 100, "fetch.wait.max.ms": 50,
    }},
    dedup=Lookup(id="value", window="1h"),
    store=sys.argv[2],
) as consumer, consumer.stop_on_signals() as caught:
    consumer.subscribe(["orders"])
{loop}
print("ended", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_a_program_that_is_told_to_end_doubles_nothing(
    kafka: MockKafka, send: Send, tmp_path: Path, loop: str
) -> None:
    """By either signal it finishes the message in hand, and ends in order.

    It goes on behind it when it is started again.
    """
    sent = numbers(0, 100)
    send(*sent)
    command = [
        sys.executable,
        "-c",
        PROGRAM.format(loop=LOOPS[loop]),
        kafka.bootstrap,
        str(tmp_path / "store"),
    ]
    handled: list[str] = []
    for number, early in ((signal.SIGTERM, True), (signal.SIGINT, True), (signal.SIGTERM, False)):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            for line in map(str.strip, program.stdout):
                if line == "ended":
                    continue
                handled.append(line)
                if (early and len(handled) % 30 == 29) or len(handled) == len(sent):
                    program.send_signal(number)
            assert program.wait(PATIENCE_S) == 0, program.stderr and program.stderr.read()
    assert sorted(handled, key=int) == sent


def test_a_second_ctrl_c_does_what_it_did_before(make: Make, send: Send) -> None:
    """A handler that never comes back does not have to be waited for."""
    send("a")
    with make("orders") as consumer:

        def hang() -> None:
            with consumer.stop_on_signals() as caught:
                for _ in consumer:
                    os.kill(os.getpid(), signal.SIGINT)
                    assert caught == [signal.SIGINT]
                    os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            hang()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_before_the_loop_ends_it_at_once(make: Make, send: Send, kafka: MockKafka) -> None:
    """Nothing is handed out then; handlers that were there before the block are there after it."""
    send("a")
    before = signal.getsignal(signal.SIGTERM)
    with make("orders") as consumer:
        with consumer.stop_on_signals(signal.SIGTERM) as caught:
            os.kill(os.getpid(), signal.SIGTERM)
            assert values(list(consumer)) == []
        assert caught == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is before
    assert committed(kafka.bootstrap, "g", "orders").offset < 0


def test_signals_are_for_the_main_thread(make: Make) -> None:
    """Elsewhere Python allows no handlers: one line says so, and none is left behind."""
    consumer = make("orders")
    raised: list[BaseException] = []

    def enter() -> None:
        try:
            with consumer.stop_on_signals():
                raise AssertionError("the block ran")
        except ConfigurationError as error:
            raised.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(PATIENCE_S)
    assert "in the main thread only" in str(raised[0])


def test_a_signal_ends_all_loops_of_a_program(make: Make, send: Send) -> None:
    """Each block in its own place, also if one ends before another that began later."""
    before = signal.getsignal(signal.SIGTERM)
    send("a")
    first, second = make("orders"), make("pairs")
    blocks = [first.stop_on_signals(signal.SIGTERM), second.stop_on_signals(signal.SIGTERM)]
    caught = [block.__enter__() for block in blocks]
    os.kill(os.getpid(), signal.SIGTERM)
    assert values([*first, *second]) == []
    blocks[0].__exit__(None, None, None)
    os.kill(os.getpid(), signal.SIGTERM)
    assert caught == [[signal.SIGTERM], [signal.SIGTERM, signal.SIGTERM]]
    blocks[1].__exit__(None, None, None)
    assert signal.getsignal(signal.SIGTERM) is before
