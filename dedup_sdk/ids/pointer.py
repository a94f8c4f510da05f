"""JSON Pointer, https://www.rfc-editor.org/rfc/rfc6901."""

from __future__ import annotations

import re

from dedup_sdk.errors import IdSpecError

_FORM = re.compile(r"(?:/(?:[^~/]|~[01])*)+")
# Longer indexes address nothing that fits into a record.
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")

Tokens = tuple[str, ...]


def pointer_tokens(pointer: str) -> Tokens:
    """Return the unescaped reference tokens of a pointer, at least one.

    Raises `IdSpecError` when it does not begin with ``/`` (the empty pointer, which is the whole document, is refused too:
    as an ID it is more likely a mistake) or has a ``~`` that is neither ``~0`` nor ``~1``.
    """
    if not _FORM.fullmatch(pointer):
        raise IdSpecError(
            f"json pointer {pointer!r} is not one; it begins with / and writes ~ as ~0 and / as ~1,"
            " e.g. json:/order/id"
        )
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/"))


def resolve(document: object, tokens: Tokens) -> object:
    """Return what the tokens lead to, None where they lead nowhere (or to null).

    A document is what ``json.loads`` returns. An array takes decimal indexes without leading zeros.
    """
    for token in tokens:
        if isinstance(document, dict):
            document = document.get(token)
        elif isinstance(document, list) and _INDEX.fullmatch(token) and int(token) < len(document):
            document = document[int(token)]
        else:
            return None
    return document
