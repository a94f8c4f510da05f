"""The settings of a run: handler, retries, error policy, workers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, Literal

from confluent_kafka import Message

from dedup_sdk._checks import choice, runs_on_loop, seconds, text, unfit_arguments, whole
from dedup_sdk._masking import shown
from dedup_sdk._runner.tasks import Order, Task
from dedup_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    from stamina import Attempt

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
MOST_WORKERS = 10_000
"""Upper limit of worker threads; a process usually cannot start more."""

Handler = Callable[[Message], object]
Failures = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]
OnError = Literal["raise", "retry", "dead-letter"]


class UnfitHandlerError(TypeError):
    """The code of a handler has not run when it returns: no call of it can handle a message."""


def _runs_later(function: Any) -> bool:
    """Whether a call of a function only makes an object that runs its code; mocks and others may answer anything."""
    while isinstance(function, partial):
        function = function.func
    # Not `isinstance`, to which a mock of a function lies.
    return type(function) in (FunctionType, MethodType) and any(
        tells(function) for tells in (iscoroutinefunction, isgeneratorfunction, isasyncgenfunction)
    )


def is_topic(name: str) -> bool:
    """Whether a broker takes this as the name of a topic."""
    return _TOPIC.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often, and after which pauses, a handler is called again for a message.

    ``attempts``: maximum number of calls, the first included; None: no limit. ``on``: the retriable errors, or a
    function that decides. The pauses grow from ``wait_initial`` to ``wait_max`` seconds, twice as long each time,
    with jitter.
    """

    attempts: int | None
    on: Failures
    wait_initial: float
    wait_max: float

    def __post_init__(self) -> None:
        if self.attempts is not None:
            whole("attempts", self.attempts, advice="give at least 1, or None for no limit")
        failures: tuple[Any, ...] = self.on if isinstance(self.on, tuple) else (self.on,)
        is_function = callable(self.on) and not isinstance(self.on, type)
        if not is_function and not (
            failures and all(isinstance(each, type) and issubclass(each, Exception) for each in failures)
        ):
            raise ConfigurationError(
                f"retry_on={shown(self.on)}: give an error class, a tuple of them, e.g. (OSError, TimeoutError), or a "
                "function that returns whether to retry an error"
            )
        if seconds("wait_initial", self.wait_initial) > seconds("wait_max", self.wait_max):
            raise ConfigurationError(
                f"wait_initial={shown(self.wait_initial)}, wait_max={shown(self.wait_max)}: give seconds, "
                "wait_initial not above wait_max"
            )
        if self.attempts != 1 and find_spec("stamina") is None:
            raise ConfigurationError(
                "retries need the package stamina, which is not installed: pip install 'dedup-sdk[retry]'"
            )

    def is_retriable(self, error: Exception) -> bool:
        """Whether to call the handler again after this error."""
        on = self.on
        if isinstance(error, UnfitHandlerError):
            return False
        return isinstance(error, on) if isinstance(on, type | tuple) else bool(on(error))

    def after(self, task: Task) -> Iterator[Attempt]:
        """Yield a task's attempts, with pauses between them; the first stands for the call that has failed.

        The error of the last attempt is raised.
        """
        return iter(self.context(lambda error: self.is_retriable(error) and task.back_off()))

    def context(self, begins_again: Callable[[Exception], bool]) -> Any:
        """Return the attempts behind a call that has failed, to iterate over in a thread or in a coroutine."""
        # Only after a failure: an attempt of stamina costs ten times as much as a plain function call.
        import stamina

        return stamina.retry_context(
            on=begins_again,
            attempts=self.attempts,
            timeout=None,
            wait_initial=self.wait_initial,
            wait_max=self.wait_max,
            wait_jitter=self.wait_initial,
        )


ATTEMPTS: Final = 5
"""The default of `run`: the most calls of a handler for one message."""


def calls_at_most(on_error: OnError, attempts: int | None) -> int | None:
    """Return the most calls of a handler for one message; None: no limit."""
    if on_error != "raise":
        return attempts
    if attempts not in (1, ATTEMPTS):
        raise ConfigurationError(
            f"attempts={shown(attempts)} is not used with on_error='raise', which ends the run at the first error; "
            "choose on_error='retry' or 'dead-letter', or leave attempts= out"
        )
    return 1


def check_dead_letters(topic: str | None, on_error: OnError) -> None:
    """Raise `ConfigurationError` for a dead-letter topic that is none, or that ``on_error`` makes no use of."""
    if topic is None:
        return
    text("dead_letters", topic)
    if not is_topic(topic):
        raise ConfigurationError(
            f"dead_letters={shown(topic)} is not a topic's name; give 1 to 249 letters, digits, dots, hyphens and "
            "underscores, or leave it out for the default"
        )
    if on_error != "dead-letter":
        raise ConfigurationError(
            f"dead_letters={shown(topic)} is not used with on_error={shown(on_error)}; choose on_error='dead-letter', "
            "or leave it out"
        )


def refuse_unfit(handler: Callable[..., Any], kind: str, *, produces: bool = False) -> None:
    """Raise `ConfigurationError` for a handler that does not take one message; ``kind``: the one to give.

    ``produces``: it takes a message, and the function that produces.
    """
    unfit = unfit_arguments(handler, 2 if produces else 1)
    if unfit is not None:
        taken, given = ("a message and produce",) * 2 if produces else ("one message", "a message")
        raise ConfigurationError(
            f"handler={shown(handler)} cannot be called with {taken}, as its arguments are {unfit}; give {kind} of "
            f"{given}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _AnyRunSettings:
    handler: Callable[..., object]
    on_error: OnError
    dead_letters: str | None
    """The dead-letter topic; None: the default."""
    retries: Retries

    def __post_init__(self) -> None:
        choice("on_error", self.on_error, ("raise", "retry", "dead-letter"))
        check_dead_letters(self.dead_letters, self.on_error)

    def letters_of(self, group: str) -> str | None:
        """Return the topic for the dead letters of a group; None: failures are not dead-lettered."""
        return (self.dead_letters or f"{group}.dead-letters") if self.on_error == "dead-letter" else None

    def is_final(self, error: BaseException) -> bool:
        """Whether a handler's error, after its retries, ends the run."""
        fails_each = isinstance(error, UnfitHandlerError) or not isinstance(error, Exception)
        return self.on_error != "dead-letter" or fails_each


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings(_AnyRunSettings):
    """The settings of a run; raises `ConfigurationError` with a one-line message."""

    workers: int
    order: Order
    max_in_flight: int
    produces: bool = False
    """Whether the handler takes a message, and the function that produces."""

    def __post_init__(self) -> None:
        _AnyRunSettings.__post_init__(self)
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
        if not callable(self.handler):
            raise ConfigurationError(
                f"handler={shown(self.handler)}: give a function of a message, e.g. run(handle)"
            )
        if _runs_later(self.handler) or _runs_later(type(self.handler).__call__):
            raise ConfigurationError(
                f"handler={shown(self.handler)} is async, or has yield: a message would count as handled before its "
                "code has run; give a plain function, which may call asyncio.run()"
            )
        refuse_unfit(self.handler, "a function", produces=self.produces)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncRunSettings(_AnyRunSettings):
    """The settings of a run on an event loop; raises `ConfigurationError` with a one-line message."""

    handler: Callable[[Message], Awaitable[object]]
    concurrency: int
    order: Literal["key", "partition"] | None

    def __post_init__(self) -> None:
        _AnyRunSettings.__post_init__(self)
        if self.order is not None:
            choice("order", self.order, ("key", "partition"))
        whole(
            "concurrency", self.concurrency, advice="give the most handlers that may run at a time, e.g. 100"
        )
        function: Any = self.handler
        while isinstance(function, partial):
            function = function.func
        if not callable(function):
            raise ConfigurationError(
                f"handler={shown(self.handler)}: give a coroutine function, e.g. run(handle)"
            )
        if not runs_on_loop(function):
            raise ConfigurationError(
                f"handler={shown(self.handler)} is a plain function, which would stop the event loop: write async def, "
                "have it await asyncio.to_thread(work, message), or use DedupConsumer.run in a thread"
            )
        refuse_unfit(self.handler, "a coroutine function")
