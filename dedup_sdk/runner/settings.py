"""What the user chose for a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Literal

from confluent_kafka import Message

from dedup_sdk.checks import choice, seconds, whole
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.runner.tasks import Order, Task

if TYPE_CHECKING:
    from stamina import Attempt

MOST_WORKERS = 10_000
"""More threads than that a process does not get, as a rule."""

Handler = Callable[[Message], object]
Failures = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]
OnError = Literal["raise", "retry", "dead-letter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often, and after what pauses, a handler is called again for a message.

    ``attempts``: calls at most, the first included; None: no limit. ``on``: the errors that may pass, or a function that tells. The pauses grow from
    ``wait_initial`` to ``wait_max`` seconds, twice as long each time, with some jitter.
    """

    attempts: int | None
    on: Failures
    wait_initial: float
    wait_max: float

    def __post_init__(self) -> None:
        if self.attempts is not None:
            whole("attempts", self.attempts, advice="give at least 1, or None for as many as it takes")
        failures: tuple[Any, ...] = self.on if isinstance(self.on, tuple) else (self.on,)
        tells = callable(self.on) and not isinstance(self.on, type)
        if not tells and not (
            failures and all(isinstance(each, type) and issubclass(each, Exception) for each in failures)
        ):
            raise ConfigurationError(
                f"retry_on={self.on!r}: give a class of errors, a tuple of them, e.g. (OSError, TimeoutError), or a function that tells"
            )
        if seconds("wait_initial", self.wait_initial) > seconds("wait_max", self.wait_max):
            raise ConfigurationError(
                f"wait_initial={self.wait_initial!r}, wait_max={self.wait_max!r}: give seconds, the first not above the second"
            )
        if self.attempts != 1 and find_spec("stamina") is None:
            raise ConfigurationError(
                "retries need the package stamina, which is not installed: pip install 'dedup-sdk[retry]'"
            )

    def may_pass(self, error: Exception) -> bool:
        """Whether the handler may succeed when it is called again."""
        on = self.on
        return isinstance(error, on) if isinstance(on, type | tuple) else bool(on(error))

    def after(self, task: Task) -> Iterator[Attempt]:
        """Yield one attempt after the other, with pauses, for a task that failed; the first is the one that failed.

        What is raised in the last one is raised on.
        """
        # Not where the handler succeeds: it costs ten times as much as calling a function.
        import stamina

        def may_pass(error: Exception) -> bool:
            return self.may_pass(error) and task.back_off()

        return iter(
            stamina.retry_context(
                on=may_pass,
                attempts=self.attempts,
                timeout=None,
                wait_initial=self.wait_initial,
                wait_max=self.wait_max,
                wait_jitter=self.wait_initial,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What the user chose; raises `ConfigurationError` in one line."""

    handler: Handler
    on_error: OnError
    workers: int
    order: Order
    retries: Retries
    max_in_flight: int

    def __post_init__(self) -> None:
        choice("on_error", self.on_error, ("raise", "retry", "dead-letter"))
        choice("order", self.order, ("key", "none"))
        whole(
            "workers",
            self.workers,
            most=MOST_WORKERS,
            advice=f"give a number of threads from 1 to {MOST_WORKERS:,}",
        )
        whole(
            "max_in_flight", self.max_in_flight, least=self.workers,
            advice=f"some of the {self.workers} workers would be idle; give at least {self.workers}",
        )  # fmt: skip
        if iscoroutinefunction(self.handler) or not callable(self.handler):
            raise ConfigurationError(
                f"handler={self.handler!r}: give a plain function; a coroutine would count as handled before it has run"
            )

    def is_final(self, error: BaseException) -> bool:
        """Whether an error of a handler, its retries used up, ends the run."""
        return self.on_error != "dead-letter" or not isinstance(error, Exception)
