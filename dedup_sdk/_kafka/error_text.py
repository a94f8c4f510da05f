"""Error texts that may be shown to others: one line of limited length, with credentials masked.

When in doubt, text is masked: the value after a name with secret, password, token, key or credential in it;
everything between ``://`` and the last ``@`` of the same word, and the query of such a URL; and the rest of the line
after ``Authorization`` or ``Cookie``.

The times in such texts are in UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

MAX_ERROR_CHARS = 1_000
"""Maximum length of an error's text in a dead letter, in characters."""
_READ_CHARS = 250_000
"""Characters that are read. More than are shown, because blanks and masked credentials shorten the text."""
_SEARCHED_CHARS = 4 * MAX_ERROR_CHARS
_MASK = "***"
_YEAR_MS = 31_556_952_000

_CONTROLS = dict.fromkeys([*range(32), 127], " ")
_SEPARATOR = r"""["'\\\]]*\s*(?:=>|->|:=|[=:]|\\u003[ad])\s*"""
_SECRET_LINE = re.compile(rf"((?:authorization|cookie){_SEPARATOR})[^\r\n]+", re.IGNORECASE)
_ERROR_NAME = r"(?!(?-i:[A-Z][A-Za-z]*(?:Error|Exception): ))"
"""No match at ``KeyError: `` or at the ``Key`` of ``InvalidKeyException: ``: a message follows, which is searched
itself."""
_SETTING = re.compile(r"([\w.\-]+)=[^\s,)]+")
_NAMED_SECRET = re.compile(
    rf"((?:{_ERROR_NAME}(?:secret|passw|passphrase|pwd|token|key|credential)[\w.\-]*|pass){_SEPARATOR})"
    r"(?:(?:bearer|basic|digest|apikey)\s+)?"
    # An unterminated quoted or braced value masks the rest of the line.
    r"""(?:[\[(]*[bru]{0,2}\\*"(?:\\.|[^"\\])*\\?(?:"|$)"""
    r"""|[\[(]*[bru]{0,2}\\*'(?:\\.|[^'\\])*\\?(?:'|$)"""
    r"""|\{[^}]*\}?|[^\s,;&)}\]]+)""",
    re.IGNORECASE,
)

_QUERY = re.compile(r"([^?#]*)([?#]?)(.*)", re.DOTALL)
_HTTP = re.compile(r"https?$", re.IGNORECASE)
_TRAILING = """'"`,.;:)]}>"""
"""Characters that may follow a URL in a text."""


def error_text(error: BaseException) -> str:
    """Return an error's text in one line of at most 1,000 characters, with credentials masked."""
    return masked_text(_text(error))


def masked_text(text: str) -> str:
    """Return a text in one line of at most 1,000 characters, with credentials masked."""
    words = _SECRET_LINE.sub(rf"\1{_MASK}", text[:_READ_CHARS]).translate(_CONTROLS).split()
    shown = [_without_credentials(word) for word in words]
    if len(text) > _READ_CHARS and words and "://" in words[-1]:
        # The @ that ends a credential may be in the part that was not read.
        shown[-1] = f"{words[-1].partition('://')[0]}://{_MASK}"
    line = " ".join(shown)[:_SEARCHED_CHARS].encode("utf-8", "replace").decode()
    line = _NAMED_SECRET.sub(rf"\1{_MASK}", line)
    return line if len(line) <= MAX_ERROR_CHARS else f"{line[: MAX_ERROR_CHARS - 1]}…"


def masked_settings(text: str) -> str:
    """Mask the values of each KEY=VALUE in a text, as of arguments that nobody knows, and change nothing else."""
    return _SETTING.sub(rf"\1={_MASK}", text)


def masked_urls(text: str) -> str:
    """Mask the credentials of the URLs in a text, as `masked_text` does, and change nothing else."""
    return " ".join(map(_without_credentials, text.split(" ")))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 (a broken __str__ must not hide the error)
        return f"<str() of the error raised {type(broken).__qualname__}>"


def _without_credentials(word: str) -> str:
    """Mask the user part of a URL and its query.

    The user part ends at the *last* ``@``: a password may contain any character, also ``@``.
    """
    scheme, found, rest = word.partition("://")
    if not found:
        return word
    user, at, host = rest.rpartition("@")
    if at and "?" in user:
        # The question mark may be part of a password or begin a query: the rest may be secret in both cases.
        return f"{scheme}://{_MASK}"
    shown = f"{_MASK}@{host}" if at and user else rest
    return f"{scheme}://{_without_query(shown, scheme)}"


def _without_query(rest: str, scheme: str) -> str:
    """Mask the whole query of a URL: any of its parameters may be the signature of a presigned URL."""
    address, mark, query = _QUERY.match(rest).groups()  # type: ignore[union-attr]  # anything matches
    parameters = query.rstrip(_TRAILING)
    # In other schemes a question mark may be a wildcard in a file name.
    is_query = bool(parameters) and (_HTTP.search(scheme) or "=" in parameters.partition("/")[0])
    return f"{address}{mark}{_MASK}{query[len(parameters) :]}" if is_query else rest


def utc_time(timestamp_ms: int) -> datetime | None:
    """Return a moment in UTC; None for one beyond the calendar, because producers may write any number."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1_000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def time_text(timestamp_ms: int) -> str:
    """Return a moment for people, in UTC: ISO 8601 to the millisecond; of one beyond the calendar the year."""
    time = utc_time(timestamp_ms)
    if time is not None:
        return time.isoformat(timespec="milliseconds")
    return f"the year {1970 + timestamp_ms // _YEAR_MS}"
