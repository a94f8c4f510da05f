"""The broker that is measured on. Not for contenders: the modules they load are part of their figures."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from dedup_sdk.testing import LocalKafka

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def broker_at(bootstrap: str | None) -> Iterator[str]:
    """The address of a running broker; None: one is started for the block."""
    if bootstrap is not None:
        yield bootstrap
        return
    with LocalKafka() as kafka:
        yield kafka.bootstrap
