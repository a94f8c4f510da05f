"""Whether an exception is an interruption: it came from outside of the code that it struck.

A signal's handler (a time-out by `signal.setitimer`, Ctrl-C) raises any exception, wherever the main thread is. Code of
a library in C may turn that one into another, e.g. a `SystemError`, whose cause it is. So the type says little. The
frame of the handler says all: it is in the traceback of the exception, or of one that led to it.
"""

from __future__ import annotations

import signal
from functools import partial
from types import CodeType


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
        if isinstance(each, KeyboardInterrupt) or not handlers.isdisjoint(_codes_in(each)):
            return True
        led_to += [each.__cause__, each.__context__]
    return False


def _codes_in(error: BaseException) -> set[CodeType]:
    codes, trace = set[CodeType](), error.__traceback__
    while trace is not None:
        codes.add(trace.tb_frame.f_code)
        trace = trace.tb_next
    return codes


def _code_of(handler: object) -> CodeType | None:
    """Return the code of a handler; None for one that is written in C, or is none."""
    while isinstance(handler, partial):
        handler = handler.func
    if not hasattr(handler, "__code__"):
        # An object that is called; enums, for the default actions, have no code either.
        handler = vars(type(handler)).get("__call__")
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None
