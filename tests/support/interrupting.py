"""An interruption at a chosen place: as a signal's handler raises it, wherever Python looks for signals."""

from __future__ import annotations

import contextlib
import dis
import signal
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType, TracebackType

_HERE = (str(Path(__file__).parents[2] / "dedup_sdk"), contextlib.__file__)
_LOOKS = {dis.opmap[name] for name in ("RESUME", "JUMP_BACKWARD", "CALL", "CALL_FUNCTION_EX")}
"""After these instructions Python looks for signals."""


class Interrupted(BaseException):
    """The error of a signal handler; like KeyboardInterrupt no Exception."""


def interrupt() -> None:
    """Raise as the handler of a signal does."""
    raise Interrupted


def strike_at(place: str, strike: Callable[[], object] = interrupt, times: int = 1) -> None:
    """Have a function called at the n-th call of a function of this (qualified) name, in this thread."""
    left = [times]

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and f".{frame.f_code.co_qualname}".endswith(f".{place}"):
            left[0] -= 1
            if left[0] == 0:
                sys.setprofile(None)
                strike()

    sys.setprofile(profile)


class InterruptingQueue(deque[Any]):
    """A queue whose next message is taken out and lost, once `lose_the_next` was called.

    It takes the place of the queue of messages that wait to be handed out.
    """

    _wanted = False

    @classmethod
    def lose_the_next(cls) -> None:
        """Have the next message lost, in whichever queue."""
        cls._wanted = True

    def popleft(self) -> Any:
        """Take a message out (see `deque`)."""
        message = super().popleft()
        if InterruptingQueue._wanted:
            InterruptingQueue._wanted = False
            raise Interrupted
        return message


class InterruptedAt:
    """Raises `Interrupted` at the n-th place of this package's code at which Python looks for signals, and at no other.

    The way into a context manager that is a generator belongs to it: there the block is half entered.
    ``struck`` says whether there were so many, ``left`` how many were missing; ``where`` which place it was.
    """

    def __init__(
        self, place: int, *, by: signal.Signals | None = None, counts: Callable[[], object] = lambda: True
    ) -> None:
        """Prepare; ``by``: a signal whose handler raises, instead of `Interrupted`; ``counts``: whether it may now."""
        self.left, self._by, self._counts = place, by, counts
        self._last: dict[int, int | None] = {}
        self.where = ""

    @property
    def struck(self) -> bool:
        """Whether it was raised."""
        return bool(self.where)

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        if frame.f_back is not None and frame.f_code.co_name != "__init__":
            # A return from Python code to Python code is made without a look.
            self._last[id(frame.f_back)] = None
        if not frame.f_code.co_filename.startswith(_HERE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._last[id(frame)] = frame.f_lasti
        return self.stepped

    def stepped(self, frame: FrameType, event: str, _argument: Any) -> Any:
        """Trace one instruction of a frame (see `sys.settrace`)."""
        if event != "opcode":
            return self.stepped
        code, last = frame.f_code, self._last.get(id(frame))
        self._last[id(frame)] = frame.f_lasti
        if last is not None and code.co_code[last] in _LOOKS:
            # It is raised by the next instruction here, which has to lie in the same block.
            in_block = _handler(code, last) == _handler(code, frame.f_lasti)
            self.left -= bool(in_block and self._counts())
            if self.left == 0:
                self.left = -1
                self.where = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
                sys.settrace(None)
                if self._by is not None:
                    signal.raise_signal(self._by)
                raise Interrupted
        return self.stepped


def _handler(code: CodeType, offset: int) -> int | None:
    for entry in dis._parse_exception_table(code):  # type: ignore[attr-defined]  # nobody else reads it
        if entry.start <= offset < entry.end:
            return int(entry.target)
    return None
