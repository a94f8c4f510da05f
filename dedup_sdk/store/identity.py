"""What stores and snapshots say of themselves in JSON, and how it is read back: every field is checked for its type, its range, its form (`Fields`).

A store says whose memory it is, under the key ``identity``::

    {"format": 4, "cluster": ..., "group": ..., ... (the fields of `Identity`), "window": "7d", "numbered": false}

Every field of `Identity` must be equal for a store to be opened, an empty one too: a topic whose ID becomes known is not
assumed to be the one that was seen before. ``window`` is that of the last owner and may change. ``numbered``: every mark bears
an acceptance number; a window by count cannot be opened on marks without them.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields
from pathlib import Path
from reprlib import Repr
from typing import Final

from dedup_sdk.errors import DedupError, ForeignStoreError, SnapshotError, StoreCorruptError
from dedup_sdk.store.protocol import Identity
from dedup_sdk.window import Window

_INT64: Final = 2**63
MOST_INTEGER: Final = _INT64 - 1
_TEXT_CHARACTERS: Final = 4096
_SHOWN_CHARACTERS: Final = 80
_SHORT: Final = Repr()
_SHORT.maxstring = _SHORT.maxlong = 2 * _SHOWN_CHARACTERS
_SHORT.maxlist = _SHORT.maxdict = _SHOWN_CHARACTERS
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_HEXADECIMAL: Final = re.compile(r"[0-9a-f]+")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class Fields:
    """The fields of one object; ``where`` is its place in the file (or store) ``path``, for messages.

    Every method raises ``error`` in one line naming the file, the field and its value; ``remedy`` says what to do where
    the line does not.
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
                f"{path}: {where.rstrip('.') or 'the whole'} is {_shown(content)}, not an object; {remedy}"
            )
            raise error(message)
        self._content: dict[str, object] = content

    def has(self, name: str) -> bool:
        """Whether the object has a field of this name."""
        return name in self._content

    def string(self, name: str) -> str:
        """Return a string, however long and whatever is in it."""
        value = self._content.get(name)
        if not isinstance(value, str):
            raise self.wrong(name, "a string is wanted")
        return value

    def text(self, name: str) -> str:
        """Return a text of at most 4096 characters, all of which UTF-8 can write."""
        value = self.string(name)
        if len(value) > _TEXT_CHARACTERS or _SURROGATE.search(value):
            raise self.wrong(name, f"a text of at most {_TEXT_CHARACTERS} Unicode characters is wanted")
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a text, or None where null stands."""
        return None if self._is_null(name) else self.text(name)

    def integer(self, name: str, *, least: int = -_INT64, most: int = MOST_INTEGER) -> int:
        """Return a whole number of 64 bits, from ``least`` to ``most``."""
        value = self._content.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            upto = "on" if most == MOST_INTEGER else f"to {most}"
            raise self.wrong(name, f"a whole number from {least} {upto} is wanted")
        return value

    def numbers(self, **least: int) -> list[int]:
        """Return whole numbers of 64 bits, one a field: the fields' names, and the least of each."""
        found = []
        for name, lowest in least.items():
            value = self._content.get(name)
            if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value < _INT64:
                raise self.wrong(name, f"a whole number from {lowest} on is wanted")
            found.append(value)
        return found

    def integers(self, name: str, *, least: int = -_INT64) -> tuple[int, ...]:
        """Return a list of whole numbers of 64 bits, none below ``least``."""
        value = self._content.get(name)
        if not isinstance(value, list) or any(
            isinstance(each, bool) or not isinstance(each, int) or not least <= each < _INT64
            for each in value
        ):
            raise self.wrong(name, f"a list of whole numbers from {least} on is wanted")
        return tuple(value)

    def optional_integer(self, name: str, *, least: int = -_INT64) -> int | None:
        """Return a whole number, or None where null stands."""
        return None if self._is_null(name) else self.integer(name, least=least)

    def flag(self, name: str) -> bool:
        """Return true or false."""
        value = self._content.get(name)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false is wanted")
        return value

    def hexadecimal(self, name: str, *, digits: int) -> str:
        """Return so many lower-case hexadecimal digits."""
        value = self.text(name)
        if len(value) != digits or not _HEXADECIMAL.fullmatch(value):
            raise self.wrong(name, f"{digits} hexadecimal digits are wanted")
        return value

    def file_name(self, name: str) -> str:
        """Return a name that cannot leave its folder: letters, digits, dot, dash, underscore, at most 128."""
        value = self.text(name)
        if not _FILE_NAME.fullmatch(value) or ".." in value:
            raise self.wrong(name, "a plain file name is wanted (letters, digits, '.', '_', '-')")
        return value

    def objects(self, name: str) -> list[Fields]:
        """Return the objects of a list."""
        value = self._content.get(name)
        if not isinstance(value, list):
            raise self.wrong(name, "a list is wanted")
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

    def wrong(self, name: str, why: str, *, shown: object = None) -> DedupError:
        """Return the error for a field, to be raised; ``shown`` replaces its value in the message."""
        if ";" not in why:
            why = f"{why}; {self._remedy}"
        if shown is None and name not in self._content:
            return self._error(f"{self._path}: {self._where}{name} is missing: {why}")
        value = _shown(self._content[name] if shown is None else shown)
        return self._error(f"{self._path}: {self._where}{name}={value}: {why}")

    def _is_null(self, name: str) -> bool:
        return name in self._content and self._content[name] is None


def _shown(value: object) -> str:
    # Not repr(), which ends at the limit of recursion in an object nested as deeply as its reader could bear.
    text = _SHORT.repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


FORMAT: Final = 4


def encode_identity(identity: Identity, window: Window, *, numbered: bool = True) -> bytes:
    """Return the bytes to store. ``numbered``: whether all marks bear numbers until now; a window that is off adds none."""
    more = {"window": window.text, "numbered": numbered and window.count is not None}
    return json.dumps({"format": FORMAT, **asdict(identity), **more}, sort_keys=True).encode()


def decode_identity(data: bytes, folder: Path) -> tuple[Identity, bool]:
    """Return the identity and whether the store's marks are numbered.

    Raises `ForeignStoreError` for another format version and `StoreCorruptError` for what cannot be read.
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
    """Return the text of the window that the store was opened with last, of an identity that `decode_identity` takes."""
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
            message = f"{where} belongs to {entry.name}={old!r}, not {new!r}; give this consumer another store, or move that one away"
            raise ForeignStoreError(message, field=entry.name)


def check_numbered(*, stored: bool, window: Window, where: str) -> None:
    """Raise `ForeignStoreError` when a count window is opened on marks that bear no acceptance numbers."""
    if window.count and not stored:
        message = f"{where} has marks without acceptance numbers, a window of {window} needs them; rebuild it or drop the count"
        raise ForeignStoreError(message, field="window")
