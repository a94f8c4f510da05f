from __future__ import annotations

import random
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.consuming import PATIENCE_S, values
from tests.support.interrupting import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.mock.conftest import Make, Send


_SIGNALS = 400
_LEAST = 20
"""Interruptions without which a history says nothing."""


class Nuisance:
    """A thread that interrupts the main thread every few milliseconds, some hundred times, while it is ``armed``."""

    armed = False

    def __init__(self) -> None:
        self._random = random.Random(7)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._disturb)

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGUSR1, self._interrupt)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        signal.signal(signal.SIGUSR1, self._before)

    def _disturb(self) -> None:
        main = threading.main_thread().ident
        left = _SIGNALS
        while left and main is not None and not self._ended.wait(self._random.uniform(0.0005, 0.03)):
            # One that comes while nobody waits for it, as on a busy machine, is none.
            if Nuisance.armed:
                left -= 1
                signal.pthread_kill(main, signal.SIGUSR1)

    @staticmethod
    def _interrupt(*_: object) -> None:
        if Nuisance.armed:
            # A second signal while this one is being raised is a matter of the interpreter.
            Nuisance.armed = False
            raise Interrupted


def test_signals_at_any_time_cost_no_message(make: Make, send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that raises again and again, wherever the program happens to be: joining, recovering, judging."""
    # Python swallows errors of a collection or a finaliser; the hook it tells could be interrupted, too.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    sent = [f"{number:04}" for number in range(3000)]
    send(*sent)
    consumer = make("orders")
    got: set[str] = set()
    interruptions = 0
    message = None

    with Nuisance():
        until = time.monotonic() + 2 * PATIENCE_S
        while (len(got) < len(sent) or interruptions < _LEAST) and time.monotonic() < until:
            try:
                try:
                    while (len(got) < len(sent) or interruptions < _LEAST) and time.monotonic() < until:
                        message = None
                        # Each time: Python may have swallowed the last one.
                        Nuisance.armed = True
                        message = consumer.poll(0.05)
                        if message is not None:
                            got.add(values([message])[0])
                finally:
                    Nuisance.armed = False
            except (Interrupted, TypeError):
                # The client's constructor calls an interruption a property of the wrong type.
                interruptions += 1
                if message is not None:
                    # Interrupted on its way to the set, not on its way here.
                    got.add(values([message])[0])

    assert set(sent) - got == set()
    assert interruptions >= _LEAST


@pytest.mark.timeout(60)
@pytest.mark.parametrize("call", ["poll", "consume", "iterate", "run"])
def test_a_signals_handler_that_closes_is_refused_wherever_the_loop_is(make: Make, call: str) -> None:
    """The loop waits for messages inside the client, which cannot be closed under it."""
    consumer = make("orders")
    loops: dict[str, Callable[[], object]] = {
        "poll": lambda: consumer.poll(PATIENCE_S),
        "consume": lambda: consumer.consume(5, PATIENCE_S),
        "iterate": lambda: next(iter(consumer)),
        "run": lambda: consumer.run(print),
    }
    # No alarm: that is how the limit of a test ends one that hangs.
    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.close())
    timer = threading.Timer(0.5, signal.pthread_kill, [threading.get_ident(), signal.SIGUSR1])
    timer.start()
    try:
        with pytest.raises(RuntimeError, match="call stop"):
            loops[call]()
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert not consumer.health().closed
    consumer.close()
