"""Whether an exception is an interruption: it came from outside of the code that it struck.

A signal's handler (a time-out by `signal.setitimer`, Ctrl-C) raises any exception, wherever the main thread is. Code of
a library in C may turn that one into another, e.g. a `SystemError`, whose cause it is. So the type says little. The
frame of the handler says all: it is in the traceback of the exception, or of one that led to it. A handler is known by
its code, or, where it is not installed any more (a time-out that takes itself out before it raises), by its argument:
the frame that it interrupted.
"""

from __future__ import annotations

import signal
from functools import partial
from inspect import CO_OPTIMIZED, CO_VARARGS
from traceback import clear_frames
from types import CodeType, FrameType
from typing import Final

_KNOWN: Final = "_dedup_interruption"
"""The attribute of an exception that is known to be one: its frames may be cleared."""


def is_interruption(error: BaseException) -> bool:
    """Whether an exception is no `Exception` (as `KeyboardInterrupt`), or was raised by a signal's handler."""
    if not isinstance(error, Exception):
        return True
    handlers = {code for number in signal.valid_signals() if (code := _code_of(signal.getsignal(number)))}
    led_to: list[BaseException | None] = [error]
    seen: set[int] = set()
    while led_to:
        each = led_to.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, KeyboardInterrupt) or _KNOWN in vars(each) or _has_handler(each, handlers):
            vars(each)[_KNOWN] = True
            return True
        led_to += [each.__cause__, each.__context__]
    return False


def release_frames(error: BaseException) -> None:
    """Clear the frames of an error, which may hold handles and locks; `is_interruption` still knows its origin."""
    is_interruption(error)
    clear_frames(error.__traceback__)


def _has_handler(error: BaseException, handlers: set[CodeType]) -> bool:
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code in handlers or _was_given_its_caller(frame):
            return True
        trace = trace.tb_next
    return False


def _was_given_its_caller(frame: FrameType) -> bool:
    """Whether an argument of a call is the frame that it came from, as of a signal's handler."""
    code = frame.f_code
    if frame.f_back is None or not code.co_flags & CO_OPTIMIZED:
        return False
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & CO_VARARGS)
    values = frame.f_locals
    given = [values.get(name) for name in code.co_varnames[:count]]
    if isinstance(values, dict):
        # A copy, which the frame keeps, and with it the handles of a store, even when the frame is cleared.
        values.clear()
    # One may be the tuple of ``*arguments``.
    return any(each is frame.f_back for one in given for each in (one if isinstance(one, tuple) else (one,)))


def _code_of(handler: object) -> CodeType | None:
    """Return the code of a handler; None for one that is written in C, or is none."""
    while isinstance(handler, partial):
        handler = handler.func
    if not hasattr(handler, "__code__"):
        # An object that is called; enums, for the default actions, have no code either.
        handler = getattr(type(handler), "__call__", None)  # noqa: B004 (its code is wanted)
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None
