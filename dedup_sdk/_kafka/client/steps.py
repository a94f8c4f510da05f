"""Steps: changes of the consumer's state, one after the other, and what happens to calls that come in the middle."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from threading import get_ident
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException

from dedup_sdk._interruptions import is_interruption
from dedup_sdk._kafka.client.guards import CallbackErrors, ClientLock, Interruption, is_inside
from dedup_sdk.errors import StoreCorruptError, StoreUnavailableError

T = TypeVar("T")


class Steps:
    """What every part of a consumer needs for a change: the lock, the interruptions, the errors of callbacks."""

    def __init__(self, lock: ClientLock, interruption: Interruption, errors: CallbackErrors) -> None:
        self.lock: Final = lock
        self.interruption: Final = interruption
        self.errors: Final = errors

    def run(self, step: Callable[..., T], *arguments: Any) -> T:
        """Run a step that changes partitions; see `Interruption.run_step`."""
        result: T = self.interruption.run_step(step, *arguments)
        return result

    def run_kept(self, step: Callable[..., object], *arguments: Any) -> None:
        """Run a step in a callback; keep an exception until the client's call has returned."""
        self.errors.run(self.interruption.run_step, step, *arguments)

    @contextlib.contextmanager
    def guarded(self, *, defers_store_errors: bool = False) -> Iterator[None]:
        """Have an exception inside count as an interruption (see `dedup_sdk._kafka.client.guards`); with the lock.

        ``defers_store_errors``: a damaged store, or a full disk, is not raised: the next call for messages handles it.
        """
        self.lock.check_open()
        try:
            yield
        except BaseException as error:
            if isinstance(error, KafkaException) and not is_interruption(error):
                raise
            self.interruption.note()
            if not (defers_store_errors and isinstance(error, StoreCorruptError | StoreUnavailableError)):
                raise

    def do_or_note(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T | None:
        """Make a change that the application asks for; in the middle of a step, make it before the next one.

        A signal's handler, an observer and a destructor call on this thread, between any two lines of a step that has
        the lock, or of a call of the client. What they ask for must not see, or change, what is half done, and no call
        of the client may begin inside another one. Their call returns None, as if the signal had come a little later.
        While the consumer closes, there is no next step: the call is ignored, and logged.

        An interruption is noted wherever it strikes: between two steps of the call, the first may have released
        messages, or paused partitions, for the second.
        """
        if self.is_midway:
            if self.lock.may_change(call.__name__.strip("_")):
                self.interruption.note_call(partial(call, *arguments, **named))
            return None
        self.do_noted()
        try:
            return call(*arguments, **named)
        except BaseException as error:
            if is_interruption(error):
                self.interruption.note()
            raise

    @property
    def is_midway(self) -> bool:
        """Whether this thread is in a step, or in the client but for a callback, and calls in between."""
        lock = self.lock
        return lock.is_mine() or (
            # The stack, too: an exception of a signal may have left the mark.
            lock.client_thread == get_ident()
            and is_inside(ClientLock.call_client, lock)
            and not self.errors.runs_here()
        )

    def do_noted(self) -> None:
        """Do the noted calls, which are older than the call that asks; a call for messages raises their errors.

        An interruption is raised at once: it struck the call that asks. The noted call may be lost by it, e.g. one that
        released a message.
        """
        while True:
            try:
                call = self.interruption.take_noted()
                if call is None:
                    return
                call()
            except BaseException as error:
                if is_interruption(error):
                    self.interruption.note()
                    raise
                self.errors.keep(error)
