"""An interruption is told by the frame of a signal's handler, whatever the type of the exception."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk._interruptions import is_interruption, release_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def late(*_: object) -> None:
    """Handle a signal."""
    raise TimeoutError("late")


class Late:
    """Handles a signal, as an object or by a method."""

    def __call__(self, *_: object) -> None:
        """Handle a signal."""
        raise TimeoutError("late")

    def ring(self, *_: object) -> None:
        """Handle a signal."""
        late()


class LateToo(Late):
    """Handles a signal as its base class does."""


def once(_number: int, _frame: object) -> None:
    """Handle one signal, as a time-out that takes itself out before it raises."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    late()


@pytest.fixture(autouse=True)
def _handled() -> Iterator[None]:
    """Have `late` handle SIGUSR1, as an application that has a time-out."""
    before = signal.signal(signal.SIGUSR1, late)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "handler",
    [late, lambda *_: late(), Late(), LateToo(), Late().ring, partial(late, 1), once],
    ids=["function", "lambda", "object", "inherited", "method", "partial", "once"],
)
def test_each_kind_of_handler_is_known(handler: Callable[..., None]) -> None:
    """Also when it is not installed any more, and when the frames of the error were cleared."""
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(TimeoutError) as raised:
        signal.raise_signal(signal.SIGUSR1)
    release_frames(raised.value)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    assert is_interruption(raised.value)


@pytest.mark.parametrize("cause", [True, False])
def test_what_is_made_of_an_interruption_is_one(cause: bool) -> None:  # noqa: FBT001 (a case)
    """The library says what it made it of, or only raised it meanwhile."""

    def turned() -> None:
        try:
            signal.raise_signal(signal.SIGUSR1)
        except TimeoutError as error:
            raise SystemError("returned a result with an exception set") from (error if cause else None)

    with pytest.raises(SystemError) as raised:
        turned()
    assert is_interruption(raised.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), GeneratorExit()])
def test_what_is_no_error_is_an_interruption(error: BaseException) -> None:
    """Of whatever it comes."""
    assert is_interruption(error)


def test_an_error_is_none() -> None:
    """Nor one that leads to itself, and not a time-out that no signal raised."""
    own: Any = ValueError("a bug")
    own.__cause__ = own
    assert not is_interruption(own)
    assert not is_interruption(TimeoutError("of a socket"))
