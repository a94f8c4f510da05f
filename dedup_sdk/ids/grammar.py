"""The text of an ID spec: parts joined by ``+``.

    spec  = part *( "+" part )
    part  = "header:" NAME | "key" | "json:" POINTER | "cloudevents" | "value" | "py:" MODULE ":" CALLABLE "@" VERSION

In an argument ``%XX`` is a byte of its UTF-8 form, so that a literal ``+`` is written ``%2B`` and a literal ``%`` is
``%25``; all else stands for itself. Blanks around a part do not count. The canonical text also escapes what is blank,
control or not ASCII, so that it stays one printable line, and the same under every version of Unicode.
"""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from dedup_sdk.errors import IdSpecError
from dedup_sdk.ids.parts import CloudEventsPart, HeaderPart, JsonPart, KeyPart, Part, PyPart, ValuePart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FORMS = "header:NAME, key, json:/POINTER, cloudevents, value or py:MODULE:CALLABLE@VERSION, joined by + (a literal + is %2B)"

_WITH_ARGUMENT: dict[str, Callable[[str], Part]] = {"header": HeaderPart, "json": JsonPart, "py": PyPart}
_ALONE: dict[str, Callable[[], Part]] = {"key": KeyPart, "cloudevents": CloudEventsPart, "value": ValuePart}
_STRAY_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")
_STANDS_FOR_ITSELF = "".join(sorted(set(string.punctuation) - set("+%")))


def parse_parts(text: str) -> tuple[Part, ...]:
    """Read the text of a spec; raises `IdSpecError` that names the text and the accepted forms."""
    return tuple(_parse_part(part.strip(), text) for part in text.split("+"))


def format_parts(parts: Sequence[Part]) -> str:
    """Return the canonical text, which `parse_parts` reads back."""
    return "+".join(
        f"{part.name}:{quote(part.argument, safe=_STANDS_FOR_ITSELF)}" if part.argument else part.name
        for part in parts
    )


def _parse_part(part: str, text: str) -> Part:
    name, colon, argument = part.partition(":")
    if not colon and name in _ALONE:
        return _ALONE[name]()
    if not argument or name not in _WITH_ARGUMENT:
        raise IdSpecError(f"id spec {text!r}: {part!r} is not a part; write {FORMS}")
    if _STRAY_PERCENT.search(argument):
        raise IdSpecError(f"id spec {text!r}: a % in {part!r} is no escape; write a literal % as %25")
    try:
        argument = unquote(argument, errors="strict")
    except UnicodeDecodeError:
        raise IdSpecError(
            f"id spec {text!r}: the escapes in {part!r} are not UTF-8; write e.g. %C3%A9"
        ) from None
    return _WITH_ARGUMENT[name](argument)
