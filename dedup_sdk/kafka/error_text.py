"""An error's text, as it may be shown to others: one line of limited length without what looks like a credential.

It masks rather too much than too little: what follows a name that says secret, password, token, key or credential; all that
lies between ``://`` and the last ``@`` of the same word, and the query of such a URL; and the rest of the line after ``Authorization`` or ``Cookie``.
"""

from __future__ import annotations

import re

MAX_ERROR_CHARS = 1_000
"""Characters of an error's text in a dead letter, at most."""
_READ_CHARS = 250_000
"""Characters that are looked at; blanks and credentials among them shrink, so these are more than are shown."""
_SEARCHED_CHARS = 4 * MAX_ERROR_CHARS
_MASK = "***"

_CONTROLS = dict.fromkeys([*range(32), 127], " ")
_SEPARATOR = r"""["'\\\]]*\s*(?:=>|->|:=|[=:]|\\u003[ad])\s*"""
_SECRET_LINE = re.compile(rf"((?:authorization|cookie){_SEPARATOR})[^\r\n]+", re.IGNORECASE)
_ERROR_NAME = r"(?!(?-i:[A-Z][A-Za-z]*(?:Error|Exception): ))"
"""Not at ``KeyError: ``, nor at the ``Key`` of ``InvalidKeyException: ``: what follows is a message, and looked through itself."""
_NAMED_SECRET = re.compile(
    rf"((?:{_ERROR_NAME}(?:secret|passw|passphrase|pwd|token|key|credential)[\w.\-]*|pass){_SEPARATOR})"
    r"(?:(?:bearer|basic|digest|apikey)\s+)?"
    # A quoted or braced value that does not end hides the rest.
    r"""(?:[\[(]*[bru]{0,2}\\*"(?:\\.|[^"\\])*\\?(?:"|$)"""
    r"""|[\[(]*[bru]{0,2}\\*'(?:\\.|[^'\\])*\\?(?:'|$)"""
    r"""|\{[^}]*\}?|[^\s,;&)}\]]+)""",
    re.IGNORECASE,
)

_QUERY = re.compile(r"([^?#]*)([?#]?)(.*)", re.DOTALL)
_HTTP = re.compile(r"https?$", re.IGNORECASE)
_AROUND = """'"`,.;:)]}>"""
"""What a text puts around a URL."""


def error_text(error: BaseException) -> str:
    """Return an error's text in one line of at most 1,000 characters, with credentials masked."""
    return masked_text(_told(error))


def masked_text(told: str) -> str:
    """Return a text in one line of at most 1,000 characters, with credentials masked."""
    words = _SECRET_LINE.sub(rf"\1{_MASK}", told[:_READ_CHARS]).translate(_CONTROLS).split()
    shown = [_without_credentials(word) for word in words]
    if len(told) > _READ_CHARS and words and "://" in words[-1]:
        # The @ behind a credential may be in what was not read.
        shown[-1] = f"{words[-1].partition('://')[0]}://{_MASK}"
    line = " ".join(shown)[:_SEARCHED_CHARS].encode("utf-8", "replace").decode()
    line = _NAMED_SECRET.sub(rf"\1{_MASK}", line)
    return line if len(line) <= MAX_ERROR_CHARS else f"{line[: MAX_ERROR_CHARS - 1]}…"


def masked_urls(told: str) -> str:
    """Return a text of ours with the credentials of its URLs masked, as `masked_text` does, and nothing else."""
    return " ".join(map(_without_credentials, told.split(" ")))


def _told(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 (an error that cannot tell itself is given up like any other)
        return f"<its text raises {type(broken).__qualname__}>"


def _without_credentials(word: str) -> str:
    """Mask in a URL what lies before its last ``@`` (a password may hold any character, another ``@`` too), and its query."""
    scheme, found, rest = word.partition("://")
    if not found:
        return word
    user, at, host = rest.rpartition("@")
    if at and "?" in user:
        # Of a password or of a query: what lies behind may be part of it.
        return f"{scheme}://{_MASK}"
    shown = f"{_MASK}@{host}" if at and user else rest
    return f"{scheme}://{_without_query(shown, scheme)}"


def _without_query(rest: str, scheme: str) -> str:
    """Mask the query of a URL whole: whatever it is called there, it may be what a presigned URL is signed with."""
    place, mark, query = _QUERY.match(rest).groups()  # type: ignore[union-attr]  # anything matches
    said = query.rstrip(_AROUND)
    # Elsewhere a question mark may be any one character of a file's name.
    is_query = bool(said) and (_HTTP.search(scheme) or "=" in said.partition("/")[0])
    return f"{place}{mark}{_MASK}{query[len(said) :]}" if is_query else rest
