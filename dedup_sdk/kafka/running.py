"""The consumer's own loop: messages go to worker threads, and what fails is tried again or dead-lettered in order.

See `dedup_sdk.kafka.settling` for who does what.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from dedup_sdk.kafka.assigned import State
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.crew import Crew, OnError, RunSettings
from dedup_sdk.kafka.dead_letter_producer import DeadLetterProducer
from dedup_sdk.kafka.idle import IdleClock
from dedup_sdk.kafka.intake import Doubt
from dedup_sdk.kafka.settling import LOOK_S, Settling
from dedup_sdk.kafka.tasks import Order
from dedup_sdk.kafka.workers import Failures, Handler, Retries

logger = logging.getLogger("dedup_sdk")

BREATH_S = 0.2
"""Seconds that the loop waits for a message while nothing is in flight."""
_SIGN_OF_LIFE_S = 0.5
_MOST_FETCHED = 1_000


class Running(Settling):
    """`run`: its settings, its loop, its end."""

    _stopped: bool
    _idle_timeout_s: float | None
    _dead_letters: str
    _held_back: bool
    _client: Client

    def run(
        self,
        handler: Handler,
        *,
        on_error: OnError = "raise",
        workers: int = 1,
        order: Order = "key",
        attempts: int | None = 5,
        retry_on: Failures = Exception,
        wait_initial: float = 0.1,
        wait_max: float = 5.0,
        max_in_flight: int = 1_000,
    ) -> None:
        """Call ``handler`` with each message, on worker threads, until `stop` or ``idle_timeout``.

        A message is completed when its handler returns, whatever ``completion`` says. One that was not completed when this
        returns or raises comes again.

        Args:
            handler: called with a message; its result is ignored. An exception means that the message is not handled.
            on_error: what follows. ``raise``: this method raises the first error. ``retry``: the handler is called again
                after a pause; when its attempts are used up, as ``raise``. ``dead-letter``: the same, but then the message
                goes to the dead-letter topic and counts as handled, and the loop goes on; see ``dedup redrive``.
            workers: threads. One is enough for a handler that is slow now and then; the group is served meanwhile.
            order: ``key``: messages of one key and partition are handled one after the other, those without a key in any
                order. ``none``: any order.
            attempts: calls of the handler for a message at most, the first included; None: no limit.
            retry_on: the errors that may pass, classes or a function that tells; others are final at once.
            wait_initial: seconds before the second call; each further pause is about twice as long.
            wait_max: seconds that a pause lasts at most.
            max_in_flight: messages that are with the workers at most; beyond it no more is read until one is over.

        Raises what the handler raised, `DeadLetterError`, what iteration raises, and `ConfigurationError` for settings
        that make no sense. Handlers that are running then are waited for.
        """
        settings = RunSettings(
            handler=handler,
            on_error=on_error,
            workers=workers,
            order=order,
            retries=Retries(
                attempts=1 if on_error == "raise" else attempts,
                on=retry_on,
                wait_initial=wait_initial,
                wait_max=wait_max,
            ),
            max_in_flight=max_in_flight,
        )
        self._check_open()
        letters = None
        if settings.on_error == "dead-letter":
            letters = DeadLetterProducer(self._settings, self._dead_letters)
        crew = Crew(settings, letters)
        try:
            self._work(crew)
        finally:
            crew.close()
        if crew.failure is not None:
            raise crew.failure

    def _work(self, crew: Crew) -> None:
        """Have messages end by their handlers only, while the crew is there; at the end nobody works any more."""
        implicit, by_commit = self._implicit, self._by_commit
        laid: list[Any] = []
        try:
            with self._lock:
                self._check_idle()
                if self._implicit:
                    self._complete_below(None)
                # What the application had before ends by its offsets, when this is over; what is handled here does not.
                laid = self._hand.lay_by()
                self._crew, self._implicit, self._by_commit = crew, False, False
            try:
                self._serve(crew)
            except BaseException:
                self._wind_up_anyhow(crew)
                raise
            self._wind_up(crew, None if crew.failure is None else self._patience_s)
        except BaseException:
            if self._crew is crew:
                # What it stopped may be on its way between two places: all that is not completed comes again.
                self._torn, self._tidy_at = Doubt.LANES, 0.0
            raise
        finally:
            if self._crew is crew:
                self._crew, self._stopped = None, False
                self._implicit, self._by_commit = implicit, by_commit
                if by_commit:
                    with self._lock:
                        self._hand.take_up(laid)

    def _check_idle(self) -> None:
        if self._crew is not None:
            raise RuntimeError("run() is at work already: one consumer has one loop; give it more workers")

    # --- the loop ------------------------------------------------------------------------------------------------

    def _serve(self, crew: Crew) -> None:
        idle, alive = IdleClock(self._session, self._idle_timeout_s), time.monotonic()
        while not self._stopped and crew.failure is None:
            self._settle(crew, 0)
            if crew.full:
                if not self._settle(crew, LOOK_S) and time.monotonic() > alive + _SIGN_OF_LIFE_S:
                    self._breathe()
                    alive = time.monotonic()
                continue
            if self._held_back:
                self._hold_back(hold=False)
            message = self.poll(0 if crew.busy else BREATH_S)
            alive = time.monotonic()
            if message is not None:
                idle.heard()
                error = message.error()
                if error is not None:
                    self._heed(error)
                    continue
                with self._lock:
                    crew.take(message)
            elif crew.busy:
                idle.heard()
                self._settle(crew, LOOK_S)
            elif idle.is_up:
                return

    # --- while nothing can be taken ------------------------------------------------------------------------------

    def _breathe(self) -> None:
        """Do what is due and let the group hear from us, without taking a message."""
        try:
            self._mend()
            with self._lock:
                self._torn = Doubt.LANES
                self._tidy()
                if len(self._fetched) >= _MOST_FETCHED or self._held_back:
                    self._hold_back(hold=True)
            self._torn = Doubt.FETCHED
            self._listen(0)
            self._torn = Doubt.NOTHING
        except BaseException:
            self._tidy_at = 0.0
            raise
        self._guard.raise_kept()

    def _hold_back(self, *, hold: bool) -> None:
        """Pause all that delivers, or let it deliver again; what the user or recovery paused stays so."""
        with self._lock:
            self._held_back = hold
            delivering = [
                TopicPartition(*coordinates)
                for coordinates, assigned in self._session.assigned.items()
                if assigned.state is State.ACTIVE and not (assigned.user_paused or assigned.full)
            ]
            (Consumer.pause if hold else Consumer.resume)(self, delivering)
        if not hold:
            self._client.wake(delivering)

    # --- the end, and partitions that go -------------------------------------------------------------------------

    def _wind_up(self, crew: Crew, patience_s: float | None) -> None:
        """Wait for the handlers that are running, at most so many seconds; have the rest delivered again, in order."""
        until = None if patience_s is None else time.monotonic() + patience_s
        alive = time.monotonic()
        crew.halt()
        try:
            self._withdraw(crew)
            while crew.busy and (until is None or time.monotonic() < until):
                self._settle(crew, LOOK_S)
                self._withdraw(crew)
                if time.monotonic() > alive + _SIGN_OF_LIFE_S:
                    alive = time.monotonic()
                    self._breathe()
            if self._held_back:
                self._hold_back(hold=False)
        finally:
            with self._lock:
                for task in self._abandon(crew, None):
                    self._return(crew, task)
                self._hand.put_back(sorted(crew.returned, key=_offset))

    def _wind_up_anyhow(self, crew: Crew) -> None:
        """Wind up after an error, which is not to be hidden by another."""
        try:
            self._wind_up(crew, self._patience_s)
        except Exception:
            logger.exception("the handlers could not be waited for in order; what was in flight comes again")

    def _withdraw(self, crew: Crew) -> None:
        with self._lock:
            crew.returned += [task.message for task in crew.withdraw()]


def _offset(message: Any) -> int:
    return int(message.offset())
