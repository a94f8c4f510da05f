"""By which rule records in units are judged: a fold of the log goes by the same, or remembers what nobody has handled."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from dedup_sdk.units.keys import UnitKeys
from dedup_sdk.window import Window

_DIGITS: Final = 8


def judged_by(keys: object, window: Window) -> str:
    """Return eight hexadecimal digits that tell one such rule from others; empty where each record is judged for itself.

    ``keys``: what is read of a record. The window is part of it where a unit is rejected as a whole: what a shorter one has forgotten rejects
    nothing. Of members each was handled, whatever it was told.
    """
    if not isinstance(keys, UnitKeys):
        return ""
    rule = f"{keys} {window}" if keys.mode == "all-or-nothing" else str(keys)
    return sha256(rule.encode()).hexdigest()[:_DIGITS]
