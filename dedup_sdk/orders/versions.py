"""Dotted versions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dedup_sdk.orders.order import Order
from dedup_sdk.orders.place import ONLY_ORIGIN, Place

_VERSION = re.compile(rb"[0-9]{1,20}(?:\.[0-9]{1,20}){0,31}")


@dataclass(frozen=True, slots=True)
class DottedVersion(Order):
    """Numbers joined by dots; see `dedup_sdk.orders.dotted_version`."""

    @property
    def name(self) -> str:
        """The identity of this order."""
        return "dotted-version"

    def place(self, dedup_id: bytes, /) -> Place | None:
        """Return the place of e.g. ``1.10.2``: its numbers, the first one first."""
        if not _VERSION.fullmatch(dedup_id):
            return None
        return Place(ONLY_ORIGIN, tuple(map(int, dedup_id.split(b"."))))
