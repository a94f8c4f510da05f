r"""Files of client settings, as Java's Kafka tools read them: ``name=value`` a line.

Comments begin with ``#`` or ``!``; a name ends at the first ``=``, ``:`` or blank; a backslash at the end of a line
continues it, and a backslash before a character means that character (``\uXXXX``: that of the code).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dedup_sdk.errors import ConfigurationError

_MOST_BYTES: Final = 2**20
_ENTRY: Final = re.compile(r"((?:\\.|[^\\=:\s])*)\s*([=:]\s*)?(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: Path, *, option: str) -> dict[str, str]:
    """Return the settings of a file; ``option`` is how messages name where it was given. No message shows a value.

    Raises:
        ConfigurationError: the file cannot be read, or a line has no name.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"{option} cannot be read: {error.strerror}; give a file of lines KEY=VALUE"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"{option} is not valid UTF-8; give a text file of lines KEY=VALUE"
        ) from None
    except ValueError:
        raise ConfigurationError(f"{option} is not a file name; give a file of lines KEY=VALUE") from None
    if len(data) > _MOST_BYTES:
        raise ConfigurationError(
            f"{option} is larger than {_MOST_BYTES:,} bytes; give a file of client settings"
        )
    settings = {}
    for number, line in _logical_lines(text):
        found = _ENTRY.fullmatch(line)
        name, separator, value = found.groups("") if found else ("", "", "")
        if not name or not (separator or value):
            raise ConfigurationError(f"{option}, line {number}, is not a setting; write KEY=VALUE")
        settings[_plain(name)] = _plain(value)
    return settings


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that say something, continued ones joined, with the number of their first."""
    joined, began = "", 0
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = raw.lstrip()
        if not joined:
            if not line or line[0] in "#!":
                continue
            began = number
        joined += line
        if (len(joined) - len(joined.rstrip("\\"))) % 2:
            joined = joined[:-1]
            continue
        yield began, joined
        joined = ""
    if joined:
        yield began, joined


def _plain(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        code, escaped = found.groups()
        return chr(int(code, 16)) if code else _ESCAPED.get(escaped, escaped)

    return _ESCAPE.sub(character, text)
