"""Strategies: how a duplicate is recognised."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dedup_sdk.errors import ConfigurationError
from dedup_sdk.ids import IdSpec, id_spec
from dedup_sdk.window import Window

MissingIdPolicy = Literal["process", "discard", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """Look the ID up among those completed inside the window.

    ``id`` is an ID spec or its text (``"header:dedup-id"``). ``on_missing_id`` says what happens to a record without an ID:
    ``process`` (deliver and count, the default), ``discard`` (count, do not deliver), ``fail`` (raise `MissingIdError`).
    Any order of IDs; memory and disk grow with the window.
    """

    id: IdSpec
    window: Window
    on_missing_id: MissingIdPolicy = field(default="process")

    def __post_init__(self) -> None:
        """Accept texts for ``id`` and ``window``; refuse anything else in one line."""
        object.__setattr__(self, "id", id_spec(self.id))
        window: object = self.window
        if isinstance(window, str):
            object.__setattr__(self, "window", Window.parse(window))
        elif not isinstance(window, Window):
            message = f"window={self.window!r} is not a window; give e.g. Window(days=7)"
            raise ConfigurationError(message)
        if self.on_missing_id not in ("process", "discard", "fail"):
            message = f"on_missing_id={self.on_missing_id!r}; choose process, discard or fail"
            raise ConfigurationError(message)
