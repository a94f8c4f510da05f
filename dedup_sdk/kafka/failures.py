"""What went wrong, and what the next call for messages has to see to first.

An exception that leaves a rebalance callback inside the client's ``poll`` makes it lose the message that it had fetched. So it is kept (`CallbackErrors`), and
raised where the application called, after what was fetched is safe.

An interruption is a crash (`Interruption`). An exception that leaves a step half way (Ctrl-C, a timeout's signal, a damaged store, a bug) sets one flag.
The next call for messages sees it first: it opens every partition again from its store and from what is completed, as after a crash. Messages
that were out count as released. So an interruption loses no message; some may come twice.

There is no cheaper way back on purpose, not even for an exception inside the client's own call: one way back is tested
by every test of recovery.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

logger = logging.getLogger("dedup_sdk")


_IN_POLL = ("error_cb", "stats_cb", "throttle_cb")
"""The client's callbacks whose answer nobody waits for, and that run inside ``poll``."""


class CallbackErrors:
    """Runs callbacks and keeps the first exception (``kept``) until it can be raised."""

    def __init__(self) -> None:
        self.kept: BaseException | None = None

    def run(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Call; keep what it raises (later ones are logged)."""
        try:
            callback(*arguments)
        except BaseException as error:  # noqa: BLE001 (also an interrupt must not cost a message)
            self.keep(error)

    def keep(self, error: BaseException) -> None:
        """Keep an exception until `raise_kept`; a second one is logged."""
        if self.kept is None:
            self.kept = error
        else:
            logger.warning("a second failure before the first was raised: %r", error)

    def around(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the client's configuration with its callbacks guarded."""
        guarded = {name: partial(self.run, config[name]) for name in _IN_POLL if callable(config.get(name))}
        return {**config, **guarded}

    def raise_kept(self, kind: type[BaseException] = BaseException) -> None:
        """Raise what was kept, once, if it is of this kind."""
        if isinstance(self.kept, kind):
            kept, self.kept = self.kept, None
            raise kept


class Interruption:
    """Whether an exception has left partitions half way (``happened``), and when the next upkeep is due.

    ``upkeep_at`` is in monotonic seconds. Until it has come, `DedupConsumer.poll` hands out what is ready without a look at anything else.
    Until the partitions are opened again nothing is completed by being handed out: which messages the application has is not certain.
    """

    note: Callable[[], None]
    """Have the next call for messages open the partitions again. Signals interrupt it neither before nor half way."""

    def __init__(self) -> None:
        self.happened = False
        self.upkeep_at = 0.0
        # No function of Python: the interpreter looks for signals where one begins, and then nothing would be noted.
        self.note = partial(object.__setattr__, self, "happened", True)

    def over(self) -> None:
        """Take note that every partition was opened again."""
        self.happened, self.upkeep_at = False, 0.0

    def look_at(self, at: float) -> None:
        """Have the first call for messages from then on (monotonic seconds) do its upkeep."""
        self.upkeep_at = at

    def look_soon(self) -> None:
        """Have the next call for messages do its upkeep."""
        self.upkeep_at = 0.0

    def whole(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """Do a step that changes partitions; an exception that leaves it half way is noted, and raised.

        Call it with the lock held where the step needs the lock: no other thread may see what is half way and not yet marked so.
        """
        try:
            return step(*arguments)
        except BaseException:
            self.note()
            raise
