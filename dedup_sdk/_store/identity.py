"""The identity of a store, and `Fields`, which reads JSON objects and checks type, range and form of every field.

A store keeps its identity under the key ``identity``::

    {"format": 5, "cluster": ..., "group": ..., ... (the fields of `Identity`), "window": "7d", "numbered": false}

Every field of `Identity` must be equal for a store to be opened, even an empty one: a topic whose ID
becomes known later is not assumed to be the same topic. ``window`` is that of the last owner and may
change. ``numbered``: every mark has an acceptance number; a window by count cannot be opened on marks
without them.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields
from pathlib import Path
from typing import Final

from dedup_sdk._masking import shown
from dedup_sdk._store.protocol import Identity
from dedup_sdk._window import Window
from dedup_sdk.errors import DedupError, ForeignStoreError, SnapshotError, StoreCorruptError

_INT64: Final = 2**63
MAX_INTEGER: Final = _INT64 - 1
_TEXT_CHARACTERS: Final = 4096
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_HEXADECIMAL: Final = re.compile(r"[0-9a-f]+")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class Fields:
    """The fields of one JSON object; ``where`` is its position in the file (or store) ``path``, for messages.

    Every method raises ``error`` in one line naming the file, the field and its value; ``remedy`` is
    appended where the line does not say what to do.
    """

    def __init__(
        self,
        path: Path | str,
        where: str,
        content: object,
        *,
        error: type[DedupError] = SnapshotError,
        remedy: str = "make the snapshot again",
    ) -> None:
        self._path = path
        self._where = where
        self._error = error
        self._remedy = remedy
        if not isinstance(content, dict):
            message = (
                f"{path}: {where.rstrip('.') or 'the content'} is {shown(content)}, not an object; {remedy}"
            )
            raise error(message)
        self._content: dict[str, object] = content

    def has(self, name: str) -> bool:
        """Whether the object has a field of this name."""
        return name in self._content

    def string(self, name: str) -> str:
        """Return a string of any length and content."""
        value = self._content.get(name)
        if not isinstance(value, str):
            raise self.invalid(name, "must be a string")
        return value

    def text(self, name: str) -> str:
        """Return a text of at most 4096 characters that UTF-8 can encode."""
        value = self.string(name)
        # JSON can name half a character, which no log line and no file name can take.
        if len(value) > _TEXT_CHARACTERS or _SURROGATE.search(value):
            raise self.invalid(name, f"must be a text of at most {_TEXT_CHARACTERS} Unicode characters")
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a text, or None for null."""
        return None if self._is_null(name) else self.text(name)

    def integer(self, name: str, *, least: int = -_INT64, most: int = MAX_INTEGER) -> int:
        """Return an integer of 64 bits, from ``least`` to ``most``."""
        value = self._content.get(name)
        # JSON's `true` is an `int` for Python, and would pass for 1.
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            upto = "" if most == MAX_INTEGER else f", at most {most}"
            raise self.invalid(name, f"must be a 64-bit integer, at least {least}{upto}")
        return value

    def numbers(self, **least: int) -> list[int]:
        """Return one 64-bit integer per field, given as field name = minimum."""
        found = []
        for name, lowest in least.items():
            value = self._content.get(name)
            if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value < _INT64:
                raise self.invalid(name, f"must be a 64-bit integer, at least {lowest}")
            found.append(value)
        return found

    def integers(self, name: str, *, least: int = -_INT64) -> tuple[int, ...]:
        """Return a list of 64-bit integers, none below ``least``."""
        value = self._content.get(name)
        if not isinstance(value, list) or any(
            isinstance(each, bool) or not isinstance(each, int) or not least <= each < _INT64
            for each in value
        ):
            raise self.invalid(name, f"must be a list of 64-bit integers, each at least {least}")
        return tuple(value)

    def optional_integer(self, name: str, *, least: int = -_INT64) -> int | None:
        """Return an integer, or None for null."""
        return None if self._is_null(name) else self.integer(name, least=least)

    def flag(self, name: str) -> bool:
        """Return true or false."""
        value = self._content.get(name)
        if not isinstance(value, bool):
            raise self.invalid(name, "must be true or false")
        return value

    def hexadecimal(self, name: str, *, digits: int) -> str:
        """Return a string of exactly ``digits`` lower-case hexadecimal digits."""
        value = self.text(name)
        if len(value) != digits or not _HEXADECIMAL.fullmatch(value):
            raise self.invalid(name, f"must be {digits} hexadecimal digits")
        return value

    def file_name(self, name: str) -> str:
        """Return a name that cannot leave its folder: letters, digits, dot, dash, underscore, at most 128."""
        value = self.text(name)
        if not _FILE_NAME.fullmatch(value) or ".." in value:
            raise self.invalid(name, "must be a plain file name (letters, digits, '.', '_', '-')")
        return value

    def objects(self, name: str) -> list[Fields]:
        """Return the objects in a list."""
        value = self._content.get(name)
        if not isinstance(value, list):
            raise self.invalid(name, "must be a list")
        return [
            Fields(
                self._path,
                f"{self._where}{name}[{index}].",
                entry,
                error=self._error,
                remedy=self._remedy,
            )
            for index, entry in enumerate(value)
        ]

    def invalid(self, name: str, why: str, *, instead: object = None) -> DedupError:
        """Return the error for a field, to be raised; ``instead`` replaces its value in the message."""
        if ";" not in why:
            why = f"{why}; {self._remedy}"
        if instead is None and name not in self._content:
            return self._error(f"{self._path}: {self._where}{name} is missing: {why}")
        value = shown(self._content[name] if instead is None else instead)
        return self._error(f"{self._path}: {self._where}{name}={value}: {why}")

    def _is_null(self, name: str) -> bool:
        return name in self._content and self._content[name] is None


FORMAT: Final = 5


def encode_identity(identity: Identity, window: Window, *, numbered: bool = True) -> bytes:
    """Return the bytes to store.

    ``numbered``: whether all marks so far have numbers; a window that is off adds no marks.
    """
    more = {"window": window.text, "numbered": numbered and window.count is not None}
    return json.dumps({"format": FORMAT, **asdict(identity), **more}, sort_keys=True).encode()


def decode_identity(data: bytes, folder: Path) -> tuple[Identity, bool]:
    """Return the identity, and whether the store's marks are numbered.

    Raises `ForeignStoreError` for another format version, and `StoreCorruptError` for unreadable bytes.
    """
    remedy = "move it away and rebuild it"
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        message = f"store {folder} has an identity that is not JSON ({error}); {remedy}"
        raise StoreCorruptError(message) from None
    read = Fields(f"store {folder}", "identity.", content, error=StoreCorruptError, remedy=remedy)
    version = read.integer("format", least=1)
    if version != FORMAT:
        message = (
            f"store {folder} has format {version}, this version reads {FORMAT}; use the version that wrote it"
        )
        raise ForeignStoreError(message, field="format")
    texts = {entry.name: read.string(entry.name) for entry in fields(Identity) if entry.name != "partition"}
    return Identity(partition=read.integer("partition", least=0), **texts), read.flag("numbered")


def decode_window(data: bytes, folder: Path) -> str:
    """Return the text of the window the store was last opened with, from bytes that `decode_identity` accepts."""
    return Fields(
        f"store {folder}",
        "identity.",
        json.loads(data),
        error=StoreCorruptError,
        remedy="move it away and rebuild it",
    ).text("window")


def check_identity(stored: Identity, wanted: Identity, where: str) -> None:
    """Raise `ForeignStoreError` naming the first field that differs, and both values."""
    for entry in fields(Identity):
        old, new = getattr(stored, entry.name), getattr(wanted, entry.name)
        if old != new:
            message = (
                f"{where} belongs to {entry.name}={shown(old)}, not {shown(new)}; "
                "give this consumer another store, or move that one away"
            )
            raise ForeignStoreError(message, field=entry.name)


def check_numbered(*, stored: bool, window: Window, where: str) -> None:
    """Raise `ForeignStoreError` when a count window is opened on marks without acceptance numbers."""
    if window.count and not stored:
        message = (
            f"{where} has marks without acceptance numbers, but window {window} needs them; "
            "rebuild it, or use a window without a count"
        )
        raise ForeignStoreError(message, field="window")
