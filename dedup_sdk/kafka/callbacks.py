"""Callbacks that never raise into the client.

An exception that leaves a rebalance callback inside the client's ``poll`` makes it lose the message that it had fetched.
So it is kept, and raised where the application called, after what was fetched is safe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

logger = logging.getLogger("dedup_sdk")


_IN_POLL = ("error_cb", "stats_cb", "throttle_cb")
"""The client's callbacks whose answer nobody waits for, and that run inside ``poll``."""


class Guard:
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
