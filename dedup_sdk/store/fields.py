"""Fields of a JSON object that somebody else wrote: every one is checked for its type, its range, its form."""

from __future__ import annotations

import re
from pathlib import Path
from reprlib import Repr
from typing import Final

from dedup_sdk.errors import DedupError, SnapshotError

_INT64: Final = 2**63
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

    def integer(self, name: str, *, least: int = -_INT64, most: int = _INT64 - 1) -> int:
        """Return a whole number of 64 bits, from ``least`` to ``most``."""
        value = self._content.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            upto = "on" if most == _INT64 - 1 else f"to {most}"
            raise self.wrong(name, f"a whole number from {least} {upto} is wanted")
        return value

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
