"""How values and texts are shown to people: in one line of limited length, with credentials masked.

`shown` prints a value in an error or a log line; nothing else does (`tests/unit/test_house.py`). A text of somebody
else, as of a library's error, is shown by `masked_text`; a place that is used, and not refused, by `shown_location`.

When in doubt, text is masked:

- the rest of the line after a name with secret, password, token, key or credential in it, or after ``Authorization`` or
  ``Cookie``, because nobody knows where such a value ends; if its quote or bracket is still open there, all that
  follows.
- what stands between the ``://`` of a URL and the last ``@``, and the URL's query.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

MAX_ERROR_CHARS: Final = 1_000
"""Maximum length of an error's text in a dead letter, in characters."""
MASK: Final = "***"
_READ_CHARS: Final = 250_000
"""Characters that are read. More than are shown, because blanks and masked credentials shorten the text."""
_SEARCHED_CHARS: Final = 4 * MAX_ERROR_CHARS
_MOST_SHOWN: Final = 100
"""Characters of a value; the rest is cut off."""
_MOST_OF_ERROR: Final = 300
"""Characters of an exception in a log line; the rest is cut off."""
_MIN_SECRET_CHARACTERS: Final = 4
"""Minimum length of a masked secret; shorter strings are no secrets, and occur inside other words."""

_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
_CONTROLS: Final = dict.fromkeys([*range(32), 127], " ")
_SEPARATOR: Final = r"""["'\\\]]*\s*(?:=>|->|:=|[=:]|\\u003[ad])\s*"""
_SURE_SEPARATOR: Final = r"""(?:["'\\\]]*\s*(?:=>|->|:=|=)|["'\\]+\s*:)\s*"""
_ERROR_NAME: Final = r"(?!(?-i:[A-Z][A-Za-z]*(?:Error|Exception): ))"
"""No match at ``KeyError: `` or at the ``Key`` of ``InvalidKeyException: ``: a message follows, which is searched
itself."""
_SETTING: Final = re.compile(r"([\w.\-]+)=[^\s,)]+")
_QUOTED: Final = (
    r"""[bru]{0,2}\\*"(?:\\.|[^"\\])*(?:\\?"|\\?\Z)"""
    r"""|[bru]{0,2}\\*'(?:\\.|''|[^'\\])*(?:\\?'|\\?\Z)"""
)
_REST: Final = rf"(?:[\[({{](?:{_QUOTED}|[^\])}}\"'])*[\])}}]?|{_QUOTED}|-----BEGIN.*)?[^\n]*"
"""The rest of the line. A value in quotes or brackets may have several lines, also one that never ends."""


def _named(names: str, separator: str) -> re.Pattern[str]:
    return re.compile(
        rf"((?:{_ERROR_NAME}(?:{names})[\w.\-]*|pass){separator}){_REST}", re.IGNORECASE | re.DOTALL
    )


_NAMES: Final = "secret|passw|passphrase|pwd|token|credential|authorization|cookie"
_NAMED_SECRET: Final = _named(f"{_NAMES}|key", _SEPARATOR)
_SURE_SECRET: Final = _named(f"{_NAMES}|(?:access|api|private)[_.-]?key", _SURE_SEPARATOR)
"""In values, where "key" is a column, a header or a record's key, and ``py:shop.tokens:of`` a function."""
_QUERY: Final = re.compile(r"([^?#]*)([?#]?)(.*)", re.DOTALL)
_SCHEME: Final = re.compile(r"(.*?)(:/+)(.*)", re.DOTALL)
_HTTP: Final = re.compile(r"https?$", re.IGNORECASE)
_TRAILING: Final = """'"`,.;:)]}>"""
"""Characters that may follow a URL in a text."""


def counted(count: int, noun: str) -> str:
    """Return ``1 record``, or ``2,000 records``; ``noun`` is the singular, whose plural ends with "s"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shown(value: object) -> str:
    """Return a value for an error: its `repr` without credentials; functions and classes by name.

    A text, or an object with a URL in it, is masked up to its last ``@``: a password may contain anything.
    """
    if isinstance(value, type):
        return f"<class {value.__name__}>"
    if inspect.isroutine(value):
        return f"<function {getattr(value, '__name__', type(value).__name__)}>"
    if isinstance(value, str | os.PathLike):
        return _cut(repr(_masked_value(str(value))))
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - an error's text must not be another error
        text = ""
    if not text or _ADDRESS.search(text):
        return f"<{type(value).__name__}>"
    return _cut(" ".join(_masked_value(text).split("\n")))


def error_shown(error: BaseException) -> str:
    """Return the type and the text of an exception in one printable line, cut to a few hundred characters."""
    try:
        kind = str(type(error).__name__)
    except Exception:  # noqa: BLE001 - as above
        kind = "an exception"
    text = error_text(error)
    return f"{one_line(kind)}: {one_line(text)}" if text else one_line(kind)


def one_line(text: str) -> str:
    """Return other people's text in one printable line, cut to a few hundred characters."""
    return "".join(each if each.isprintable() else "?" for each in text[:_MOST_OF_ERROR])


def error_text(error: BaseException) -> str:
    """Return an error's text in one line of at most 1,000 characters, with credentials masked."""
    return masked_text(_text(error))


def masked_text(text: str) -> str:
    """Return a text in one line of at most 1,000 characters, with credentials masked."""
    lines = [line.translate(_CONTROLS).split() for line in re.split(r"[\r\n]+", text[:_READ_CHARS])]
    masked = [[masked_url(word) for word in words] for words in lines]
    if len(text) > _READ_CHARS and masked[-1] and (scheme := _SCHEME.match(lines[-1][-1])):
        # The @ that ends a credential may be in the part that was not read.
        masked[-1][-1] = f"{scheme[1]}{scheme[2]}{MASK}"
    joined = "\n".join(" ".join(words) for words in masked if words)
    searched = joined[:_SEARCHED_CHARS].encode("utf-8", "replace").decode()
    line = _NAMED_SECRET.sub(rf"\1{MASK}", searched).replace("\n", " ")
    return line if len(line) <= MAX_ERROR_CHARS else f"{line[: MAX_ERROR_CHARS - 1]}…"


def masked_settings(text: str) -> str:
    """Mask the values of each KEY=VALUE in a text, as of arguments that nobody knows, and change nothing else."""
    return _SETTING.sub(rf"\1={MASK}", text)


def masked_url(text: str) -> str:
    """Mask the user part and the query of a text that is one URL; the `Path` of one lacks a slash, and counts.

    The user part ends at the *last* ``@``: a password may contain any character, also ``@``.
    """
    found = _SCHEME.match(text)
    if found is None:
        return text
    scheme, mark, rest = found.groups()
    # Some drivers take a user before the scheme.
    scheme = f"{MASK}@{scheme.rpartition('@')[2]}" if "@" in scheme else scheme
    user, at, host = rest.rpartition("@")
    if at and "?" in user:
        # The question mark may be part of a password or begin a query: the rest may be secret in both cases.
        return f"{scheme}{mark}{MASK}"
    visible = f"{MASK}@{host}" if at and user else rest
    return f"{scheme}{mark}{_without_query(visible, scheme)}"


def masked_urls(text: str) -> str:
    """Mask the credentials of the URLs in a text, as `masked_text` does, and change nothing else."""
    return " ".join(map(masked_url, text.split(" ")))


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return a text with these values masked."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def is_url(place: str) -> bool:
    """Whether a location is a URL, not a path."""
    return "://" in place


def redacted_url(url: str) -> str:
    """Return the name of a place: a URL, or a chain of them (``zip://a::https://b``), without user, password, query."""
    return "::".join(map(_place, url.split("::")))


def shown_location(location: str | Path) -> str:
    """Return a folder that is used, or a URL without its secrets, for messages."""
    return redacted_url(str(location)) if is_url(str(location)) else str(location)


def secrets_of_url(url: str) -> set[str]:
    """Return the parts removed by `redacted_url`, also percent-decoded."""
    found: set[str] = set()
    for part in url.split("::"):
        rest = part.partition("://")[2] or part
        where = _before_query(rest)
        query = rest[len(where) :].lstrip("?#")
        user = where.partition("/")[0].rpartition("@")[0]
        found |= {user, query, *re.split(r"[=&#?]", query), user.partition(":")[2]}
        if redacted_url(part).endswith(f"://{MASK}"):
            found.add(rest)
    found |= {unquote(each) for each in found}
    return {each for each in found if len(each) >= _MIN_SECRET_CHARACTERS}


def _cut(text: str) -> str:
    if len(text) <= _MOST_SHOWN:
        return text
    end = text[0] if text[0] in "'\"" else ""
    return f"{text[:_MOST_SHOWN]}...{end}"


def _masked_value(text: str) -> str:
    masked = masked_url(text)[:_SEARCHED_CHARS]
    return _SURE_SECRET.sub(rf"\1{MASK}", masked)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 (a broken __str__ must not hide the error)
        return f"<str() of the error raised {type(broken).__qualname__}>"


def _without_query(rest: str, scheme: str) -> str:
    """Mask the whole query of a URL: any of its parameters may be the signature of a presigned URL."""
    address, mark, query = _QUERY.match(rest).groups()  # type: ignore[union-attr]  # anything matches
    parameters = query.rstrip(_TRAILING)
    # In other schemes a question mark may be a wildcard in a file name.
    is_query = bool(parameters) and (_HTTP.search(scheme) or "=" in parameters.partition("/")[0])
    return f"{address}{mark}{MASK}{query[len(parameters) :]}" if is_query else rest


def _place(part: str) -> str:
    scheme, found, rest = part.partition("://")
    if not found:
        return _before_query(part).rpartition("@")[2]
    scheme = scheme.rpartition("@")[2]
    try:
        parts = urlsplit(f"//{rest}")
        # An invalid port is the beginning of a password with a slash in it.
        _ = parts.port
    except ValueError:
        return f"{scheme}://{MASK}"
    return f"{scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _before_query(text: str) -> str:
    return text.partition("?")[0].partition("#")[0]
